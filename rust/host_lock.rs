// SPDX-License-Identifier: GPL-2.0

//! Host memory lock: memory of a process that stays where it is, for devices to access by an address
//! that a lock returns.
//!
//! Ranges are whole pages. A lock of a range inside a locked one shares it; one that would extend it, or
//! overlaps it in part, is refused. Each lock is undone by its own unlock, and with the last one the
//! range is unlocked. See `Documentation/host-lock.rst`.

use crate::{
    deferred::{
        Deferred,
        DropWaits, //
    },
    locks,
    mirror::{Device, Mirror},
    mm::{
        addr::PageRange,
        dma::{DmaAddress, DmaDevice, DmaMapping},
        page::CpuPagesMut,
        pin::{Accounted, PinnedPages},
    },
    within,
};
use kernel::{
    page::{PAGE_SHIFT, PAGE_SIZE},
    prelude::*,
    rbtree::{RBTree, RBTreeNode},
    sync::{Arc, Mutex},
    xarray::{AllocKind, XArray}, //
};

/// Where addresses of locked memory begin, as devices see them: no address of a process is one.
pub const APERTURE: usize = 1 << 62;

/// When device and host see what the other one writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// At the borders of commands.
    Coarse,
    /// While commands run.
    Fine,
}

/// A lock that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Locked {
    /// By which devices access it, and by which it is unlocked.
    pub device_address: usize,
    /// What the range got; [`Grain::Fine`] only if it was asked for, and all its devices can.
    pub grain: Grain,
}

/// Why a lock was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It would extend a locked range, or overlaps one in part: `EEXIST`.
    Extends,
    /// The addresses are those of a locked range, but what is mapped there is not: `ESTALE`.
    Remapped,
    /// A device is to see it fine-grained, for which it was not locked, or cannot: `EOPNOTSUPP`.
    Grain,
    /// Another reason.
    Error(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// A locked range. Dropping the last reference unpins its pages.
///
/// # Context
///
/// That may sleep. In a callback, with a table lock held and in a section a worker does it.
pub struct Region {
    range: PageRange,
    grain: Grain,
    held: Deferred<Pins>,
}

/// The pins and mappings of a locked range. Dropping it takes the mmap lock.
#[pin_data]
struct Pins {
    /// Before `pages`, which they are of.
    #[pin]
    mappings: Mutex<KVec<DmaMapping>>,
    pages: PinnedPages,
    /// Address that a lock returned, and how many did.
    #[pin]
    users: Mutex<KVec<(usize, usize)>>,
    _accounted: Accounted,
}

impl DropWaits for Pins {}

impl Pins {
    fn new(pages: PinnedPages, accounted: Accounted) -> impl PinInit<Self, Error> {
        let (name, key) = locks::dma_mappings();
        let (users_name, users_key) = locks::lock_users();
        try_pin_init!(Self {
            mappings <- Mutex::new(KVec::new(), name, key),
            pages,
            users <- Mutex::new(KVec::new(), users_name, users_key),
            _accounted: accounted,
        }? Error)
    }
}

impl Region {
    /// Its addresses in the process.
    pub fn range(&self) -> PageRange {
        self.range
    }

    /// When writes are seen.
    pub fn grain(&self) -> Grain {
        self.grain
    }

    /// Locks that hold it.
    pub fn users(&self) -> usize {
        self.held.users.lock().iter().map(|(_, count)| count).sum()
    }

    /// The page at `device_address`.
    pub fn page(&self, device_address: usize) -> Option<CpuPagesMut<'_>> {
        self.held.pages.page(self.index(device_address)?)
    }

    fn index(&self, device_address: usize) -> Option<usize> {
        let addr = device_address.checked_sub(APERTURE)?;
        self.range.index_of(addr)
    }

    /// The address of the page at `device_address` on `device`'s bus; `None` if it is not locked for it.
    pub fn dma(&self, device: &DmaDevice, device_address: usize) -> Option<DmaAddress> {
        let index = self.index(device_address)?;
        let mappings = self.held.mappings.lock();
        let mapping = mappings.iter().find(|mapping| mapping.is_for(device));
        mapping.and_then(|mapping| mapping.address(index))
    }

    /// Makes the page at `device_address` visible to `device`, or what that has written to the CPU: at
    /// the borders of a command, for coarse-grained memory.
    pub fn sync(&self, device: &DmaDevice, device_address: usize, for_device: bool) {
        let Some(index) = self.index(device_address) else {
            return;
        };
        let mappings = self.held.mappings.lock();
        if let Some(mapping) = mappings.iter().find(|mapping| mapping.is_for(device)) {
            mapping.sync(index, for_device);
        }
    }

    /// Maps it for those of `agents` for which it is not.
    fn map_for(&self, agents: &[Arc<DmaDevice>]) -> Result {
        let mut mappings = self.held.mappings.lock();
        for agent in agents {
            if mappings.iter().any(|mapping| mapping.is_for(agent)) {
                continue;
            }
            mappings.reserve(1, GFP_KERNEL_ACCOUNT)?;
            // SAFETY: The pages are of this region, and dropped after the mappings.
            let mapping = unsafe { DmaMapping::new(agent, &self.held.pages)? };
            mappings.push(mapping, GFP_KERNEL_ACCOUNT)?;
        }
        Ok(())
    }
}

