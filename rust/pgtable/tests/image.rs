// SPDX-License-Identifier: GPL-2.0

//! Tests of images with independent walkers, which use only the format and the address of the root.
//! The walkers are written from the manuals and share no code with the encoders.

use super::*;
use crate::{
    kernel::reentry::is_within,
    mm::table_memory::{
        TableMemory,
        TableWrites, //
    },
    pgtable::{
        formats::*,
        grow::ROOT_PAGE,
        BreakBeforeMake, //
    }, //
};
use kernel::sync::{
    atomic::{
        ordering::Relaxed,
        Atomic,
        AtomicFlag, //
    },
    rcu,
    Arc, //
};

/// A translation, the result of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Found {
    /// Address of the page.
    address: u64,
    writable: bool,
    /// Whether the page is in the memory of the device, if the entry says so.
    device: Option<bool>,
    /// Log2 of the number of pages that a TLB may hold in one entry.
    order: u32,
}

/// Reads tables, given by their device addresses.
pub(super) struct HardwareWalker<'t, F: Format> {
    table: &'t Table<F>,
    /// Address and index of the most recently found table of each level.
    memo: [Cell<(u64, u32)>; 5],
}

impl<'t, F: Format<Word = u64>> HardwareWalker<'t, F> {
    pub(super) fn new(table: &'t Table<F>) -> Self {
        Self {
            table,
            memo: [const { Cell::new((u64::MAX, 0)) }; 5],
        }
    }

    fn root(&self) -> Result<u64> {
        self.table.reader().root_address().ok_or(ENODEV)
    }

    /// Reads a word of the table at `address`.
    ///
    /// # Errors
    ///
    /// - `EFAULT`: there is no table at that address.
    fn read(&self, level: u32, address: u64, slot: usize) -> Result<u64> {
        let memo = self.memo.get(level as usize).ok_or(EINVAL)?;
        let pool = &self.table.pool;
        let guard = rcu::read_lock();
        if memo.get().0 != address {
            let places = u32::try_from(pool.places() * crate::pgtable::chunk::CHUNK)?;
            let index = (0..places).find(|index| pool.address(&guard, *index) == Some(address));
            memo.set((address, index.ok_or(EFAULT)?));
        }
        let (images, at) = pool.images(&guard, memo.get().1).ok_or(EFAULT)?;
        let unit = images.unit(&guard, at).ok_or(EFAULT)?;
        Ok(unit.read_u64(slot))
    }

    /// Checks that all words of the run of `1 << order` entries around `slot` are marked as
    /// members of the run. Each maps `1 << shift` bytes.
    fn check_run(&self, level: u32, address: u64, slot: usize, order: u32, shift: u32) -> Result {
        let first = slot & !((1 << order) - 1);
        let expected = self.read(level, address, first)?;
        for index in 0..1 << order {
            let word = self.read(level, address, first + index)?;
            if word != expected + ((index as u64) << shift) {
                pr_err!("run at slot {first}: {expected:#x}, then {word:#x} at {index}\n");
                return Err(EIO);
            }
        }
        Ok(())
    }
}

/// A format with a walker of its own.
pub(super) trait Walked: Format<Word = u64> {
    /// Log2 of the device pages of a run, which is smaller than a leaf of level 1.
    const RUN: u32 = 4;

    /// Walks the table for `addr` as the hardware does.
    ///
    /// # Errors
    ///
    /// - `EIO`: an entry is not valid for the hardware.
    fn walk(walker: &HardwareWalker<'_, Self>, addr: usize) -> Result<Option<Found>>;
}

impl Walked for Lpae {
    fn walk(walker: &HardwareWalker<'_, Self>, addr: usize) -> Result<Option<Found>> {
        walker.lpae(addr, 12)
    }
}

impl Walked for Lpae16k {
    const RUN: u32 = 7;

