// SPDX-License-Identifier: GPL-2.0

//! Locked ranges of an address space: their pins, their DMA mappings, and the lookup by address.
//!
//! A mirror owns them. `host_lock` locks and unlocks ranges.

use crate::{
    kernel::{
        deferred::{
            Deferred,
            DropWaits, //
        },
        lock_classes, //
    },
    mm::{
        addr::PageRange,
        dma::{
            DmaAddress,
            DmaDevice,
            DmaMapping, //
        },
        folio::CpuPagesMut,
        pin::{
            LockedVmCharge,
            PinnedPages, //
        }, //
    }, //
};
use kernel::{
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    rbtree::RBTree,
    sync::{
        Arc,
        Mutex, //
    },
    xarray::{
        AllocKind,
        XArray, //
    }, //
};

/// Start of the device addresses of locked memory, beyond all virtual addresses of a process.
pub const APERTURE: usize = 1 << 62;

// A device address and the virtual address have the same offset within the page.
const _: () = assert!(APERTURE % PAGE_SIZE == 0);

/// Coherence of locked memory: when writes of the device and of the host become visible to each
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coherence {
    /// At the start and the end of a command.
    Coarse,
    /// Immediately, also while a command runs.
    Fine,
}

/// A locked range. Dropping the last reference unpins its pages.
///
/// # Context
///
/// The drop may sleep. In a callback, with a table lock held and in an access section, a worker
/// unpins the pages instead.
///
/// # Examples
///
/// ```
/// use rust_hmm::host_lock::PinnedRange;
/// use rust_hmm::mm::dma::DmaAddress;
/// use rust_hmm::mm::dma::DmaDevice;
///
/// /// Begins a command that reads the page at `address`.
/// fn begin(region: &PinnedRange, device: &DmaDevice, address: usize) -> Option<DmaAddress> {
///     region.sync(device, address, true);
///     region.dma(device, address)
/// }
/// ```
pub struct PinnedRange {
    range: PageRange,
    grain: Coherence,
    held: Deferred<Pins>,
}

/// The pins and mappings of a locked range. Dropping it takes the mmap lock.
#[pin_data]
struct Pins {
    /// Mappings of `pages`. Dropped before these.
    #[pin]
    mappings: Mutex<KVec<DmaMapping>>,
    pages: PinnedPages,
    /// Device addresses that locks returned, each with the number of these locks.
    #[pin]
    users: Mutex<KVec<(usize, usize)>>,
    _accounted: LockedVmCharge,
}

impl DropWaits for Pins {}

impl Pins {
    fn new(pages: PinnedPages, accounted: LockedVmCharge) -> impl PinInit<Self, Error> {
        let (name, key) = lock_classes::dma_mappings();
        let (users_name, users_key) = lock_classes::lock_users();
        try_pin_init!(Self {
            mappings <- Mutex::new(KVec::new(), name, key),
            pages,
            users <- Mutex::new(KVec::new(), users_name, users_key),
            _accounted: accounted,
        }? Error)
    }
}

impl PinnedRange {
    /// Creates a locked range without users.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    pub(crate) fn new(
        range: PageRange,
        grain: Coherence,
        pages: PinnedPages,
        accounted: LockedVmCharge,
    ) -> Result<Arc<Self>> {
        let held = Deferred::pinned(Pins::new(pages, accounted), GFP_KERNEL_ACCOUNT)?;
        Ok(Arc::new(Self { range, grain, held }, GFP_KERNEL_ACCOUNT)?)
    }

    /// Returns whether `pages` are those of the range from its page `first` on.
    pub(crate) fn has(&self, pages: &PinnedPages, first: usize) -> bool {
        pages.is_part_of(&self.held.pages, first)
    }

    /// Returns the virtual addresses of the range in the process.
    ///
    /// # Context
    ///
    /// Any.
    pub fn range(&self) -> PageRange {
        self.range
    }

    /// Returns the coherence of the range.
    ///
    /// # Context
    ///
    /// Any.
    pub fn grain(&self) -> Coherence {
        self.grain
    }

    /// Returns the number of locks of the range.
    ///
    /// # Context
    ///
    /// May sleep. Takes a mutex of the range.
    pub fn users(&self) -> usize {
        self.held.users.lock().iter().map(|(_, count)| count).sum()
    }

    /// Returns the page at `device_address`.
    ///
    /// # Context
    ///
    /// Any.
    pub fn page(&self, device_address: usize) -> Option<CpuPagesMut<'_>> {
        self.held.pages.page(self.index(device_address)?)
    }

    fn index(&self, device_address: usize) -> Option<usize> {
        let addr = device_address.checked_sub(APERTURE)?;
        self.range.index_of(addr)
    }

    /// Returns the DMA address for `device` of the page at `device_address`; `None` if the range is
    /// not locked for this device.
    ///
    /// # Context
    ///
    /// May sleep. Takes a mutex of the range.
    pub fn dma(&self, device: &DmaDevice, device_address: usize) -> Option<DmaAddress> {
        let index = self.index(device_address)?;
        let mappings = self.held.mappings.lock();
        let mapping = mappings.iter().find(|mapping| mapping.is_for(device));
        mapping.and_then(|mapping| mapping.address(index))
    }

    /// Makes writes of the CPU to the page at `device_address` visible to `device`, or with
    /// `for_device` false, writes of the device visible to the CPU. Called at the start and the end
    /// of a command, for coarse-grained memory.
    ///
    /// # Context
    ///
    /// May sleep. Takes a mutex of the range.
    pub fn sync(&self, device: &DmaDevice, device_address: usize, for_device: bool) {
        let Some(index) = self.index(device_address) else {
            return;
        };
        let mappings = self.held.mappings.lock();
        if let Some(mapping) = mappings.iter().find(|mapping| mapping.is_for(device)) {
            mapping.sync(index, for_device);
        }
    }

    /// Maps the pages for those of `agents` for which they are not mapped yet.
    pub(crate) fn map_for(&self, agents: &[Arc<DmaDevice>]) -> Result {
        let mut mappings = self.held.mappings.lock();
        for agent in agents {
            if mappings.iter().any(|mapping| mapping.is_for(agent)) {
                continue;
            }
            mappings.reserve(1, GFP_KERNEL_ACCOUNT)?;
            // SAFETY: `Pins` owns both the pages and the mappings, and drops the mappings first.
            let mapping = unsafe { DmaMapping::new(agent, &self.held.pages)? };
            mappings.push(mapping, GFP_KERNEL_ACCOUNT)?;
        }
        Ok(())
    }
}

