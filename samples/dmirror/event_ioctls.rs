// SPDX-License-Identifier: GPL-2.0

//! The ioctl of the event stream; see `dmirror_uapi.h`.

use crate::{
    arguments::Events,
    client::Client,
    extension::{
        no_flags,
        Structure, //
    },
    streams::ALL_TYPES, //
};
use kernel::prelude::*;
use rust_hmm::mm::user::is_privileged;

/// Number of the ioctl.
pub(crate) const EVENTS: u32 = 0x7a;

/// `DMIRROR_EVENTS_ALL`.
const ALL: u32 = 1;

/// Selects the events that the file's stream reports.
#[inline(never)]
pub(crate) fn events(client: &Client, user: usize) -> Result {
    let mut raw = Structure::<Events>::read(user, 40)?;
    let flags = raw.flags;
    no_flags(flags & !ALL)?;
    let mask = raw.mask;
    if mask & !ALL_TYPES != 0 {
        return Err(EINVAL);
    }
    let all = flags & ALL != 0;
    if all && !is_privileged() {
        return Err(EPERM);
    }
    let stream = client.stream()?;
    raw.old = stream.set(mask, all);
    let (waiting, lost) = stream.state();
    raw.waiting = waiting as u64;
    raw.lost = lost;
    raw.write()
}
