// SPDX-License-Identifier: GPL-2.0

//! The ioctl for two devices of a process: reports their connection, and migrates from one to the
//! other.

use crate::{
    client::Client,
    extension::{no_flags, Structure},
    structure::gone_is_invalid,
    FILE_OPS,
};
use kernel::{prelude::*, sync::Arc};

/// Number of the ioctl.
pub(crate) const PULL: u32 = 0x78;

/// `DMIRROR_PULL_ASK`: report the connection only.
const ASK: u32 = 1;

/// `DMIRROR_PULL`.
#[inline(never)]
pub(crate) fn pull(client: &Arc<Client>, user: usize) -> Result {
    let mut raw = Structure::<72>::read(user, 72)?;
    let flags = raw.u32(4);
    no_flags(flags & !ASK)?;
    no_flags(raw.u32(12))?;
    // CAST: The bits of a descriptor.
    let fd = raw.u32(8) as i32;
    let source = FILE_OPS.with(fd, |file| file.client().clone())?;
    let connection = client.mirror().connection(source.mirror());
    raw.put_u64(32, connection as u64);
    if flags & ASK == 0 {
        let outcome = client
            .mirror()
            .pull(raw.range(16)?, source.mirror())
            .map_err(gone_is_invalid)?;
        raw.put_all(
            40,
            [
                outcome.moved as u64,
                outcome.switched as u64,
                outcome.no_memory as u64,
                outcome.copy_failed as u64,
            ],
        );
    }
    // Drop the reference to the other file before the results are written: dropping the last one
    // evicts device memory.
    drop(source);
    raw.write()
}
