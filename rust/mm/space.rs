// SPDX-License-Identifier: GPL-2.0

//! An address space in use, and its mmap lock.
//!
//! [`kernel::mm`] has a read guard too, but it cannot be waited for killably, and it does not say
//! which address space it locks. Migration needs both.
//!
//! C header: [`include/linux/mmap_lock.h`](srctree/include/linux/mmap_lock.h)

use super::{addr::PageRange, notifier::Cookie};
use crate::{
    bindings,
    inject::{fails, Point},
    within::Within, //
};
use kernel::{
    error::to_result,
    mm::{
        virt::{flags, VmaRef},
        Mm,
        MmWithUser, //
    },
    prelude::*,
    types::NotThreadSafe, //
};

/// Whether a fatal signal waits for the current task, so that it should give up.
pub fn fatal_signal_pending() -> bool {
    // SAFETY: No preconditions.
    fails(Point::Killed) || unsafe { bindings::rust_hmm_fatal_signal_pending() }
}

/// Whether somebody uses the address space. It may end right after. Context: any.
pub(crate) fn is_in_use(mm: &Mm) -> bool {
    // SAFETY: It is a reference of the `mm_struct`.
    unsafe { bindings::rust_hmm_mm_in_use(mm.as_raw()) }
}

/// Sleeps for at least `ms` ms, or for a minute if that is less.
///
/// # Errors
///
/// `EINTR`: the task was killed. Context: may sleep; no lock may be held that others wait for.
pub fn sleep_killable(ms: u64) -> Result {
    let ms = ms.min(60_000) as u32;
    // SAFETY: No preconditions but the context.
    match unsafe { bindings::rust_hmm_sleep_killable(ms) } {
        true => Err(EINTR),
        false => Ok(()),
    }
}

/// The mmap lock of an address space, held for reading.
///
/// # Invariants
///
/// The current task holds the lock of `mm` for reading.
pub struct MmapGuard<'a> {
    mm: &'a MmWithUser,
    _within: Option<Within>,
}

impl<'a> MmapGuard<'a> {
    /// Waits for the lock. Functions of this library that wait fail with `EDEADLK` until the guard is
    /// dropped.
    ///
    /// # Errors
    ///
    /// `EINTR` if the task was killed meanwhile.
    ///
    /// # Context
    ///
    /// May sleep; no lock of this crate may be held.
    pub fn lock(mm: &'a MmWithUser) -> Result<Self> {
        let mut guard = Self::lock_here(mm)?;
        guard._within = Some(Within::enter());
        Ok(guard)
    }

    /// As [`Self::lock`], for the library itself, which marks each call of a driver: faults and
    /// migrations take the lock several times.
    pub(crate) fn lock_here(mm: &'a MmWithUser) -> Result<Self> {
        if fails(Point::MmapLock) {
            return Err(EINTR);
        }
        // SAFETY: `mm` is valid and in use.
        to_result(unsafe { bindings::rust_hmm_mmap_read_lock_killable(mm.as_raw()) })?;
        // INVARIANT: The lock was just taken.
        Ok(Self { mm, _within: None })
    }

    /// As [`Self::lock_here`], without waiting.
    ///
    /// # Errors
    ///
    /// `EBUSY`: somebody holds it for writing.
    pub(crate) fn try_lock_here(mm: &'a MmWithUser) -> Result<Self> {
        if fails(Point::MmapLock) {
            return Err(EBUSY);
        }
        // SAFETY: `mm` is valid and in use.
        if !unsafe { bindings::rust_hmm_mmap_read_trylock(mm.as_raw()) } {
            return Err(EBUSY);
        }
        // INVARIANT: The lock was just taken.
        Ok(Self { mm, _within: None })
    }

    pub(super) fn mm_raw(&self) -> *mut bindings::mm_struct {
        self.mm.as_raw()
    }

