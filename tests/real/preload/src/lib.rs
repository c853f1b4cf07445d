// SPDX-License-Identifier: GPL-2.0
//! Library for `LD_PRELOAD` that migrates the private memory of a program to the mock device and
//! back, from a thread of its own, in all processes that the program creates with `fork()` and
//! `exec`.
//!
//! Settings are environment variables:
//!
//! * `HMM_REAL`: `device` moves pages to `/dev/hmm_dmirror0`; `pageout` moves them to swap, as a
//!   control. Without it the library does nothing.
//! * `HMM_REAL_CODE`: executable mappings, too (`yes`), not (`no`, the default), or nothing else
//!   (`only`).
//! * `HMM_REAL_COUNTS`: file of 4096 bytes that gets the counters.
//! * `HMM_REAL_PERIOD_US`: shortest pause between two operations (200).
//! * `HMM_REAL_SEED`: seed of the random choices, to which each process adds its number.
//!
//! The thread must have no effect on the program except for its run time:
//!
//! * It is created with `clone()`, not by the C library, and issues system calls only. It uses no
//!   `errno`, no `malloc` and no lock, so that it can be started in the child of a `fork()`.
//! * All signals are blocked in it, so that no handler of the program runs there.
//! * It has a file table of its own. The program's descriptors keep their numbers, and a program
//!   that closes all its files does not close those of the thread.
//! * It is no child process, so that `wait()` does not report it.
//! * It ends when all threads of the program have ended. A process whose main thread ends by the
//!   bare `exit` system call would otherwise stay a zombie.
#![cfg_attr(not(test), no_std)]

mod counts;
mod maps;
mod random;
mod sys;
mod target;

use core::{
    cell::UnsafeCell,
    ffi::{
        c_char,
        c_int,
        CStr, //
    },
    ptr::null_mut,
    sync::atomic::{
        AtomicPtr,
        AtomicU64,
        AtomicU8,
        Ordering::Relaxed, //
    }, //
};
use counts::{
    add,
    add_error,
    Counts,
    Op, //
};
use maps::{
    Code,
    Maps,
    PAGE, //
};
use random::Random;
use sys::Fd;
use target::{
    Buffer,
    Mode,
    Target,
    MOST_PAGES, //
};

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // A missing thread shows in the counters, because its program no longer migrates pages.
    sys::exit_thread(0)
}

/// Memory that only the thread uses.
struct Private<T>(UnsafeCell<T>);

// SAFETY: only `work()` accesses the contents, and a process has at most one thread that runs it:
// the constructor and the handler of fork() start one where there is none.
unsafe impl<T> Sync for Private<T> {}

/// Bytes of the thread's stack.
const STACK: usize = 64 << 10;

/// Stack of the thread.
#[repr(align(4096))]
struct Stack(#[allow(dead_code)] [u8; STACK]);

static STACK_MEMORY: Private<Stack> = Private(UnsafeCell::new(Stack([0; STACK])));
static MAPS: Private<Maps> = Private(UnsafeCell::new(Maps::new()));
static BUFFER: Private<Buffer> = Private(UnsafeCell::new(Buffer::new()));

// Settings, written by the constructor only.
static PAGEOUT: AtomicU8 = AtomicU8::new(0);
static CODE: AtomicU8 = AtomicU8::new(0);
static PERIOD_NS: AtomicU64 = AtomicU64::new(200_000);
static SEED: AtomicU64 = AtomicU64::new(0);
static COUNTS: AtomicPtr<Counts> = AtomicPtr::new(null_mut());

// SAFETY: `__libc_start_main()` and the dynamic loader call the functions of this section with the
// arguments of main(), which is the type of `init`.
#[used]
#[link_section = ".init_array"]
static INIT: unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char) = init;

/// Runs before the program's `main()`.
///
/// # Safety
///
/// `environment` must be an array of C strings that ends with a null pointer.
unsafe extern "C" fn init(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    let mut mode = None;
    let mut at = environment;
    // SAFETY: the array ends with a null pointer, and `at` does not go past that.
    while let Some(text) = unsafe { at.as_ref() }.filter(|text| !text.is_null()) {
        // SAFETY: a string of the environment, which nothing changes before main().
        let text = unsafe { CStr::from_ptr(*text) };
        if let Some(value) = setting(text, b"HMM_REAL=") {
            mode = match value.to_bytes() {
                b"device" => Some(Mode::Device),
                b"pageout" => Some(Mode::Pageout),
                _ => None,
            };
        } else if let Some(value) = setting(text, b"HMM_REAL_CODE=") {
            CODE.store(value.to_bytes().first().copied().unwrap_or(0), Relaxed);
        } else if let Some(value) = setting(text, b"HMM_REAL_PERIOD_US=") {
            PERIOD_NS.store(number(value).saturating_mul(1000), Relaxed);
        } else if let Some(value) = setting(text, b"HMM_REAL_SEED=") {
            SEED.store(number(value), Relaxed);
        } else if let Some(value) = setting(text, b"HMM_REAL_COUNTS=") {
            map_counts(value);
        }
        // SAFETY: `at` is at an entry, so that the next one is in the array, too.
        at = unsafe { at.add(1) };
    }
    let Some(mode) = mode else { return };
    PAGEOUT.store((mode == Mode::Pageout).into(), Relaxed);
    // SAFETY: `start` may be called in the child of a fork: it issues system calls only.
    let _ = unsafe { libc::pthread_atfork(None, None, Some(start)) };
    start();
}

