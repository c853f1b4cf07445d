// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: access by addresses that a device has found in its own table.

use super::*;
use crate::{
    mm::{
        dma::{
            DmaDevice,
            TestDriver, //
        },
        table_memory::TableMemory, //
    },
    pgtable::DmaFormat, //
};

/// Address of the device's memory in entries.
const DEVICE_MEMORY_BASE: u64 = 1 << 46;

/// A device that walks the table itself.
struct Walking(Arc<Shared>);

impl Device for Walking {
    type Memory = TestMemory;
    type Format = Radix4;
    type Walker = ();
    type Flush = ();

    fn walkers(&self) -> Option<Arc<Walkers<()>>> {
        Some(self.0.walkers.clone())
    }

    fn memory(&self) -> Option<&Memory<TestMemory>> {
        Some(&self.0.memory)
    }

    fn table_memory(&self) -> TableMemory {
        TableMemory::plain().with_device_pages_at(DEVICE_MEMORY_BASE)
    }

    fn flush_start(&self, _range: PageRange) {}

    fn flush_wait(&self, (): ()) {}
}

/// A device without memory that a driver is bound to, and that walks the table by DMA.
struct Bound {
    dma: Arc<DmaDevice>,
    walkers: Arc<Walkers<()>>,
}

impl Device for Bound {
    type Memory = TestMemory;
    type Format = DmaFormat<Radix4>;
    type Walker = ();
    type Flush = ();

    fn walkers(&self) -> Option<Arc<Walkers<()>>> {
        Some(self.walkers.clone())
    }

    fn memory(&self) -> Option<&Memory<TestMemory>> {
        None
    }

    fn dma(&self) -> Option<&Arc<DmaDevice>> {
        Some(&self.dma)
    }

    fn flush_start(&self, _range: PageRange) {}

    fn flush_wait(&self, (): ()) {}
}

fn mirror_of<D: Device>(device: D) -> Result<Mirror<D>> {
    let current = current!();
    let mm = current.mm().ok_or(EINVAL)?;
    crate::new_mirror!(mm, device)
}

/// Returns the address of the table of level 0 for the page at `addr`, as hardware finds it.
fn last_table<D: Device>(mirror: &Mirror<D>, addr: usize) -> Result<u64> {
    let mut table = mirror.table_root().ok_or(ENODEV)?;
    let section = mirror.enter(0)?;
    for level in 1..4 {
        let slot = addr as u64 >> (48 - 9 * level) & 0x1ff;
        let word = section.table_word(addr, table + 8 * slot);
        table = word.map_err(|_| EFAULT)? & 0x000f_ffff_ffff_f000;
    }
    Ok(table)
}

/// Walks the table for the page at `addr`, like x86-64 with four levels.
fn walk<D: Device>(mirror: &Mirror<D>, addr: usize) -> Result<Option<TableTranslation>> {
    let mut table = mirror.table_root().ok_or(ENODEV)?;
    let section = mirror.enter(0)?;
    for level in (0..4).rev() {
        let slot = addr as u64 >> (12 + 9 * level) & 0x1ff;
        let word = section.table_word(addr, table + 8 * slot);
        let word = word.map_err(|_| EFAULT)?;
        if word & 1 == 0 {
            return Ok(None);
        }
        table = word & 0x000f_ffff_ffff_f000;
        if level == 0 {
            return Ok(Some(TableTranslation {
                address: table,
                writable: word & 2 != 0,
            }));
        }
    }
    Err(EINVAL)
}

/// Returns the errors for reading and for writing.
fn refused(
    mirror: &Mirror<Walking>,
    addr: usize,
    seen: TableTranslation,
) -> Result<[Option<TranslateError>; 2]> {
    let section = mirror.enter(0)?;
    Ok([
        section.reach(addr, seen).err(),
        section.reach_mut(addr, seen).err(),
    ])
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_mirror_seen)]
mod suite {
    use super::*;

    #[test]
    fn only_translations_in_the_tree_are_accessible() -> Result {
        let range = map(2)?;
        let shared = shared()?;
        let mirror = mirror_of(Walking(shared.clone()))?;
        let addr = range.start();
        assert_eq!(walk(&mirror, addr)?, None);
        store(addr, 77)?;
        mirror.fault(range, Access::Write)?;
        let seen = walk(&mirror, addr)?.ok_or(ENOENT)?;
        assert!(seen.writable);
        let mut bytes = [0; 8];
        match mirror.enter(0)?.reach(addr, seen) {
            Ok(PageMemory::Cpu(page)) => page.read(0, &mut bytes)?,
            _ => return Err(EIO),
        }
        assert_eq!(u64::from_ne_bytes(bytes), 77);
        assert_eq!(refused(&mirror, addr, seen)?, [None; 2]);
        // A leaf with fewer rights than the table is accepted. Foreign page frames are refused.
        let protected = TableTranslation {
            writable: false,
            ..seen
        };
        let write = Some(TranslateError::ReadOnly);
        assert_eq!(refused(&mirror, addr, protected)?, [None, write]);
        let stale = [Some(TranslateError::Stale); 2];
        // Also another device page of 4 KiB of the same page, and another page.
        for address in [
            0,
            seen.address ^ 0x1000,
            seen.address ^ PAGE_SIZE as u64,
            seen.address | DEVICE_MEMORY_BASE,
        ] {
            let other = TableTranslation { address, ..seen };
            assert_eq!(refused(&mirror, addr, other)?, stale);
        }
        assert_eq!(refused(&mirror, range.address(1), seen)?, stale);
        let inner = mirror.inner();
        inner.changing.fetch_add(1, Full);
        let other = TableTranslation { address: 0, ..seen };
        let changing = [Some(TranslateError::Changing); 2];
        assert_eq!(refused(&mirror, addr, other)?, changing);
        inner.changing.fetch_sub(1, Full);
        mirror.discard(range)?;
        assert_eq!(walk(&mirror, addr)?, None);
        assert_eq!(refused(&mirror, addr, seen)?, stale);
        Ok(())
    }

