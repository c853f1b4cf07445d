// SPDX-License-Identifier: GPL-2.0
//! The processes of a run, including those that are killed at random.

use super::lanes::run_lane;
use crate::torture::bus::{
    self,
    Known, //
};
use crate::torture::draw::Draw;
use crate::torture::env::{
    Board,
    Clearing,
    Common,
    Env, //
};
use crate::torture::op::Op;
use crate::torture::script::{
    Script,
    Shape, //
};
use hmm::child::own_group;
use hmm::Child;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{
    AtomicBool,
    AtomicU64, //
};
use std::sync::Barrier;
use std::time::Duration;

/// Makes malloc use the heap only: its mappings could fill the gaps in which a lane has unmapped
/// memory.
fn keep_malloc_off_mmap() {
    // Neither large blocks nor the arena of a new thread may be mapped.
    for what in [libc::M_MMAP_MAX, libc::M_ARENA_TEST] {
        // SAFETY: plain numbers.
        unsafe { libc::mallopt(what, 0) };
    }
    // SAFETY: plain numbers.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
    }
    // If the heap cannot grow, malloc falls back to mmap(). Grow it to its final size before there
    // are gaps.
    drop(std::hint::black_box(Vec::<u8>::with_capacity(HEAP)));
}

/// Size of the heap of each process, in bytes.
const HEAP: usize = 96 << 20;

/// Prepares this process: process group, heap, SIGBUS handler, and the state that its lanes share.
fn begin(script: &Script, wide: Option<Common>, board: &Board) -> Result<Env, String> {
    own_group();
    keep_malloc_off_mmap();
    bus::survive(board);
    let clearing = Clearing::new().map_err(|error| format!("address space: {error}"))?;
    let narrow = Common::narrow().map_err(|error| format!("common memory: {error}"))?;
    let board = board.again().map_err(|error| format!("board: {error}"))?;
    let Shape { devices, hardware, .. } = script.shape;
    Ok(Env {
        devices,
        hardware,
        lanes: script.shape.lanes(),
        narrow,
        wide,
        clearing,
        board,
        stop: AtomicBool::new(false),
        early: AtomicBool::new(false),
    })
}

/// Runs the lanes of one process until they have ended. If `end` is not 0, they end early.
pub fn process(
    script: &Script,
    number: usize,
    wide: Option<Common>,
    board: &Board,
    end: &AtomicU64,
) -> Result<(), String> {
    let env = begin(script, wide, board)?;
    let _known = Known::mapping(&env.narrow.map, true);
    let last = script.shape.unplug.map(|dev| (dev, script.shape.seed));
    let first = number * script.shape.threads;
    let ready = Barrier::new(script.shape.threads);
    let results: Vec<_> = std::thread::scope(|scope| {
        let lanes: Vec<_> = (first..first + script.shape.threads)
            .map(|lane| {
                let env = &env;
                let ops = &script.lanes[lane];
                let ready = &ready;
                scope.spawn(move || run_lane(env, lane, ops, ready, last))
            })
            .collect();
        // Let the lanes end early if the supervisor asks for it.
        while lanes.iter().any(|lane| !lane.is_finished()) {
            if end.load(SeqCst) != 0 {
                env.early.store(true, SeqCst);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        lanes.into_iter().map(|lane| lane.join().unwrap_or_else(|_| Err("panic".into()))).collect()
    });
    let failures: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    if failures.is_empty() {
        return env.narrow.check();
    }
    Err(failures.join("\n"))
}

/// Starts a process that will be killed. Its results must be correct until then.
pub fn visitor(script: &Script, number: u64, board: &Board) -> Result<Child, hmm::Errno> {
    let mut shape = script.shape;
    (shape.seed, shape.procs, shape.threads) = (shape.seed ^ (number << 32), 1, 1);
    let ops: Vec<_> = Draw::new(shape.seed, 0, shape.devices)
        .take(4096)
        // Injected copy failures affect all processes, but only lanes account for them. Memory that
        // a killed process has taken out of use would never be brought back.
        .filter(|op| !matches!(op, Op::CopyFail { .. } | Op::Resize { .. }))
        .collect();
    let lane = script.shape.lanes();
    let lanes = (0..=lane).map(|index| if index == lane { ops.clone() } else { Vec::new() });
    let script = Script { shape, lanes: lanes.collect() };
    Child::spawn(|| process_of_lane(&script, lane, board))
}

fn process_of_lane(script: &Script, lane: usize, board: &Board) -> Result<(), String> {
    let env = begin(script, None, board)?;
    let _known = Known::mapping(&env.narrow.map, true);
    run_lane(&env, lane, &script.lanes[lane], &Barrier::new(1), None)
}
