// SPDX-License-Identifier: GPL-2.0

//! Events of interval notifiers, as the core describes them.
//!
//! C header: [`include/linux/mmu_notifier.h`](srctree/include/linux/mmu_notifier.h)

use crate::{
    bindings,
    kernel::identity::EventOwner,
    mm::addr::PageRange, //
};
use core::marker::PhantomData;

/// Type of a notifier event. See `enum mmu_notifier_event`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotifierEvent {
    /// The range is unmapped or moved.
    Unmap,
    /// Entries are replaced or removed.
    Clear,
    /// The access rights of the VMA change; read access may be removed.
    ProtectionVma,
    /// Single pages lose write access; they stay mapped.
    ProtectionPage,
    /// Pages are write-protected so that the next write faults (soft-dirty); they stay mapped.
    SoftDirty,
    /// The address space is torn down.
    Release,
    /// Pages are collected for migration.
    Migrate,
    /// A page is made exclusive to a device.
    Exclusive,
}

impl NotifierEvent {
    pub(super) fn from_raw(event: bindings::mmu_notifier_event) -> Self {
        match event {
            bindings::mmu_notifier_event_MMU_NOTIFY_UNMAP => Self::Unmap,
            bindings::mmu_notifier_event_MMU_NOTIFY_PROTECTION_VMA => Self::ProtectionVma,
            bindings::mmu_notifier_event_MMU_NOTIFY_PROTECTION_PAGE => Self::ProtectionPage,
            bindings::mmu_notifier_event_MMU_NOTIFY_SOFT_DIRTY => Self::SoftDirty,
            bindings::mmu_notifier_event_MMU_NOTIFY_RELEASE => Self::Release,
            bindings::mmu_notifier_event_MMU_NOTIFY_MIGRATE => Self::Migrate,
            bindings::mmu_notifier_event_MMU_NOTIFY_EXCLUSIVE => Self::Exclusive,
            // An unknown event may remove entries.
            _ => Self::Clear,
        }
    }

    /// Returns whether the event removes write access only, so that device PTEs may stay readable.
    ///
    /// # Context
    ///
    /// Any.
    pub fn keeps_reads(self) -> bool {
        matches!(self, Self::ProtectionPage | Self::SoftDirty)
    }
}

/// A notifier event, as passed to the subscriber.
///
/// # Examples
///
/// ```
/// use rust_hmm::mm::addr::PageRange;
/// use rust_hmm::mm::notifier::NotifierRange;
///
/// /// Returns the pages that a device loses which only reads.
/// fn lost_by_a_reader(event: &NotifierRange<'_>) -> Option<PageRange> {
///     (!event.reason.keeps_reads()).then_some(event.range)
/// }
/// ```
pub struct NotifierRange<'a> {
    /// Type of the event.
    pub reason: NotifierEvent,
    /// Range of the event.
    pub range: PageRange,
    /// Whether the callback may sleep. It may not if the OOM reaper caused the event.
    pub blockable: bool,
    pub(super) owner: EventOwner,
    /// Address of the core's `mmu_notifier_range`, and the sequence of the event. Both are the same
    /// for all notifiers that the event is delivered to.
    pub(super) call: (usize, usize),
    pub(super) _borrow: PhantomData<&'a ()>,
}

impl NotifierRange<'_> {
    /// Returns a number of the event. It is the same for all notifiers that the event is delivered
    /// to. Two events rarely have the same number, but they can.
    ///
    /// # Context
    ///
    /// Any.
    pub fn number(&self) -> usize {
        let (call, seq) = self.call;
        call.wrapping_add(seq.rotate_left(48))
    }

    /// Returns the same event with its range replaced by `range`.
    pub(crate) fn within(&self, range: PageRange) -> Self {
        Self { range, ..*self }
    }

    /// Returns whether the event was caused by the migration or exclusive access of `owner`.
    ///
    /// # Context
    ///
    /// Any.
    pub fn is_from(&self, owner: impl Into<EventOwner>) -> bool {
        matches!(
            self.reason,
            NotifierEvent::Migrate | NotifierEvent::Exclusive
        ) && self.owner == owner.into()
    }

    /// Creates an event for a test.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(crate) fn for_test(
        reason: NotifierEvent,
        range: PageRange,
        owner: impl Into<EventOwner>,
    ) -> Self {
        Self {
            reason,
            range,
            blockable: true,
            owner: owner.into(),
            call: (0, 0),
            _borrow: PhantomData,
        }
    }
}
