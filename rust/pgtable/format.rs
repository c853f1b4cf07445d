// SPDX-License-Identifier: GPL-2.0

//! Format of a device page table: its geometry and the encoding of entries.

use super::entry::DevicePte;
use crate::mm::{
    addr::PageRange,
    table_memory::TableUnit, //
};
use core::ops::Range;
use kernel::page::PAGE_SHIFT;

/// Type of an entry in the device's format: `u32` or `u64`. Entries are written as a whole.
pub trait Word: sealed::Sealed + Copy + Send + Sync + 'static {
    /// The empty entry, for which the device faults: all bits are clear.
    const EMPTY: Self;
}

mod sealed {
    use super::{
        Range,
        TableUnit, //
    };

    /// Implemented for integers that the library can write as a whole.
    pub trait Sealed: Sized {
        /// Writes the entry `slot` of a table.
        ///
        /// # Context
        ///
        /// The table lock may be held. Must not sleep.
        fn write(self, unit: &TableUnit<'_>, slot: usize);

        /// Empties the entries `slots` of a table.
        ///
        /// # Context
        ///
        /// As [`Self::write`].
        fn clear(unit: &TableUnit<'_>, slots: Range<usize>);
    }
}

pub(super) use sealed::Sealed as Write;

macro_rules! impl_word {
    ($type:ty, $write:ident, $clear:ident) => {
        impl sealed::Sealed for $type {
            #[inline]
            fn write(self, unit: &TableUnit<'_>, slot: usize) {
                unit.$write(slot, self);
            }

            #[inline]
            fn clear(unit: &TableUnit<'_>, slots: Range<usize>) {
                unit.$clear(slots);
            }
        }

        impl Word for $type {
            const EMPTY: Self = 0;
        }
    };
}

impl_word!(u32, write_u32, clear_u32);
impl_word!(u64, write_u64, clear_u64);

/// The format of a device page table: its geometry, and how an entry is encoded. A table of level 0
/// holds device pages of `1 << PAGE_SHIFT` bytes; an entry of level `n` covers `1 << (n * BITS)` of
/// them.
///
/// The device's page may be smaller than that of the CPU: a device with pages of 4 KiB can mirror a
/// process with pages of 16 KiB. Each page of the process is then mapped by a group of consecutive
/// entries, which the library writes one after the other and always changes together. A device
/// whose smallest page is larger than that of the CPU cannot be served, because the pages of a
/// process are not contiguous in physical memory; a leaf of 64 KiB beside pages of 4 KiB can.
///
/// The library maintains its own tree with this geometry. For a device with a hardware walker it
/// also writes an image of that tree in this format to the
/// [`Device::table_memory`](crate::mirror::Device::table_memory). Only the device reads the image,
/// so a format only encodes. A wrong encoding, or a device that overwrites its own table, affects
/// only the translations of the device.
///
/// Each entry must be valid on its own, because a walker may read it at any time: the library
/// replaces an entry by one write, and writes a table before the entry that links it. A page or its
/// rights may change together with the size of its mapping. The library then flushes the whole leaf
/// *after* the change, or before it writes the new entry if the format requires
/// [break-before-make](Self::break_before_make).
///
/// [`FormatOf`](super::FormatOf) implements this trait for a format that is described by the
/// positions of its bits.
///
/// # Examples
///
/// ```
/// use rust_hmm::pgtable::DevicePte;
/// use rust_hmm::pgtable::Format;
///
/// /// Three levels of 256 entries of 32 bits; pages of 4 KiB and 1 MiB.
/// enum Small {}
///
/// impl Format for Small {
///     type Word = u32;
///
///     const LEVELS: u32 = 3;
///     const BITS: u32 = 8;
///     const LEAVES: &'static [u32] = &[0, 8];
///
///     fn can_hold(entry: DevicePte) -> bool {
///         entry.number() >> 20 == 0
///     }
///
///     fn can_link(address: u64) -> bool {
///         address >> 32 == 0
///     }
///
///     fn table(_level: u32, address: u64) -> u32 {
///         address as u32 | 1
///     }
///
///     fn leaf(_order: u32, entry: DevicePte) -> u32 {
///         (entry.number() << 12) as u32 | u32::from(entry.may_be_dirty()) << 2 | 2
///     }
/// }
/// ```
pub trait Format: Sized + Send + Sync + 'static {
    /// Type of an entry.
    type Word: Word;

    /// Number of levels, 2 to 5.
    const LEVELS: u32;

    /// Log2 of the number of entries of a table, 4 to 11.
    const BITS: u32;

    /// Log2 of the size of a device page in bytes, at most that of a CPU page. A table of level 0
    /// must cover at least two CPU pages.
    const PAGE_SHIFT: u32 = 12;

