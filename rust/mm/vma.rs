// SPDX-License-Identifier: GPL-2.0

//! The mmap lock of an address space, and its VMAs.
//!
//! The read guard of [`kernel::mm`] cannot be taken killably, and does not say which mm it locks.
//! Migration needs both.
//!
//! C header: [`include/linux/mmap_lock.h`](srctree/include/linux/mmap_lock.h)

use super::addr::PageRange;
use crate::{
    bindings,
    inject::{
        fails,
        FailPoint, //
    },
    kernel::{
        identity::MmId,
        reentry::ReentryGuard, //
    }, //
};
use kernel::{
    error::to_result,
    mm::{
        virt::{
            flags,
            VmaRef, //
        },
        Mm,
        MmWithUser, //
    },
    prelude::*,
    types::NotThreadSafe, //
};

/// Whether a fatal signal is pending for the current task, which should return to user mode soon
/// then.
///
/// # Context
///
/// Task context.
pub fn fatal_signal_pending() -> bool {
    // SAFETY: The helper has no preconditions.
    fails(FailPoint::Killed) || unsafe { bindings::rust_hmm_fatal_signal_pending() }
}

/// Whether `mm` has users. The last user may exit at any time. Callable from any context.
pub(crate) fn is_in_use(mm: &Mm) -> bool {
    // SAFETY: `mm` is a reference of the `mm_struct`, which keeps it allocated.
    unsafe { bindings::rust_hmm_mm_in_use(mm.as_raw()) }
}

/// Sleeps for at least `ms` milliseconds, or for one minute if that is less.
///
/// # Errors
///
/// * `EINTR`: a fatal signal is pending.
///
/// # Context
///
/// May sleep. The caller should hold no lock, so that it does not delay other tasks.
pub fn msleep_killable(ms: u64) -> Result {
    let ms = ms.min(60_000) as u32;
    // SAFETY: The helper only requires a context that may sleep.
    if unsafe { bindings::rust_hmm_sleep_killable(ms) } {
        Err(EINTR)
    } else {
        Ok(())
    }
}

/// The mmap lock of an mm, held for reading.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::mm::MmWithUser;
/// use rust_hmm::mm::vma::MmapGuard;
///
/// /// Returns whether pages at `addr` can migrate: only anonymous memory can.
/// fn can_migrate(mm: &MmWithUser, addr: usize) -> Result<bool> {
///     let guard = MmapGuard::lock(mm)?;
///     let vma = guard.vma_lookup(addr).ok_or(EFAULT)?;
///     Ok(vma.is_anonymous())
/// }
/// ```
///
/// # Invariants
///
/// The current task holds the lock of `mm` for reading.
pub struct MmapGuard<'a> {
    mm: &'a MmWithUser,
    _within: Option<ReentryGuard>,
}

impl<'a> MmapGuard<'a> {
    /// Takes the lock, killably. Blocking functions of this library fail with `EDEADLK` until the
    /// guard is dropped.
    ///
    /// # Errors
    ///
    /// * `EINTR`: a fatal signal is pending.
    ///
    /// # Context
    ///
    /// May sleep. The caller must not hold a lock of this crate.
    pub fn lock(mm: &'a MmWithUser) -> Result<Self> {
        let mut guard = Self::lock_here(mm)?;
        guard._within = Some(ReentryGuard::enter());
        Ok(guard)
    }

    /// Takes the lock without marking the task as being in a callback. For the library itself,
    /// which marks each call of a driver instead, because faults and migrations take the lock
    /// several times. See [`Self::lock`].
    pub(crate) fn lock_here(mm: &'a MmWithUser) -> Result<Self> {
        if fails(FailPoint::MmapLock) {
            return Err(EINTR);
        }
        // SAFETY: `mm` is valid and has a user.
        to_result(unsafe { bindings::rust_hmm_mmap_read_lock_killable(mm.as_raw()) })?;
        // INVARIANT: The lock was taken above.
        Ok(Self { mm, _within: None })
    }