/// The value of the variable whose name and equals sign are `name`, if `text` is that variable.
fn setting<'a>(text: &'a CStr, name: &[u8]) -> Option<&'a CStr> {
    let value = text.to_bytes_with_nul().strip_prefix(name)?;
    CStr::from_bytes_with_nul(value).ok()
}

/// The decimal number at the front of `text`.
fn number(text: &CStr) -> u64 {
    let digits = text.to_bytes().iter().take_while(|c| c.is_ascii_digit());
    digits.fold(0u64, |n, c| n.saturating_mul(10).saturating_add((c - b'0').into()))
}

/// Maps the file of the counters. It stays mapped in the children of a fork.
fn map_counts(path: &CStr) {
    let Ok(file) = Fd::open(path, libc::O_RDWR) else { return };
    if let Ok(memory) = file.map(counts::BYTES) {
        COUNTS.store(memory.cast(), Relaxed);
    }
    file.close();
}

/// Starts the thread; also called in the child of each `fork()`, which has none.
extern "C" fn start() {
    let mask = sys::block_signals();
    let end = STACK_MEMORY.0.get() as usize + STACK;
    // SAFETY: the stack is this thread's only: the process has no other one that runs `work()`.
    // It is a multiple of 4096. Signals are blocked. `work()` uses no thread-local storage: this
    // crate and `core` have none.
    let started = unsafe { sys::spawn(work, end) };
    sys::set_signals(mask);
    if let (Err(error), Some(counts)) = (started, counts()) {
        add_error(&counts.setup, error);
    }
}

/// The counters, if the program was started with a file for them.
fn counts() -> Option<&'static Counts> {
    // SAFETY: null, or a mapping of `counts::BYTES` bytes, which is never unmapped and has room for
    // `Counts`. Other processes change it by atomic operations only.
    unsafe { COUNTS.load(Relaxed).as_ref() }
}

/// The thread.
extern "C" fn work() -> ! {
    if let Some(counts) = counts() {
        add(&counts.threads, 1);
        match run(counts) {
            Ok(status) => sys::exit_thread(status),
            Err(error) => add_error(&counts.setup, error),
        }
    }
    sys::exit_thread(0)
}

/// Number of operations between two reads of the mappings.
const OPS_PER_LOOK: u32 = 32;
/// Number of remembered ranges with migrated pages.
const PLACES: usize = 64;

/// Migrates memory until the program has ended. Returns the exit status of the thread.
fn run(counts: &Counts) -> Result<usize, sys::Errno> {
    sys::empty_file_table()?;
    let mode = if PAGEOUT.load(Relaxed) == 0 { Mode::Device } else { Mode::Pageout };
    let code = match CODE.load(Relaxed) {
        b'y' => Code::Yes,
        b'o' => Code::Only,
        _ => Code::No,
    };
    let target = Target::open(mode)?;
    let file = Fd::open(c"/proc/thread-self/maps", libc::O_RDONLY)?;
    let stat = Fd::open(c"/proc/self/stat", libc::O_RDONLY)?;
    let mut random = Random::new(SEED.load(Relaxed) ^ sys::now() ^ (sys::pid() << 32));
    // SAFETY: this thread is the only one that uses it, and calls this function once.
    let maps = unsafe { &mut *MAPS.0.get() };
    // SAFETY: as for the mappings.
    let buffer = unsafe { &mut *BUFFER.0.get() };
    // Most of a large heap is unpopulated: repeat ranges that had pages before.
    let mut places = [(0usize, 0usize, false); PLACES];
    loop {
        if let Some(status) = abandoned(stat) {
            add(&counts.abandoned, 1);
            return Ok(status);
        }
        maps.read(file, code, &mut random)?;
        for _ in 0..OPS_PER_LOOK {
            let remembered = places.get(random.below(PLACES)).copied().unwrap_or_default();
            let (addr, pages, is_code) = if remembered.1 > 0 && random.below(2) == 0 {
                remembered
            } else {
                range(maps, &mut random)
            };
            let op = match random.below(16) {
                0..8 => Op::Out,
                8..11 => Op::Back,
                11..14 => Op::Read,
                _ => Op::Snapshot,
            };
            let begin = sys::now();
            if pages > 0 {
                apply(op, (addr, pages, is_code), &target, buffer, counts, |hit| {
                    let place = random.below(PLACES);
                    // Replace an empty range at some time, because others take its slot.
                    if let Some(place) = places.get_mut(place).filter(|_| hit) {
                        *place = (addr, pages, is_code);
                    }
                });
            }
            // Sleep as long as the operation took, so that the program gets half of the time.
            let took = sys::now().saturating_sub(begin);
            sys::sleep(took.max(PERIOD_NS.load(Relaxed)));
        }
    }
}