    fn walk(walker: &HardwareWalker<'_, Self>, addr: usize) -> Result<Option<Found>> {
        walker.lpae(addr, 14)
    }
}

impl Walked for BreakBeforeMake<Lpae> {
    fn walk(walker: &HardwareWalker<'_, Self>, addr: usize) -> Result<Option<Found>> {
        walker.lpae(addr, 12)
    }
}

impl<F: Format<Word = u64>> HardwareWalker<'_, F> {
    /// Arm ARM, D8.2.7, D8.2.8 and D8.3: levels 0 to 3 with a granule of 4 KiB (`granule` is 12),
    /// or levels 1 to 3 with one of 16 KiB (14), for 47 bits of addresses.
    fn lpae(&self, addr: usize, granule: u32) -> Result<Option<Found>> {
        let walker = self;
        let mut at = walker.root()?;
        let bits = granule - 3;
        let addresses = 0x0000_ffff_ffff_ffff & !((1 << granule) - 1);
        let first = if granule == 12 { 0 } else { 1 };
        for level in first..4u32 {
            let low = granule + bits * (3 - level);
            let slot = (addr >> low) & ((1 << bits) - 1);
            let descriptor = walker.read(level, at, slot)?;
            match (descriptor & 0b11, level) {
                (0b00 | 0b10, _) => return Ok(None),
                (0b11, 0..=2) => at = descriptor & addresses,
                // Without LPA2 there are blocks of level 1 only with a granule of 4 KiB.
                (0b01, 1) if granule != 12 => return Err(EIO),
                (0b01, 1 | 2) | (0b11, 3) => {
                    // The access flag, and AP[1].
                    if descriptor >> 10 & 1 == 0 || descriptor >> 6 & 1 == 0 {
                        return Err(EIO);
                    }
                    // AttrIndx and SH, which require break-before-make to change.
                    if descriptor >> 2 & 0b111 != 1 || descriptor >> 8 & 0b11 != 0b11 {
                        return Err(EIO);
                    }
                    // The Contiguous bit: 16 entries; or 128 pages, or 32 blocks.
                    let run = match (descriptor >> 52 & 1, granule, level) {
                        (0, ..) => 0,
                        (_, 12, _) => 4,
                        (_, _, 3) => 7,
                        _ => 5,
                    };
                    walker.check_run(level, at, slot, run, low)?;
                    let offset = addr as u64 & ((1 << low) - 1) & !0xfff;
                    let output = descriptor & addresses;
                    if output & ((1 << low) - 1) != 0 {
                        return Err(EIO);
                    }
                    return Ok(Some(Found {
                        address: output | offset,
                        writable: descriptor >> 7 & 1 == 0,
                        device: None,
                        order: low - granule + run,
                    }));
                }
                _ => return Err(EIO),
            }
        }
        Err(EIO)
    }
}

impl Walked for Gfx9 {
    /// PDB2, PDB1, PDB0 and PTB, as `drivers/gpu/drm/amd/amdgpu` sets them up.
    fn walk(walker: &HardwareWalker<'_, Self>, addr: usize) -> Result<Option<Found>> {
        let mut at = walker.root()?;
        for level in 0..4u32 {
            let low = 39 - 9 * level;
            let slot = (addr >> low) & 0x1ff;
            let word = walker.read(level, at, slot)?;
            let address = word & 0x0000_ffff_ffff_f000;
            if word & 1 == 0 {
                return Ok(None);
            }
            let is_pte = level == 3 || word >> 54 & 1 != 0;
            if !is_pte {
                at = address;
                continue;
            }
            let fragment = (word >> 7 & 0x1f) as u32;
            // Only PDB0 may have PTEs; such an entry is a single PTE.
            if level < 2 || word >> 5 & 1 == 0 || (level == 2 && fragment != 9) {
                return Err(EIO);
            }
            if level == 3 {
                walker.check_run(level, at, slot, fragment, low)?;
            }
            return Ok(Some(Found {
                address: address | (addr as u64 & ((1 << low) - 1) & !0xfff),
                writable: word >> 6 & 1 != 0,
                device: Some(word >> 1 & 1 == 0),
                order: fragment,
            }));
        }
        Err(EIO)
    }
}

impl<const LEVELS: u32> Walked for Radix<LEVELS> {
    /// A page table of x86-64 with this number of levels.
    fn walk(walker: &HardwareWalker<'_, Self>, addr: usize) -> Result<Option<Found>> {
        let mut at = walker.root()?;
        for level in (0..LEVELS).rev() {
            let low = 12 + 9 * level;
            let word = walker.read(level, at, (addr >> low) & 0x1ff)?;
            if word & 1 == 0 {
                return Ok(None);
            }
            let address = word & !0xfff;
            if level == 0 || word >> 7 & 1 != 0 {
                return Ok(Some(Found {
                    address: address | (addr as u64 & ((1 << low) - 1) & !0xfff),
                    writable: word >> 1 & 1 != 0,
                    device: Some(word >> 9 & 1 != 0),
                    order: low - 12,
                }));
            }
            at = address;
        }
        Err(EIO)
    }
}

/// Address of the device's own memory for the walker.
const DEVICE_MEMORY_BASE: u64 = 1 << 40;

pub(super) fn memory() -> TableMemory {
    TableMemory::plain().with_device_pages_at(DEVICE_MEMORY_BASE)
}