    /// Sizes of leaves, as log2 of device pages: ascending, the first is 0.
    ///
    /// A multiple of [`Self::BITS`] is a leaf that replaces a table; the library installs such
    /// leaves at level 1. Any other order, such as 4 for 64 KiB, is a *run*: an aligned group of
    /// consecutive entries, each of which maps its own part and has a bit for the membership in a
    /// run. Runs of a level require the leaves of that level, and exist only in the image. The
    /// entries of a CPU page are a run, too, if the format has runs that are as large or smaller.
    const LEAVES: &'static [u32] = &[0];

    /// Whether entries of system memory hold DMA addresses instead of page frames:
    /// [`DmaFormat`](super::DmaFormat) makes such a format.
    const DMA: bool = false;

    /// Returns whether the MMU requires break-before-make: the size of a mapping may be changed
    /// only after the old translation was removed and flushed.
    ///
    /// An entry whose size changes is then empty until the flush has completed, and the device
    /// faults if it uses the entry during that time. Therefore the partial migration of a leaf
    /// interrupts a device that reads the leaf. Migrations of whole leaves do not.
    ///
    /// The value may be read from a hardware register, and must not change.
    ///
    /// # Context
    ///
    /// Any; the table lock may be held.
    #[inline]
    fn break_before_make() -> bool {
        false
    }

    /// Returns whether `entry` can be encoded. Its number is the address for the device, in device
    /// pages.
    ///
    /// # Context
    ///
    /// The table lock may be held. Must not sleep.
    fn can_hold(entry: DevicePte) -> bool {
        let _ = entry;
        true
    }

    /// Returns whether an entry can link a table at `address`, which is aligned to the size of a
    /// table. Tables that are smaller than a CPU page share one.
    ///
    /// # Context
    ///
    /// The table lock may be held. Must not sleep.
    fn can_link(address: u64) -> bool {
        let _ = address;
        true
    }

    /// Encodes an entry of a table of `level`, 1 or higher, that links the table at `address`.
    /// [`Self::can_link`] must accept the address.
    ///
    /// # Context
    ///
    /// The table lock may be held. Must not sleep.
    fn table(level: u32, address: u64) -> Self::Word;

