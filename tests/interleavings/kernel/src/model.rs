// SPDX-License-Identifier: GPL-2.0

//! Test executor: threads, memory with detection of data races, the clock of executions, RCU, and a
//! log of the last operations before a failure.

use crate::{
    sync::atomic::ordering::Kind,
    task::RawTask, //
};
use core::{
    cell::{
        RefCell,
        UnsafeCell, //
    },
    panic::Location,
    sync::atomic::{
        AtomicBool,
        AtomicUsize,
        Ordering::Relaxed, //
    }, //
};

/// Maximum number of threads of a test, including the initial one.
pub const THREADS: usize = 4;

/// The row of the table of orderings that is weakened; 0: none.
static BROKEN: AtomicUsize = AtomicUsize::new(0);

/// Reads freed memory and exits, to test that the sanitizer detects this.
pub fn use_after_free() -> ! {
    let freed = core::hint::black_box(vec![1u8; 64]).as_ptr();
    // SAFETY: None: the vector is freed, which the sanitizer must detect.
    let read = unsafe { freed.read_volatile() };
    println!("read {read}");
    std::process::exit(0);
}

/// Weakens the ordering of row `row`.
pub fn break_row(row: usize) {
    BROKEN.store(row, Relaxed);
}

/// Whether the ordering of row `row` of the table is weakened.
pub fn is_broken(row: usize) -> bool {
    BROKEN.load(Relaxed) == row
}

/// Number of the current execution.
static EXECUTION: AtomicUsize = AtomicUsize::new(0);
/// Whether an execution is in progress.
static RUNNING: AtomicBool = AtomicBool::new(false);

/// Number of the current execution; 0 outside of executions.
pub fn execution() -> usize {
    EXECUTION.load(Relaxed)
}

/// Time at which an object was created.
#[cfg(feature = "explore")]
pub type Made = loom::Moment;
/// Time at which an object was created.
#[cfg(not(feature = "explore"))]
pub type Made = ();

/// The current time; at compile time, the start of all executions.
#[cfg(feature = "explore")]
pub const fn made() -> Made {
    const fn start() -> Made {
        loom::Moment::START
    }
    fn now() -> Made {
        if RUNNING.load(Relaxed) {
            loom::Moment::here()
        } else {
            loom::Moment::START
        }
    }
    // Both create a word with the same behaviour.
    core::intrinsics::const_eval_select((), start, now)
}

/// The current time.
#[cfg(not(feature = "explore"))]
pub const fn made() -> Made {}

/// A log entry: execution, thread, word, operation, ordering, value, location.
type Logged = (usize, usize, &'static str, Kind, u64, &'static Location<'static>);

thread_local! {
    static LOG: RefCell<Vec<Logged>> = const { RefCell::new(Vec::new()) };
}

/// Logs an operation.
pub fn log(
    word: usize,
    what: &'static str,
    kind: Kind,
    value: u64,
    place: &'static Location<'static>,
) {
    if RUNNING.load(Relaxed) {
        let entry = (thread(), word, what, kind, value, place);
        LOG.with(|log| log.borrow_mut().push(entry));
    }
}

/// Prints the operations of this execution.
fn print_log() {
    LOG.with(|log| {
        let Ok(log) = log.try_borrow() else { return };
        let mut words = Vec::new();
        for (number, (thread, word, what, kind, value, place)) in log.iter().enumerate() {
            let name = match words.iter().position(|known| known == word) {
                Some(name) => name,
                None => {
                    words.push(*word);
                    words.len() - 1
                }
            };
            eprintln!(
                "  {:3}  thread {thread}  {}:{}: word {name}: {what} {value:#x} ({kind:?})",
                number + 1,
                place.file(),
                place.line(),
            );
        }
    });
}

/// Number of the current thread in the execution.
#[cfg(feature = "explore")]
pub fn thread() -> usize {
    loom::current()
}

/// Whether all other threads have ended, and all of their operations happened before this point.
#[cfg(feature = "explore")]
pub fn alone() -> bool {
    RUNNING.load(Relaxed) && loom::alone()
}

/// Unknown without exploration.
#[cfg(not(feature = "explore"))]
pub fn alone() -> bool {
    false
}

#[cfg(not(feature = "explore"))]
thread_local! {
    static THREAD: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
}

/// Number of the current thread in the execution.
#[cfg(not(feature = "explore"))]
pub fn thread() -> usize {
    THREAD.with(core::cell::Cell::get)
}

/// The tasks, at adjacent addresses, so that hashes of their addresses are the same in each
/// execution.
#[repr(C, align(1024))]
struct Tasks([UnsafeCell<RawTask>; THREADS]);

// SAFETY: Each task is used by its thread only, after its initialization.
unsafe impl Sync for Tasks {}

static TASKS: Tasks = Tasks([const { UnsafeCell::new(RawTask { start_time: 1 }) }; THREADS]);

thread_local! {
    /// The task that the current thread pretends to be, if not its own.
    static DISGUISE: RefCell<[Option<usize>; THREADS]> = const { RefCell::new([None; THREADS]) };
}

/// The current task.
pub fn current_task() -> *mut RawTask {
    TASKS.0[thread()].get()
}

/// Sets the start time of the current task.
pub fn set_born(time: u64) {
    // SAFETY: The task of the current thread.
    unsafe { (*current_task()).start_time = time };
}

/// Lets other threads run, in a loop that waits for one of them.
pub fn yield_now() {
    #[cfg(feature = "explore")]
    loom::thread::yield_now();
    #[cfg(not(feature = "explore"))]
    std::thread::yield_now();
}

/// A thread.
pub struct Thread<T> {
    #[cfg(feature = "explore")]
    handle: loom::thread::JoinHandle<T>,
    #[cfg(not(feature = "explore"))]
    handle: std::thread::JoinHandle<T>,
}

impl<T: 'static> Thread<T> {
    /// Waits until the thread has ended.
    pub fn join(self) -> T {
        match self.handle.join() {
            Ok(value) => value,
            Err(_) => panic!("a thread has failed"),
        }
    }
}