/// Counters of the calls of [`TableWrites`].
struct Notes {
    /// Calls of `written`.
    written: Atomic<usize>,
    /// Number of calls of `written` before the last `publish`.
    settled: Atomic<usize>,
    /// Whether all calls were marked as driver callbacks.
    within: AtomicFlag,
}

impl TableWrites for Notes {
    fn written(&self, _address: u64, bytes: usize) {
        assert_ne!(bytes, 0);
        self.written.fetch_add(1, Relaxed);
        if !is_within() {
            self.within.store(false, Relaxed);
        }
    }

    fn publish(&self) {
        self.settled.store(self.written.load(Relaxed), Relaxed);
    }
}

/// Flusher that records, when a flush is started, how many writes were reported to the driver, and
/// how many of these had settled.
struct Started<'n>(&'n Notes, Cell<(usize, usize)>);

impl Flusher for Started<'_> {
    type Pending = ();

    fn start(&self, _range: PageRange) {
        let Self(notes, started) = self;
        started.set((notes.written.load(Relaxed), notes.settled.load(Relaxed)));
    }

    fn wait(&self, (): ()) {}
}

/// Pages of a run of 64 KiB.
pub(super) const RUN_PAGES: usize = run_pages::<Lpae>();

/// Returns the number of pages of a run.
const fn run_pages<F: Walked>() -> usize {
    ((1 << F::RUN) << F::PAGE_SHIFT) / PAGE_SIZE
}

/// Returns whether `found` is the translation of device page `part` of the page of `entry`. The
/// size is not compared.
fn agrees(entry: DevicePte, part: usize, found: Option<Found>) -> bool {
    let Some(found) = found else {
        return !entry.is_valid();
    };
    let base = if entry.is_device() {
        DEVICE_MEMORY_BASE
    } else {
        0
    };
    entry.is_valid()
        && found.address == base + ((entry.number() << PAGE_SHIFT) + (part << 12)) as u64
        && found.writable == entry.may_be_dirty()
        && found
            .device
            .is_none_or(|device| device == entry.is_device())
}

/// Returns whether a walker finds each entry of the model, by the address of one of its device
/// pages of 4 KiB.
pub(super) fn image_agrees<F: Walked>(table: &Table<F>, model: &[DevicePte]) -> bool {
    let walker = HardwareWalker::new(table);
    model.iter().enumerate().all(|(index, entry)| {
        let part = index & ((PAGE_SIZE >> 12) - 1);
        let found = F::walk(&walker, index * PAGE_SIZE + (part << 12));
        let right = found.is_ok_and(|found| agrees(*entry, part, found));
        if !right {
            pr_err!("image of page {index}: {found:?}, not {entry:?}\n");
        }
        right
    })
}

pub(super) fn order<F: Walked>(table: &Table<F>, addr: usize) -> Option<u32> {
    let found = F::walk(&HardwareWalker::new(table), addr);
    found.ok().flatten().map(|found| found.order)
}

/// Fails the test that calls the function, as `assert_eq!` does within a test itself.
macro_rules! expect_eq {
    ($found:expr, $expected:expr) => {
        let found = &$found;
        let expected = &$expected;
        if found != expected {
            pr_err!("line {}: {found:?}, not {expected:?}\n", line!());
            return Err(EINVAL);
        }
    };
}

/// An aligned group of the size of a run is mapped as a run exactly while its pages are consecutive
/// and have the same rights.
fn runs<F: Walked>() -> Result {
    let mut table = Table::<F>::with(None, memory())?;
    let pages = run_pages::<F>();
    let at = 0x7f00_0080_0000;
    let number = 4 * pages;
    let run = PageRange::from_pages(at, pages)?;
    let last = PageRange::from_pages(at + (pages - 1) * PAGE_SIZE, 1)?;
    // While one page is missing, the entries are small. The last page completes the run, and the
    // TLB entries of the small pages must be flushed.
    let most = PageRange::from_pages(at, pages - 1)?;
    fill(&mut table, most, number, true)?;
    expect_eq!(order(&table, at), Some(0));
    expect_eq!(fill(&mut table, last, number + pages - 1, true)?, Some(run));
    for addr in (run.start()..run.end()).step_by(1 << 12) {
        expect_eq!(order(&table, addr), Some(F::RUN));
    }
    // The entry was empty, so that no flush is needed.
    let next = PageRange::from_pages(run.end(), 3 * pages)?;
    expect_eq!(fill(&mut table, next, 2 * number, true)?, None);
    expect_eq!(order(&table, next.start()), Some(F::RUN));
    expect_eq!(order(&table, next.end() - 1), Some(F::RUN));
    // Change the rights of a page, and change them back.
    let mut batch = table.batch();
    table.for_each(last, &mut batch, |_, entry| {
        *entry = entry.write_protected()
    });
    expect_eq!(flush(batch), Some(run));
    expect_eq!(order(&table, at), Some(0));
    expect_eq!(fill(&mut table, last, number + pages - 1, true)?, Some(run));
    expect_eq!(order(&table, at), Some(F::RUN));
    // One page is removed.
    expect_eq!(clear(&mut table, last), (1, Some(run)));
    expect_eq!(order(&table, at), Some(0));
    expect_eq!(order(&table, last.start()), None);
    // Consecutive but not aligned; then aligned but not consecutive.
    fill(&mut table, run, number + 1, true)?;
    expect_eq!(order(&table, at), Some(0));
    fill(&mut table, run, number, true)?;
    expect_eq!(order(&table, at), Some(F::RUN));
    fill(&mut table, last, 99, true)?;
    expect_eq!(order(&table, at), Some(0));
    Ok(())
}

