// SPDX-License-Identifier: GPL-2.0
//! SIGBUS handling and a registry of the memory of all lanes of a process.
//!
//! A CPU access to a page in device memory raises SIGBUS if the copy back was made to fail. The
//! handler returns and the access is repeated: the next copy succeeds. Each SIGBUS must match one
//! injected copy failure and an address in memory that can be migrated to a device. Any other
//! SIGBUS fails the run.

use crate::torture::env::Board;
use hmm::Mapping;
use std::{
    cell::Cell,
    sync::atomic::{
        AtomicBool,
        AtomicPtr,
        AtomicUsize,
        Ordering::SeqCst, //
    }, //
};

/// Maximum number of registered ranges of a process.
const MOST: usize = 256;

/// Exit status of a process that is ended by an unexpected SIGBUS.
const STATUS: i32 = 70;

/// `BUS_ADRERR`: `si_code` of a page fault that returned `VM_FAULT_SIGBUS`.
const NO_ADDRESS: i32 = 2;

struct Place {
    taken: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
    moves: AtomicBool,
}

static PLACES: [Place; MOST] = [const {
    Place {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        moves: AtomicBool::new(false),
    }
}; MOST];

static BOARD: AtomicPtr<Board> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    static LANE: Cell<usize> = const { Cell::new(0) };
}

/// Registers a range of a lane's memory; dropping it removes the range.
#[derive(Debug)]
pub struct Known(usize);

impl Known {
    /// Registers `len` bytes from `start`; `moves`: they can be migrated to a device. `None` if the
    /// table is full.
    pub fn new(start: usize, len: usize, moves: bool) -> Option<Known> {
        let index = PLACES.iter().position(|place| !place.taken.swap(true, SeqCst))?;
        let place = &PLACES[index];
        place.moves.store(moves, SeqCst);
        place.end.store(start + len, SeqCst);
        place.start.store(start, SeqCst);
        Some(Known(index))
    }

    /// Registers all of a mapping.
    pub fn mapping(map: &Mapping, moves: bool) -> Option<Known> {
        Known::new(map.addr(), map.len(), moves)
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        let place = &PLACES[self.0];
        place.end.store(0, SeqCst);
        place.start.store(0, SeqCst);
        place.taken.store(false, SeqCst);
    }
}

/// Whether the range overlaps memory that a lane of this process has registered.
pub fn is_known(start: usize, len: usize) -> bool {
    PLACES
        .iter()
        .any(|place| start < place.end.load(SeqCst) && place.start.load(SeqCst) < start + len)
}

fn can_move(addr: usize) -> bool {
    PLACES.iter().any(|place| {
        (place.start.load(SeqCst)..place.end.load(SeqCst)).contains(&addr)
            && place.moves.load(SeqCst)
    })
}

/// Sets the lane of the calling thread, to which its bus errors are counted.
pub fn set_lane(lane: usize) {
    LANE.set(lane);
}

extern "C" fn again(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid structure.
    let (code, addr) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // SAFETY: the owner of the board keeps it until the process has ended.
    let Some(board) = (unsafe { BOARD.load(SeqCst).as_ref() }) else {
        // SAFETY: ends the process.
        unsafe { libc::_exit(STATUS) }
    };
    let lane = LANE.get();
    board.bus_errors(lane).fetch_add(1, SeqCst);
    if code != NO_ADDRESS || !can_move(addr) || !board.claim() {
        board.bad_bus_error(lane, addr);
        // SAFETY: ends the process.
        unsafe { libc::_exit(STATUS) };
    }
}

/// Installs a SIGBUS handler, which counts the bus error on `board` and repeats the access.
pub fn survive(board: &Board) {
    BOARD.store(std::ptr::from_ref(board).cast_mut(), SeqCst);
    // SAFETY: zero is a valid value of all fields.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = again;
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: a valid structure; the handler only counts.
    unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_errors_are_allowed_only_with_device_memory() {
        let moves = Mapping::anon(4).unwrap();
        let stays = Mapping::anon(4).unwrap();
        let known = (Known::mapping(&moves, true).unwrap(), Known::mapping(&stays, false).unwrap());
        assert!(can_move(moves.addr()) && can_move(moves.page_addr(4) - 1));
        assert!(!can_move(moves.addr() - 1) && !can_move(stays.addr()));
        assert!(is_known(stays.addr() - 1, 2) && !is_known(stays.addr() + stays.len(), 1));
        drop(known);
        assert!(!can_move(moves.addr()) && !is_known(stays.addr(), 1));
    }

    #[test]
    fn each_effect_needs_a_failure_of_its_own() {
        let board = Board::new(1).unwrap();
        assert!(!board.claim());
        let board = Board::new(1).unwrap();
        board.arm();
        board.arm();
        board.disarm();
        assert!(board.claim() && !board.claim());
        // Once the run is calm, no copy fails, so that no bus error is excused.
        board.arm();
        board.arm();
        board.calm().store(1, SeqCst);
        assert!(!board.claim());
    }
}