/// Starts a thread.
pub fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Thread<T> {
    #[cfg(feature = "explore")]
    {
        // Objects created before are older than the thread.
        let _ = loom::Moment::now();
        Thread { handle: loom::thread::spawn(f) }
    }
    #[cfg(not(feature = "explore"))]
    {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Relaxed) % (THREADS - 1) + 1;
        Thread {
            handle: std::thread::spawn(move || {
                THREAD.with(|own| own.set(number));
                f()
            }),
        }
    }
}

/// Plain memory. Two accesses, at least one of them a write, of which neither happens before the
/// other are a failure.
#[cfg(feature = "explore")]
pub struct Memory(loom::cell::UnsafeCell<u64>);

#[cfg(feature = "explore")]
impl Memory {
    pub fn new(value: u64) -> Self {
        Self(loom::cell::UnsafeCell::new(value))
    }

    #[track_caller]
    pub fn read(&self) -> u64 {
        // SAFETY: One thread runs at a time.
        self.0.with(|value| unsafe { *value })
    }

    #[track_caller]
    pub fn write(&self, to: u64) {
        // SAFETY: As above.
        self.0.with_mut(|value| unsafe { *value = to });
    }
}

/// Plain memory. Without exploration nothing detects data races.
#[cfg(not(feature = "explore"))]
pub struct Memory(UnsafeCell<u64>);

#[cfg(not(feature = "explore"))]
impl Memory {
    pub fn new(value: u64) -> Self {
        Self(UnsafeCell::new(value))
    }

    pub fn read(&self) -> u64 {
        // SAFETY: A concurrent write would be a failure of the test.
        unsafe { *self.0.get() }
    }

    pub fn write(&self, to: u64) {
        // SAFETY: As above.
        unsafe { *self.0.get() = to };
    }
}

// SAFETY: A data race would be a failure of the test.
unsafe impl Send for Memory {}
// SAFETY: As above.
unsafe impl Sync for Memory {}

/// Data passed between threads without a word of the model, and without ordering.
pub struct Hidden<T>(UnsafeCell<T>);

// SAFETY: One thread runs at a time.
unsafe impl<T> Sync for Hidden<T> {}
// SAFETY: As above.
unsafe impl<T> Send for Hidden<T> {}

impl<T> Hidden<T> {
    pub const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Calls `f`, which must not switch threads.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: One thread runs at a time, and `f` does not switch.
        f(unsafe { &mut *self.0.get() })
    }
}

/// An ordering established by an object without a word of the model, such as a reference count or
/// RCU: operations before [`Order::release`] happen before operations after [`Order::acquire`].
#[cfg(feature = "explore")]
pub struct Order(Hidden<loom::Moment>);

#[cfg(feature = "explore")]
impl Order {
    pub const fn new() -> Self {
        Self(Hidden::new(loom::Moment::START))
    }

