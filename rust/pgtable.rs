// SPDX-License-Identifier: GPL-2.0

//! The device's page table, as the engine keeps it: five levels of 9 bits over 4 KiB pages.
//!
//! Only parts that hold entries exist. Whatever an update needs is allocated before the lock is
//! taken ([`Spares`]); an update or a removal never allocates. A table that becomes empty is freed.

use crate::mm::addr::PageRange;
use kernel::{page::PAGE_SHIFT, prelude::*};

/// One page, as the device sees it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Zeroable)]
#[repr(transparent)]
pub struct Entry(u64);

impl Entry {
    const VALID: u64 = 1 << 0;
    const WRITE: u64 = 1 << 1;
    const DEVICE: u64 = 1 << 2;
    const EXCLUSIVE: u64 = 1 << 3;
    const SHIFT: u32 = 12;

    /// No page.
    pub const NONE: Self = Self(0);

    /// A page of system memory, by its frame number.
    pub const fn system(pfn: usize, writable: bool) -> Self {
        let write = if writable { Self::WRITE } else { 0 };
        Self(((pfn as u64) << Self::SHIFT) | Self::VALID | write)
    }

    /// A page of this device's memory, by its device page number.
    pub const fn device(number: usize, writable: bool) -> Self {
        Self(Self::system(number, writable).0 | Self::DEVICE)
    }

    /// A page of system memory that only the device may access.
    pub const fn exclusive(pfn: usize) -> Self {
        Self(Self::system(pfn, false).0 | Self::EXCLUSIVE)
    }

    /// Whether there is a page.
    pub const fn is_valid(self) -> bool {
        self.0 & Self::VALID != 0
    }

    /// Whether the device may write the page.
    pub const fn is_writable(self) -> bool {
        self.0 & Self::WRITE != 0
    }

    /// Whether the page is in this device's memory.
    pub const fn is_device(self) -> bool {
        self.0 & Self::DEVICE != 0
    }

    /// Whether the device has the page for itself.
    pub const fn is_exclusive(self) -> bool {
        self.0 & Self::EXCLUSIVE != 0
    }

    /// Whether the device may have changed the page through this entry.
    pub const fn may_be_dirty(self) -> bool {
        self.0 & (Self::WRITE | Self::EXCLUSIVE) != 0
    }

    /// Frame number, or device page number if [`Self::is_device`].
    pub const fn number(self) -> usize {
        (self.0 >> Self::SHIFT) as usize
    }

    /// The same page, not to be written.
    pub const fn write_protected(self) -> Self {
        Self(self.0 & !Self::WRITE)
    }
}

const BITS: u32 = 9;
const FAN: usize = 1 << BITS;

/// One level: a leaf of entries, or a directory of tables.
trait Level: Zeroable {
    /// Log2 of the bytes that one slot covers.
    const SHIFT: u32;
    /// Tables below this one, allocated in advance.
    type Spares: Default;

    fn alloc() -> Result<KBox<Self>>;
    fn refill(spares: &mut Self::Spares) -> Result;
    fn get(&self, addr: usize) -> Entry;

    /// Calls `f` for each slot's entry from `start` to `last` inclusive, in existing leaves only,
    /// or in those made from `spares`. Returns by how many the live entries have grown.
    fn update<F: FnMut(usize, &mut Entry)>(
        &mut self,
        start: usize,
        last: usize,
        spares: Option<&mut Self::Spares>,
        f: &mut F,
    ) -> isize;

    fn slot(addr: usize) -> usize {
        (addr >> Self::SHIFT) & (FAN - 1)
    }
}

#[derive(Zeroable)]
struct Leaf {
    entries: [Entry; FAN],
}

impl Level for Leaf {
    const SHIFT: u32 = PAGE_SHIFT as u32;
    type Spares = ();

    fn alloc() -> Result<KBox<Self>> {
        KBox::init(pin_init::init_zeroed::<Self>(), GFP_KERNEL)
    }

    fn refill((): &mut ()) -> Result {
        Ok(())
    }

    fn get(&self, addr: usize) -> Entry {
        self.entries
            .get(Self::slot(addr))
            .copied()
            .unwrap_or_default()
    }