/// Applies an operation to a range and counts the results. Calls `moved` with whether [`Op::Out`]
/// migrated pages.
fn apply(
    op: Op,
    (addr, pages, is_code): (usize, usize, bool),
    target: &Target,
    buffer: &mut Buffer,
    counts: &Counts,
    moved: impl FnOnce(bool),
) {
    let index = op as usize;
    if let Some(calls) = counts.calls.get(index) {
        add(calls, 1);
    }
    match target.apply(op, addr, pages, buffer, counts) {
        Ok(n) => {
            if let Some(sum) = counts.pages.get(index) {
                add(sum, n);
            }
            if op == Op::Out {
                if is_code {
                    add(&counts.code, n);
                }
                moved(n > 0);
            }
        }
        Err(error) => add_error(&counts.errors, error),
    }
}

/// Picks a range of a mapping: address, pages, and whether it is executable.
fn range(maps: &Maps, random: &mut Random) -> (usize, usize, bool) {
    let Some(mapping) = maps.pick(random) else { return (0, 0, false) };
    let most = match random.below(16) {
        0..10 => 16,
        10..14 => 128,
        _ => MOST_PAGES,
    };
    let pages = (1 + random.below(most)).min(mapping.pages);
    let mut first = random.below(mapping.pages - pages + 1);
    // Prefer an aligned range, so that huge pages are migrated without a split.
    let huge = (mapping.start + first * PAGE).next_multiple_of(MOST_PAGES * PAGE);
    if most == MOST_PAGES && huge + MOST_PAGES * PAGE <= mapping.start + mapping.pages * PAGE {
        first = (huge - mapping.start) / PAGE;
        return (mapping.start + first * PAGE, MOST_PAGES, mapping.code);
    }
    (mapping.start + first * PAGE, pages, mapping.code)
}

/// The exit status for the thread, if all threads of the program have ended: the main thread is a
/// zombie, and only it and the caller are left. The last thread of a process determines the exit
/// status of the process, so that it must be that of the main thread.
fn abandoned(stat: Fd) -> Option<usize> {
    let mut text = [0u8; 512];
    let n = stat.read_at(&mut text, 0).unwrap_or(0);
    status_of_dead(text.get(..n).unwrap_or(&[]))
}

/// Like [`abandoned`], for the contents of `/proc/self/stat`.
fn status_of_dead(stat: &[u8]) -> Option<usize> {
    // The name of the program may have blanks and parentheses.
    let end = stat.iter().rposition(|&c| c == b')')?;
    let mut fields = stat.get(end + 2..)?.split(|c| c.is_ascii_whitespace());
    if !matches!(fields.next(), Some(b"Z" | b"X")) {
        return None;
    }
    // Field 3 is the state, field 20 the number of threads, and field 52 the status for wait().
    if !matches!(fields.nth(16), Some(b"1" | b"2")) {
        return None;
    }
    let digits = fields.nth(31).unwrap_or(&[]).iter().take_while(|c| c.is_ascii_digit());
    let code = digits.fold(0usize, |n, c| n.wrapping_mul(10).wrapping_add((c - b'0').into()));
    Some((code >> 8) & 0xff)
}

#[cfg(test)]
mod tests {
    use super::status_of_dead;

    /// The contents of `/proc/self/stat` with this state, number of threads and status.
    fn stat(state: &str, threads: u32, code: u32) -> Vec<u8> {
        let zeroes = |n| vec!["0"; n].join(" ");
        format!("12 (a ) Z 2) {state} {} {threads} {} {code}\n", zeroes(16), zeroes(31)).into()
    }

    #[test]
    fn status_is_of_the_main_thread() {
        assert_eq!(status_of_dead(&stat("Z", 2, 3 << 8)), Some(3));
        assert_eq!(status_of_dead(&stat("Z", 2, 0)), Some(0));
    }

    #[test]
    fn program_with_a_thread_is_alive() {
        assert_eq!(status_of_dead(&stat("Z", 3, 3 << 8)), None);
        assert_eq!(status_of_dead(&stat("S", 2, 0)), None);
        assert_eq!(status_of_dead(b""), None);
        assert_eq!(status_of_dead(b"12 (a) Z"), None);
    }
}
