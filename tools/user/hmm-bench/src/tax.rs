// SPDX-License-Identifier: GPL-2.0
//! What a mirror costs its process where the device uses nothing: changes of memory that is not
//! mirrored, without a mirror, with one that is only open, and with one of 64 pages elsewhere.

use crate::bench::{timed, Bench};
use anyhow::Result;
use hmm::abi::PAGE_SIZE;
use hmm::crowd::fork_and_wait;
use hmm::mapping::{Mapping, Prot, MADV_DONTNEED};
use hmm::{Child, Device, Gate};

/// Calls of a round.
const CALLS: usize = 100;

/// The same for those that make a process.
const FORKS: usize = 20;

/// Pages that the device uses elsewhere.
const PAGES: usize = 64;

/// What the process has besides the memory that changes; in the order of the names.
#[derive(Clone, Copy)]
enum Beside {
    Nothing,
    Mirror,
    MirrorInUse,
}

impl Beside {
    /// Returns what must live while the row is measured. The process has the same memory each time.
    fn make(self) -> Result<(Mapping, Option<Device>)> {
        let map = Mapping::reserve(PAGES * PAGE_SIZE, Prot::ReadWrite)?;
        map.fill(1);
        if matches!(self, Beside::Nothing) {
            return Ok((map, None));
        }
        let device = Device::open(0)?;
        if matches!(self, Beside::MirrorInUse) {
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
            (concat!("mirror tax: ", $operation, ", no mirror"), Beside::Nothing),
            (concat!("mirror tax: ", $operation, ", open mirror"), Beside::Mirror),
            (concat!("mirror tax: ", $operation, ", 64 pages elsewhere"), Beside::MirrorInUse),
        ]
    };
}

/// Memory that no device uses, populated.
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
    // One page, all of its VMA, which is neither split nor merged.
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
    let (map, ready, gate) = (memory()?, Gate::new()?, Gate::new()?);
    let child = Child::spawn(|| ready.open().and_then(|()| gate.wait()))?;
    // The child's own start is not to be measured.
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

/// Adds the rows.
pub fn rows(bench: &mut Bench) -> Result<()> {
    let mut group = |names: [(&'static str, Beside); 3], calls, measure: fn() -> Result<u64>| {
        for (name, beside) in names {
            bench.row(name, "call", calls, |_| {
                let _beside = beside.make()?;
                measure()
            })?;
        }
        anyhow::Ok(())
    };
    group(names!("mmap and munmap"), CALLS, map_and_unmap)?;
    group(names!("madvise"), CALLS, discard)?;
    group(names!("mprotect"), CALLS, protect)?;
    group(names!("COW fault"), CALLS, copy_on_write)?;
    group(names!("fork and exit"), FORKS, || fork(None))?;
    group(names!("fork, exec and exit"), FORKS, || fork(Some(c"/bin/true")))
}
