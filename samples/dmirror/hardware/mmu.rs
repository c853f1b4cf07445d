// SPDX-License-Identifier: GPL-2.0

//! The MMU of an engine: an access by the TLB or a walk of the page table; or a fault.
//!
//! It never waits. An entry that is not present at the time of the walk is a fault, which is
//! counted.

use super::{
    bus::{
        Access,
        Action,
        Answer,
        Lane, //
    },
    counters::{
        Count,
        Counted, //
    },
    walk::{
        Bus,
        Format,
        Miss,
        Translation,
        DEVICE_PAGE_SHIFT, //
    }, //
};
use kernel::prelude::*;

/// Registers of an address space, which the driver writes.
pub(crate) struct Context {
    /// Name of the address space in TLBs, not 0.
    tag: u64,
    /// Format of the table, and bus address of its root. Without, each translation is requested
    /// from the host.
    table: Option<(Format, u64)>,
    /// The TLB must not get an address in two sizes.
    one_size: bool,
}

impl Context {
    pub(crate) fn new(tag: u64, table: Option<(Format, u64)>, one_size: bool) -> Self {
        Self {
            tag,
            table,
            one_size,
        }
    }

    /// Format of the table, and bus address of its root.
    pub(crate) fn table(&self) -> Option<(Format, u64)> {
        self.table
    }
}

/// Memory that the walker reads.
struct Tables<'l, L>(&'l L);

impl<L: Lane> Bus for Tables<'_, L> {
    fn read(&self, address: u64) -> Result<u64, Miss> {
        self.0.table_word(address)
    }
}

/// Performs `action` at `addr`, which is not an address of locked memory. Context: with the lock of
/// `lane` held.
///
/// # Errors
///
/// Errors that end the command, see [`Lane`].
pub(crate) fn access<L: Lane>(
    lane: &mut L,
    context: &Context,
    counted: Counted<'_>,
    addr: usize,
    action: &mut Action<'_>,
) -> Result<Access> {
    let tag = context.tag;
    // CAST: Both have 64 bits.
    let byte = addr as u64 & ((1 << DEVICE_PAGE_SHIFT) - 1);
    let place = |found: Translation| Translation {
        address: found.address | byte,
        ..found
    };
    let kept = lane.tlb().lookup(tag, addr);
    // A translation that does not allow the access is looked up again.
    if let Some(found) = kept.filter(|found| found.writable || !action.writes()) {
        match lane.access(place(found), action)? {
            Answer::Done => {
                counted.add(Count::TlbHits, 1);
                return Ok(done(counted, action));
            }
            Answer::Retry | Answer::Denied => {}
            Answer::Stale => stale(lane, counted, addr, None),
        }
    }
    if kept.is_some() {
        lane.tlb().forget(tag, addr);
    }
    counted.add(Count::TlbMisses, 1);
    let mut replaced = false;
    let found = match walk(lane, context, addr) {
        Err(Miss::Superseded) => {
            // The bus no longer has the table, and its successor is not linked yet.
            replaced = true;
            lane.request_translation(addr).ok_or(Miss::NotPresent)
        }
        result => result,
    };
    let found = match found {
        Ok(found) => found,
        Err(Miss::NotPresent) => return Ok(Access::Fault),
        Err(why) => {
            stale(lane, counted, addr, Some(why));
            return Ok(Access::Fault);
        }
    };
    if action.writes() && !found.writable {
        return Ok(Access::Fault);
    }
    match lane.access(place(found), action)? {
        Answer::Done => {
            // The TLB may still have it in the size that the replaced table had.
            if !replaced {
                if context.one_size && lane.tlb().has_other_size(tag, addr, found.order) {
                    stale(lane, counted, addr, Some(Miss::TwoSizes));
                }
                lane.tlb().fill(tag, addr, found);
            }
            Ok(done(counted, action))
        }
        Answer::Retry | Answer::Denied => Ok(Access::Fault),
        Answer::Stale => {
            stale(lane, counted, addr, None);
            Ok(Access::Fault)
        }
    }
}

/// Walks the page table.
fn walk<L: Lane>(lane: &L, context: &Context, addr: usize) -> Result<Translation, Miss> {
    match context.table {
        // CAST: Both have 64 bits.
        Some((format, root)) => format.walk(&Tables(lane), root, addr as u64),
        None => lane.request_translation(addr).ok_or(Miss::NotPresent),
    }
}

fn done(counted: Counted<'_>, action: &Action<'_>) -> Access {
    let count = if action.writes() {
        Count::BytesWritten
    } else {
        Count::BytesRead
    };
    counted.add(count, action.bytes() as u64);
    Access::Done
}

fn stale<L: Lane>(lane: &L, counted: Counted<'_>, addr: usize, why: Option<Miss>) {
    counted.add(Count::StaleHits, 1);
    lane.alarm(addr, why);
}
