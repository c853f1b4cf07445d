// SPDX-License-Identifier: GPL-2.0

//! The ioctls of locked memory; see `dmirror_uapi.h`.

use crate::{
    client::Client,
    extension::{no_flags, Structure},
    uapi,
};
use kernel::{
    page::{PAGE_MASK, PAGE_SIZE},
    prelude::*,
    sync::Arc, //
};
use rust_hmm::{
    host_lock::{Grain, Refused},
    kernel::completion::monotonic_ns,
    mm::{addr::PageRange, dma::DmaDevice},
};

const LOCK: u32 = 0x70;
const UNLOCK: u32 = 0x71;
const LOCKED: u32 = 0x72;

const FINE: u32 = 1;

/// Maximum number of lookups in one call.
const LOOKS: u64 = 1 << 20;

/// `struct dmirror_lock`.
type Raw = Structure<72>;

/// Handles an ioctl of locked memory. `EINVAL` for an unknown one.
#[inline(never)]
pub(crate) fn serve(client: &Client, number: u32, user: usize) -> Result {
    match number {
        LOCK => lock(client, user),
        UNLOCK => {
            let raw = Raw::read(user, 72)?;
            no_flags(raw.u32(4))?;
            // The address contains the offset in the page, as it was returned.
            let address = usize::try_from(raw.u64(32))?;
            client.mirror().unlock(address & PAGE_MASK)
        }
        LOCKED => locked(client, user),
        _ => Err(EINVAL),
    }
}

fn lock(client: &Client, user: usize) -> Result {
    let mut raw = Raw::read(user, 72)?;
    let flags = raw.u32(4);
    no_flags(flags & !FINE)?;
    let addr = usize::try_from(raw.u64(8))?;
    let end = addr
        .checked_add(usize::try_from(raw.u64(16))?)
        .and_then(|end| end.checked_next_multiple_of(PAGE_SIZE))
        .ok_or(EINVAL)?;
    if raw.u64(16) == 0 {
        return Err(EINVAL);
    }
    let range = PageRange::new(addr & PAGE_MASK, end)?;
    let mut agents: KVec<Arc<DmaDevice>> = KVec::new();
    let mut left = raw.u64(24);
    for agent in client.device().agents.all.iter() {
        if left & 1 != 0 {
            agents.push(agent.clone(), GFP_KERNEL)?;
        }
        left >>= 1;
    }
    if left != 0 {
        return Err(ENODEV);
    }
    let grain = if flags & FINE != 0 {
        Grain::Fine
    } else {
        Grain::Coarse
    };
    let mirror = client.mirror();
    let locked = mirror
        .lock(range, &agents, grain)
        .map_err(|why| match why {
            Refused::Extends => EEXIST,
            Refused::Remapped => Error::from_errno(uapi::ESTALE),
            Refused::Grain => Error::from_errno(uapi::EOPNOTSUPP),
            Refused::Error(error) => error,
        })?;
    raw.put_u64(32, (locked.device_address + addr % PAGE_SIZE) as u64);
    raw.put_u64(40, u64::from(locked.grain == Grain::Fine));
    raw.write().inspect_err(|_| {
        // User space did not receive the address.
        let _gone = mirror.unlock(locked.device_address);
    })
}

fn locked(client: &Client, user: usize) -> Result {
    let mut raw = Raw::read(user, 72)?;
    no_flags(raw.u32(4))?;
    let addr = usize::try_from(raw.u64(8))?;
    let looks = raw.u64(64).max(1);
    if looks > LOOKS {
        return Err(EINVAL);
    }
    let since = monotonic_ns();
    let mut found = client.mirror().locked(addr);
    for _ in 1..looks {
        found = client.mirror().locked(addr);
    }
    let ns = monotonic_ns() - since;
    let region = found.ok_or(ENOENT)?;
    let range = region.range();
    raw.put_all(
        8,
        [
            range.start() as u64,
            (range.end() - range.start()) as u64,
            0,
            0,
            u64::from(region.grain() == Grain::Fine),
            region.users() as u64,
            ns,
        ],
    );
    raw.write()
}
