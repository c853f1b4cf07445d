// SPDX-License-Identifier: GPL-2.0

//! Per-address-space state: one [`Space`] for each `mm_struct` with a mirror.
//!
//! Spaces are looked up by the address of the `mm_struct`. The lookup is lockless, because each CPU
//! fault on device memory needs it.

use crate::{
    attributes::Map,
    debug::events::EvictReason,
    kernel::{
        identity::MmId,
        rcu_map::{
            RcuArc,
            RcuMap, //
        }, //
    },
    mm::{
        notifier::NotifierRange,
        registration::Registration, //
    },
    policy::fault_around::FaultWindows, //
};
use kernel::{
    mm::{
        Mm,
        MmWithUser, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            ordering::Relaxed,
            Atomic, //
        }, //
    },
    time::{
        Instant,
        Monotonic, //
    }, //
};

mod attribute_watch;
mod cpu_faults;
mod mirrors;
mod readers;
mod request;
mod window;
mod windows;

use attribute_watch::AttributeWatch;
pub(crate) use cpu_faults::cpu_fault_window;
use mirrors::EnteredMirror;
pub(crate) use mirrors::{
    Invalidated,
    Membership,
    MirrorOps,
    OwnMemory,
    SpaceMirrors,
    StartedFlush, //
};
pub(crate) use readers::{
    FlushedReaders,
    JoinedMirrors,
    Readers, //
};
pub(crate) use request::{
    Destination,
    EventMatch,
    MigrationDesc, //
};
pub(crate) use window::NotifierWindow;
use windows::NotifierWindows;
pub(crate) use windows::WindowUser;

/// State of one address space.
#[pin_data]
pub(crate) struct Space {
    /// The reference prevents the reuse of the address of the `mm_struct`, which identifies the
    /// space.
    mm: ARef<Mm>,
    /// Number of [`SpaceHandle`]s. Changed under [`OPENING`].
    handles: Atomic<usize>,
    /// The mirrors of the process, of all devices.
    #[pin]
    mirrors: SpaceMirrors,
    /// Whether notifiers can be inserted without taking the mmap lock.
    #[pin]
    registration: Registration,
    /// Notifier windows of the ranges that devices use.
    #[pin]
    windows: NotifierWindows,
    /// Attributes of ranges, for all devices.
    #[pin]
    attributes: Map,
    /// Notifier that reports unmapped ranges to `attributes`.
    #[pin]
    attribute_watch: AttributeWatch,
    /// History of the CPU faults on device memory.
    cpu_faults: FaultWindows,
    /// Number of the last notifier event that a window has handled.
    last_event: Atomic<usize>,
    /// Number of faults that are being retried. New migrations give them precedence for a while.
    retrying: Atomic<usize>,
    /// Creation time, the origin of [`Space::now`].
    born: Instant<Monotonic>,
}

/// All spaces, by the address of their `mm_struct`.
// SAFETY: `init` is called when the module is loaded, before the first mirror is opened.
static SPACES: RcuMap<Space> = unsafe { RcuMap::uninit() };

kernel::sync::global_lock! {
    // SAFETY: `init` is called when the module is loaded, before the first mirror is opened.
    unsafe(uninit) static OPENING: Mutex<()> = ();
}

/// Initializes the map of spaces and the lock.
///
/// # Safety
///
/// Must be called once, before any other function of this module.
pub(crate) unsafe fn init() {
    // SAFETY: Called once and before any use, by the function's requirements.
    unsafe {
        OPENING.init();
        SPACES.init();
    }
}

// Not inlined: all modules must use the same map.
#[inline(never)]
fn spaces() -> &'static RcuMap<Space> {
    &SPACES
}

/// Returns the space with the identity `name`, if it has mirrors. Context: any but NMI.
pub(crate) fn find(name: MmId) -> Option<RcuArc<Space>> {
    spaces().get(name.number())
}

/// A reference that keeps a space in the map. Dropping it may sleep.
pub(crate) struct SpaceHandle(RcuArc<Space>);