    /// Takes the lock without waiting. See [`Self::lock_here`].
    ///
    /// # Errors
    ///
    /// * `EBUSY`: a writer holds the lock or waits for it.
    pub(crate) fn try_lock_here(mm: &'a MmWithUser) -> Result<Self> {
        if fails(FailPoint::MmapLock) {
            return Err(EBUSY);
        }
        // SAFETY: `mm` is valid and has a user.
        if !unsafe { bindings::rust_hmm_mmap_read_trylock(mm.as_raw()) } {
            return Err(EBUSY);
        }
        // INVARIANT: The lock was taken above.
        Ok(Self { mm, _within: None })
    }

    pub(super) fn mm_raw(&self) -> *mut bindings::mm_struct {
        self.mm.as_raw()
    }

    /// Returns the VMA that contains `addr`.
    ///
    /// # Context
    ///
    /// The guard holds the mmap lock. Does not sleep.
    pub fn vma_lookup(&self, addr: usize) -> Option<Vma<'_>> {
        // SAFETY: The mmap lock is held by the type invariant.
        let vma = unsafe { bindings::rust_hmm_vma_lookup(self.mm.as_raw(), addr) };
        if vma.is_null() {
            return None;
        }
        // SAFETY: `vma` is not null, and valid as long as the mmap lock is held, which is as long
        // as `self` is borrowed.
        Some(unsafe { Vma::from_raw(vma) })
    }

    /// Whether another task waits for the lock.
    pub(crate) fn is_contended(&self) -> bool {
        // SAFETY: `mm` is valid by the type invariant.
        unsafe { bindings::rust_hmm_mmap_is_contended(self.mm.as_raw()) }
    }

    /// Returns the VMA that contains the start of `range`, and the part of `range` that lies in it.
    ///
    /// # Errors
    ///
    /// * `EINVAL`: there is no such VMA, or it is not readable.
    pub(crate) fn readable(&self, range: PageRange) -> Result<(Vma<'_>, PageRange)> {
        let vma = self
            .vma_lookup(range.start())
            .filter(|vma| vma.flags() & flags::READ != 0)
            .ok_or(EINVAL)?;
        let part = PageRange::new(range.start(), range.end().min(vma.end()))?;
        Ok((vma, part))
    }

    /// Returns the first VMA that ends after `from`, has anonymous pages, and contains the page
    /// with anonymous offset `offset`. See [`Vma::offset`].
    ///
    /// # Context
    ///
    /// The guard holds the mmap lock. Does not sleep.
    pub fn vma_of_offset(&self, from: usize, offset: usize) -> Option<Vma<'_>> {
        // SAFETY: The mmap lock is held by the type invariant.
        let vma = unsafe { bindings::rust_hmm_vma_of_offset(self.mm.as_raw(), from, offset) };
        if vma.is_null() {
            return None;
        }
        // SAFETY: `vma` is not null, and valid as long as `self` is borrowed, which keeps the mmap
        // lock held.
        Some(unsafe { Vma::from_raw(vma) })
    }

    /// Returns the VMA that contains `addr`, or else the next one.
    #[cfg(CONFIG_RUST_HMM_MANAGED)]
    pub(crate) fn vma_from(&self, addr: usize) -> Option<Vma<'_>> {
        // SAFETY: The mmap lock is held by the type invariant.
        let vma = unsafe { bindings::find_vma(self.mm.as_raw(), addr) };
        if vma.is_null() {
            return None;
        }
        // SAFETY: `vma` is not null, and valid as long as `self` is borrowed, which keeps the mmap
        // lock held.
        Some(unsafe { Vma::from_raw(vma) })
    }
}

impl Drop for MmapGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: The current task holds the lock by the type invariant.
        unsafe { bindings::rust_hmm_mmap_read_unlock(self.mm.as_raw()) };
    }
}

/// Charges `GFP_KERNEL_ACCOUNT` allocations of the current task to the memory cgroup of an mm while
/// this exists. Several of these must be dropped in reverse order.
///
/// # Invariants
///
/// The current task charges to a memory cgroup of which we own a reference. `old` is the memory
/// cgroup to which it charged before, and outlives this.
pub(crate) struct MemcgCharge {
    old: *mut bindings::mem_cgroup,
    _nts: NotThreadSafe,
}