    /// Encodes a leaf for the page or pages from `entry` on, which is valid and accepted by
    /// [`Self::can_hold`]. `order` is one of [`Self::LEAVES`]; in a run, `entry` is the page of
    /// this member of the run. Its number is in device pages.
    ///
    /// The leaf must allow writes if, and only if, [`DevicePte::may_be_dirty`] returns true.
    ///
    /// # Context
    ///
    /// The table lock may be held. Must not sleep.
    fn leaf(order: u32, entry: DevicePte) -> Self::Word;
}

/// Returns log2 of the number of device pages of a CPU page.
#[inline]
pub(super) const fn group_order<F: Format>() -> u32 {
    PAGE_SHIFT as u32 - F::PAGE_SHIFT
}

/// Returns log2 of the number of device entries for which the tree has one slot in tables of
/// `level`: those of a CPU page at level 0.
#[inline]
pub(super) const fn slot_order<F: Format>(level: u32) -> u32 {
    if level == 0 {
        group_order::<F>()
    } else {
        0
    }
}

/// Returns log2 of the number of bytes that a slot of `level` covers.
#[inline]
pub(super) const fn shift<F: Format>(level: u32) -> u32 {
    F::PAGE_SHIFT + slot_order::<F>(level) + F::BITS * level
}

/// Returns log2 of the number of CPU pages that a slot of `level` covers.
#[inline]
pub(super) const fn order<F: Format>(level: u32) -> u32 {
    shift::<F>(level) - PAGE_SHIFT as u32
}

/// Returns log2 of the number of device pages of each leaf of a run of `1 << run` slots of `level`.
/// Without a run (0) at level 0, the entries of a CPU page may be a run by themselves.
#[inline]
pub(super) const fn device_order<F: Format>(level: u32, run: u32) -> u32 {
    if run == 0 && level == 0 {
        largest_order::<F>(group_order::<F>())
    } else {
        F::BITS * level + slot_order::<F>(level) + run
    }
}

/// Returns the number of entries of a table in the device's format, which is the largest number of
/// slots that the tree has for a table.
#[inline]
pub(super) const fn fan<F: Format>() -> usize {
    1 << F::BITS
}

/// Returns log2 of the number of slots of a table of `level` in the tree.
#[inline]
pub(super) const fn slot_bits<F: Format>(level: u32) -> u32 {
    F::BITS - slot_order::<F>(level)
}

/// Returns the number of slots of a table of `level` in the tree.
#[inline]
pub(super) const fn slots<F: Format>(level: u32) -> usize {
    1 << slot_bits::<F>(level)
}

/// Smallest size in bytes of a table in a device's format. Entries of formats with smaller tables
/// refer to tables in units of this size.
const MIN_UNIT: usize = 4096;

/// Returns the size in bytes of a table in the device's format, which is also its alignment.
pub(super) const fn unit<F: Format>() -> usize {
    let bytes = size_of::<F::Word>() << F::BITS;
    if bytes < MIN_UNIT {
        MIN_UNIT
    } else {
        bytes
    }
}

/// Returns whether the format has leaves of `order`.
const fn has_order<F: Format>(order: u32) -> bool {
    let mut index = 0;
    while index < F::LEAVES.len() {
        if F::LEAVES[index] == order {
            return true;
        }
        index += 1;
    }
    false
}

/// Returns the entry of the first device page of the CPU page of `entry`.
#[inline]
pub(super) fn device_page<F: Format>(entry: DevicePte) -> DevicePte {
    entry.with_number(entry.number() << group_order::<F>())
}

/// Returns whether the format can encode the device pages of the CPU page of `entry`, which is
/// valid and has the address that the device uses.
#[inline]
pub(super) fn can_hold<F: Format>(entry: DevicePte) -> bool {
    let first = device_page::<F>(entry);
    (0..1usize << group_order::<F>()).all(|part| F::can_hold(first.plus(part)))
}

/// Returns the largest order of leaves that is at most `limit`.
const fn largest_order<F: Format>(limit: u32) -> u32 {
    let mut best = 0;
    let mut index = 0;
    while index < F::LEAVES.len() {
        if F::LEAVES[index] <= limit {
            best = F::LEAVES[index];
        }
        index += 1;
    }
    best
}

/// Returns whether tables of `level` can have leaves. At level 1 and above, such a leaf replaces a
/// table of the level below.
pub(crate) const fn has_leaves<F: Format>(level: u32) -> bool {
    has_order::<F>(F::BITS * level)
}

/// Returns log2 of the number of slots of the largest run in tables of `level` that has fewer than
/// `1 << below` slots; 0 if there is none.
pub(super) const fn run_below<F: Format>(level: u32, below: u32) -> u32 {
    let base = F::BITS * level + slot_order::<F>(level);
    let mut best = 0;
    let mut index = 0;
    while index < F::LEAVES.len() {
        let order = F::LEAVES[index];
        if order > base && order - base < below {
            best = order - base;
        }
        index += 1;
    }
    best
}

/// Returns log2 of the number of slots of the smallest run in tables of any level; 0 if there are
/// no runs of more than one slot.
pub(super) const fn smallest_run<F: Format>() -> u32 {
    let mut best = 0;
    let mut index = 0;
    while index < F::LEAVES.len() {
        let level = F::LEAVES[index] / F::BITS;
        let run = (F::LEAVES[index] % F::BITS).saturating_sub(slot_order::<F>(level));
        if run != 0 && (best == 0 || run < best) {
            best = run;
        }
        index += 1;
    }
    best
}

/// Maximum number of levels of a table.
pub(super) const MAX_LEVELS: usize = 5;

/// Checks at compile time that the library supports the geometry.
pub(super) const fn check<F: Format>() {
    assert!(F::LEVELS >= 2 && F::LEVELS <= MAX_LEVELS as u32 && F::BITS >= 4 && F::BITS <= 11);
    assert!(
        F::PAGE_SHIFT <= PAGE_SHIFT as u32,
        "the smallest page of the device is larger than that of the CPU"
    );
    assert!(group_order::<F>() < F::BITS);
    assert!(!F::LEAVES.is_empty() && F::LEAVES[0] == 0);
    let mut index = 1;
    while index < F::LEAVES.len() {
        let order = F::LEAVES[index];
        assert!(order > F::LEAVES[index - 1] && order < F::BITS * F::LEVELS);
        // Each entry of a run is a leaf by itself.
        assert!(has_order::<F>(order - order % F::BITS));
        index += 1;
    }
}

/// Returns the highest address that a table covers.
pub(super) const fn last_address<F: Format>() -> usize {
    let bits = shift::<F>(F::LEVELS);
    if bits >= usize::BITS {
        usize::MAX
    } else {
        (1 << bits) - 1
    }
}

/// Returns the slot of a table of `level` for `addr`.
#[inline]
pub(super) fn slot_of<F: Format>(level: u32, addr: usize) -> usize {
    (addr >> shift::<F>(level)) & (slots::<F>(level) - 1)
}

/// Returns the first and the last address that the entry of `level` for `addr` covers.
#[inline]
pub(super) fn span_of<F: Format>(level: u32, addr: usize) -> (usize, usize) {
    let size = 1 << shift::<F>(level);
    let start = addr & !(size - 1);
    (start, start | (size - 1))
}

/// Returns `first..=last`, both covered by a page table, as a range of whole pages.
#[inline]
pub(super) fn range_of(first: usize, last: usize) -> Option<PageRange> {
    PageRange::new(first, last.checked_add(1)?).ok()
}

/// Returns whether a table covers all of `range`.
pub(crate) const fn reaches<F: Format>(range: PageRange) -> bool {
    range.end() - 1 <= last_address::<F>()
}
