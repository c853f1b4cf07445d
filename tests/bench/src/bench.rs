// SPDX-License-Identifier: GPL-2.0
//! The rows of one memory size, and the memory that they work on.

use crate::phases;
use anyhow::{
    Context,
    Result, //
};
use hmm::{
    abi::{
        HUGE_SIZE,
        PAGE_SIZE, //
    },
    mapping::Mapping,
    pattern::{
        self,
        WORDS, //
    },
    Device, //
};
use serde_json::{
    json,
    Value, //
};
use std::time::Instant;

/// Pages of one ioctl, which are 32 MiB. Larger ranges take several calls with the same buffer.
const CHUNK: usize = (32 << 20) / PAGE_SIZE;

/// One word in `STEP` of each page is written and checked. Other tests check all words, and here
/// these accesses are most of the benchmark's own work.
const STEP: usize = 8;

/// Result of a row.
struct Row {
    name: &'static str,
    unit: &'static str,
    cost: f64,
    rounds: Vec<f64>,
    phases: phases::Phases,
}

/// Measured rounds of a row.
struct Rounds {
    name: &'static str,
    done: Vec<(f64, phases::Phases)>,
}

impl Rounds {
    /// Measures a round, which handles `units` units.
    fn measure(&mut self, units: usize, round: impl FnOnce() -> Result<u64>) -> Result<()> {
        phases::spent();
        let cost = round().context(self.name)? as f64 / units as f64;
        self.done.push((cost, phases::spent().per(units)));
        Ok(())
    }
}

/// Measures the rows of one memory size.
pub struct Bench {
    mib: usize,
    rounds: usize,
    only: Vec<String>,
    small: bool,
    rows: Vec<Row>,
}

/// Marks the begin or the end of the code that a profile counts, see `tools/profile`.
fn marker() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: The instruction exchanges a register with itself, so it changes no state.
    unsafe {
        std::arch::asm!("xchg bx, bx", options(nomem, nostack, preserves_flags))
    };
    #[cfg(target_arch = "aarch64")]
    // SAFETY: The instruction moves the zero register to itself, so it changes no state.
    unsafe {
        std::arch::asm!("orr xzr, xzr, xzr", options(nomem, nostack, preserves_flags))
    };
}

/// Returns the nanoseconds that `work` takes.
pub fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<u64> {
    let account = phases::Account::open();
    marker();
    let start = Instant::now();
    let result = work();
    let passed = start.elapsed();
    marker();
    account.close();
    result?;
    Ok(passed.as_nanos() as u64)
}

impl Bench {
    /// Measures with `mib` MiB, each row in `rounds` rounds.
    pub fn new(mib: usize, rounds: usize, only: &[String], small: bool) -> Bench {
        Bench { mib, rounds: rounds.max(1), only: only.to_vec(), small, rows: Vec::new() }
    }

    /// Returns the pages of the memory.
    pub fn pages(&self) -> usize {
        (self.mib << 20) / PAGE_SIZE
    }

    /// Returns whether there is only one round, whose cost would include everything that is done
    /// only once.
    pub fn is_single(&self) -> bool {
        self.rounds == 1
    }

    /// Returns the huge pages of the memory: none if it is not a multiple of one, or if they are
    /// disabled.
    pub fn huge_pages(&self) -> usize {
        let bytes = self.mib << 20;
        if self.small || bytes % HUGE_SIZE != 0 {
            return 0;
        }
        bytes / HUGE_SIZE
    }

    /// Maps memory of small pages, which is not populated. It does not share page tables with
    /// earlier mappings.
    pub fn small(&self) -> Result<Mapping> {
        let map = Mapping::reserve(self.pages() * PAGE_SIZE, hmm::mapping::Prot::ReadWrite)?;
        Ok(map)
    }

    /// Maps memory of huge pages, which is not populated.
    pub fn huge(&self) -> Result<Mapping> {
        Ok(Mapping::anon_huge(self.huge_pages())?)
    }

    /// Writes the pattern `seed` by the CPU.
    pub fn fill(&self, map: &Mapping, seed: u64) {
        for page in 0..map.pages() {
            for word in (0..WORDS).step_by(STEP) {
                map.set(page, word, pattern::word(seed, page, word));
            }
        }
    }

    /// Checks by the CPU that `map` holds the pattern `seed`.
    pub fn check(&self, map: &Mapping, seed: u64) -> Result<()> {
        for page in 0..map.pages() {
            for word in (0..WORDS).step_by(STEP) {
                let found = map.get(page, word);
                let expected = pattern::word(seed, page, word);
                anyhow::ensure!(
                    found == expected,
                    "page {page} word {word}: found {found:#x}, expected {expected:#x}"
                );
            }
        }
        Ok(())
    }

    /// Checks that a device has read the pattern `seed` from the pages that begin with `first`.
    fn check_buffer(&self, buffer: &[u8], first: usize, seed: u64) -> Result<()> {
        for (index, page) in buffer.chunks_exact(PAGE_SIZE).enumerate() {
            for word in (0..WORDS).step_by(STEP) {
                let bytes = &page[word * 8..word * 8 + 8];
                let expected = pattern::word(seed, first + index, word).to_ne_bytes();
                anyhow::ensure!(bytes == expected, "page {} word {word} is wrong", first + index);
            }
        }
        Ok(())
    }

