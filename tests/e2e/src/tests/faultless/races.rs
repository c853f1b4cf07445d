// SPDX-License-Identifier: GPL-2.0
//! Concurrent changes of memory that migrates (H11, and more).

use super::*;
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    Test,
    What, //
};
use crate::mover::{
    races,
    rounds,
    Board,
    Tally, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::engine::Way;
use hmm::pattern::WORDS;
use hmm::PAGE_SIZE;
use hmm::{
    Child,
    Command,
    EngineOp,
    Errno,
    Mapping,
    Prot,
    HUGE_PAGES, //
};
use std::sync::atomic::{
    AtomicBool,
    Ordering, //
};
use std::time::{
    Duration,
    Instant, //
};

pub const TESTS: &[Test] = &[
    Test::new("faultless", "h11_munmap", h11_munmap).only_rust(OURS),
    Test::new("faultless", "h11_mremap", h11_mremap).only_rust(OURS),
    Test::new("faultless", "h11_mprotect", h11_mprotect).only_rust(OURS),
    Test::new("faultless", "h11_fork_and_writes", h11_fork).only_rust(OURS),
    Test::new("faultless", "h11_exit", h11_exit).only_rust(OURS),
    Test::new("faultless", "h13_ordinary_migration_during_a_cpu_fault", cpu_faults::h13_ordinary)
        .only_rust(OURS)
        .private(),
    Test::new("faultless", "h14_write_access_is_taken_during_cpu_faults", cpu_faults::h14_taken)
        .only_rust(OURS)
        .private(),
    Test::new("faultless", "madv_free_during_the_copy", madv_free).only_rust(OURS),
    Test::new("faultless", "merging_during_the_copy", merging).only_rust(OURS),
    Test::new("faultless", "thp_split_during_the_copy", thp_split).only_rust(OURS),
    Test::new("faultless", "close_during_the_copy", close_in_flight).only_rust(OURS),
    Test::new("faultless", "rmmod_during_the_copy", rmmod_in_flight).only_rust(OURS),
];

fn h11_munmap(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    races(2, |_| {
        let map = Mapping::anon_in_block(PAGES)?;
        let mover = Mover::start(&device, &map)?;
        map.fill(1);
        device_sees(&device, &map, 1, "at first")?;
        let read = Command::new(EngineOp::Read, map.page_addr(256), PAGE_SIZE).rounds(0);
        let job = device.submit(read)?;
        mover.wait_for(1)?;
        mover.during(|| map.unmap_pages(256, 128))?;
        check_eq!(job.wait()?.error, Some(Errno::EFAULT), "end of a read of unmapped pages");
        device_sees_pages(&device, &map, 1, 0, 256, "of pages that stay")?;
        let tally = mover.kill()?;
        map.check_pages(1, 384, 128).what("CPU read of pages that stay")?;
        Ok(tally)
    })?;
    no_stale_hits(&device)
}

fn h11_mremap(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    races(2, |_| {
        let map = Mapping::anon_in_block(PAGES)?;
        let target = Mapping::anon_in_block(PAGES)?;
        let mover = Mover::start(&device, &map)?;
        map.fill(1);
        device_sees(&device, &map, 1, "at first")?;
        mover.wait_for(1)?;
        mover.during(|| map.move_pages(128, 64, &target, 128))?;
        device_sees_pages(&device, &target, 1, 128, 64, "at the new address of the pages")?;
        let old = Command::new(EngineOp::Read, map.page_addr(130), 8);
        check_eq!(device.run(old)?.error, Some(Errno::EFAULT), "read where the pages were");
        let tally = mover.kill()?;
        target.check_pages(1, 128, 64).what("CPU read at the new address of the pages")?;
        map.check_pages(1, 0, 128).what("CPU read of the rest")?;
        Ok(tally)
    })?;
    no_stale_hits(&device)
}

fn h11_mprotect(ctx: &Ctx) -> Outcome {
    disturbed(ctx, |device, map, mover, round| {
        // Each page waits for the mover, which hardly ever pauses.
        let at = map.page_addr(64);
        let len = 4 * PAGE_SIZE;
        let fill = Command::new(EngineOp::Fill, at, len).value(round);
        mover.during(|| map.protect_pages(Prot::Read, 64, 4))?;
        check_eq!(device.run(fill)?.error, Some(Errno::EPERM), "write to read-only memory");
        let read = Command::new(EngineOp::Read, at, len);
        check_eq!(device.run(read)?.error, None, "read of read-only memory");
        mover.during(|| map.protect_pages(Prot::None, 64, 4))?;
        check_eq!(device.run(read)?.error, Some(Errno::EFAULT), "read without access");
        mover.during(|| map.protect_pages(Prot::ReadWrite, 64, 4))?;
        check_eq!(device.run(fill)?.error, None, "write with access");
        check_eq!(
            (map.get(64, 0), map.get(67, WORDS - 1)),
            (round, round),
            "words written by the engine"
        );
        Ok(())
    })
}

fn h11_fork(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon(64)?;
    let mover = Mover::start(&device, &map)?;
    map.fill(0);
    race(&[&mover], |round| {
        let mine = 2 * round + 1;
        let theirs = 2 * round + 1_000_001;
        device_fills(&device, &map, mine, "before the fork")?;
        let child = mover.during(|| {
            Child::spawn(|| -> Outcome {
                cpu_sees(&map, mine, "by the child")?;
                map.fill(theirs);
                cpu_sees(&map, theirs, "by the child of its own words")
            })
        })?;
        device_fills(&device, &map, mine + 1, "after the fork")?;
        device_sees(&device, &map, mine + 1, "of words written after the fork")?;
        child.join().map_err(Stop::Fail)?;
        cpu_sees(&map, mine + 1, "by the parent")
    })?;
    mover.end()?;
    no_stale_hits(&device)
}

fn h11_exit(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    races(6, |round| {
        let gate = hmm::Gate::new()?;
        // The mover outlives the process whose memory it migrates.
        let board = Board::new()?;
        let mut child = Child::spawn(|| -> Outcome {
            let own = open(ctx)?;
            let map = Mapping::anon_in_block(PAGES)?;
            let _mover = Mover::spawn(&board, &own, &map, false)?;
            map.fill(1);
            let _job = watch(&own, &map, 1)?;
            gate.open().what("gate")?;
            std::thread::sleep(Duration::from_secs(60));
            Ok(())
        })?;
        gate.wait().what("the child")?;
        board.wait_for(1)?;
        // Vary the phase of the trip.
        std::thread::sleep(Duration::from_millis(7 * (round % 6)));
        board.wait_for_copies(|| Ok(device.counters().what("counters")?.bytes_copied))?;
        let ended = board.during(|| {
            child.signal(libc::SIGKILL);
            child.wait_timeout(Duration::from_secs(20))
        });
        check!(ended.is_some(), "the child does not end");
        board.stop();
        // The mover still runs. Its call holds a reference on the mm until the pages have moved.
        board.wait_for_calls()?;
        Ok(board.read())
    })?;
    // The movers hold the files of the exited processes until the call in flight ends.
    let begin = Instant::now();
    while device.counters()?.device_pages_used != 0 && begin.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(20));
    }
    check_eq!(device.counters()?.device_pages_used, 0, "device pages after the exits");
    no_stale_hits(&device)
}

