// SPDX-License-Identifier: GPL-2.0

//! The ioctls of range attributes, fault policies and device memory; see `dmirror_uapi.h`.

use crate::{
    arguments,
    client::Client,
    extension::{
        no_flags,
        Structure, //
    },
    structure::range, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::Relaxed,
        Atomic, //
    }, //
};
use rust_hmm::{
    attributes::{
        AttributeUpdate,
        PreferredLocation, //
    },
    debug::stats::Counter,
    mm::{
        addr::PageRange,
        device_pages::DeviceRange,
        range_fault::Access, //
    },
    policy::{
        Density,
        NoMigration,
        Parameters,
        Policy,
        SinglePage, //
    }, //
};

const SET_ATTRIBUTES: u32 = 0x50;
const GET_ATTRIBUTES: u32 = 0x51;
pub(crate) const PLACEMENT: u32 = 0x52;
const POLICY: u32 = 0x53;
const MEMORY: u32 = 0x54;
pub(crate) const UNPLUG: u32 = 0x55;

const PREFERRED: u32 = 1;
const ACCESSED_BY: u32 = 2;
const READ_MOSTLY: u32 = 4;
const NEVER_MIGRATE: u32 = 8;
const GRANULARITY: u32 = 16;

const RESTORE: u32 = 1;

/// `DMIRROR_UNPLUG_SURE`.
const SURE: u32 = 0x676f_6e65;

/// `DMIRROR_POLICY_*`.
pub(crate) const POLICIES: u32 = 3;
const NONE: u32 = 0;
const DEFAULT: u32 = 1;

/// The fault policy of a file, and its counters.
pub(crate) struct FaultPolicy {
    which: Atomic<u32>,
    density: Pin<KBox<Density>>,
    faults: Atomic<u64>,
    moved: Atomic<u64>,
    in_place: Atomic<u64>,
}

impl FaultPolicy {
    pub(crate) fn new(which: u32, parameters: Parameters) -> Result<Self> {
        Ok(Self {
            which: Atomic::new(which),
            density: Density::new(parameters)?,
            faults: Atomic::new(0),
            moved: Atomic::new(0),
            in_place: Atomic::new(0),
        })
    }

    /// Resolves a fault of `range`, in pieces of at most one PMD.
    pub(crate) fn serve(&self, client: &Client, range: PageRange, access: Access) -> Result {
        for piece in range.pmd_pieces() {
            self.serve_piece(client, piece, access)?;
        }
        Ok(())
    }

    fn serve_piece(&self, client: &Client, range: PageRange, access: Access) -> Result {
        let policy: &dyn Policy = match self.which.load(Relaxed) {
            NONE => &NoMigration,
            DEFAULT => &*self.density,
            _ => &SinglePage,
        };
        let served = client.mirror().fault_with_policy(range, access, policy)?;
        self.faults.add(1, Relaxed);
        self.moved.add(served.moved as u64, Relaxed);
        self.in_place.add(u64::from(served.in_place), Relaxed);
        Ok(())
    }
}

/// Whether this module handles ioctl `number`.
pub(crate) fn serves(number: u32) -> bool {
    (SET_ATTRIBUTES..=UNPLUG).contains(&number)
}

// Not inlined: the handlers keep their arguments on the stack, and their frames would add up.
#[inline(never)]
pub(crate) fn serve(client: &Client, number: u32, user: usize) -> Result {
    match number {
        SET_ATTRIBUTES => set_attributes(client, user),
        GET_ATTRIBUTES => get_attributes(client, user),
        PLACEMENT => placement(client, user),
        POLICY => policy(client, user),
        MEMORY => memory(client, user),
        UNPLUG => unplug(client, user),
        _ => Err(EINVAL),
    }
}

