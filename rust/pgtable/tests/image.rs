// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of the images of tables, which independent walkers read.

use super::walkers::{
    Found,
    HardwareWalker,
    Walked, //
};
use super::*;
use crate::{
    kernel::reentry::is_within,
    mm::table_memory::{
        TableMemory,
        TableWrites, //
    },
    pgtable::{
        formats::*,
        grow::ROOT_PAGE, //
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