fn madv_free(ctx: &Ctx) -> Outcome {
    disturbed(ctx, |device, map, mover, round| {
        mover.during(|| map.advise_pages(libc::MADV_FREE, 0, 64))?;
        // Written after the advice, so the contents must stay.
        device_fills_pages(device, map, round, 0, 64, "after MADV_FREE")?;
        map.check_pages(round, 0, 64).what("CPU read after MADV_FREE and a device write")
    })
}

fn merging(ctx: &Ctx) -> Outcome {
    let ksm = match hmm::files::Ksm::start() {
        Ok(ksm) => ksm,
        Err(error) => return Err(Stop::Skip(format!("no KSM: {error}"))),
    };
    disturbed(ctx, |device, map, mover, round| {
        for page in 0..64 {
            (0..WORDS).for_each(|word| map.set(page, word, round));
        }
        mover.during(|| -> Outcome {
            ksm.advise(map)?;
            std::thread::sleep(Duration::from_millis(50));
            Ok(())
        })?;
        let read = Command::new(EngineOp::Read, map.addr(), 64 * PAGE_SIZE);
        let sum = round.wrapping_mul((64 * WORDS) as u64);
        check_eq!(device.run(read)?.status.result, sum, "sum of pages that merge");
        device_fills_pages(device, map, round, 3, 2, "of pages that merge")?;
        map.check_pages(round, 3, 2).what("CPU read of words that the device wrote")?;
        check_eq!(map.get(5, 0), round, "a neighbour of words that the device wrote");
        // Memory that may be merged does not migrate. Let it migrate before the next round.
        map.advise(libc::MADV_UNMERGEABLE)?;
        mover.wait_for(1)
    })
}