/// Ranges, none of which overlaps another, by their ends.
type Ranges = RBTree<usize, Arc<Region>>;

/// The first of `ranges` that overlaps `range`.
fn overlapping(ranges: &Ranges, range: PageRange) -> Option<Arc<Region>> {
    let behind = ranges.cursor_lower_bound(&range.start().checked_add(1)?)?;
    let (_, region) = behind.current();
    (region.range.start() < range.end()).then(|| region.clone())
}

/// The locked ranges of an address space.
#[pin_data]
pub(crate) struct HostLocks {
    /// One lock or unlock at a time. By end: a look costs the same however long a range is.
    #[pin]
    ranges: Mutex<Ranges>,
    /// By number of the page, so that a look costs the same however many ranges there are.
    #[pin]
    pages: XArray<Arc<Region>>,
}

impl HostLocks {
    pub(crate) fn new() -> impl PinInit<Self> {
        let (name, key) = locks::host_locks();
        pin_init!(Self {
            ranges <- Mutex::new(RBTree::new(), name, key),
            pages <- XArray::new(AllocKind::Alloc),
        })
    }

    fn find(&self, addr: usize) -> Option<Arc<Region>> {
        let pages = self.pages.lock();
        pages.get(addr >> PAGE_SHIFT).map(Arc::from)
    }

    /// Puts all pages of `region` in, or none.
    fn insert(&self, region: &Arc<Region>) -> Result {
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

    /// Takes the first `count` pages of `region` out.
    fn remove(&self, region: &Region, count: usize) {
        let first = region.range.start() >> PAGE_SHIFT;
        for index in 0..count {
            // Dropped after the lock is: there may be no other.
            let gone = self.pages.lock().remove(first + index);
            drop(gone);
        }
    }
}

impl<D: Device> Mirror<D> {
    /// Locks `range` in memory, so that `agents` can access it by the address that is returned.
    ///
    /// Memory of a device comes back first. What is locked does not migrate.
    ///
    /// # Errors
    ///
    /// [`Refused::Extends`] and so on. Else `EFAULT`: not mapped, not writable, or the process is gone;
    /// `ENOMEM`: also beyond `RLIMIT_MEMLOCK`; `EINVAL`: no agents, or memory that cannot be pinned;
    /// `EINTR`; `EDEADLK` within a callback. Context: may sleep; no lock may be held.
    pub fn lock(
        &self,
        range: PageRange,
        agents: &[Arc<DmaDevice>],
        grain: Grain,
    ) -> Result<Locked, Refused> {
        within::may_wait()?;
        if agents.is_empty() {
            return Err(EINVAL.into());
        }
        let coherent = agents.iter().all(|agent| agent.is_coherent());
        if grain == Grain::Fine && !coherent {
            return Err(Refused::Grain);
        }
        let locks = self.host_locks();
        let space = self.space()?;
        let mut ranges = locks.ranges.lock();
        if let Some(region) = overlapping(&ranges, range) {
            if region.range.intersect(&range) != Some(range) {
                return Err(Refused::Extends);
            }
            if grain == Grain::Fine && region.grain == Grain::Coarse {
                return Err(Refused::Grain);
            }
            // The range keeps its grain, so that all its devices must be able to.
            if region.grain == Grain::Fine && !coherent {
                return Err(Refused::Grain);
            }
            let now = PinnedPages::new(&space.mmap_lock_here()?, range)?;
            let first = region.range.index_of(range.start()).ok_or(EINVAL)?;
            if !now.is_part_of(&region.held.pages, first) {
                return Err(Refused::Remapped);
            }
            region.map_for(agents)?;
            return Ok(region.add_user(range.start())?);
        }
        let accounted = space.account(range.pages())?;
        let pages = PinnedPages::new(&space.mmap_lock_here()?, range)?;
        let region = Region {
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
    /// `ENOENT` if there is none; `EDEADLK` within a callback. Context: may sleep; no lock may be held.
    pub fn unlock(&self, device_address: usize) -> Result {
        within::may_wait()?;
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

    /// The locked range that holds `device_address`, or an address of the process. Costs the same
    /// however many there are. What is returned stays pinned until it is dropped. Context: any task.
    pub fn locked(&self, address: usize) -> Option<Arc<Region>> {
        self.host_locks().find(address & !APERTURE)
    }
}

impl Region {
    fn add_user(&self, addr: usize) -> Result<Locked> {
        let device_address = APERTURE + addr;
        let mut users = self.held.users.lock();
        match users.iter_mut().find(|(other, _)| *other == device_address) {
            Some((_, count)) => *count += 1,
            None => users.push((device_address, 1), GFP_KERNEL_ACCOUNT)?,
        }
        Ok(Locked {
            device_address,
            grain: self.grain,
        })
    }

    /// Takes a user away, and says whether it was the last. `ENOENT`.
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

// An address within a page keeps its offset.
const _: () = assert!(APERTURE % PAGE_SIZE == 0);
