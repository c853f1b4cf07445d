// SPDX-License-Identifier: GPL-2.0
//! Cases of engine commands and of other extension calls.

use crate::inject::cases::{
    Case,
    Contents,
    World,
    NEW,
    OLD, //
};
use crate::inject::memory::{
    filled,
    mirrored,
    on_device, //
};
use hmm::engine::{
    checksum_of_pattern,
    EngineOp,
    Setting,
    Way, //
};
use hmm::pattern::{
    self,
    WORDS, //
};
use hmm::{
    Command,
    Errno,
    Mapping,
    PAGE_SIZE, //
};
use std::time::Duration;

/// Errors of a command itself, or of its submission.
const COMMAND: &[Errno] = &[Errno::EBUSY, Errno::ENOMEM, Errno::EINTR];
const MIGRATE: &[Errno] = &[Errno::EBUSY, Errno::EINTR, Errno::ENOMEM];

/// Value that the engine adds to each word.
const ADDED: u64 = 1 << 32;

pub const CASES: &[Case] = &[
    Case::new("info", info),
    Case::new("counters", counters),
    Case::new("setting", set),
    Case { errors: COMMAND, ..Case::new("engine_checksum", engine_checksum) },
    Case { errors: COMMAND, prepare: on_device, ..Case::new("engine_on_device", engine_checksum) },
    Case {
        errors: COMMAND,
        prepare: with_target,
        check: copied,
        threads: true,
        ..Case::new("engine_memcpy", copy)
    },
    Case {
        errors: COMMAND,
        contents: Contents::Any,
        check: words_were_written,
        threads: true,
        ..Case::new("engine_write", engine_write)
    },
    Case {
        errors: COMMAND,
        contents: Contents::Any,
        check: words_were_added,
        ..Case::new("engine_atomic", engine_atomic)
    },
    Case { errors: COMMAND, prepare: mirrored, check: nothing_runs, ..Case::new("stop", stop) },
    Case { errors: MIGRATE, prepare: mirrored, ..Case::new("outcomes", outcomes) },
];

fn info(world: &mut World) -> Result<(), Errno> {
    match world.device.info()?.engines {
        0 => Err(Errno::EILSEQ),
        _ => Ok(()),
    }
}

fn counters(world: &mut World) -> Result<(), Errno> {
    world.device.counters()?;
    world.device.engine_counters(0).map(|_| ())
}

fn set(world: &mut World) -> Result<(), Errno> {
    world.device.set(Setting::FlushDelay, 1000)?;
    world.device.set(Setting::FlushDelay, 0).map(|_| ())
}

/// Runs a command. An error of the command is returned like an error of the call.
fn run(world: &World, command: Command) -> Result<(), Errno> {
    match world.device.run(command)?.error {
        None => Ok(()),
        Some(error) => Err(error),
    }
}

fn over_all(world: &World, op: EngineOp) -> Command {
    Command::new(op, world.map.addr(), world.map.len())
}

fn engine_checksum(world: &mut World) -> Result<(), Errno> {
    let expected = checksum_of_pattern(OLD, world.map.pages());
    run(world, over_all(world, EngineOp::Checksum).verify(expected))
}

fn with_target(world: &mut World) -> Result<(), String> {
    filled(world)?;
    let target = Mapping::anon(world.map.pages()).map_err(|error| error.to_string())?;
    world.other = Some(target);
    Ok(())
}

fn copy(world: &mut World) -> Result<(), Errno> {
    let target = world.other.as_ref().ok_or(Errno::ENOENT)?;
    let command = Command::new(EngineOp::Memcpy, target.addr(), target.len());
    run(world, command.from(world.map.addr()))
}

fn copied(world: &mut World) -> Result<(), String> {
    let target = world.other.as_ref().ok_or("no target")?;
    target.check(OLD).map_err(|mismatch| mismatch.to_string())
}

fn engine_write(world: &mut World) -> Result<(), Errno> {
    run(world, over_all(world, EngineOp::Write).value(NEW))
}

fn each_word(world: &World, right: impl Fn(usize, usize, u64) -> bool) -> Result<(), String> {
    for page in 0..world.map.pages() {
        for word in 0..WORDS {
            let found = world.map.get(page, word);
            if !right(page, word, found) {
                return Err(format!("page {page} word {word}: found {found:#x}"));
            }
        }
    }
    Ok(())
}

fn words_were_written(world: &mut World) -> Result<(), String> {
    each_word(world, |page, word, found| found == NEW + (page * WORDS + word) as u64)
}

fn engine_atomic(world: &mut World) -> Result<(), Errno> {
    run(world, over_all(world, EngineOp::AtomicAdd).value(ADDED).stride(8))
}

/// A failed command has added to some of the words. The repeated one adds to all of them.
fn words_were_added(world: &mut World) -> Result<(), String> {
    each_word(world, |page, word, found| {
        let added = found.wrapping_sub(pattern::word(OLD, page, word));
        added == ADDED || added == 2 * ADDED
    })
}

/// A command that ends only when it is stopped.
fn stop(world: &mut World) -> Result<(), Errno> {
    let command = over_all(world, EngineOp::Read).rounds(0).think(Duration::from_micros(100));
    let job = world.device.submit(command)?;
    match job.stop() {
        Ok(()) => {}
        // The stop was the call that failed. The command must not run on.
        Err(error) => {
            job.finish()?;
            return Err(error);
        }
    }
    match job.wait()?.error {
        None => Ok(()),
        Some(error) => Err(error),
    }
}

/// Every command must have stopped, because its number is lost and it could not be stopped any
/// more.
fn nothing_runs(world: &mut World) -> Result<(), String> {
    let accesses = || {
        let counters = world.device.engine_counters(0);
        counters.map(|counters| counters.accesses).map_err(|error| error.to_string())
    };
    for _ in 0..100 {
        let before = accesses()?;
        std::thread::sleep(Duration::from_millis(20));
        if accesses()? == before {
            return Ok(());
        }
    }
    Err("a command is still running".to_string())
}

fn outcomes(world: &mut World) -> Result<(), Errno> {
    let pages = world.map.pages();
    let (done, each) = world.device.migrate_pages(world.map.addr(), pages, Way::ToDevice)?;
    let moved = each.iter().filter(|outcome| outcome.has_moved()).count();
    let counted = done.moved == moved as u64 && each.len() * PAGE_SIZE == world.map.len();
    if counted {
        Ok(())
    } else {
        Err(Errno::EILSEQ)
    }
}
