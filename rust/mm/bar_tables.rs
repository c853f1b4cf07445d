// SPDX-License-Identifier: GPL-2.0

//! Page tables in the memory of a PCI function, accessed through one of its BARs.
//!
//! For a GPU whose walker reads its tables from its own memory. The CPU writes them through an
//! uncached mapping, so that writes arrive in order. Because writes are posted, the library reads
//! from the same memory before it starts a flush: the read completes after the writes have arrived.
//!
//! `region` allocates the memory to tables, `mapping` maps it for the CPU.
//!
//! C headers: [`include/linux/io.h`](srctree/include/linux/io.h),
//! [`include/linux/pci.h`](srctree/include/linux/pci.h)

use super::{
    dma::DmaUser,
    pci::PciMemory, //
};
use crate::kernel::deferred::{
    Deferred,
    DropWaits, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

mod mapping;
mod region;

use mapping::BarMapping;
pub(super) use region::{
    Region,
    TableUser, //
};

/// Alignment of the start and the end of the part. It is at least the size of a table in any
/// format.
const BAR_TABLES_ALIGN: u64 = 64 * 1024;

/// A part of the memory of a PCI function for page tables; see
/// [`TableMemory::in_bar`](super::table_memory::TableMemory::in_bar).
///
/// The part is unmapped when this object is dropped or the memory is released, for example because
/// the driver is unbound. After that, changes of the page table are not visible to the device. The
/// driver must stop the walker before.
///
/// # Context
///
/// The drop may sleep. In a callback and in atomic context it returns at once, and a worker unmaps
/// the part.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::sync::Arc;
/// use rust_hmm::mm::bar_tables::BarTables;
/// use rust_hmm::mm::pci::PciMemory;
/// use rust_hmm::mm::table_memory::TableMemory;
///
/// /// Reserves the first MiB of a BAR, which the device finds at its address 0.
/// fn table_memory(bar: &Arc<PciMemory>) -> Result<TableMemory> {
///     let tables = BarTables::new(bar, 0, 1 << 20, 0)?;
///     Ok(TableMemory::in_bar(&tables))
/// }
/// ```
pub struct BarTables(Deferred<OwnedBarTables>);

struct OwnedBarTables {
    region: Arc<Region>,
    memory: Arc<PciMemory>,
}

impl DropWaits for OwnedBarTables {}

impl BarTables {
    /// Reserves `bytes` bytes from `at` on of `memory`, which the driver must not use otherwise.
    /// `address` is their address for the device.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: an argument is not a multiple of 64 KiB, or the part is not within the memory.
    /// - `ENODEV`: the memory was released.
    /// - `ENOMEM`: no memory is available.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new(memory: &Arc<PciMemory>, at: u64, bytes: u64, address: u64) -> Result<Arc<Self>> {
        let end = at.checked_add(bytes).ok_or(EINVAL)?;
        if bytes == 0
            || end > memory.size()
            || address.checked_add(bytes).is_none()
            || [at, bytes, address]
                .iter()
                .any(|number| number % BAR_TABLES_ALIGN != 0)
        {
            return Err(EINVAL);
        }
        let size = usize::try_from(bytes)?;
        let region = Region::new(size / PAGE_SIZE, address)?;
        let region = memory.add_user(|start| {
            // SAFETY: The memory is claimed, and is not released before `region` is closed.
            let mapping = unsafe { BarMapping::new(start + at, size) }?;
            let mapping = KBox::new(mapping, GFP_KERNEL)?;
            region.mapping.put(mapping).map_err(|_| EBUSY)?;
            Ok(region)
        })?;
        let owned = OwnedBarTables {
            region,
            memory: memory.clone(),
        };
        let tables = Deferred::new(|| Ok(owned), GFP_KERNEL)?;
        Ok(Arc::new(Self(tables), GFP_KERNEL)?)
    }

    pub(super) fn region(&self) -> &Arc<Region> {
        &self.0.region
    }

    /// Reads the word at the device address `address`, a multiple of 8, for software that emulates
    /// a walker. Returns `None` beyond the end, or if the memory was released.
    ///
    /// # Context
    ///
    /// Any.
    pub fn read(&self, address: u64) -> Option<u64> {
        self.region().read(address)
    }
}

impl Drop for OwnedBarTables {
    fn drop(&mut self) {
        self.region.close();
        self.memory.remove_user(&self.region);
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_bar_tables)]
mod tests {
    use super::*;
    use crate::kernel::shrinker::{
        owner::{
            OwnerRegistration,
            ReclaimOwner, //
        },
        Shrink, //
    };
    use kernel::sync::atomic::{
        ordering::Relaxed,
        Atomic, //
    };

    const PAGES: usize = 8;
    const ADDRESS: u64 = 1 << 32;

    /// Owner that gives a page up after a number of requests.
    struct Giver {
        region: Arc<Region>,
        page: usize,
        requests: Atomic<usize>,
        gives_at: usize,
    }

    impl Shrink for Giver {
        fn count(&self) -> usize {
            1
        }

        fn scan(&self, _objects: usize) -> usize {
            if self.requests.fetch_add(1, Relaxed) + 1 != self.gives_at {
                return 0;
            }
            let address = ADDRESS + (self.page * PAGE_SIZE) as u64;
            self.region.free(address, PAGE_SIZE);
            1
        }
    }

    type Table = (Arc<Giver>, TableUser, OwnerRegistration);

    /// Registers a table that gives `page` up at request number `gives_at`.
    fn table(region: &Arc<Region>, page: usize, gives_at: usize) -> Result<Table> {
        let giver = Giver {
            region: region.clone(),
            page,
            requests: Atomic::new(0),
            gives_at,
        };
        let giver = Arc::new(giver, GFP_KERNEL)?;
        let owner = ReclaimOwner::new()?;
        let registration = ReclaimOwner::register(&owner, giver.clone())?;
        Ok((giver, Region::join(region, &owner)?, registration))
    }

    /// Creates a region without free pages.
    fn full() -> Result<Arc<Region>> {
        let region = Region::new(PAGES, ADDRESS)?;
        for _ in 0..PAGES {
            region.take(1).ok_or(ENOMEM)?;
        }
        Ok(region)
    }

    #[test]
    fn exhausted_region_reclaims_pages_of_tables() -> Result {
        let region = full()?;
        let first = table(&region, 3, 2)?;
        let second = table(&region, 5, 1)?;
        assert_eq!(region.take_from_others(1), Some(5));
        // The second request to the first owner, whose page is cold by then.
        assert_eq!(region.take_from_others(1), Some(3));
        assert_eq!(region.take_from_others(1), None);
        // Two rounds at most, because there is one batch.
        let requests = [&first, &second].map(|(giver, ..)| giver.requests.load(Relaxed));
        assert!(requests.iter().sum::<usize>() <= 8);
        Ok(())
    }

    #[test]
    fn destroyed_table_is_not_reclaimed() -> Result {
        let region = full()?;
        let (giver, member, _registration) = table(&region, 3, 1)?;
        drop(member);
        assert_eq!(region.take_from_others(1), None);
        assert_eq!(giver.requests.load(Relaxed), 0);
        // Nothing is mapped.
        region.free(ADDRESS, PAGE_SIZE);
        assert_eq!(region.alloc(PAGE_SIZE).err(), Some(ENODEV));
        assert_eq!(region.take(1), Some(0));
        Ok(())
    }
}
