// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_identity
//! The identity of one kind of object cannot be used as that of another kind.

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

pub fn fence(migration: MigrationId) -> Result<DriverFence> {
    DriverFence::new(migration)
    //~^ ERROR E0308: mismatched types: expected `FenceType`, found `MigrationId`
}

pub fn is_of(fence: &Fence, owner: PgmapOwner) -> bool {
    fence.is_of(owner)
    //~^ ERROR E0308: mismatched types: expected `FenceType`, found `PgmapOwner`
}

pub fn is_from_mm(event: &NotifierRange<'_>, mm: MmId) -> bool {
    event.is_from(mm)
    //~^ ERROR E0277: the trait bound `EventOwner: From<MmId>` is not satisfied
}

pub fn is_from_device(event: &NotifierRange<'_>, device: FenceType) -> bool {
    event.is_from(device)
    //~^ ERROR E0277: the trait bound `EventOwner: From<FenceType>` is not satisfied
}

pub fn migration(mm: MmId) -> MigrationId {
    mm
    //~^ ERROR E0308: mismatched types: expected `MigrationId`, found `MmId`
}

pub fn compare(mm: MmId, owner: PgmapOwner) -> bool {
    mm == owner
    //~^ ERROR E0308: mismatched types: expected `MmId`, found `PgmapOwner`
}