    fn update<F: FnMut(usize, &mut Entry)>(
        &mut self,
        start: usize,
        last: usize,
        _spares: Option<&mut ()>,
        f: &mut F,
    ) -> isize {
        let mut grown = 0;
        let mut addr = start;
        let Some(entries) = self.entries.get_mut(Self::slot(start)..=Self::slot(last)) else {
            return 0;
        };
        for entry in entries {
            let before = isize::from(entry.is_valid());
            f(addr, entry);
            grown += isize::from(entry.is_valid()) - before;
            addr = addr.wrapping_add(1 << Self::SHIFT);
        }
        grown
    }
}

#[derive(Zeroable)]
struct Slot<C> {
    child: Option<KBox<C>>,
    /// Entries in all leaves below.
    live: isize,
}

#[derive(Zeroable)]
struct Directory<C> {
    slots: [Slot<C>; FAN],
}

impl<C: Level> Level for Directory<C> {
    const SHIFT: u32 = C::SHIFT + BITS;
    type Spares = (Option<KBox<C>>, C::Spares);

    fn alloc() -> Result<KBox<Self>> {
        KBox::init(pin_init::init_zeroed::<Self>(), GFP_KERNEL)
    }

    fn refill((child, below): &mut Self::Spares) -> Result {
        if child.is_none() {
            *child = Some(C::alloc()?);
        }
        C::refill(below)
    }

    fn get(&self, addr: usize) -> Entry {
        self.slots
            .get(Self::slot(addr))
            .and_then(|slot| slot.child.as_ref())
            .map_or(Entry::NONE, |child| child.get(addr))
    }

    fn update<F: FnMut(usize, &mut Entry)>(
        &mut self,
        start: usize,
        last: usize,
        mut spares: Option<&mut Self::Spares>,
        f: &mut F,
    ) -> isize {
        let mut grown = 0;
        let first = Self::slot(start);
        let base = start >> Self::SHIFT << Self::SHIFT;
        let Some(slots) = self.slots.get_mut(first..=Self::slot(last)) else {
            return 0;
        };
        for (index, slot) in slots.iter_mut().enumerate() {
            // OVERFLOW: at most `last`, of which this is the slot or one before.
            let low = base + (index << Self::SHIFT);
            let high = low | ((1 << Self::SHIFT) - 1);
            let below = match spares.as_deref_mut() {
                Some((child, below)) => {
                    if slot.child.is_none() {
                        slot.child = child.take();
                    }
                    Some(below)
                }
                None => None,
            };
            let Some(child) = slot.child.as_mut() else {
                continue;
            };
            let delta = child.update(start.max(low), last.min(high), below, f);
            grown += delta;
            slot.live += delta;
            if slot.live == 0 {
                slot.child = None;
            }
        }
        grown
    }
}

type Level1 = Directory<Leaf>;
type Level2 = Directory<Level1>;
type Level3 = Directory<Level2>;
type Root = Directory<Level3>;

/// Highest address that the table can hold.
const LAST: usize = (1 << (Root::SHIFT + BITS)) - 1;

/// Tables allocated in advance, enough for one update within 2 MiB.
#[derive(Default)]
pub struct Spares(<Root as Level>::Spares);

impl Spares {
    /// Makes it complete. Context: may sleep; no lock of this crate may be held.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn refill(&mut self) -> Result {
        Root::refill(&mut self.0)
    }
}

/// A device page table.
pub struct Table {
    root: KBox<Root>,
    live: isize,
}

impl Table {
    /// An empty table. Context: may sleep.
    pub fn new() -> Result<Self> {
        Ok(Self {
            root: Root::alloc()?,
            live: 0,
        })
    }

    /// The entry for the page at `addr`.
    pub fn get(&self, addr: usize) -> Entry {
        if addr > LAST {
            return Entry::NONE;
        }
        self.root.get(addr)
    }

    /// Number of valid entries.
    pub fn live(&self) -> usize {
        usize::try_from(self.live).unwrap_or(0)
    }