    #[test]
    fn device_pages_are_found_at_their_address() -> Result {
        let range = map(1)?;
        let shared = shared()?;
        let mirror = mirror_of(Walking(shared.clone()))?;
        let addr = range.start();
        store(addr, 1)?;
        mirror.migrate(range).to_device()?;
        mirror.fault(range, Access::Read)?;
        let seen = walk(&mirror, addr)?.ok_or(ENOENT)?;
        let number = match mirror.enter(0)?.reach(addr, seen) {
            Ok(PageMemory::Device(pages)) => pages.first,
            _ => return Err(EIO),
        };
        assert_eq!(
            seen.address,
            DEVICE_MEMORY_BASE + ((number as u64) << PAGE_SHIFT)
        );
        // The page frame with that number is another page.
        let frame = TableTranslation {
            address: (number as u64) << PAGE_SHIFT,
            ..seen
        };
        assert_eq!(
            refused(&mirror, addr, frame)?[0],
            Some(TranslateError::Stale)
        );
        Ok(())
    }

    #[test]
    fn only_tables_on_the_path_are_read() -> Result {
        let range = map(1)?;
        let shared = shared()?;
        let mirror = mirror_of(Walking(shared.clone()))?;
        let addr = range.start();
        store(addr, 1)?;
        mirror.fault(range, Access::Read)?;
        let seen = walk(&mirror, addr)?.ok_or(ENOENT)?;
        let root = mirror.table_root().ok_or(ENODEV)?;
        let section = mirror.enter(0)?;
        let at = root + 8 * (addr as u64 >> 39 & 0x1ff);
        let below = section.table_word(addr, at).map_err(|_| EFAULT)? & !0xfff;
        assert!(section.table_word(addr, below).is_ok());
        // The table page is not on the walk of this address.
        let elsewhere = addr ^ (1 << 39);
        assert!(section.table_word(elsewhere, root).is_ok());
        for (addr, address) in [(elsewhere, below), (addr, seen.address), (addr, 0)] {
            let word = section.table_word(addr, address);
            assert_eq!(word, Err(TranslateError::Stale));
        }
        Ok(())
    }

    /// The table of a bound device is in coherent DMA memory, unless the driver says otherwise.
    #[test]
    fn bound_device_walks_coherent_memory() -> Result {
        // Device pages of 4 KiB in a page of the CPU.
        const PARTS: usize = PAGE_SIZE >> 12;
        let driver = TestDriver::bind(c"hmm-kunit")?;
        let device = |dma: &Arc<DmaDevice>| -> Result<_> {
            mirror_of(Bound {
                dma: dma.clone(),
                walkers: Walkers::new(1, |_| Ok(()))?,
            })
        };
        let range = map(3 * PMD_PAGES)?;
        let mirror = device(&driver.device)?;
        let root = mirror.table_root().ok_or(ENODEV)?;
        let start = PMD_SIZE - (range.start() & (PMD_SIZE - 1)) + range.start();
        let page = |index| PageRange::from_pages(start + index * PAGE_SIZE, 1);
        for index in [3, 4, 5, 40] {
            store(start + index * PAGE_SIZE, index as u64)?;
        }
        mirror.fault(
            PageRange::from_pages(start + 3 * PAGE_SIZE, 3)?,
            Access::Write,
        )?;
        mirror.fault(page(40)?, Access::Read)?;
        mirror.fault(page(44)?, Access::Read)?;
        mirror.discard(page(4)?)?;
        // Every word of the last table.
        let words = 512 / PARTS;
        let table = last_table(&mirror, start)?;
        for index in 0..words {
            let addr = start + index * PAGE_SIZE;
            let seen = match mirror.lock_table()?.target(addr, false) {
                Some(PageAddress::Dma(address)) => Some(address.raw()),
                Some(_) => return Err(EIO),
                None => None,
            };
            assert_eq!(seen.is_some(), [3, 5, 40, 44].contains(&index));
            let is_writable = mirror.lock_table()?.target(addr, true).is_some();
            for part in 0..PARTS {
                let at = table + 8 * (index * PARTS + part) as u64;
                let word = mirror.enter(0)?.table_word(addr, at).map_err(|_| EFAULT)?;
                let Some(address) = seen else {
                    assert_eq!(word, 0);
                    continue;
                };
                let address = address + (part << 12) as u64;
                assert_eq!(
                    word & 0x000f_ffff_ffff_f003,
                    address | 1 | u64::from(is_writable) << 1
                );
            }
        }
        let found = walk(&mirror, start + 40 * PAGE_SIZE)?.ok_or(ENOENT)?;
        assert!(mirror
            .enter(0)?
            .reach(start + 40 * PAGE_SIZE, found)
            .is_ok());
        assert_eq!(mirror.table_root(), Some(root));
        // The memory is freed when the driver is unbound.
        drop(driver);
        assert_eq!(mirror.table_root(), None);
        unmap(page(40)?)?;
        // Nothing walks the table of a software device.
        let software = device(&DmaDevice::software(c"hmm-kunit")?)?;
        assert_eq!(software.table_root(), None);
        Ok(())
    }
}