fn thp_split(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    races(2, |_| {
        let map = Mapping::anon_huge(1)?;
        let mover = Mover::start(&device, &map)?;
        map.fill(1);
        let job = watch(&device, &map, 1)?;
        for page in [17, 300, HUGE_PAGES - 1] {
            mover.during(|| map.protect_pages(Prot::Read, page, 1))?;
            map.protect_pages(Prot::ReadWrite, page, 1)?;
        }
        watched(&job, "of a huge page that is split")?;
        device_fills(&device, &map, 2, "of a huge page that was split")?;
        let tally = mover.kill()?;
        cpu_sees(&map, 2, "of a huge page that was split")?;
        Ok(tally)
    })?;
    no_stale_hits(&device)
}

fn close_in_flight(ctx: &Ctx) -> Outcome {
    let map = Mapping::anon_in_block(PAGES)?;
    let pause = |round| std::thread::sleep(Duration::from_millis(3 + 4 * (round % 6)));
    let mut tally = Tally::default();
    let mut closed_under = 0;
    let mut last = 0;
    rounds(6, |round| {
        last = round;
        // Another process has the last descriptor, and is killed during a migration.
        map.fill(round);
        let device = open(ctx)?;
        let mover = Mover::start(&device, &map)?;
        watch(&device, &map, round)?;
        mover.wait_for(1)?;
        pause(round);
        mover.during(|| device.close()).what("close")?;
        mover.wait_for(1)?;
        pause(round);
        tally.add(mover.kill()?);
        cpu_sees(&map, round, "after the process closed its last descriptor")?;
        // The last descriptor is closed while a thread is in a migration and commands run.
        let device = open(ctx)?;
        watch(&device, &map, round)?;
        let closed = AtomicBool::new(false);
        let ended = std::thread::scope(|scope| {
            let mover = scope.spawn(|| loop {
                for way in [Way::ToDevice, Way::ToSystem] {
                    let before = closed.load(Ordering::SeqCst);
                    match device.migrate(map.addr(), map.pages(), way) {
                        Err(error) => return (error, 0),
                        // The call began before the close and ended after it.
                        Ok(done) if !before && closed.load(Ordering::SeqCst) && done.moved > 0 => {
                            let next = device.migrate(map.addr(), map.pages(), way);
                            return (next.err().unwrap_or(Errno(0)), done.moved);
                        }
                        Ok(_) => {}
                    }
                }
            });
            pause(round);
            let detached = device.detach();
            closed.store(true, Ordering::SeqCst);
            (detached, mover.join())
        });
        ended.0.what("close under a migration")?;
        // The call in flight completes. The next call finds a different file at the descriptor.
        let (error, moved) = ended.1.map_err(|_| Stop::Fail("a thread panicked".into()))?;
        check_eq!(error, Errno::ENOTTY, "end of the migrations");
        closed_under += moved;
        cpu_sees(&map, round, "after the close under a migration")?;
        Ok(tally.during > 0 && tally.cut > 0 && closed_under > 0)
    })?;
    tally.proof()?;
    check!(tally.cut > 0, "no migration was in flight when its process was killed: {tally}");
    check!(closed_under > 0, "no migration was in flight at any close");
    let device = open(ctx)?;
    check_eq!(device.counters()?.device_pages_used, 0, "device pages after the last close");
    device_sees(&device, &map, last, "through a new file")?;
    Ok(())
}

fn rmmod_in_flight(ctx: &Ctx) -> Outcome {
    let (device, map, mover) = moving(ctx)?;
    let job = watch(&device, &map, 1)?;
    race(&[&mover], |_| {
        for module in ["rust_dmirror", "rust_hmm"] {
            match mover.during(|| hmm::module::unload(module)) {
                Err(Errno::EBUSY | Errno::EAGAIN) => {}
                other => return Err(Stop::Fail(format!("rmmod {module} in use: {other:?}"))),
            }
        }
        std::thread::sleep(Duration::from_millis(50));
        Ok(())
    })?;
    watched(&job, "while rmmod is refused")?;
    mover.end()?;
    cpu_sees(&map, 1, "at the end")
}
