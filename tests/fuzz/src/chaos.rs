// SPDX-License-Identifier: GPL-2.0
//! Concurrent changes of the memory map and of the arguments while calls are running.

use crate::{
    arena::{
        self,
        Kind, //
    },
    calls::{
        self,
        Caller,
        Op, //
    },
    extended,
    mutate,
    stats::Shared,
    sys, //
};
use hmm::{
    rng::Rng,
    PAGE_SIZE, //
};
use std::sync::atomic::Ordering::Relaxed;

/// Number of calls of a forked child.
const CHILD_CALLS: usize = 48;
/// Time after which a waiting call is interrupted, in ms.
const TIMEOUT: u64 = 4;

/// Changes the memory map and interrupts calls.
pub struct Chaos {
    /// Random number generator.
    pub rng: Rng,
    /// The file of [`Kind::File`].
    pub file: i32,
    /// Makes the calls of forked children.
    pub child: Caller,
    /// Slots of the threads of this process.
    pub slots: std::ops::Range<usize>,
    /// Ticks of a ms.
    pub per_ms: u64,
}

impl Chaos {
    fn shared(&self) -> &'static Shared {
        self.child.shared
    }

    /// Makes one change.
    pub fn one(&mut self) {
        self.interrupt();
        let (region, start, len) = arena::piece(&mut self.rng);
        let node = self.rng.pick(&calls::FDS);
        match self.rng.below(40) {
            0..12 => {
                arena::map(region, start, len, self.file, node);
            }
            12..15 => {
                sys::call3(libc::SYS_munmap, start, len, 0);
            }
            15..19 => {
                let prot = self.rng.pick(&[0, 1, 3, 3]);
                sys::call3(libc::SYS_mprotect, start, len, prot);
            }
            19..27 => {
                let advice = self.rng.pick(&[
                    libc::MADV_DONTNEED,
                    libc::MADV_FREE,
                    libc::MADV_COLD,
                    libc::MADV_PAGEOUT,
                    libc::MADV_HUGEPAGE,
                    libc::MADV_NOHUGEPAGE,
                    libc::MADV_COLLAPSE,
                    libc::MADV_POPULATE_READ,
                    libc::MADV_POPULATE_WRITE,
                    libc::MADV_DONTFORK,
                    libc::MADV_DOFORK,
                ]);
                arena::advise(start, len, advice);
            }
            27..29 if region.kind == Kind::Small => {
                let to = arena::page(&mut self.rng);
                let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
                let room = region.start + region.len;
                if (region.start..room).contains(&to) && to + len <= room {
                    sys::call(libc::SYS_mremap, [start, len, len, flags, to, 0]);
                }
            }
            29 => {
                // Fails beyond RLIMIT_MEMLOCK; the end of the process checks the locked memory.
                sys::call3(libc::SYS_mlock, start, len, 0);
            }
            30 if self.rng.one_in(8) => self.fork(),
            31 => self.calm(),
            _ => {
                for page in 0..(len / PAGE_SIZE).min(16) {
                    arena::touch(start + page * PAGE_SIZE, 64, self.rng.one_in(2));
                }
            }
        }
    }

    /// Interrupts calls that have waited for long.
    fn interrupt(&self) {
        let now = sys::ticks();
        for slot in &self.shared().slots[self.slots.clone()] {
            let waits = [Op::Wait, Op::ReadFd, Op::Other]
                .map(|op| op as u32 + 1)
                .contains(&slot.op.load(Relaxed));
            let tid = slot.tid.load(Relaxed);
            let ticks = now.saturating_sub(slot.since.load(Relaxed));
            if waits && tid != 0 && ticks > TIMEOUT * self.per_ms {
                sys::signal_thread(tid, calls::INTERRUPT);
            }
        }
    }

    /// Resets the delays of copies and flushes that any process may have set.
    fn calm(&mut self) {
        if self.child.hardware {
            return;
        }
        for fd in calls::FDS {
            for what in [0, 4] {
                self.child.set(fd, what, 0);
            }
        }
    }

    /// Forks a child, which makes calls with the same files and a copy of the memory.
    fn fork(&mut self) {
        let pid = sys::fork();
        if pid == 0 {
            sys::call3(libc::SYS_prctl, libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize, 0);
            for _ in 0..CHILD_CALLS {
                self.child.one();
            }
            self.shared().calls.fetch_add(CHILD_CALLS as u64, Relaxed);
            sys::exit_now(0);
        }
        if pid < 0 {
            return;
        }
        // Let the next child make other calls.
        self.child.rng = Rng::new(self.child.rng.bits(), 0);
        let mut waited = 0;
        while sys::call(libc::SYS_wait4, [pid as usize, 0, libc::WNOHANG as usize, 0, 0, 0]) == 0 {
            sys::sleep_us(500);
            self.interrupt();
            waited += 1;
            if waited % 10 == 0 {
                sys::call3(libc::SYS_kill, pid as usize, calls::INTERRUPT as usize, 0);
            }
        }
    }
}

/// Changes the arguments of calls that are running in other threads.
pub fn race(rng: &mut Rng, shared: &Shared, slots: std::ops::Range<usize>) {
    let thread = rng.below(slots.len());
    let slot = &shared.slots[slots.start + thread];
    for _ in 0..200 {
        let op = slot.op.load(Relaxed);
        // Leave test parameters alone: a delay of a second would stall the run.
        let alone = |op: Op| op == Op::Set || extended::is_alone(op);
        if op == 0 || calls::ALL.get(op as usize - 1).is_none_or(|op| alone(*op)) {
            std::hint::spin_loop();
            continue;
        }
        let at = slot.words[1].load(Relaxed) as usize & !7;
        let at = at + rng.below(10) * 8;
        if !arena::is_kept(at) || at / PAGE_SIZE != arena::arguments(thread) / PAGE_SIZE {
            continue;
        }
        match rng.below(4) {
            0 => sys::poke32(at + 4 * rng.below(2), mutate::half(rng)),
            _ => sys::poke(at, mutate::word(rng, sys::peek(at))),
        }
    }
}