impl MemcgCharge {
    /// Charges allocations to the memory cgroup of `mm`.
    pub(crate) fn to(mm: &MmWithUser) -> Self {
        // INVARIANT: The helper takes the reference. The caller that set `old` keeps its reference.
        Self {
            // SAFETY: `mm` is valid.
            old: unsafe { bindings::rust_hmm_charge_to(mm.as_raw()) },
            _nts: NotThreadSafe,
        }
    }
}

impl Drop for MemcgCharge {
    fn drop(&mut self) {
        // SAFETY: `old` was the previous memory cgroup and is still referenced, by the type
        // invariant.
        unsafe { bindings::rust_hmm_charge_end(self.old) };
    }
}

/// A VMA whose mm is protected by the *mmap lock*. A VMA lock is not sufficient for a migration.
///
/// # Invariants
///
/// The mmap lock of the mapping's address space is held, at least for reading, for `'a`.
#[derive(Clone, Copy)]
pub struct Vma<'a>(&'a VmaRef);

impl<'a> Vma<'a> {
    /// # Safety
    ///
    /// `vma` must be valid, and the mmap lock be held for reading, for all of `'a`.
    pub(crate) unsafe fn from_raw(vma: *mut bindings::vm_area_struct) -> Self {
        // SAFETY: `vma` is valid and the mmap lock is held for `'a`, by the function's
        // requirements.
        // INVARIANT: The mmap lock is held for `'a`, by the function's requirements.
        Self(unsafe { VmaRef::from_raw(vma) })
    }

    /// Returns the anonymous offset of the VMA, in pages. It is the index of the VMA's first page,
    /// which identifies anonymous pages independent of their address: `mremap()` does not change
    /// it. Initially it is derived from the address. Before Linux 7.3, a private file mapping has
    /// the offset in the file instead.
    ///
    /// # Context
    ///
    /// The mmap lock is held, as the lifetime ensures. Does not sleep.
    pub fn offset(&self) -> usize {
        // SAFETY: The VMA is valid for `'a`.
        unsafe { bindings::rust_hmm_vma_anon_offset(self.0.as_ptr()) }
    }

    /// Returns a number that identifies the `anon_vma`; 0 if the VMA never had anonymous pages.
    /// `mremap()` does not change it.
    ///
    /// # Context
    ///
    /// The mmap lock is held, as the lifetime ensures. Does not sleep.
    pub fn anon(&self) -> usize {
        // SAFETY: The VMA is valid for `'a`.
        unsafe { bindings::rust_hmm_vma_anon(self.0.as_ptr()) }
    }

    /// Whether the VMA is anonymous and private.
    ///
    /// # Context
    ///
    /// The mmap lock is held, as the lifetime ensures. Does not sleep.
    pub fn is_anonymous(&self) -> bool {
        // SAFETY: The VMA is valid for `'a`.
        unsafe { bindings::rust_hmm_vma_is_anonymous(self.0.as_ptr()) }
    }

    /// Returns the identity of the mm.
    pub(crate) fn space(&self) -> MmId {
        // SAFETY: The VMA is valid for `'a`.
        MmId::of_raw(unsafe { bindings::rust_hmm_vma_mm(self.0.as_ptr()) })
    }
}

impl core::ops::Deref for Vma<'_> {
    type Target = VmaRef;

    fn deref(&self) -> &VmaRef {
        self.0
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_space)]
mod tests {
    use super::*;
    use crate::kernel::kthread::Thread;
    use kernel::{
        sync::aref::ARef,
        task::Task,
        time::{
            delay::fsleep,
            Delta,
            Instant,
            Monotonic, //
        }, //
    };

    #[test]
    fn sleep_lasts_for_the_requested_time() -> Result {
        let sleeper: ARef<Task> = ARef::from(&**kernel::current!());
        let waker = Thread::spawn(c"hmm-test", move || {
            for _ in 0..100 {
                fsleep(Delta::from_millis(1));
                sleeper.wake_up();
            }
        })?;
        for _ in 0..5 {
            let begin = Instant::<Monotonic>::now();
            msleep_killable(20)?;
            assert!(begin.elapsed().as_millis() >= 20);
        }
        drop(waker);
        Ok(())
    }
}
