// SPDX-License-Identifier: GPL-2.0
//! Cost that a mirror adds for its process where the device uses no memory. The rows change memory
//! that is not mirrored: without a mirror, with a mirror that is only open, and with a mirror of 64
//! pages elsewhere.

use crate::bench::{
    timed,
    Bench, //
};
use anyhow::{
    ensure,
    Result, //
};
use hmm::abi::PAGE_SIZE;
use hmm::crowd::fork_and_wait;
use hmm::mapping::{
    Mapping,
    Prot,
    MADV_DONTNEED, //
};
use hmm::{
    Child,
    Device,
    Gate, //
};

/// Calls in a round.
const CALLS: usize = 100;

/// Calls in a round of operations that create a process.
const FORKS: usize = 20;

/// Rounds of a row. The cost of a row is the median. The cost of a mirror is the median of all
/// differences between rounds. Occasional work of the kernel takes more than a hundredth of a
/// round, so a single round shows nothing.
const ROUNDS: usize = 21;

/// Rounds of `madvise`, which are short, and whose cost rises and falls from round to round by more
/// than six hundredths. With 21, the cost of a mirror differed by six thousandths of it.
const ROUNDS_DISCARDING: usize = 101;

/// Pages elsewhere that the device uses.
const PAGES: usize = 64;

/// State of the process besides the memory that changes.
#[derive(Clone, Copy, PartialEq)]
enum Beside {
    Nothing,
    Mirror,
    MirrorInUse,
}

/// All states, in the order of the names of the rows.
const ALL: [Beside; 3] = [Beside::Nothing, Beside::Mirror, Beside::MirrorInUse];

impl Beside {
    /// Creates the objects that must live while the row is measured. The process has the same
    /// memory in each state.
    fn make(self) -> Result<(Mapping, Option<Device>)> {
        let map = Mapping::reserve(PAGES * PAGE_SIZE, Prot::ReadWrite)?;
        map.fill(1);
        if self == Beside::Nothing {
            return Ok((map, None));
        }
        let device = Device::open(0)?;
        if self == Beside::MirrorInUse {
            let mut buffer = vec![0; PAGES * PAGE_SIZE];
            device.read(map.addr(), &mut buffer)?;
            hmm::pattern::check(1, 0, &buffer)?;
        }
        Ok((map, Some(device)))
    }
}

macro_rules! names {
    ($operation:literal) => {
        [
            concat!("mirror tax: ", $operation, ", no mirror"),
            concat!("mirror tax: ", $operation, ", open mirror"),
            concat!("mirror tax: ", $operation, ", 64 pages elsewhere"),
        ]
    };
}

/// Returns the number of invalidation callbacks of the mirror, if the driver counts them.
fn callbacks(device: Option<&Device>) -> Option<u64> {
    Some(device?.counters().ok()?.invalidations)
}

/// Returns populated memory that no device uses.
fn memory() -> Result<Mapping> {
    let map = Mapping::reserve(CALLS * PAGE_SIZE, Prot::ReadWrite)?;
    map.fill(1);
    Ok(map)
}

fn map_and_unmap() -> Result<u64> {
    let map = memory()?;
    map.unmap_pages(0, 1)?;
    timed(|| {
        for _ in 0..CALLS {
            map.map_again(0, 1, None)?;
            map.unmap_pages(0, 1)?;
        }
        Ok(())
    })
}

fn discard() -> Result<u64> {
    let map = memory()?;
    timed(|| {
        for page in 0..CALLS {
            map.advise_pages(MADV_DONTNEED, page, 1)?;
        }
        Ok(())
    })
}

fn protect() -> Result<u64> {
    // One page that is a whole VMA. No change of protection splits or merges it.
    let map = Mapping::reserve(PAGE_SIZE, Prot::ReadWrite)?;
    map.fill(1);
    timed(|| {
        for call in 0..CALLS {
            map.protect(if call % 2 == 0 { Prot::Read } else { Prot::ReadWrite })?;
        }
        Ok(())
    })
}

fn copy_on_write() -> Result<u64> {
    let map = memory()?;
    let ready = Gate::new()?;
    let gate = Gate::new()?;
    let child = Child::spawn(|| ready.open().and_then(|()| gate.wait()))?;
    // The start of the child must not be measured.
    ready.wait()?;
    let cost = timed(|| {
        (0..CALLS).for_each(|page| map.set(page, 0, 2));
        Ok(())
    });
    gate.open()?;
    child.join().map_err(anyhow::Error::msg)?;
    cost
}

fn fork(program: Option<&'static std::ffi::CStr>) -> Result<u64> {
    let _map = memory()?;
    timed(|| {
        for _ in 0..FORKS {
            fork_and_wait(program)?;
        }
        Ok(())
    })
}

/// Adds the rows. The mirror must not be called back for memory that its device does not use.
/// fork() changes all memory of the process, that of the 64 pages, too.
pub fn rows(bench: &mut Bench) -> Result<()> {
    let mut group = |names, rounds, calls, forks: bool, measure: fn() -> Result<u64>| {
        bench.by_turns(names, rounds, ("call", calls), |number| {
            let beside = ALL[number];
            let (_map, device) = beside.make()?;
            let before = callbacks(device.as_ref());
            let cost = measure()?;
            if beside == Beside::Mirror || !forks {
                let (before, after) =
                    (before.unwrap_or(0), callbacks(device.as_ref()).unwrap_or(0));
                ensure!(before == after, "{} callbacks", after - before);
            }
            Ok(cost)
        })
    };
    group(names!("mmap and munmap"), ROUNDS, CALLS, false, map_and_unmap)?;
    group(names!("madvise"), ROUNDS_DISCARDING, CALLS, false, discard)?;
    group(names!("mprotect"), ROUNDS, CALLS, false, protect)?;
    group(names!("COW fault"), ROUNDS, CALLS, true, copy_on_write)?;
    group(names!("fork and exit"), ROUNDS, FORKS, true, || fork(None))?;
    group(names!("fork, exec and exit"), ROUNDS, FORKS, true, || fork(Some(c"/bin/true")))
}