    /// The mapping that holds `addr`, if there is one.
    pub fn vma_lookup(&self, addr: usize) -> Option<Vma<'_>> {
        // SAFETY: The mmap lock is held by the type invariant.
        let vma = unsafe { bindings::rust_hmm_vma_lookup(self.mm.as_raw(), addr) };
        if vma.is_null() {
            return None;
        }
        // SAFETY: Non-null, and valid as long as the mmap lock is held, which is as long as `self`
        // is borrowed.
        Some(unsafe { Vma::from_raw(vma) })
    }

    /// Whether another task waits for the lock.
    pub(crate) fn is_contended(&self) -> bool {
        // SAFETY: `mm` is valid.
        unsafe { bindings::rust_hmm_mmap_is_contended(self.mm.as_raw()) }
    }

    /// The mapping at the start of `range`, and the part of `range` that lies in it. `EINVAL` if
    /// there is none, or if it may not be read.
    pub(crate) fn readable(&self, range: PageRange) -> Result<(Vma<'_>, PageRange)> {
        let vma = self
            .vma_lookup(range.start())
            .filter(|vma| vma.flags() & flags::READ != 0)
            .ok_or(EINVAL)?;
        let part = PageRange::new(range.start(), range.end().min(vma.end()))?;
        Ok((vma, part))
    }

    /// The first anonymous mapping that ends behind `from` and has the page of offset `offset`, see
    /// [`Vma::offset`].
    pub fn vma_of_offset(&self, from: usize, offset: usize) -> Option<Vma<'_>> {
        // SAFETY: As in `vma_lookup`.
        let vma = unsafe { bindings::rust_hmm_vma_of_offset(self.mm.as_raw(), from, offset) };
        if vma.is_null() {
            return None;
        }
        // SAFETY: As in `vma_lookup`.
        Some(unsafe { Vma::from_raw(vma) })
    }

    /// The mapping that holds `addr`, or the next one.
    pub(crate) fn vma_from(&self, addr: usize) -> Option<Vma<'_>> {
        // SAFETY: As above.
        let vma = unsafe { bindings::find_vma(self.mm.as_raw(), addr) };
        if vma.is_null() {
            return None;
        }
        // SAFETY: As above.
        Some(unsafe { Vma::from_raw(vma) })
    }
}

impl Drop for MmapGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: Held by the type invariant.
        unsafe { bindings::rust_hmm_mmap_read_unlock(self.mm.as_raw()) };
    }
}

/// As long as this exists, what the current task allocates with `GFP_KERNEL_ACCOUNT` is charged to
/// the control group of an address space. To be dropped in the reverse order.
///
/// # Invariants
///
/// The current task charges to a control group of which we own a reference; `old` is what it charged
/// to before, and outlives this.
pub(crate) struct Charge {
    old: *mut bindings::mem_cgroup,
    _nts: NotThreadSafe,
}

impl Charge {
    /// Charges to the control group of `mm`.
    pub(crate) fn to(mm: &MmWithUser) -> Self {
        // INVARIANT: The call takes the reference; who set `old` keeps that one.
        Self {
            // SAFETY: `mm` is valid.
            old: unsafe { bindings::rust_hmm_charge_to(mm.as_raw()) },
            _nts: NotThreadSafe,
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::rust_hmm_charge_end(self.old) };
    }
}

/// A mapping of which the *mmap lock* is held. A VMA lock would not be enough to migrate.
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
        // SAFETY: By the function's requirements.
        // INVARIANT: By the function's requirements.
        Self(unsafe { VmaRef::from_raw(vma) })
    }

    /// What its anonymous pages are numbered from, in pages. They keep their number wherever they are moved to; at
    /// first it is their address, or before Linux 7.3 that in the file of which they are private copies.
    pub fn offset(&self) -> usize {
        // SAFETY: The mapping is valid.
        unsafe { bindings::rust_hmm_vma_anon_offset(self.0.as_ptr()) }
    }

    /// A number that tells the reverse mapping from others'; 0 if nothing was ever there. A mapping keeps
    /// it when it is moved.
    pub fn anon(&self) -> usize {
        // SAFETY: The mapping is valid.
        unsafe { bindings::rust_hmm_vma_anon(self.0.as_ptr()) }
    }

    /// Whether the memory is anonymous and private.
    pub fn is_anonymous(&self) -> bool {
        // SAFETY: The mapping is valid.
        unsafe { bindings::rust_hmm_vma_is_anonymous(self.0.as_ptr()) }
    }

    /// Names the address space.
    pub(crate) fn space(&self) -> Cookie {
        // SAFETY: The mapping is valid.
        Cookie::of_mm(unsafe { bindings::rust_hmm_vma_mm(self.0.as_ptr()) })
    }
}

impl core::ops::Deref for Vma<'_> {
    type Target = VmaRef;

    fn deref(&self) -> &VmaRef {
        self.0
    }
}

#[kunit_tests(rust_hmm_space)]
mod tests {
    use super::*;
    use crate::thread::Thread;
    use kernel::{
        sync::aref::ARef,
        task::Task,
        time::{delay::fsleep, Delta, Instant, Monotonic}, //
    };

    #[test]
    fn a_sleep_lasts_as_long_as_was_asked_for() -> Result {
        let sleeper: ARef<Task> = ARef::from(&**kernel::current!());
        let waker = Thread::spawn(c"hmm-test", move || {
            for _ in 0..100 {
                fsleep(Delta::from_millis(1));
                sleeper.wake_up();
            }
        })?;
        for _ in 0..5 {
            let begin = Instant::<Monotonic>::now();
            sleep_killable(20)?;
            assert!(begin.elapsed().as_millis() >= 20);
        }
        drop(waker);
        Ok(())
    }
}