impl SpaceHandle {
    /// Returns the space of `mm`, and creates it if there is none. Context: may sleep. `ENOMEM`.
    // Not inlined: all modules must use the same lock.
    #[inline(never)]
    pub(crate) fn new(mm: &MmWithUser) -> Result<Self> {
        let spaces = spaces();
        let name = MmId::of_user(mm);
        let index = name.number();
        let _opening = OPENING.lock();
        if let Some(space) = spaces.get(index) {
            space.handles.fetch_add(1, Relaxed);
            return Ok(Self(space));
        }
        let space = RcuArc::pin_init(try_pin_init!(Space {
            mm: ARef::from(&**mm),
            handles: Atomic::new(1),
            mirrors <- SpaceMirrors::new(),
            registration <- Registration::new(name),
            windows <- NotifierWindows::new(name),
            attributes <- Map::new(),
            attribute_watch <- AttributeWatch::new(),
            cpu_faults: FaultWindows::new()?,
            last_event: Atomic::new(0),
            retrying: Atomic::new(0),
            born: Instant::now(),
        }? Error))?;
        spaces.insert(index, space.clone())?;
        Ok(Self(space))
    }
}

impl SpaceHandle {
    /// Returns a reference to the space that may outlive this handle.
    pub(crate) fn space(&self) -> RcuArc<Space> {
        self.0.clone()
    }
}

impl core::ops::Deref for SpaceHandle {
    type Target = Space;

    fn deref(&self) -> &Space {
        &self.0
    }
}

impl Drop for SpaceHandle {
    #[inline(never)]
    fn drop(&mut self) {
        let opening = OPENING.lock();
        if self.handles.fetch_sub(1, Relaxed) != 1 {
            return;
        }
        // Lookups do not find the space after this.
        let space = spaces().remove(self.name().number());
        drop(opening);
        if let Some(space) = space {
            // Remove the notifiers, which have references to the space. This waits for their
            // callbacks, so that `OPENING` is not held.
            space.windows.remove_all();
            space.attribute_watch.remove();
        }
    }
}

impl Space {
    /// Returns the identity of the address space.
    pub(crate) fn name(&self) -> MmId {
        MmId::of_mm(&self.mm)
    }

    /// Returns the mirrors of the process.
    pub(crate) fn mirrors(&self) -> &SpaceMirrors {
        &self.mirrors
    }

    /// Returns the time in ms since the creation of the space.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(0)
    }

    /// Returns the `mm_struct`, which may have no users left.
    pub(crate) fn mm(&self) -> &Mm {
        &self.mm
    }

    /// Returns whether the address space has users. It may lose them concurrently. Context: any.
    pub(crate) fn is_alive(&self) -> bool {
        crate::mm::vma::is_in_use(&self.mm)
    }

    /// Returns the notifier windows.
    pub(crate) fn windows(&self) -> &NotifierWindows {
        &self.windows
    }

    /// Returns the attributes of ranges. Devices are identified by [`MirrorOps::device_name`].
    pub(crate) fn attributes(&self) -> &Map {
        &self.attributes
    }

    /// Returns whether `event` was not handled before; an event may concern several windows.
    fn is_first_of(&self, event: &NotifierRange<'_>) -> bool {
        self.last_event.xchg(event.number(), Relaxed) != event.number()
    }

    /// Called after an eviction of pages of this space. With `need`, reports the eviction to the
    /// mirrors. With `restore`, maps pages again that devices must have mapped always
    /// ([`accessed_by`](crate::attributes::Attributes::accessed_by)).
    ///
    /// # Context
    ///
    /// May sleep; no lock may be held.
    pub(crate) fn evicted(&self, need: Option<EvictReason>, restore: bool) {
        let current = current!();
        let is_own = current
            .mm()
            .is_some_and(|mm| MmId::of_user(mm) == self.name());
        for mirror in self.mirrors.entered(None) {
            if let Some(need) = need {
                mirror.evicted(need);
            }
            if restore && is_own {
                mirror.restore(None);
            }
        }
        if restore && !is_own {
            // Deferred to a worker: this takes the mmap lock, and an eviction must not wait for
            // that of another process.
            self.windows.restore_later();
        }
    }

    /// Registers a fault that is retried, until the returned value is dropped.
    pub(crate) fn retry(&self) -> FaultRetryGuard<'_> {
        self.retrying.fetch_add(1, Relaxed);
        FaultRetryGuard(self)
    }

    /// Returns whether a fault is being retried.
    pub(crate) fn has_retries(&self) -> bool {
        self.retrying.load(Relaxed) != 0
    }
}

/// Registration of a fault that is retried.
pub(crate) struct FaultRetryGuard<'s>(&'s Space);

impl Drop for FaultRetryGuard<'_> {
    fn drop(&mut self) {
        self.0.retrying.fetch_sub(1, Relaxed);
    }
}
