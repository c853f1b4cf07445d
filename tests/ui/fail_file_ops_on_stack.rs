// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_node
//! File operations must outlive their node, because a file may still be open.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use rust_hmm::kernel::miscdevice::{
    FileOps,
    Node,
    OpenFile, //
};

pub fn register<F: OpenFile>(
    module: &'static ThisModule,
    device: Arc<F::Device>,
) -> Result<Pin<KBox<Node<F>>>> {
    let ops = FileOps::<F>::new();
    KBox::pin_init(Node::new(c"test", &ops, module, device), GFP_KERNEL)
    //~^ ERROR E0597: `ops` does not live long enough: borrowed value does not live long enough
}
