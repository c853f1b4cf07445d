// SPDX-License-Identifier: GPL-2.0

//! Steps that unplug waits for, copies, claims of blocks, and cached connections.

use crate::{
    harness::{
        Test,
        bounded,
        full, //
    },
    kernel::{
        identity::MemoryId,
        lock_classes, //
    },
    mm::addr::PageRange, //
};
use kernel::{
    model::{
        Memory,
        Thread,
        spawn, //
    },
    prelude::*,
    sync::{
        Arc,
        atomic::{
            Atomic,
            ordering::{
                Acquire,
                Full,
                Release, //
            }, //
        }, //
    }, //
};
use super::{
    arrivals::Arrivals,
    connection::Connection,
    connection_cache::{
        self,
        ConnectionCache, //
    },
    copy::{
        Cancel,
        CopyContext,
        CopyEndpoint,
        CopyPlace, //
    },
    lru::{
        BlockUsage,
        Lru, //
    },
    steps::Steps, //
};

pub(crate) const TESTS: &[Test] = &[
    full("arrivals_close_waits_for_running_steps", close_waits),
    full("arrivals_failed_unplug_is_repeated_by_one_task", repeated),
    bounded("steps_wait_ends_with_the_last_step", 4, wait_ends),
    full("steps_second_wait_waits_for_later_steps", second_wait),
    full("copies_are_visible_after_the_wait", copies),
    full("copies_wait_ends_with_the_last_job", one_copy),
    full("copies_second_step_waits_for_its_jobs", two_steps),
    full("lru_block_is_claimed_by_one_task", claims),
    full("lru_block_added_during_a_search_is_found", added),
    full("known_answers_do_not_outlive_a_change", answers),
];

struct Arriving {
    arrivals: Arrivals,
    memory: Memory,
}

fn close_waits() {
    let shared =
        Arriving { arrivals: kernel::init::made(Arrivals::new()).unwrap(), memory: Memory::new(0) };
    let shared = Arc::new(shared, GFP_KERNEL).unwrap();
    let other = shared.clone();
    let thread = spawn(move || {
        if let Ok(arrival) = other.arrivals.begin() {
            other.memory.write(1);
            drop(arrival);
        }
    });
    assert!(shared.arrivals.close());
    shared.arrivals.wait();
    // No step can begin after the wait.
    shared.memory.write(2);
    thread.join();
    assert_eq!(shared.memory.read(), 2);
    assert!(!shared.arrivals.close());
}

/// An unplug fails, and two tasks try it again.
fn repeated() {
    let shared =
        Arriving { arrivals: kernel::init::made(Arrivals::new()).unwrap(), memory: Memory::new(0) };
    let shared = Arc::new(shared, GFP_KERNEL).unwrap();
    assert!(shared.arrivals.close());
    let failing = shared.clone();
    let fails = spawn(move || {
        failing.memory.write(1);
        failing.arrivals.set_failed();
    });
    let again = |shared: &Arriving| {
        if shared.arrivals.take_failed() {
            shared.memory.write(shared.memory.read() + 1);
        }
    };
    let other = shared.clone();
    let second = spawn(move || again(&other));
    again(&shared);
    fails.join();
    second.join();
    assert!(matches!(shared.memory.read(), 1 | 2));
}

struct Stepping {
    steps: Steps,
    memory: [Memory; 2],
}

fn stepping() -> Arc<Stepping> {
    let steps = Steps::new(lock_classes::arrivals(), lock_classes::arrivals_idle());
    let stepping = Stepping {
        steps: kernel::init::made(steps).unwrap(),
        memory: [Memory::new(0), Memory::new(0)],
    };
    Arc::new(stepping, GFP_KERNEL).unwrap()
}

/// Two steps begin before the wait, which waits for both and is woken.
fn wait_ends() {
    let shared = stepping();
    let threads = [0, 1].map(|number| {
        let shared = shared.clone();
        spawn(move || {
            let step = shared.steps.begin();
            shared.memory[number].write(1);
            drop(step);
        })
    });
    shared.steps.wait();
    for thread in threads {
        thread.join();
    }
    assert!(!shared.steps.wait());
}