    /// Calls `f` with address and entry of every page of `range` in tables that exist. The cost is
    /// that of those tables, not of the range. `f` must not make an entry valid that was not.
    pub(crate) fn for_each(&mut self, range: PageRange, mut f: impl FnMut(usize, &mut Entry)) {
        if range.start() > LAST {
            return;
        }
        let last = (range.end() - 1).min(LAST);
        self.live += self.root.update(range.start(), last, None, &mut f);
    }

    /// As [`Self::for_each`], in tables that are made from `spares`, for a range within 2 MiB.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range is not so or beyond what the table can hold. `ENOMEM` if the spares
    /// are not complete.
    pub(crate) fn install(
        &mut self,
        range: PageRange,
        spares: &mut Spares,
        mut f: impl FnMut(usize, &mut Entry),
    ) -> Result {
        let last = range.end() - 1;
        if last > LAST || range.start() >> Level1::SHIFT != last >> Level1::SHIFT {
            return Err(EINVAL);
        }
        let mut seen = false;
        self.live += self.root.update(
            range.start(),
            last,
            Some(&mut spares.0),
            &mut |addr, entry| {
                seen = true;
                f(addr, entry);
            },
        );
        seen.then_some(()).ok_or(ENOMEM)
    }
}

#[kunit_tests(rust_hmm_pgtable)]
mod tests {
    use super::*;
    use crate::mm::addr::PMD_SIZE;

    fn fill(table: &mut Table, range: PageRange, number: usize) -> Result {
        let mut spares = Spares::default();
        spares.refill()?;
        table.install(range, &mut spares, |addr, entry| {
            *entry = Entry::system(number + (addr >> PAGE_SHIFT), true);
        })
    }

    #[test]
    fn entries_keep_what_they_are_given() {
        let entry = Entry::device(77, true);
        assert!(entry.is_valid() && entry.is_writable() && entry.is_device());
        assert_eq!(entry.number(), 77);
        assert!(!entry.write_protected().is_writable());
        assert_eq!(entry.write_protected().number(), 77);
        assert!(Entry::exclusive(5).may_be_dirty() && !Entry::exclusive(5).is_writable());
        assert!(!Entry::NONE.is_valid());
    }

    #[test]
    fn install_and_remove() -> Result {
        let mut table = Table::new()?;
        let at = 0x7f00_0000_0000;
        fill(&mut table, PageRange::from_pages(at, 512)?, 1)?;
        assert_eq!(table.live(), 512);
        assert_eq!(table.get(at + 0x1000).number(), 1 + (at >> PAGE_SHIFT) + 1);
        // The whole address space at once: only what exists is visited.
        let mut visited = 0;
        table.for_each(PageRange::new(0, usize::MAX & !0xfff)?, |_, entry| {
            visited += 1;
            *entry = Entry::NONE;
        });
        assert_eq!(visited, 512);
        assert_eq!(table.live(), 0);
        assert!(!table.get(at).is_valid());
        visited = 0;
        table.for_each(PageRange::new(0, usize::MAX & !0xfff)?, |_, _| visited += 1);
        assert_eq!(visited, 0);
        Ok(())
    }

    #[test]
    fn both_ends_of_the_address_space() -> Result {
        let mut table = Table::new()?;
        fill(&mut table, PageRange::from_pages(0, 1)?, 0)?;
        let top = (1 << 57) - PMD_SIZE;
        fill(&mut table, PageRange::from_pages(top, 512)?, 0)?;
        assert_eq!(table.live(), 513);
        assert!(table.get(0).is_valid());
        assert!(fill(&mut table, PageRange::from_pages(1 << 57, 1)?, 0).is_err());
        // A range across a 2 MiB border is refused.
        assert!(fill(&mut table, PageRange::from_pages(PMD_SIZE - 4096, 2)?, 0).is_err());
        Ok(())
    }

    #[test]
    fn install_needs_spares() -> Result {
        let mut table = Table::new()?;
        let mut none = Spares::default();
        let range = PageRange::from_pages(0x1000, 1)?;
        assert_eq!(table.install(range, &mut none, |_, _| ()), Err(ENOMEM));
        Ok(())
    }
}