/// A leaf of level 1 becomes a table of runs, and a leaf again.
fn splits<F: Walked>() -> Result {
    let mut table = Table::<F>::with(None, memory())?;
    let pages = leaf_pages::<F>();
    let run = run_pages::<F>();
    let whole = PageRange::from_pages(PMD_SIZE, pages)?;
    let hole = 6 * run + run / 4;
    let page = PageRange::from_pages(whole.address(hole), 1)?;
    fill(&mut table, whole, 2 * pages, true)?;
    expect_eq!(order(&table, whole.start()), Some(F::BITS));
    // A TLB may hold the whole leaf in one entry.
    expect_eq!(clear(&mut table, page), (1, Some(whole)));
    expect_eq!(order(&table, page.start()), None);
    expect_eq!(order(&table, whole.address(hole - 1)), Some(0));
    expect_eq!(order(&table, whole.address(7 * run)), Some(F::RUN));
    expect_eq!(fill(&mut table, whole, 2 * pages, true)?, Some(whole));
    expect_eq!(order(&table, whole.address(hole - 1)), Some(F::BITS));
    // The freed table page is reused, and must be empty.
    for index in 0..64 {
        let start = PMD_SIZE + (1 + index) * pages * PAGE_SIZE;
        let other = PageRange::from_pages(start + 5 * PAGE_SIZE, 1)?;
        fill(&mut table, other, 7, false)?;
        let walker = HardwareWalker::new(&table);
        for slot in 0..pages {
            let addr = start + slot * PAGE_SIZE;
            expect_eq!(F::walk(&walker, addr)?.is_some(), slot == 5);
        }
    }
    Ok(())
}

/// Returns the first and the last page of an address space of `bits` bits.
fn ends_are_walked<F: Walked>(bits: u32) -> Result {
    let mut table = Table::<F>::with(None, memory())?;
    let top = PageRange::from_pages((1 << bits) - PAGE_SIZE, 1)?;
    fill(&mut table, PageRange::from_pages(0, 1)?, 5, true)?;
    fill(&mut table, top, 6, true)?;
    let walker = HardwareWalker::new(&table);
    let address = |addr| F::walk(&walker, addr).map(|found| found.map(|it| it.address));
    expect_eq!(address(0), Ok(Some(5 << PAGE_SHIFT)));
    expect_eq!(address(top.start()), Ok(Some(6 << PAGE_SHIFT)));
    expect_eq!(address(PAGE_SIZE), Ok(None));
    // Of the next lower level count.
    expect_eq!(address(top.start() ^ (1 << (bits - 1))), Ok(None));
    Ok(())
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_images)]
mod tests {
    use super::*;
    use crate::mm::dma::DmaDevice;

    #[test]
    fn walkers_match_random_updates() -> Result {
        let seed = 0x0dd_ba11_5eed_f00d;
        agrees_with_model_and::<Lpae>(seed, memory(), Some(image_agrees))?;
        agrees_with_model_and::<Gfx9>(seed, memory(), Some(image_agrees))?;
        agrees_with_model_and::<Radix4>(seed, memory(), Some(image_agrees))?;
        agrees_with_model_and::<Radix5>(seed, memory(), Some(image_agrees))
    }

    #[test]
    fn contiguous_pages_form_a_run() -> Result {
        runs::<Lpae>()?;
        runs::<Gfx9>()
    }

    #[test]
    fn split_leaf_becomes_runs_and_merges_again() -> Result {
        splits::<Lpae>()?;
        splits::<Gfx9>()
    }

