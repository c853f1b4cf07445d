// SPDX-License-Identifier: GPL-2.0

//! Host memory lock: pins memory of a process, so that devices can access it by an address that the
//! lock returns.
//!
//! Ranges are page-aligned. A lock of a range inside a locked range shares its pins. A lock that
//! would extend a locked range, or that overlaps it partially, is refused. Each lock needs its own
//! unlock; the last unlock unpins the range. See `Documentation/host-lock.rst`.

use crate::{
    kernel::{
        deferred::{
            Deferred,
            DropWaits, //
        },
        lock_classes,
        reentry, //
    },
    mirror::{
        Device,
        Mirror, //
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
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
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

/// Coherence of locked memory: when writes of the device and of the host become visible to each
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coherence {
    /// At the start and the end of a command.
    Coarse,
    /// Immediately, also while a command runs.
    Fine,
}

/// A lock that was granted.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::sync::Arc;
/// use rust_hmm::host_lock::Coherence;
/// use rust_hmm::host_lock::LockError;
/// use rust_hmm::mirror::Device;
/// use rust_hmm::mirror::Mirror;
/// use rust_hmm::mm::addr::PageRange;
/// use rust_hmm::mm::dma::DmaDevice;
///
/// /// Pins a buffer for a device that cannot fault. Returns the address for its commands.
/// fn lock_buffer<D: Device>(
///     mirror: &Mirror<D>,
///     range: PageRange,
///     device: &Arc<DmaDevice>,
/// ) -> Result<usize, LockError> {
///     let grant = mirror.lock(range, core::slice::from_ref(device), Coherence::Coarse)?;
///     Ok(grant.device_address)
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockGrant {
    /// Address by which devices access the range, and by which it is unlocked.
    pub device_address: usize,
    /// Coherence of the range. [`Coherence::Fine`] only if it was requested and all devices of the
    /// range support it.
    pub grain: Coherence,
}

/// Reason why a lock was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockError {
    /// The range would extend a locked range, or overlaps one partially: `EEXIST`.
    Extends,
    /// The addresses are in a locked range, but other pages are mapped there now: `ESTALE`.
    Remapped,
    /// Fine-grained coherence was requested, but a device does not support it, or the range was
    /// locked without it: `EOPNOTSUPP`.
    Coherence,
    /// Another reason.
    Error(Error),
}

impl From<Error> for LockError {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
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
    fn map_for(&self, agents: &[Arc<DmaDevice>]) -> Result {
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

/// Non-overlapping ranges, by their ends.
type LockedRanges = RBTree<usize, Arc<PinnedRange>>;

/// Returns the first of `ranges` that overlaps `range`.
fn overlapping(ranges: &LockedRanges, range: PageRange) -> Option<Arc<PinnedRange>> {
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
    ranges: Mutex<LockedRanges>,
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

    fn find(&self, addr: usize) -> Option<Arc<PinnedRange>> {
        let pages = self.pages.lock();
        pages.get(addr >> PAGE_SHIFT).map(Arc::from)
    }

    /// Adds all pages of `region` to the lookup, or none if an allocation fails.
    fn insert(&self, region: &Arc<PinnedRange>) -> Result {
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
    fn remove(&self, region: &PinnedRange, count: usize) {
        let first = region.range.start() >> PAGE_SHIFT;
        for index in 0..count {
            // Dropped without the XArray's lock, because this may be the last reference.
            let gone = self.pages.lock().remove(first + index);
            drop(gone);
        }
    }
}

impl<D: Device> Mirror<D> {
    /// Locks `range` in memory, so that `agents` can access it by the address that is returned.
    ///
    /// Pages in device memory are migrated to system memory first. Locked pages do not migrate.
    ///
    /// # Errors
    ///
    /// - [`LockError::Extends`], [`LockError::Remapped`], [`LockError::Coherence`]
    /// - `EFAULT`: the range is not mapped or not writable, or the process has exited
    /// - `ENOMEM`: no memory, or `RLIMIT_MEMLOCK` would be exceeded
    /// - `EINVAL`: `agents` is empty, or the memory cannot be pinned
    /// - `EINTR`: the task was killed
    /// - `EDEADLK`: called within a callback
    ///
    /// # Context
    ///
    /// May sleep; no lock may be held.
    pub fn lock(
        &self,
        range: PageRange,
        agents: &[Arc<DmaDevice>],
        grain: Coherence,
    ) -> Result<LockGrant, LockError> {
        reentry::may_wait()?;
        if agents.is_empty() {
            return Err(EINVAL.into());
        }
        let coherent = agents.iter().all(|agent| agent.is_coherent());
        if grain == Coherence::Fine && !coherent {
            return Err(LockError::Coherence);
        }
        let locks = self.host_locks();
        let space = self.space()?;
        let mut ranges = locks.ranges.lock();
        if let Some(region) = overlapping(&ranges, range) {
            if region.range.intersect(&range) != Some(range) {
                return Err(LockError::Extends);
            }
            if grain == Coherence::Fine && region.grain == Coherence::Coarse {
                return Err(LockError::Coherence);
            }
            // The range stays fine-grained, so that new devices have to be coherent, too.
            if region.grain == Coherence::Fine && !coherent {
                return Err(LockError::Coherence);
            }
            let now = PinnedPages::new(&space.mmap_lock_here()?, range)?;
            let first = region.range.index_of(range.start()).ok_or(EINVAL)?;
            if !now.is_part_of(&region.held.pages, first) {
                return Err(LockError::Remapped);
            }
            region.map_for(agents)?;
            return Ok(region.add_user(range.start())?);
        }
        let accounted = space.account(range.pages())?;
        let pages = PinnedPages::new(&space.mmap_lock_here()?, range)?;
        let region = PinnedRange {
            range,
            grain,
            held: Deferred::pinned(Pins::new(pages, accounted), GFP_KERNEL_ACCOUNT)?,
        };
        let region = Arc::new(region, GFP_KERNEL_ACCOUNT).map_err(Error::from)?;
        region.map_for(agents)?;
        let locked = region.add_user(range.start())?;
        let end = RBTreeNode::new(range.end(), region.clone(), GFP_KERNEL_ACCOUNT)?;
        locks.insert(&region)?;
        ranges.insert(end);
        Ok(locked)
    }

    /// Undoes one lock that returned `device_address`.
    ///
    /// # Errors
    ///
    /// - `ENOENT`: no lock has returned this address
    /// - `EDEADLK`: called within a callback
    ///
    /// # Context
    ///
    /// May sleep; no lock may be held.
    pub fn unlock(&self, device_address: usize) -> Result {
        reentry::may_wait()?;
        let locks = self.host_locks();
        let mut ranges = locks.ranges.lock();
        let region = self.locked(device_address).ok_or(ENOENT)?;
        if region.remove_user(device_address)? {
            locks.remove(&region, region.range.pages());
            ranges.remove(&region.range.end());
        }
        drop(ranges);
        Ok(())
    }

    /// Returns the locked range that contains `address`, a device address or a virtual address of
    /// the process. The range stays pinned until the returned reference is dropped.
    ///
    /// # Context
    ///
    /// Any task.
    pub fn locked(&self, address: usize) -> Option<Arc<PinnedRange>> {
        self.host_locks().find(address & !APERTURE)
    }
}

impl PinnedRange {
    fn add_user(&self, addr: usize) -> Result<LockGrant> {
        let device_address = APERTURE + addr;
        let mut users = self.held.users.lock();
        match users.iter_mut().find(|(other, _)| *other == device_address) {
            Some((_, count)) => *count += 1,
            None => users.push((device_address, 1), GFP_KERNEL_ACCOUNT)?,
        }
        Ok(LockGrant {
            device_address,
            grain: self.grain,
        })
    }

    /// Removes a user, and returns whether it was the last one. `ENOENT` if there is no such user.
    fn remove_user(&self, device_address: usize) -> Result<bool> {
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

// A device address and the virtual address have the same offset within the page.
const _: () = assert!(APERTURE % PAGE_SIZE == 0);
