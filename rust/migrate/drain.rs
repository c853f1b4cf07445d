// SPDX-License-Identifier: GPL-2.0

//! The end of a mirror: what its device has goes back by address.
//!
//! Eviction by physical page searches the reverse mapping of each page, and calls notifiers for each.
//! Whoever closes knows the address space, and that nobody reads any more.

use super::{step::Step, Tally, Target};
use crate::{
    events::{Event, Trigger},
    memory::Memory,
    mirror::{Device, Mirror},
    mm::addr::{PageRange, PMD_SIZE},
    stats::Counter,
    within,
};
use kernel::{
    page::{PAGE_MASK, PAGE_SIZE},
    prelude::*, //
};

/// Parts of the address space that are remembered at once, of 2 MiB at most each.
const PARTS: usize = 1024;

/// Where the device's table has pages of its own memory.
struct Parts {
    list: KVVec<PageRange>,
    /// There are more.
    full: bool,
}

impl Parts {
    fn new() -> Result<Self> {
        Ok(Self {
            list: KVVec::with_capacity(PARTS, GFP_KERNEL)?,
            full: false,
        })
    }

    /// Adds `span`, which lies behind what was added before. `false` if there is no room.
    fn add(&mut self, span: PageRange) -> bool {
        let block = |range: &PageRange| range.start() & !(PMD_SIZE - 1);
        if let Some(last) = self.list.last_mut() {
            if block(last) == block(&span) {
                *last = last.hull(&span);
                return true;
            }
        }
        let room = self.list.push_within_capacity(span).is_ok();
        self.full |= !room;
        room
    }
}

impl<D: Device> Mirror<D> {
    /// Takes everything away from the device, and moves what it had of its own memory to system memory:
    /// for a driver that closes, when no command runs any more, before it drops the mirror.
    ///
    /// Best effort, in a fraction of the time of [`Memory::evict_all`], to which is left what the
    /// device had no entry for, and what other processes share. Returns the pages moved.
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device has no memory. `EFAULT`: the process is gone. `ENOMEM`. `EINTR`: killed; the
    /// device may have some entries left, and what was moved has moved. `EDEADLK`: within a callback.
    /// Context: may sleep; no lock may be held.
    // A stack frame of its own: those of closing files are large.
    #[inline(never)]
    pub fn drain(&self) -> Result<usize> {
        within::may_wait()?;
        let memory: &Memory<_> = self.device().memory().ok_or(ENODEV)?;
        let mut parts = Parts::new()?;
        let all = PageRange::new(0, usize::MAX & PAGE_MASK)?;
        let tally = Tally::new(all, None);
        let mut step = Step::new(self, Target::System, false, false, None, tally)?;
        let (inner, to_device, trigger) = (self.inner(), false, Trigger::Close);
        inner.tell(&Event::MigrateBegin {
            range: all,
            to_device,
            trigger,
        });
        self.stats().add(Counter::Migrations, 1);
        let mut moved = 0;
        let result = self.drain_all(all, &mut parts, &mut step, &mut moved);
        inner.tell(&Event::MigrateEnd {
            to_device,
            trigger,
            moved,
            switched: 0,
            stayed: 0,
            result,
        });
        memory.stats().add(Counter::Evicted, moved as u64);
        result.map(|()| moved)
    }

    #[inline(never)]
    fn drain_all(
        &self,
        all: PageRange,
        parts: &mut Parts,
        step: &mut Step<'_, D>,
        moved: &mut usize,
    ) -> Result {
        let mut rest = Some(all);
        while let Some(range) = rest {
            self.remove_some(range, |span, entry| !entry.is_device() || parts.add(span));
            let end = parts.list.last().map(PageRange::end);
            rest = end
                .filter(|_| parts.full)
                .and_then(|end| range.from_address(end));
            for part in parts.list.drain_all() {
                *moved += step.move_part(part)?;
            }
            parts.full = false;
        }
        Ok(())
    }
}

impl<D: Device> Step<'_, D> {
    /// Moves what can be moved of `part`. Returns the pages moved. `EINTR` if killed.
    fn move_part(&mut self, part: PageRange) -> Result<usize> {
        let mut moved = 0;
        let mut rest = Some(part);
        while let Some(range) = rest {
            let (done, result) = self.run(range);
            let pages = self.work.pages.iter();
            moved += pages.filter(|page| page.has_moved()).count();
            rest = match result {
                Ok(()) => range.from_address(done),
                // A hole, or a mapping that may not be read.
                Err(error) if error == EINVAL => range.from_address(done + PAGE_SIZE),
                Err(error) if error == EINTR => return Err(error),
                Err(_) => None,
            };
        }
        Ok(moved)
    }
}
