// SPDX-License-Identifier: GPL-2.0

//! The ioctls of locked memory; see `samples/dmirror/dmirror_uapi.h`.

use super::{
    arguments::Lock,
    structure::{
        no_flags,
        Structure, //
    },
    uapi, //
};
use kernel::{
    page::{
        PAGE_MASK,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::Arc, //
};
use rust_hmm::{
    host_lock::{
        Coherence,
        LockError, //
    },
    kernel::completion::ktime_get_ns,
    mirror::{
        Device,
        Mirror, //
    },
    mm::{
        addr::PageRange,
        dma::DmaDevice, //
    }, //
};

const LOCK: u32 = 0x70;
const UNLOCK: u32 = 0x71;
const LOCKED: u32 = 0x72;

const FINE: u32 = 1;

/// Maximum number of lookups in one call.
const MAX_LOOKUPS: u64 = 1 << 20;

/// An open file whose process can lock memory.
pub(crate) trait Locker {
    /// The device of the file.
    type Device: Device;

    /// Returns the mirror of the process.
    fn mirror(&self) -> &Mirror<Self::Device>;

    /// Returns the devices that a lock can grant access, in the order of their bits.
    fn agents(&self) -> &[Arc<DmaDevice>];
}

type Raw = Structure<Lock>;

/// Handles an ioctl of locked memory. `EINVAL` for an unknown one.
#[inline(never)]
pub(crate) fn serve(client: &impl Locker, number: u32, user: usize) -> Result {
    match number {
        LOCK => lock(client, user),
        UNLOCK => {
            let raw = Raw::read(user, 72)?;
            no_flags(raw.flags)?;
            // The address contains the offset in the page, as it was returned.
            let address = usize::try_from(raw.device_addr)?;
            client.mirror().unlock(address & PAGE_MASK)
        }
        LOCKED => locked(client, user),
        _ => Err(EINVAL),
    }
}

fn lock(client: &impl Locker, user: usize) -> Result {
    let mut raw = Raw::read(user, 72)?;
    let flags = raw.flags;
    no_flags(flags & !FINE)?;
    let addr = usize::try_from(raw.addr)?;
    let end = addr
        .checked_add(usize::try_from(raw.bytes)?)
        .and_then(|end| end.checked_next_multiple_of(PAGE_SIZE))
        .ok_or(EINVAL)?;
    if raw.bytes == 0 {
        return Err(EINVAL);
    }
    let range = PageRange::new(addr & PAGE_MASK, end)?;
    let mut agents: KVec<Arc<DmaDevice>> = KVec::new();
    let mut left = raw.agents;
    for agent in client.agents() {
        if left & 1 != 0 {
            agents.push(agent.clone(), GFP_KERNEL)?;
        }
        left >>= 1;
    }
    if left != 0 {
        return Err(ENODEV);
    }
    let grain = if flags & FINE != 0 {
        Coherence::Fine
    } else {
        Coherence::Coarse
    };
    let mirror = client.mirror();
    let locked = mirror
        .lock(range, &agents, grain)
        .map_err(|why| match why {
            LockError::Extends => EEXIST,
            LockError::Remapped => Error::from_errno(uapi::ESTALE),
            LockError::Coherence => Error::from_errno(uapi::EOPNOTSUPP),
            LockError::Error(error) => error,
        })?;
    raw.device_addr = (locked.device_address + addr % PAGE_SIZE) as u64;
    raw.fine = u64::from(locked.grain == Coherence::Fine);
    raw.write().inspect_err(|_| {
        // User space did not receive the address.
        let _gone = mirror.unlock(locked.device_address);
    })
}

fn locked(client: &impl Locker, user: usize) -> Result {
    let mut raw = Raw::read(user, 72)?;
    no_flags(raw.flags)?;
    let addr = usize::try_from(raw.addr)?;
    let looks = raw.looks.max(1);
    if looks > MAX_LOOKUPS {
        return Err(EINVAL);
    }
    let since = ktime_get_ns();
    let mut found = client.mirror().locked(addr);
    for _ in 1..looks {
        found = client.mirror().locked(addr);
    }
    raw.ns = ktime_get_ns() - since;
    let region = found.ok_or(ENOENT)?;
    let range = region.range();
    raw.addr = range.start() as u64;
    raw.bytes = (range.end() - range.start()) as u64;
    raw.agents = 0;
    raw.device_addr = 0;
    raw.fine = u64::from(region.grain() == Coherence::Fine);
    raw.users = region.users() as u64;
    raw.write()
}