    #[test]
    fn both_ends_of_the_address_space_are_walked() -> Result {
        ends_are_walked::<Lpae>(48)?;
        ends_are_walked::<Radix4>(48)?;
        ends_are_walked::<Radix5>(57)
    }

    /// The format of this granule compiles only for pages of its size.
    #[cfg(CONFIG_ARM64_16K_PAGES)]
    #[test]
    fn granule_of_16_kib_is_walked() -> Result {
        let seed = 0x16_0ddb_a115_eed0;
        agrees_with_model_and::<Lpae16k>(seed, memory(), Some(image_agrees))?;
        runs::<Lpae16k>()?;
        splits::<Lpae16k>()?;
        ends_are_walked::<Lpae16k>(47)
    }

    #[test]
    fn entries_beyond_the_format_are_refused() -> Result {
        let page = PageRange::from_pages(PAGE_SIZE, 1)?;
        let mut table = Table::<Lpae>::with(None, memory())?;
        assert_eq!(
            fill(&mut table, page, 1 << 48 >> PAGE_SHIFT, true),
            Err(EINVAL)
        );
        // The address is too large after the address of device memory is added.
        let high = TableMemory::plain().with_device_pages_at(1 << 48);
        let mut table = Table::<Lpae>::with(None, high)?;
        let mut prealloc = table.reader().prealloc();
        prealloc.refill()?;
        let mut batch = table.batch();
        let result = table.install(page, &mut prealloc, &mut batch, |_, entry| {
            *entry = DevicePte::device(0, true);
        });
        assert_eq!((result, table.live()), (Err(EINVAL), 0));
        let odd = TableMemory::plain().with_device_pages_at(1 << 20);
        assert!(Table::<Lpae>::with(None, odd).is_err());
        Ok(())
    }

    #[test]
    fn writes_complete_before_the_flush_starts() -> Result {
        let notes = Notes {
            written: Atomic::new(0),
            settled: Atomic::new(0),
            within: AtomicFlag::new(true),
        };
        let notes = Arc::new(notes, GFP_KERNEL)?;
        let memory = TableMemory::plain().with_writes(notes.clone());
        let mut table = Table::<Lpae>::with(None, memory)?;
        let range = PageRange::from_pages(PMD_SIZE, 20)?;
        fill(&mut table, range, 16, true)?;
        // New pages need no flush.
        let filled = notes.written.load(Relaxed);
        assert!(filled != 0 && notes.settled.load(Relaxed) == 0);
        let mut batch = table.batch();
        table.for_each(range, &mut batch, |_, entry| *entry = DevicePte::NONE);
        let started = Started(&notes, Cell::new((0, 0)));
        let _flushed = batch.start(&started).wait(&started);
        let (written, settled) = started.1.get();
        assert!(written > filled && settled == written);
        assert!(notes.within.load(Relaxed));
        Ok(())
    }

    /// A table of 4 KiB has a CPU page of 16 KiB for itself if it is the only one.
    #[test]
    fn accounted_bytes_include_the_rest_of_the_cpu_page() -> Result {
        let table = Table::<Radix4>::with(None, TableMemory::plain())?;
        let guard = rcu::read_lock();
        let root = table.pool.chunk(&guard, ROOT_PAGE).ok_or(ENOENT)?;
        let images = root.images.as_ref().ok_or(ENOENT)?;
        // The format has no runs, which would need metadata.
        assert_eq!((root.pages(), images.bytes()), (1, PAGE_SIZE));
        assert!(root.bytes() > PAGE_SIZE);
        Ok(())
    }

    #[test]
    fn failed_allocation_creates_no_image() -> Result {
        let table = Table::<Lpae>::new()?;
        assert!(table.reader().root_address().is_none() && !table.pool.has_images());
        Ok(())
    }

    #[test]
    fn closed_device_has_no_table() -> Result {
        let device = DmaDevice::software(c"table")?;
        let mut table = Table::<Lpae>::with(None, TableMemory::coherent(&device))?;
        let range = PageRange::from_pages(PMD_SIZE, 20)?;
        fill(&mut table, range, 16, true)?;
        assert_eq!(order(&table, PMD_SIZE), Some(4));
        assert_eq!(device.close(), 0);
        assert!(table.reader().root_address().is_none());
        // The library has its own tree, and can still change it.
        assert_eq!(table.get(PMD_SIZE), DevicePte::system(16, true));
        fill(&mut table, range, 77, true)?;
        assert_eq!(clear(&mut table, all()?).0, 20);
        assert_eq!(table.live(), 0);
        drop(table);
        assert!(Table::<Lpae>::with(None, TableMemory::coherent(&device)).is_err());
        Ok(())
    }
}