/// A word shows that a step has begun; a later wait must wait for this step.
fn second_wait() {
    let shared = stepping();
    let began = Arc::new(Atomic::new(0u32), GFP_KERNEL).unwrap();
    let other = shared.clone();
    let theirs = began.clone();
    let thread = spawn(move || {
        let step = other.steps.begin();
        theirs.store(1, Release);
        other.memory[0].write(1);
        drop(step);
    });
    shared.steps.wait();
    if began.load(Acquire) == 1 {
        shared.steps.wait();
        assert_eq!(shared.memory[0].read(), 1);
    }
    thread.join();
}

/// Copies that are not cancelled.
struct NoDriver;

impl Cancel for NoDriver {
    fn cancel(&self) {}
}

fn run_copies<const JOBS: usize, const STEPS: usize>() {
    let mut copies = CopyContext::new(false).unwrap();
    let mut threads = Vec::new();
    for _ in 0..STEPS {
        step::<JOBS>(&mut copies, &mut threads);
    }
    // A thread may not have returned from the completion of its job.
    drop(copies);
    for thread in threads {
        thread.join();
    }
}

fn step<const JOBS: usize>(copies: &mut CopyContext, threads: &mut Vec<Thread<()>>) {
    let memory: Arc<[Memory; JOBS]> =
        Arc::new([(); JOBS].map(|()| Memory::new(0)), GFP_KERNEL).unwrap();
    let place = CopyPlace {
        device: 0,
        process: 0,
        range: PageRange::from_pages(0, 1).unwrap(),
    };
    let mut batch = copies.begin(&NoDriver, place).unwrap();
    batch.reserve(JOBS);
    for index in 0..JOBS {
        let job = unsafe { batch.job(index, 1, None, CopyEndpoint::Device(index)) };
        let memory = memory.clone();
        threads.push(spawn(move || {
            memory[index].write(1);
            job.complete(Ok(()));
        }));
    }
    let mask = batch.wait();
    for index in 0..JOBS {
        assert!(mask.has(index));
        assert_eq!(memory[index].read(), 1);
        memory[index].write(2);
    }
}

fn copies() {
    run_copies::<2, 1>();
}

fn one_copy() {
    run_copies::<1, 1>();
}

fn two_steps() {
    run_copies::<1, 2>();
}

fn claims() {
    let lru = Lru::new(1).unwrap();
    lru.prepare(0).unwrap();
    let shared = (lru, Memory::new(0));
    let shared = Arc::new(shared, GFP_KERNEL).unwrap();
    let evict = |(lru, memory): &(Lru, Memory)| {
        if let Ok(claim) = lru.claim(0) {
            memory.write(memory.read() + 1);
            drop(claim);
            return 1;
        }
        0
    };
    let other = shared.clone();
    let thread = spawn(move || evict(&other));
    let own = evict(&shared);
    let both = own + thread.join();
    assert!(both >= 1);
    assert_eq!(shared.1.read(), both);
}

/// A page is added to a block while a search visits its node. The next search must find the block.
fn added() {
    let lru = Lru::new(1).unwrap();
    lru.prepare(0).unwrap();
    let shared = Arc::new((lru, Atomic::new(0u32)), GFP_KERNEL).unwrap();
    let find = |(lru, used): &(Lru, Atomic<u32>)| {
        let usage = |_| match used.load(Acquire) {
            0 => BlockUsage::Empty,
            _ => BlockUsage::Full,
        };
        lru.coldest(&usage, 1, lru.now()).is_ok()
    };
    let other = shared.clone();
    let thread = spawn(move || {
        other.1.fetch_add(1, Full);
        other.0.allocated(0, true);
    });
    find(&shared);
    thread.join();
    assert!(find(&shared));
}

/// A connection read before a change is not returned after it.
fn answers() {
    let known = kernel::init::made(ConnectionCache::new()).unwrap();
    let shared = (known, Atomic::new(0u32));
    let shared = Arc::new(shared, GFP_KERNEL).unwrap();
    let ask = |(known, truth): &(ConnectionCache, Atomic<u32>)| {
        known.get(MemoryId(1), || match truth.load(Acquire) {
            0 => Connection::None,
            _ => Connection::Unified,
        })
    };
    let other = shared.clone();
    let thread = spawn(move || {
        ask(&other);
    });
    shared.1.store(1, Release);
    connection_cache::invalidate();
    thread.join();
    assert_eq!(ask(&shared), Connection::Unified);
}