    pub fn release(&self) {
        if RUNNING.load(Relaxed) {
            let now = loom::Moment::now();
            self.0.with(|order| order.join(&now));
        }
    }

    pub fn acquire(&self) {
        if RUNNING.load(Relaxed) {
            self.0.with(|order| *order).has_happened();
        }
    }

    /// Removes all ordering.
    pub fn reset(&self) {
        self.0.with(|order| *order = loom::Moment::START);
    }

    /// Adds the ordering of `other`.
    pub fn join(&self, other: &Self) {
        let other = other.0.with(|order| *order);
        self.0.with(|order| order.join(&other));
    }
}

#[cfg(feature = "explore")]
impl Default for Order {
    fn default() -> Self {
        Self::new()
    }
}

/// Bounds of the exploration of a test.
#[derive(Clone, Copy)]
pub struct Bounds {
    /// Maximum number of preemptions, that is, switches away from a runnable thread; `None`:
    /// unlimited.
    pub preemptions: Option<usize>,
    /// Seed and number of interleavings, if they are chosen at random.
    pub random: Option<(u64, usize)>,
}

/// Runs `test` in all interleavings, or in random ones. Returns their number.
#[cfg(feature = "explore")]
pub fn explore(bounds: Bounds, test: fn()) -> usize {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = bounds.preemptions;
    builder.random = bounds.random;
    builder.max_branches = 20_000;
    std::panic::set_hook(Box::new(|info| {
        RUNNING.store(false, Relaxed);
        quarantine::hold(false);
        eprintln!("{info}");
        print_log();
        // Exit, because unwinding would continue with inconsistent data.
        std::process::exit(101);
    }));
    builder.check(move || {
        EXECUTION.fetch_add(1, Relaxed);
        LOG.with(|log| log.borrow_mut().clear());
        crate::sync::rcu::reset();
        RUNNING.store(true, Relaxed);
        quarantine::hold(true);
        test();
        RUNNING.store(false, Relaxed);
        quarantine::hold(false);
    });
    EXECUTION.load(Relaxed)
}

/// Runs `test` a few times, without exploration.
#[cfg(not(feature = "explore"))]
pub fn explore(_bounds: Bounds, test: fn()) -> usize {
    let rounds = 3;
    for _ in 0..rounds {
        EXECUTION.fetch_add(1, Relaxed);
        test();
    }
    rounds
}

/// Memory that is freed within an execution is not reused before its end, so that a late access to
/// a word is detected as a use after free.
#[cfg(feature = "explore")]
pub mod quarantine {
    use core::{
        alloc::{
            GlobalAlloc,
            Layout, //
        },
        cell::UnsafeCell,
        sync::atomic::{
            AtomicBool,
            Ordering::Relaxed, //
        }, //
    };
    use std::alloc::System;

    /// Maximum number of held allocations.
    const MOST: usize = 1 << 20;

    struct Held {
        list: UnsafeCell<(*mut (*mut u8, Layout), usize)>,
    }

    // SAFETY: Tests run in one thread.
    unsafe impl Sync for Held {}

    static HELD: Held = Held { list: UnsafeCell::new((core::ptr::null_mut(), 0)) };
    static HOLDS: AtomicBool = AtomicBool::new(false);

    /// Enables or disables holding of freed memory; disabling frees all of it.
    pub fn hold(on: bool) {
        HOLDS.store(on, Relaxed);
        if !on {
            // SAFETY: One thread, and nothing below allocates.
            unsafe {
                let (list, count) = *HELD.list.get();
                for index in 0..count {
                    let (memory, layout) = *list.add(index);
                    System.dealloc(memory, layout);
                }
                (*HELD.list.get()).1 = 0;
            }
        }
    }

    /// The allocator.
    pub struct Quarantine;

    // SAFETY: Same contract as `System`, to which it forwards.
    unsafe impl GlobalAlloc for Quarantine {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
            if !HOLDS.load(Relaxed) {
                return unsafe { System.dealloc(memory, layout) };
            }
            unsafe {
                let held = &mut *HELD.list.get();
                if held.0.is_null() {
                    let room = Layout::array::<(*mut u8, Layout)>(MOST).expect("small");
                    held.0 = System.alloc(room).cast();
                }
                if held.1 == MOST {
                    return System.dealloc(memory, layout);
                }
                *held.0.add(held.1) = (memory, layout);
                held.1 += 1;
            }
        }
    }
}
