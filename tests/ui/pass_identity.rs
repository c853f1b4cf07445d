// SPDX-License-Identifier: GPL-2.0
//~ PASS
//! Each kind of identity where it belongs.

use kernel::prelude::*;
use rust_hmm::{
    kernel::{
        fence::{
            DriverFence,
            Fence, //
        },
        identity::{
            FenceType,
            MigrationId,
            MmId,
            PgmapOwner, //
        }, //
    },
    mm::notifier::NotifierRange, //
};

pub fn fence(kind: FenceType) -> Result<DriverFence> {
    DriverFence::new(kind)
}

pub fn is_of(fence: &Fence, kind: FenceType) -> bool {
    fence.is_of(kind)
}

pub fn is_own(event: &NotifierRange<'_>, migration: MigrationId, owner: PgmapOwner) -> bool {
    event.is_from(migration) || event.is_from(owner)
}

pub fn is_same(one: MmId, other: MmId) -> bool {
    one == other
}