impl PinnedRange {
    /// Adds a lock of the page at `addr`. Returns its device address.
    pub(crate) fn add_user(&self, addr: usize) -> Result<usize> {
        let device_address = APERTURE + addr;
        let mut users = self.held.users.lock();
        match users.iter_mut().find(|(other, _)| *other == device_address) {
            Some((_, count)) => *count += 1,
            None => users.push((device_address, 1), GFP_KERNEL_ACCOUNT)?,
        }
        Ok(device_address)
    }

    /// Removes a user, and returns whether it was the last one. `ENOENT` if there is no such user.
    pub(crate) fn remove_user(&self, device_address: usize) -> Result<bool> {
        let mut users = self.held.users.lock();
        let at = users.iter().position(|(other, _)| *other == device_address);
        let at = at.ok_or(ENOENT)?;
        if let Some((_, count)) = users.get_mut(at) {
            *count -= 1;
            if *count == 0 {
                let _gone = users.remove(at);
            }
        }
        Ok(users.is_empty())
    }
}

/// Non-overlapping ranges, by their ends.
pub(crate) type LockedRanges = RBTree<usize, Arc<PinnedRange>>;

/// Returns the first of `ranges` that overlaps `range`.
pub(crate) fn overlapping(ranges: &LockedRanges, range: PageRange) -> Option<Arc<PinnedRange>> {
    let behind = ranges.cursor_lower_bound(&range.start().checked_add(1)?)?;
    let (_, region) = behind.current();
    (region.range.start() < range.end()).then(|| region.clone())
}

/// The locked ranges of an address space.
#[pin_data]
pub(crate) struct HostLocks {
    /// Locked ranges by their ends, so that the cost of a lookup does not depend on their lengths.
    /// The mutex serializes locks and unlocks.
    #[pin]
    pub(crate) ranges: Mutex<LockedRanges>,
    /// Locked ranges by page number, so that the cost of a lookup does not depend on their number.
    #[pin]
    pages: XArray<Arc<PinnedRange>>,
}

impl HostLocks {
    pub(crate) fn new() -> impl PinInit<Self> {
        let (name, key) = lock_classes::host_locks();
        pin_init!(Self {
            ranges <- Mutex::new(RBTree::new(), name, key),
            pages <- XArray::new(AllocKind::Alloc),
        })
    }

    /// Returns the locked range that contains the virtual address `addr`.
    pub(crate) fn find(&self, addr: usize) -> Option<Arc<PinnedRange>> {
        let pages = self.pages.lock();
        pages.get(addr >> PAGE_SHIFT).map(Arc::from)
    }

    /// Adds all pages of `region` to the lookup, or none if an allocation fails.
    pub(crate) fn insert(&self, region: &Arc<PinnedRange>) -> Result {
        let first = region.range.start() >> PAGE_SHIFT;
        for index in 0..region.range.pages() {
            let mut pages = self.pages.lock();
            if let Err(error) = pages.store(first + index, region.clone(), GFP_KERNEL_ACCOUNT) {
                drop(pages);
                self.remove(region, index);
                return Err(error.error);
            }
        }
        Ok(())
    }

    /// Removes the first `count` pages of `region` from the lookup.
    pub(crate) fn remove(&self, region: &PinnedRange, count: usize) {
        let first = region.range.start() >> PAGE_SHIFT;
        for index in 0..count {
            // Dropped without the XArray's lock, because this may be the last reference.
            let gone = self.pages.lock().remove(first + index);
            drop(gone);
        }
    }
}
