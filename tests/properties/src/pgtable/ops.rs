// SPDX-License-Identifier: GPL-2.0

//! Operations on a table, and strategies for lists of them.

use super::*;

/// Kind of a new entry.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    ReadOnly,
    Writable,
    Device,
    ReadOnlyDevice,
    Exclusive,
}

impl Kind {
    pub(super) fn entry(self, number: usize) -> DevicePte {
        match self {
            Self::ReadOnly => DevicePte::system(number, false),
            Self::Writable => DevicePte::system(number, true),
            Self::Device => DevicePte::device(number, true),
            Self::ReadOnlyDevice => DevicePte::device(number, false),
            Self::Exclusive => DevicePte::exclusive(number),
        }
    }
}

/// How numbers follow each other.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// As the addresses do, so that they may become huge.
    Aligned,
    /// In a row, and not aligned.
    Shifted,
    /// In no row.
    Scattered,
}

/// Entries for the pages of a range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entries {
    pub(super) kind: Kind,
    pub(super) order: Order,
    /// The number in units of 1024 pages.
    pub(super) base: usize,
    /// Each such page is left as it is; 0: none.
    pub(super) leave: usize,
}

impl Entries {
    pub(super) fn of(&self, page: usize) -> DevicePte {
        let low = page % 1024;
        let number = self.base * 1024
            + match self.order {
                Order::Aligned => low,
                Order::Shifted => low + 1,
                Order::Scattered => low * 7 % 1024,
            };
        self.kind.entry(number)
    }
}

/// Pages: an area, the first one in it, and how many.
#[derive(Clone, Copy)]
pub(super) struct At(usize, usize, usize);

impl core::fmt::Debug for At {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self(area, first, count) = *self;
        let area = ["bottom", "middle", "top", "end"][area];
        write!(f, "{area}+{first}..{}", first + count)
    }
}

/// An operation on a table.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    /// New entries.
    Install(At, Entries),
    /// Present entries become writable.
    Upgrade(At),
    /// `install` removes entries.
    Take(At),
    /// `install` without preallocated table pages.
    Starve(At, Entries),
    /// Entries are write-protected; the flag asks for a split of huge leaves.
    Protect(At, bool),
    /// Present entries are replaced; the flag asks for a split of huge leaves.
    Replace(At, Entries, bool),
    /// Entries are removed; whether by `remove_all`.
    Remove(At, bool),
    /// All entries are removed; whether by `remove_all`.
    RemoveAll(bool),
    /// Table pages are reserved, and those for splits made up for.
    Refill,
    /// A failure is injected before the next operation.
    Fail(FailPoint),
    /// The flush of all changes since the last flush starts.
    Start,
    /// Waits for the flush that started first, or, if false, last.
    Wait(bool),
    /// The kernel needs memory.
    Shrink,
    /// A flush of unwritten entries starts.
    Resize(At),
    /// Unwritten entries are written whose flush has ended.
    WriteSizes,
}

pub(super) fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Writable),
        Just(Kind::ReadOnly),
        Just(Kind::Device),
        Just(Kind::ReadOnlyDevice),
        Just(Kind::Exclusive),
    ]
}

pub(super) fn entries() -> impl Strategy<Value = Entries> {
    let order = prop_oneof![
        4 => Just(Order::Aligned),
        1 => Just(Order::Shifted),
        2 => Just(Order::Scattered),
    ];
    // The last one is more than small formats hold.
    let base = prop_oneof![12 => 0usize..3, 1 => Just(1 << 17)];
    let leave = prop_oneof![4 => Just(0usize), 1 => 2usize..5];
    (kinds(), order, base, leave).prop_map(|(kind, order, base, leave)| Entries {
        kind,
        order,
        base,
        leave,
    })
}