    /// Calls `work` with the address and the buffer of each part of `map`, and measures the time.
    /// If `seed` is given, the buffer must then hold that pattern.
    pub fn chunks(
        &self,
        map: &Mapping,
        buffer: &mut Buffer,
        seed: Option<u64>,
        mut work: impl FnMut(usize, &mut [u8]) -> Result<()>,
    ) -> Result<u64> {
        let mut sum = 0;
        self.untimed(map, buffer, seed, |addr, part| {
            sum += timed(|| work(addr, part))?;
            Ok(())
        })?;
        Ok(sum)
    }

    /// Does the same without measuring, as a preparation.
    pub fn untimed(
        &self,
        map: &Mapping,
        buffer: &mut Buffer,
        seed: Option<u64>,
        mut work: impl FnMut(usize, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        for first in (0..map.pages()).step_by(CHUNK) {
            let count = CHUNK.min(map.pages() - first);
            let part = buffer.pages(count);
            work(map.page_addr(first), part)?;
            if let Some(seed) = seed {
                self.check_buffer(part, first, seed)?;
            }
        }
        Ok(())
    }

    /// Opens the device, populates `map` and migrates it to the device.
    pub fn on_device(&self, map: &Mapping, buffer: &mut Buffer) -> Result<Device> {
        let device = Device::open(0)?;
        self.fill(map, 1);
        self.untimed(map, buffer, Some(1), |addr, part| {
            device.migrate_to_device(addr, part)?;
            Ok(())
        })?;
        Ok(device)
    }

    /// Returns whether the row `name` was requested.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }

    /// Adds a row. Its cost is that of the cheapest round, per `unit`; a round handles `units`
    /// units.
    pub fn row(
        &mut self,
        name: &'static str,
        unit: &'static str,
        units: usize,
        mut round: impl FnMut(&Bench) -> Result<u64>,
    ) -> Result<()> {
        let Some(mut rounds) = self.begin(name) else {
            return Ok(());
        };
        for _ in 0..self.rounds {
            rounds.measure(units, || round(self))?;
        }
        self.end(rounds, unit, |_| 0);
        Ok(())
    }

    /// Adds rows that are compared with each other. The cost of each is the median of its rounds.
    /// The rows take turns, so that changes in the state of the kernel affect all of them. `round`
    /// gets the index of the row.
    pub fn by_turns<const N: usize>(
        &mut self,
        names: [&'static str; N],
        rounds: usize,
        (unit, units): (&'static str, usize),
        mut round: impl FnMut(usize) -> Result<u64>,
    ) -> Result<()> {
        let mut rows = names.map(|name| self.begin(name));
        for _ in 0..rounds {
            for (number, row) in rows.iter_mut().enumerate() {
                if let Some(row) = row {
                    row.measure(units, || round(number))?;
                }
            }
        }
        for row in rows.into_iter().flatten() {
            self.end(row, unit, |count| count / 2);
        }
        Ok(())
    }

    /// Begins the row `name`, if it was requested.
    fn begin(&self, name: &'static str) -> Option<Rounds> {
        self.wants(name).then(|| Rounds { name, done: Vec::new() })
    }

    /// Adds a row with the cost of one of its rounds. `which` chooses its index among the rounds,
    /// sorted by cost.
    fn end(&mut self, rounds: Rounds, unit: &'static str, which: impl FnOnce(usize) -> usize) {
        let costs = rounds.done.iter().map(|(cost, _)| *cost).collect();
        let mut done = rounds.done;
        done.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (cost, phases) = done.swap_remove(which(done.len()));
        eprintln!("{} MiB, {}: {cost:.1}", self.mib, rounds.name);
        self.rows.push(Row { name: rounds.name, unit, cost, rounds: costs, phases });
    }

    /// Returns the rows for the report.
    pub fn json(&self) -> Value {
        let row = |row: &Row| {
            json!({ "row": row.name, "unit": row.unit, "cost": row.cost, "rounds": row.rounds,
                "phases": row.phases.json() })
        };
        Value::Array(self.rows.iter().map(row).collect())
    }

    /// Prints the rows.
    pub fn print(&self) {
        for row in &self.rows {
            println!("{:<54} {:>10.1} per {}", row.name, row.cost, row.unit);
        }
    }
}

/// Buffer for the data that device ioctls read: page-aligned and populated.
pub struct Buffer(Vec<u8>);

impl Buffer {
    /// Creates a buffer for one ioctl of `bench`.
    pub fn new(bench: &Bench) -> Buffer {
        Buffer(vec![1; (bench.pages().min(CHUNK) + 1) * PAGE_SIZE])
    }

    /// Returns the first `count` pages.
    pub fn pages(&mut self, count: usize) -> &mut [u8] {
        let skip = self.0.as_ptr().align_offset(PAGE_SIZE);
        &mut self.0[skip..skip + count * PAGE_SIZE]
    }
}
