// SPDX-License-Identifier: GPL-2.0
//! A process with several threads that make calls.

use crate::{
    arena,
    calls::{
        self,
        Caller,
        Drawn,
        FDS, //
    },
    chaos::{
        self,
        Chaos, //
    },
    stats::Shared,
    sys, //
};
use hmm::{
    rng::Rng,
    PAGE_SIZE, //
};
use std::sync::atomic::{
    AtomicBool,
    Ordering::Relaxed, //
};

/// Number of slots of one process.
pub const SLOTS: usize = 8;
/// Index of the page for arguments of forked children.
const CHILD: usize = 6;

/// Parameters of a process.
#[derive(Clone, Copy)]
pub struct Plan {
    /// Seed of the run.
    pub seed: u64,
    /// Index of the process among the concurrent ones, and its round.
    pub place: [u64; 2],
    /// Number of threads that make calls.
    pub threads: usize,
    /// Number of calls of each thread.
    pub calls: u64,
    /// Number of nodes.
    pub devices: u64,
    /// Kinds of calls.
    pub drawn: Drawn,
    /// The devices are `qemu_gpu`, which takes 200 ms for a page.
    pub hardware: bool,
    /// Do not drop privileges.
    pub root: bool,
    /// Ticks of a ms.
    pub per_ms: u64,
}

fn caller(plan: &Plan, shared: &'static Shared, thread: usize, sockets: [i32; 2]) -> Caller {
    let [process, round] = plan.place;
    Caller {
        rng: Rng::of_parts(plan.seed, [process, round, thread as u64]),
        shared,
        slot: process as usize * SLOTS + thread,
        thread,
        devices: plan.devices,
        drawn: plan.drawn,
        hardware: plan.hardware,
        sockets,
        ids: [0; FDS.len()],
        locked: [[0; 2]; FDS.len()],
        blits: [0; FDS.len()],
        undo: None,
    }
}

/// RLIMIT_MEMLOCK of an unprivileged process, in KiB. Small, so that calls reach the limit.
const LOCKED_KIB: u64 = 64 * PAGE_SIZE as u64 / 1024;

/// Locked and pinned memory of this process, in KiB.
fn pinned() -> Result<[u64; 2], String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let value = |name: &str| -> Result<u64, String> {
        let line = status.lines().find(|line| line.starts_with(name));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        number.and_then(|number| number.parse().ok()).ok_or(format!("no {name} in the status"))
    };
    Ok([value("VmLck:")?, value("VmPin:")?])
}

/// Runs in a process of its own. `Err` describes a failure.
pub fn run(plan: &Plan, shared: &'static Shared) -> Result<(), String> {
    sys::limit(libc::RLIMIT_MEMLOCK, LOCKED_KIB << 10);
    sys::limit(libc::RLIMIT_CORE, 0);
    sys::limit(libc::RLIMIT_AS, 4 << 30);
    if !plan.root {
        sys::drop_privileges().map_err(|error| format!("setuid: {error}"))?;
    }
    sys::interrupt_on(calls::INTERRUPT);
    arena::check_own_memory()?;
    for (index, fd) in FDS.iter().enumerate() {
        let node = calls::open_node(index, index as u64 % plan.devices);
        if node < 0 {
            return Err(format!("cannot open a node: {}", hmm::Errno(-node as i32)));
        }
        sys::call3(libc::SYS_dup3, node as usize, *fd as usize, libc::O_CLOEXEC as usize);
        sys::call3(libc::SYS_close, node as usize, 0, 0);
    }
    let mut sockets = [-1i32; 2];
    let kind = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as usize;
    let place = sockets.as_mut_ptr() as usize;
    sys::call(libc::SYS_socketpair, [libc::AF_UNIX as usize, kind, 0, place, 0, 0]);
    let file = arena::build(FDS[0])?;

    let mut rng = Rng::of_parts(plan.seed, [plan.place[0], plan.place[1], 100]);
    // Some processes are killed during calls.
    let kill_after = rng.one_in(4).then(|| rng.below_u64(400));
    let over = AtomicBool::new(false);
    let first = plan.place[0] as usize * SLOTS;
    let slots = first..first + plan.threads;
    let mut chaos = Chaos {
        rng: Rng::of_parts(plan.seed, [plan.place[0], plan.place[1], 101]),
        file,
        child: caller(plan, shared, CHILD, sockets),
        slots: slots.clone(),
        per_ms: plan.per_ms,
    };
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..plan.threads)
            .map(|thread| {
                let mut caller = caller(plan, shared, thread, sockets);
                scope.spawn(move || make_calls(&mut caller, plan.calls))
            })
            .collect();
        scope.spawn(|| {
            for round in 0u64.. {
                if over.load(Relaxed) {
                    break;
                }
                chaos.one();
                sys::sleep_us(rng.below_u64(8000));
                if kill_after == Some(round) {
                    shared.kills.fetch_add(1, Relaxed);
                    sys::call3(libc::SYS_kill, std::process::id() as usize, 9, 0);
                }
            }
        });
        scope.spawn(|| {
            let mut rng = Rng::of_parts(plan.seed, [plan.place[0], plan.place[1], 102]);
            while !over.load(Relaxed) {
                chaos::race(&mut rng, shared, slots.clone());
                sys::sleep_us(400);
            }
        });
        for caller in callers {
            let _ = caller.join();
        }
        over.store(true, Relaxed);
    });
    let found = pinned()?;
    if !plan.root && found.iter().any(|kib| *kib > LOCKED_KIB) {
        let what = "KiB of memory are locked and pinned, with a limit of";
        return Err(format!("{found:?} {what} {LOCKED_KIB}"));
    }
    // Closing the files releases the locks.
    for fd in FDS {
        sys::call3(libc::SYS_close, fd as usize, 0, 0);
    }
    Ok(())
}

fn make_calls(caller: &mut Caller, calls: u64) {
    let slot = &caller.shared.slots[caller.slot];
    slot.tid.store(sys::call3(libc::SYS_gettid, 0, 0, 0) as u32, Relaxed);
    for _ in 0..calls.div_ceil(64) {
        if caller.shared.stop.load(Relaxed) {
            break;
        }
        for _ in 0..64 {
            caller.one();
        }
        caller.shared.calls.fetch_add(64, Relaxed);
    }
    slot.tid.store(0, Relaxed);
}
