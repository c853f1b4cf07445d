// SPDX-License-Identifier: GPL-2.0

//! The ioctl for two devices of a process: reports their connection, and migrates from one to the
//! other.

use crate::{
    arguments::Pull,
    client::Client,
    extension::{
        no_flags,
        Structure, //
    },
    structure::{
        gone_is_invalid,
        range, //
    },
    FILE_OPS, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Number of the ioctl.
pub(crate) const PULL: u32 = 0x78;

/// `DMIRROR_PULL_ASK`: report the connection only.
const ASK: u32 = 1;

/// `DMIRROR_PULL`.
#[inline(never)]
pub(crate) fn pull(client: &Arc<Client>, user: usize) -> Result {
    let mut raw = Structure::<Pull>::read(user, 72)?;
    let flags = raw.flags;
    no_flags(flags & !ASK)?;
    no_flags(raw.reserved)?;
    let source = FILE_OPS.with(raw.fd, |file| file.client().clone())?;
    raw.connection = client.mirror().connection(source.mirror()) as u64;
    if flags & ASK == 0 {
        let range = range(raw.addr, raw.npages)?;
        let outcome = client
            .mirror()
            .pull(range, source.mirror())
            .map_err(gone_is_invalid)?;
        raw.moved = outcome.moved as u64;
        raw.switched = outcome.switched as u64;
        raw.no_memory = outcome.no_memory as u64;
        raw.copy_failed = outcome.copy_failed as u64;
    }
    // Drop the reference to the other file before the results are written: dropping the last one
    // evicts device memory.
    drop(source);
    raw.write()
}
