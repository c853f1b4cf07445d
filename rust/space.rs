// SPDX-License-Identifier: GPL-2.0

//! What the library knows of one address space: one [`Space`] for each `mm_struct` with a mirror.
//!
//! Spaces are found by the address of the `mm_struct`, without a lock: at every CPU fault on device memory.

use crate::{
    attributes::Map,
    events::Need,
    mm::{
        notifier::{Cookie, Event},
        rcu_map::{RcuArc, RcuMap},
        registration::Registration,
    },
};
use kernel::{
    mm::{Mm, MmWithUser},
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{ordering::Relaxed, Atomic},
    },
    time::{Instant, Monotonic},
};

mod attribute_watch;
mod mirrors;
mod readers;
mod request;
mod window;
mod windows;

use attribute_watch::AttributeWatch;
use mirrors::Entered;
pub(crate) use mirrors::{Invalidated, Membership, MirrorOps, Mirrors};
pub(crate) use readers::{Joined, Readers};
pub(crate) use request::{Destination, Identity, Request};
pub(crate) use window::Window;
pub(crate) use windows::WindowUser;
use windows::Windows;

/// State of one address space.
#[pin_data]
pub(crate) struct Space {
    /// Its memory is not used for another one: the address names this one.
    mm: ARef<Mm>,
    /// How many [`Handle`]s there are. Changed under [`OPENING`].
    handles: Atomic<usize>,
    /// The mirrors of the process, of any device.
    #[pin]
    mirrors: Mirrors,
    /// Whether notifiers can be inserted without the mmap lock.
    #[pin]
    registration: Registration,
    /// Where devices use memory.
    #[pin]
    windows: Windows,
    /// What was said of ranges, for all devices.
    #[pin]
    attributes: Map,
    /// What is told when memory with attributes is unmapped.
    #[pin]
    attribute_watch: AttributeWatch,
    /// Number of the last event of which a window was told.
    last_event: Atomic<usize>,
    /// Faults that had to try again: new migrations let them go first for a while.
    retrying: Atomic<usize>,
    /// When it was made: times are counted from here.
    born: Instant<Monotonic>,
}

/// All spaces.
// SAFETY: `init` is called when the module is loaded, before there is a mirror.
static SPACES: RcuMap<Space> = unsafe { RcuMap::uninit() };

kernel::sync::global_lock! {
    // SAFETY: `init` is called when the module is loaded, before there is a mirror.
    unsafe(uninit) static OPENING: Mutex<()> = ();
}

/// Prepares the map and the lock.
///
/// # Safety
///
/// Called once, before anything else here.
pub(crate) unsafe fn init() {
    // SAFETY: By the function's requirements.
    unsafe {
        OPENING.init();
        SPACES.init();
    }
}

// Not inlined: there is one map in all modules.
#[inline(never)]
fn spaces() -> &'static RcuMap<Space> {
    &SPACES
}

/// The space that `name` names, if it has mirrors. Context: any but NMI.
pub(crate) fn find(name: Cookie) -> Option<RcuArc<Space>> {
    spaces().get(name.number())
}

/// A space that is there as long as this is. Dropping it may sleep.
pub(crate) struct Handle(RcuArc<Space>);

impl Handle {
    /// The space of `mm`, which is made if there is none. Context: may sleep. `ENOMEM`.
    // Not inlined: there is one lock in all modules.
    #[inline(never)]
    pub(crate) fn new(mm: &MmWithUser) -> Result<Self> {
        let spaces = spaces();
        let name = Cookie::of_space(mm);
        let index = name.number();
        let _opening = OPENING.lock();
        if let Some(space) = spaces.get(index) {
            space.handles.fetch_add(1, Relaxed);
            return Ok(Self(space));
        }
        let space = RcuArc::pin_init(try_pin_init!(Space {
            mm: ARef::from(&**mm),
            handles: Atomic::new(1),
            mirrors <- Mirrors::new(),
            registration <- Registration::new(name),
            windows <- Windows::new(name),
            attributes <- Map::new(),
            attribute_watch <- AttributeWatch::new(),
            last_event: Atomic::new(0),
            retrying: Atomic::new(0),
            born: Instant::now(),
        }? Error))?;
        spaces.insert(index, space.clone())?;
        Ok(Self(space))
    }
}

impl Handle {
    /// The space, for what may outlive this.
    pub(crate) fn space(&self) -> RcuArc<Space> {
        self.0.clone()
    }
}

impl core::ops::Deref for Handle {
    type Target = Space;

    fn deref(&self) -> &Space {
        &self.0
    }
}

impl Drop for Handle {
    #[inline(never)]
    fn drop(&mut self) {
        let opening = OPENING.lock();
        if self.handles.fetch_sub(1, Relaxed) != 1 {
            return;
        }
        // Nobody finds it any more.
        let space = spaces().remove(self.name().number());
        drop(opening);
        if let Some(space) = space {
            // These wait for callbacks, and have references of the space.
            space.windows.remove_all();
            space.attribute_watch.remove();
        }
    }
}

impl Space {
    /// Names the address space.
    pub(crate) fn name(&self) -> Cookie {
        Cookie::of_mm_ref(&self.mm)
    }

    /// The mirrors of the process.
    pub(crate) fn mirrors(&self) -> &Mirrors {
        &self.mirrors
    }

    /// The time in ms, for all mirrors.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(0)
    }

    /// The mapped memory, unless nobody uses it any more.
    pub(crate) fn mm(&self) -> &Mm {
        &self.mm
    }

    /// Whether the address space is still in use. It may end right after. Context: any.
    pub(crate) fn is_alive(&self) -> bool {
        crate::mm::space::is_in_use(&self.mm)
    }

    /// Where devices use memory.
    pub(crate) fn windows(&self) -> &Windows {
        &self.windows
    }

    /// What was said of ranges. A device is named by [`MirrorOps::device_name`].
    pub(crate) fn attributes(&self) -> &Map {
        &self.attributes
    }

    /// Whether `event` was not told before.
    fn is_first_of(&self, event: &Event<'_>) -> bool {
        self.last_event.xchg(event.number(), Relaxed) != event.number()
    }

    /// An eviction has taken pages, and is over: tells the mirrors, if there is a `need`, and maps again what devices are to
    /// have mapped always, if `restore` says so. Context: may sleep; no lock may be held.
    pub(crate) fn evicted(&self, need: Option<Need>, restore: bool) {
        let current = current!();
        let is_own = current
            .mm()
            .is_some_and(|mm| Cookie::of_space(mm) == self.name());
        for mirror in self.mirrors.entered(None) {
            if let Some(need) = need {
                mirror.evicted(need);
            }
            if restore && is_own {
                mirror.restore(None);
            }
        }
        if restore && !is_own {
            // It needs the mmap lock, for which who evicts does not wait.
            self.windows.restore_later();
        }
    }

    /// A fault has to try again, as long as this is there.
    pub(crate) fn retry(&self) -> Retrying<'_> {
        self.retrying.fetch_add(1, Relaxed);
        Retrying(self)
    }

    /// Whether a fault has to try again.
    pub(crate) fn has_retries(&self) -> bool {
        self.retrying.load(Relaxed) != 0
    }
}

/// A fault that has to try again.
pub(crate) struct Retrying<'s>(&'s Space);

impl Drop for Retrying<'_> {
    fn drop(&mut self) {
        self.0.retrying.fetch_sub(1, Relaxed);
    }
}
