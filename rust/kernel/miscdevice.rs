// SPDX-License-Identifier: GPL-2.0

//! Misc character devices, through which processes use a driver.
//!
//! [`kernel::miscdevice`] is not used for two reasons. On 7.2 it sets no owner, so that the module
//! could be unloaded while a file is open. It also does not pass the device to `open`, which
//! drivers of several devices need.
//!
//! C header: [`include/linux/miscdevice.h`](srctree/include/linux/miscdevice.h)

use kernel::{
    mm::virt::VmaNew,
    prelude::*,
    sync::Arc,
    uaccess::UserSliceWriter, //
};

mod descriptor;
mod node;
mod poll;

#[cfg(all(CONFIG_RUST_HMM_KUNIT_TEST, CONFIG_RUST_HMM_MANAGED))]
pub(crate) use descriptor::map_file;
pub use node::{
    FileOps,
    Node, //
};
pub use poll::{
    PollFlags,
    Poller, //
};

/// Operations of an open file.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::sync::Arc;
/// use rust_hmm::kernel::miscdevice::FileOps;
/// use rust_hmm::kernel::miscdevice::Node;
/// use rust_hmm::kernel::miscdevice::OpenFile;
///
/// struct Card {
///     serial: u32,
/// }
///
/// struct File(Arc<Card>);
///
/// impl OpenFile for File {
///     type Device = Card;
///
///     fn open(card: Arc<Card>) -> Result<Pin<KBox<Self>>> {
///         Ok(KBox::pin(Self(card), GFP_KERNEL)?)
///     }
///
///     fn ioctl(&self, command: u32, _argument: usize) -> Result<isize> {
///         match command {
///             0 => Ok(isize::try_from(self.0.serial)?),
///             _ => Err(ENOTTY),
///         }
///     }
/// }
///
/// static FILE_OPS: FileOps<File> = FileOps::new();
///
/// fn register(module: &'static ThisModule, card: Arc<Card>) -> Result<Pin<KBox<Node<File>>>> {
///     KBox::pin_init(Node::new(c"card", &FILE_OPS, module, card), GFP_KERNEL)
/// }
/// ```
pub trait OpenFile: Send + Sync + Sized + 'static {
    /// Data that all files of a node share.
    type Device: Send + Sync + 'static;

    /// Opens the node for the current process.
    ///
    /// # Errors
    ///
    /// - Any error of the driver, which `open()` returns to user space.
    ///
    /// # Context
    ///
    /// May sleep; `misc_mtx` is held, so that [`Node::new`] fails with `EDEADLK`.
    fn open(device: Arc<Self::Device>) -> Result<Pin<KBox<Self>>>;

    /// Handles an ioctl.
    ///
    /// # Errors
    ///
    /// - Any error of the driver, which `ioctl()` returns to user space.
    ///
    /// # Context
    ///
    /// May sleep; called concurrently by any number of threads, including those of other processes
    /// that have inherited or received the file.
    fn ioctl(&self, command: u32, argument: usize) -> Result<isize>;

    /// Handles a read: writes to `to`, and returns the number of bytes. It may wait for data only
    /// with `wait`, which is false for `O_NONBLOCK`.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: by default
    ///
    /// # Context
    ///
    /// As [`Self::ioctl`].
    fn read(&self, to: &mut UserSliceWriter, wait: bool) -> Result<usize> {
        let _ = (to, wait);
        Err(EINVAL)
    }

    /// Returns the operations that do not block now; by default all of them.
    ///
    /// [Adds](Poller::add) `waiter` to the wait queue before it checks the state, so that no
    /// notification in between is lost.
    ///
    /// # Context
    ///
    /// As [`Self::ioctl`], but must not sleep.
    fn poll(&self, waiter: &Poller<'_>) -> PollFlags {
        let _ = waiter;
        PollFlags::EVERYTHING
    }

    /// Handles an mmap.
    ///
    /// # Errors
    ///
    /// - `ENODEV`: by default
    ///
    /// # Context
    ///
    /// The mmap lock is held for writing, so that functions of this library that wait fail with
    /// `EDEADLK`.
    fn mmap(&self, vma: &VmaNew) -> Result {
        let _ = vma;
        Err(ENODEV)
    }
}
