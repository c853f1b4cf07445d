// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: access by addresses that a device has found in its own table.

use super::*;
use crate::mm::table_memory::TableMemory;

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

fn mirror_of(shared: &Arc<Shared>) -> Result<Mirror<Walking>> {
    let current = current!();
    let mm = current.mm().ok_or(EINVAL)?;
    crate::new_mirror!(mm, Walking(shared.clone()))
}

/// Walks the table for the page at `addr`, like x86-64 with four levels.
fn walk(mirror: &Mirror<Walking>, addr: usize) -> Result<Option<TableTranslation>> {
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
        let mirror = mirror_of(&shared)?;
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
        let mirror = mirror_of(&shared)?;
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
        let mirror = mirror_of(&shared)?;
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
}