fn set_attributes(client: &Client, user: usize) -> Result {
    let raw = Structure::<arguments::Attributes>::read(user, 40)?;
    no_flags(raw.flags)?;
    let what = raw.what;
    let values = raw.values;
    no_flags(what & !(PREFERRED | ACCESSED_BY | READ_MOSTLY | NEVER_MIGRATE | GRANULARITY))?;
    no_flags(values & !(ACCESSED_BY | READ_MOSTLY | NEVER_MIGRATE))?;
    let preferred = match raw.preferred {
        0 => PreferredLocation::Any,
        1 => PreferredLocation::Device,
        2 => PreferredLocation::System,
        _ => return Err(EINVAL),
    };
    let flag = |bit| (what & bit != 0).then_some(values & bit != 0);
    let change = AttributeUpdate {
        preferred: (what & PREFERRED != 0).then_some(preferred),
        accessed_by: flag(ACCESSED_BY),
        read_mostly: flag(READ_MOSTLY),
        never_migrate: flag(NEVER_MIGRATE),
        granularity: (what & GRANULARITY != 0).then_some(raw.granularity.checked_sub(1)),
    };
    let range = range(raw.addr, raw.npages)?;
    client.mirror().set_attributes(range, &change)
}

fn get_attributes(client: &Client, user: usize) -> Result {
    let mut raw = Structure::<arguments::Attributes>::read(user, 40)?;
    no_flags(raw.flags)?;
    let range = range(raw.addr, raw.npages)?;
    let common = client.mirror().attributes(range)?;
    let mut what = 0;
    let mut values = 0;
    let flags = [
        (ACCESSED_BY, common.accessed_by),
        (READ_MOSTLY, common.read_mostly),
        (NEVER_MIGRATE, common.never_migrate),
    ];
    for (bit, value) in flags {
        if let Some(value) = value {
            what |= bit;
            values |= if value { bit } else { 0 };
        }
    }
    let preferred = common.preferred.map(|preferred| match preferred {
        PreferredLocation::Any => 0,
        PreferredLocation::Device => 1,
        PreferredLocation::System => 2,
        PreferredLocation::Other => 3,
    });
    what |= if preferred.is_some() { PREFERRED } else { 0 };
    let granularity = common
        .granularity
        .map(|order| order.map_or(0, |order| order + 1));
    what |= if granularity.is_some() {
        GRANULARITY
    } else {
        0
    };
    raw.what = what;
    raw.preferred = preferred.unwrap_or(0);
    raw.values = values;
    raw.granularity = granularity.unwrap_or(0);
    raw.write()
}

fn placement(client: &Client, user: usize) -> Result {
    let mut raw = Structure::<arguments::Placement>::read(user, 64)?;
    no_flags(raw.flags)?;
    let fault_policy = client.fault_policy();
    let memory = client.memory();
    let (pieces, idle) = memory.chunks();
    raw.faults = fault_policy.faults.load(Relaxed);
    raw.moved = fault_policy.moved.load(Relaxed);
    raw.in_place = fault_policy.in_place.load(Relaxed);
    raw.evicted_for_room = memory.stats().get(Counter::EvictedForRoom);
    raw.pieces = pieces as u64;
    raw.pieces_idle = idle as u64;
    raw.chosen = memory.driver().chosen();
    raw.write()
}

fn policy(client: &Client, user: usize) -> Result {
    let mut raw = Structure::<arguments::Policy>::read(user, 16)?;
    no_flags(raw.flags)?;
    let which = raw.policy;
    if which >= POLICIES {
        return Err(EINVAL);
    }
    raw.old = client.fault_policy().which.xchg(which, Relaxed);
    raw.write()
}

fn memory(client: &Client, user: usize) -> Result {
    let mut raw = Structure::<arguments::Memory>::read(user, 32)?;
    let flags = raw.flags;
    no_flags(flags & !RESTORE)?;
    let range = DeviceRange {
        first: usize::try_from(raw.first)?,
        count: usize::try_from(raw.count)?,
    };
    let left = if flags & RESTORE != 0 {
        client.memory().online_pages(range)?;
        0
    } else {
        client.memory().offline_pages(range)?
    };
    raw.left = left as u64;
    raw.write()
}

fn unplug(client: &Client, user: usize) -> Result {
    let mut raw = Structure::<arguments::Unplug>::read(user, 40)?;
    if raw.flags != SURE {
        return Err(EINVAL);
    }
    if raw.npages != 0 {
        client.lose(range(raw.addr, raw.npages)?)?;
    }
    let (saved, lost) = client.device().unplug()?;
    raw.saved = saved as u64;
    raw.lost = lost as u64;
    raw.write()
}
