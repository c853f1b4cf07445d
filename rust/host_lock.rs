// SPDX-License-Identifier: GPL-2.0

//! Host memory lock: pins memory of a process, so that devices can access it by an address that the
//! lock returns.
//!
//! Ranges are page-aligned. A lock of a range inside a locked range shares its pins. A lock that
//! would extend a locked range, or that overlaps it partially, is refused. Each lock needs its own
//! unlock; the last unlock unpins the range. See `Documentation/host-lock.rst`.

use crate::{
    kernel::reentry,
    mirror::{
        host_locks::overlapping,
        Device,
        Mirror, //
    },
    mm::{
        addr::PageRange,
        dma::DmaDevice,
        pin::PinnedPages, //
    }, //
};
use kernel::{
    prelude::*,
    rbtree::RBTreeNode,
    sync::Arc, //
};

pub use crate::mirror::host_locks::{
    Coherence,
    PinnedRange,
    APERTURE, //
};

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
            if region.range().intersect(&range) != Some(range) {
                return Err(LockError::Extends);
            }
            if grain == Coherence::Fine && region.grain() == Coherence::Coarse {
                return Err(LockError::Coherence);
            }
            // The range stays fine-grained, so that new devices have to be coherent, too.
            if region.grain() == Coherence::Fine && !coherent {
                return Err(LockError::Coherence);
            }
            let now = PinnedPages::new(&space.mmap_lock_here()?, range)?;
            let first = region.range().index_of(range.start()).ok_or(EINVAL)?;
            if !region.has(&now, first) {
                return Err(LockError::Remapped);
            }
            region.map_for(agents)?;
            return Ok(LockGrant {
                device_address: region.add_user(range.start())?,
                grain: region.grain(),
            });
        }
        let accounted = space.account(range.pages())?;
        let pages = PinnedPages::new(&space.mmap_lock_here()?, range)?;
        let region = PinnedRange::new(range, grain, pages, accounted)?;
        region.map_for(agents)?;
        let device_address = region.add_user(range.start())?;
        let end = RBTreeNode::new(range.end(), region.clone(), GFP_KERNEL_ACCOUNT)?;
        locks.insert(&region)?;
        ranges.insert(end);
        Ok(LockGrant {
            device_address,
            grain,
        })
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
            locks.remove(&region, region.range().pages());
            ranges.remove(&region.range().end());
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