pub(super) fn at() -> impl Strategy<Value = At> {
    let area =
        prop_oneof![6 => Just(0usize), 2 => Just(1usize), 2 => Just(2usize), 1 => Just(3usize)];
    let first = prop_oneof![
        3 => Just(0usize),
        3 => (0usize..2).prop_map(|block| block * 512),
        2 => (0usize..64).prop_map(|block| block * 16),
        2 => 0usize..1024,
    ];
    let count = prop_oneof![
        2 => Just(1usize),
        1 => Just(16usize),
        1 => Just(64usize),
        3 => Just(512usize),
        1 => Just(1024usize),
        3 => 1usize..600,
    ];
    (area, first, count).prop_map(|(area, first, count)| At(area, first, count))
}

pub(super) fn ops() -> BoxedStrategy<Op> {
    let op = prop_oneof![
        8 => (at(), entries()).prop_map(|(at, entries)| Op::Install(at, entries)),
        2 => at().prop_map(Op::Upgrade),
        1 => at().prop_map(Op::Take),
        2 => (at(), any::<bool>()).prop_map(|(at, split)| Op::Protect(at, split)),
        2 => (at(), entries(), any::<bool>())
            .prop_map(|(at, entries, split)| Op::Replace(at, entries, split)),
        5 => (at(), any::<bool>()).prop_map(|(at, fast)| Op::Remove(at, fast)),
        1 => any::<bool>().prop_map(Op::RemoveAll),
        2 => Just(Op::Refill),
        2 => Just(Op::Start),
        2 => any::<bool>().prop_map(Op::Wait),
        1 => Just(Op::Shrink),
    ];
    op.boxed()
}

/// With what break-before-make needs.
pub(super) fn sized_ops() -> BoxedStrategy<Op> {
    let op = prop_oneof![
        6 => ops(),
        2 => at().prop_map(Op::Resize),
        2 => any::<bool>().prop_map(Op::Wait),
        2 => Just(Op::WriteSizes),
    ];
    op.boxed()
}

pub(super) fn failing_ops() -> BoxedStrategy<Op> {
    let op = prop_oneof![
        4 => ops(),
        1 => (at(), entries()).prop_map(|(at, entries)| Op::Starve(at, entries)),
        1 => Just(Op::Fail(FailPoint::Install)),
        1 => Just(Op::Fail(FailPoint::TablePage)),
    ];
    op.boxed()
}

/// Pages of an area.
pub(super) const AREA: usize = 1024;

/// Pages that a table of format `F` can hold.
pub(super) fn total<F: Format>() -> usize {
    (last_address::<F>() >> PAGE_SHIFT) + 1
}

/// The first page of area `area`. In a small table all are the same one.
pub(super) fn base<F: Format>(area: usize) -> usize {
    let total = total::<F>();
    match area {
        _ if total < 4 * AREA => 0,
        0 => 0,
        1 => total / 2 / AREA * AREA,
        2 => total - AREA,
        // The second block is beyond the end.
        _ => total - 512,
    }
}

/// Pages that are looked at.
pub(super) fn looked_at<F: Format>() -> impl Iterator<Item = usize> {
    let areas: BTreeSet<_> = (0..3).map(base::<F>).collect();
    areas.into_iter().flat_map(|first| first..first + AREA)
}

/// First page and count of pages, within one area.
pub(super) fn resolve<F: Format>(at: At) -> (usize, usize) {
    let At(area, first, count) = at;
    let first = first % AREA;
    (base::<F>(area) + first, count.min(AREA - first))
}

pub(super) fn range(first: usize, count: usize) -> PageRange {
    PageRange::from_pages(first * PAGE_SIZE, count).unwrap()
}

pub(super) fn everything() -> PageRange {
    PageRange::new(0, usize::MAX & PAGE_MASK).unwrap()
}

pub(super) fn is_system(entry: DevicePte) -> bool {
    entry.is_valid() && !entry.is_device()
}

pub(super) fn upgraded(entry: DevicePte) -> DevicePte {
    match entry {
        _ if !entry.is_valid() || entry.is_exclusive() => entry,
        _ if entry.is_device() => DevicePte::device(entry.number(), true),
        _ => DevicePte::system(entry.number(), true),
    }
}
