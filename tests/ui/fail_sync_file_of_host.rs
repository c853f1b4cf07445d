// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0308
//! The host may never signal its fence.

use kernel::prelude::*;
use rust_hmm::mm::{fence::Pending, notifier::Cookie, sync_file::SyncFile};

pub fn export() -> Result<SyncFile> {
    let pending = Pending::new(Cookie::NONE)?;
    SyncFile::new(&pending.fence())
}
