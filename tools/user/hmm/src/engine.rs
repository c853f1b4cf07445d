// SPDX-License-Identifier: GPL-2.0
//! Engines, migration with outcomes and test parameters: the extensions of
//! `samples/dmirror/dmirror_uapi.h`.

use crate::abi::{iowr, PAGE_SIZE};
use crate::device::{Device, Ptr};
use crate::errno::Errno;
use crate::mapping::Mapping;
use std::time::{Duration, Instant};

#[cfg(test)]
mod header;

/// What the device is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Bytes of this structure.
    pub size: u32,
    /// [`crate::abi::ABI_VERSION`].
    pub version: u32,
    /// Number of engines.
    pub engines: u32,
    /// Entries of each engine's TLB.
    pub tlb_entries: u32,
    /// Threads of the copy engine.
    pub copy_threads: u32,
    /// 1 if the CPU can address the memory.
    pub coherent: u32,
    /// Most bytes of device memory.
    pub vram_bytes: u64,
    /// Commands that one engine holds at most.
    pub queue_depth: u64,
}

/// What an engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum EngineOp {
    /// Sum of the words of a range.
    Read = 0,
    /// `value + n` to the n-th word.
    Write = 1,
    /// `value` to every word.
    Fill = 2,
    /// Adds `value` to the word at each multiple of `stride`.
    AtomicAdd = 3,
    /// From `src` to `addr`.
    Memcpy = 4,
    /// See [`checksum`].
    Checksum = 5,
    /// Sum of the words at each multiple of `stride`.
    Strided = 6,
    /// Follows a chain of pointers.
    Chase = 7,
}

/// The checksum that [`EngineOp::Checksum`] computes.
pub fn checksum(words: impl IntoIterator<Item = u64>) -> u64 {
    words
        .into_iter()
        .fold(0u64, |sum, word| (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// A command for an engine.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// Set when it is submitted.
    pub size: u32,
    /// [`Command::VERIFY`].
    pub flags: u32,
    /// Engine, or [`Command::ANY`].
    pub engine: u32,
    /// An [`EngineOp`].
    pub op: u32,
    /// Start of the range.
    pub addr: u64,
    /// Length of the range.
    pub bytes: u64,
    /// Source of a copy.
    pub src: u64,
    /// Depends on the operation.
    pub value: u64,
    /// Of [`EngineOp::AtomicAdd`] and [`EngineOp::Strided`].
    pub stride: u64,
    /// How often; 0 is until stopped.
    pub rounds: u64,
    /// Pause after each round, in ns.
    pub think_ns: u64,
    /// Set when it is submitted.
    pub id: u64,
}

impl Command {
    /// Compare the result of each round with `value`.
    pub const VERIFY: u32 = 1;
    /// Any engine.
    pub const ANY: u32 = u32::MAX;
    /// Bytes of the structure.
    pub const SIZE: u32 = 80;

    /// One round of `op` over `bytes` at `addr`, by engine 0.
    pub fn new(op: EngineOp, addr: usize, bytes: usize) -> Command {
        let (addr, bytes) = (addr as u64, bytes as u64);
        Command { size: Self::SIZE, op: op as u32, addr, bytes, rounds: 1, ..Command::default() }
    }

    /// With another value.
    pub fn value(self, value: u64) -> Command {
        Command { value, ..self }
    }

    /// With a stride in bytes.
    pub fn stride(self, stride: usize) -> Command {
        Command { stride: stride as u64, ..self }
    }

    /// By another engine.
    pub fn engine(self, engine: u32) -> Command {
        Command { engine, ..self }
    }

    /// With a number of rounds; 0 is until stopped.
    pub fn rounds(self, rounds: u64) -> Command {
        Command { rounds, ..self }
    }

    /// Copies from `src`.
    pub fn from(self, src: usize) -> Command {
        Command { src: src as u64, ..self }
    }

    /// With a pause after each round.
    pub fn think(self, pause: Duration) -> Command {
        Command { think_ns: pause.as_nanos() as u64, ..self }
    }

    /// Fails when the result of a round is not `value`.
    pub fn verify(self, value: u64) -> Command {
        Command { flags: Self::VERIFY, value, ..self }
    }
}

/// How a command stands.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    size: u32,
    flags: u32,
    id: u64,
    timeout_ns: u64,
    status: i32,
    reserved: u32,
    /// Of the last complete round.
    pub result: u64,
    /// Complete rounds.
    pub rounds: u64,
    /// Accesses that faulted.
    pub faults: u64,
    /// Accesses that waited.
    pub stalls: u64,
    /// How long they waited.
    pub stall_ns: u64,
}

/// A command that an engine has.
#[derive(Debug)]
pub struct Job<'d> {
    device: &'d Device,
    id: u64,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its error, if it failed.
    pub error: Option<Errno>,
    /// What it did.
    pub status: Status,
}

impl Job<'_> {
    /// Its name.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Asks it to end.
    pub fn stop(&self) -> Result<(), Errno> {
        let raw = Stop { size: 16, flags: 0, id: self.id };
        self.device.extension(0x44, &mut { raw }).map(|_| ())
    }

    /// How it stands; `None` in `Ended` if it runs.  Forgets it if it has ended.
    pub fn poll(&self, timeout: Duration) -> Result<(Option<Ended>, Status), Errno> {
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let mut raw = Status { size: 72, id: self.id, timeout_ns, ..Status::default() };
        match self.device.extension(0x43, &mut raw) {
            Ok(()) => {
                let error = (raw.status != 0).then_some(Errno(-raw.status));
                Ok((Some(Ended { error, status: raw }), raw))
            }
            Err(Errno::ETIMEDOUT) => Ok((None, raw)),
            Err(error) => Err(error),
        }
    }

    /// Waits for its end, at most a minute of patience for slow machines.
    pub fn wait(&self) -> Result<Ended, Errno> {
        let begin = Instant::now();
        loop {
            match self.poll(Duration::from_secs(1)) {
                Ok((Some(ended), _)) => return Ok(ended),
                Ok((None, _)) if begin.elapsed() > Duration::from_secs(120) => {
                    return Err(Errno::ETIMEDOUT)
                }
                Ok((None, _)) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Stops it and waits for its end.
    pub fn finish(&self) -> Result<Ended, Errno> {
        self.stop()?;
        self.wait()
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Stop {
    size: u32,
    flags: u32,
    id: u64,
}

/// Counters of one engine.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounters {
    size: u32,
    engine: u32,
    /// [`crate::abi::ABI_VERSION`].
    pub version: u32,
    reserved: u32,
    /// Commands taken.
    pub commands: u64,
    /// As in [`crate::Counters`], and so on.
    pub accesses: u64,
    /// TLB hits.
    pub tlb_hits: u64,
    /// TLB misses.
    pub tlb_misses: u64,
    /// Reads that faulted.
    pub faults_read: u64,
    /// Writes that faulted.
    pub faults_write: u64,
    /// Reads that waited.
    pub stalls_read: u64,
    /// Writes that waited.
    pub stalls_write: u64,
    /// How long reads waited.
    pub stall_ns_read: u64,
    /// How long writes waited.
    pub stall_ns_write: u64,
    /// The longest wait.
    pub stall_ns_max: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Stale translations found.
    pub stale_hits: u64,
    /// Time in which it ran commands.
    pub busy_ns: u64,
    /// Time without a command.
    pub idle_ns: u64,
    /// Time in which all its commands waited.
    pub wait_ns: u64,
    /// Commands set aside.
    pub set_aside: u64,
}

impl EngineCounters {
    /// Names and values in the order of the structure.
    pub fn fields(&self) -> [(&'static str, u64); 18] {
        [
            ("commands", self.commands),
            ("accesses", self.accesses),
            ("tlb_hits", self.tlb_hits),
            ("tlb_misses", self.tlb_misses),
            ("faults_read", self.faults_read),
            ("faults_write", self.faults_write),
            ("stalls_read", self.stalls_read),
            ("stalls_write", self.stalls_write),
            ("stall_ns_read", self.stall_ns_read),
            ("stall_ns_write", self.stall_ns_write),
            ("stall_ns_max", self.stall_ns_max),
            ("bytes_read", self.bytes_read),
            ("bytes_written", self.bytes_written),
            ("stale_hits", self.stale_hits),
            ("busy_ns", self.busy_ns),
            ("idle_ns", self.idle_ns),
            ("wait_ns", self.wait_ns),
            ("set_aside", self.set_aside),
        ]
    }
}

/// What became of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PageOutcome {
    /// Nothing to move.
    None,
    /// Could not move.
    Skipped,
    /// No memory at the destination.
    NoMemory,
    /// The copy failed.
    CopyFailed,
    /// Moved; the device had no entry.
    Moved,
    /// Moved; the device's entry was switched.
    Switched,
    /// Moved; the device lost its entry.
    Lost,
    /// A number that this program does not know.
    Unknown,
}

impl PageOutcome {
    /// Whether the page moved.
    pub fn has_moved(self) -> bool {
        matches!(self, Self::Moved | Self::Switched | Self::Lost)
    }
}

impl From<u8> for PageOutcome {
    fn from(raw: u8) -> Self {
        match raw {
            0 => Self::None,
            1 => Self::Skipped,
            2 => Self::NoMemory,
            3 => Self::CopyFailed,
            4 => Self::Moved,
            5 => Self::Switched,
            6 => Self::Lost,
            _ => Self::Unknown,
        }
    }
}

/// A migration, and what it did.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Migration {
    size: u32,
    flags: u32,
    addr: u64,
    npages: u64,
    outcomes: u64,
    /// Pages that moved.
    pub moved: u64,
    /// Of these, those whose device entry was switched.
    pub switched: u64,
    /// Pages that could not move.
    pub skipped: u64,
    /// Pages that had no memory at the destination.
    pub no_memory: u64,
    /// Pages whose copy failed.
    pub copy_failed: u64,
    /// How long it took, in ns.
    pub ns: u64,
}

/// Where to, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the device, which reads on.
    ToDevice,
    /// To system memory, while the device reads on.
    ToSystem,
    /// To the device, removing its entries first.
    ToDeviceOrdinary,
    /// To system memory, removing the device's entries first.
    ToSystemOrdinary,
}

impl Way {
    /// The same, faultless or not.
    pub fn faultless(self, yes: bool) -> Way {
        match (self, yes) {
            (Way::ToDevice | Way::ToDeviceOrdinary, true) => Way::ToDevice,
            (Way::ToDevice | Way::ToDeviceOrdinary, false) => Way::ToDeviceOrdinary,
            (Way::ToSystem | Way::ToSystemOrdinary, true) => Way::ToSystem,
            (Way::ToSystem | Way::ToSystemOrdinary, false) => Way::ToSystemOrdinary,
        }
    }

    fn flags(self) -> u32 {
        match self {
            Way::ToDevice => 0,
            Way::ToSystem => 1,
            Way::ToDeviceOrdinary => 2,
            Way::ToSystemOrdinary => 3,
        }
    }
}

/// A test parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Setting {
    /// How long each copy takes at least, in ns.
    CopyDelay = 0,
    /// Copies that succeed before one fails; `u64::MAX`: none fails.
    CopyFail = 1,
    /// Flushes to skip.
    SkipFlush = 2,
    /// 1: no write protection before a faultless migration.
    KeepWrite = 3,
    /// How long each flush takes at least, in ns.
    FlushDelay = 4,
    /// Best connection to other devices: see [`crate::Connection`].
    Connection = 5,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Set {
    size: u32,
    flags: u32,
    what: u32,
    reserved: u32,
    value: u64,
    old: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Discard {
    size: u32,
    flags: u32,
    addr: u64,
    npages: u64,
}

/// A structure of the interface: begins with its size, in `u32`.
///
/// # Safety
///
/// Any bytes must be a valid value, and no field may be a pointer that the
/// kernel writes through without the caller's leave.
pub(crate) unsafe trait Extension: Copy {}
// SAFETY: Plain numbers.
unsafe impl Extension for Info {}
// SAFETY: Plain numbers; the addresses are for the device, see `Device`.
unsafe impl Extension for Command {}
// SAFETY: Plain numbers.
unsafe impl Extension for Status {}
// SAFETY: Plain numbers.
unsafe impl Extension for Stop {}
// SAFETY: Plain numbers.
unsafe impl Extension for EngineCounters {}
// SAFETY: Plain numbers; `outcomes` is only set where a buffer is lent.
unsafe impl Extension for Migration {}
// SAFETY: Plain numbers.
unsafe impl Extension for Set {}
// SAFETY: Plain numbers.
unsafe impl Extension for Discard {}

impl Device {
    pub(crate) fn extension<T: Extension>(
        &self,
        number: u8,
        argument: &mut T,
    ) -> Result<(), Errno> {
        let request = iowr(number, size_of::<T>());
        // SAFETY: the structure begins with its size, so that the kernel stays
        // within it; what it points to is lent by the caller.
        let ret = unsafe { libc::ioctl(self.fd(), request as _, argument as *mut T) };
        Errno::check(ret.into()).map(|_| ())
    }

    /// What the device is.
    pub fn info(&self) -> Result<Info, Errno> {
        let mut info = Info { size: size_of::<Info>() as u32, ..Info::default() };
        self.extension(0x40, &mut info).map(|()| info)
    }

    /// Gives a command to an engine.
    pub fn submit(&self, command: Command) -> Result<Job<'_>, Errno> {
        let mut command = Command { size: Command::SIZE, ..command };
        self.extension(0x42, &mut command)?;
        Ok(Job { device: self, id: command.id })
    }

    /// The command that [`Job::id`] named.
    pub fn job(&self, id: u64) -> Job<'_> {
        Job { device: self, id }
    }

    /// Has an engine carry out a command, and waits for its end.
    pub fn run(&self, command: Command) -> Result<Ended, Errno> {
        self.submit(command)?.wait()
    }

    /// Counters of an engine.
    pub fn engine_counters(&self, engine: u32) -> Result<EngineCounters, Errno> {
        let size = size_of::<EngineCounters>() as u32;
        let mut counters = EngineCounters { size, engine, ..EngineCounters::default() };
        self.extension(0x45, &mut counters).map(|()| counters)
    }

    /// Migrates pages, best effort.
    pub fn migrate(&self, addr: usize, npages: usize, way: Way) -> Result<Migration, Errno> {
        let mut raw = Migration {
            size: size_of::<Migration>() as u32,
            flags: way.flags(),
            addr: addr as u64,
            npages: npages as u64,
            ..Migration::default()
        };
        self.extension(0x46, &mut raw).map(|()| raw)
    }

    /// As [`Device::migrate`], and tells what became of each page.
    pub fn migrate_pages(
        &self,
        addr: usize,
        npages: usize,
        way: Way,
    ) -> Result<(Migration, Vec<PageOutcome>), Errno> {
        let mut bytes = vec![0xffu8; npages];
        let mut raw = Migration {
            size: size_of::<Migration>() as u32,
            flags: way.flags(),
            addr: addr as u64,
            npages: npages as u64,
            outcomes: bytes.as_mut_ptr() as u64,
            ..Migration::default()
        };
        self.extension(0x46, &mut raw)?;
        Ok((raw, bytes.into_iter().map(PageOutcome::from).collect()))
    }

    /// Sets a test parameter of the device; returns the value before.
    pub fn set(&self, what: Setting, value: u64) -> Result<u64, Errno> {
        let size = size_of::<Set>() as u32;
        let mut raw = Set { size, flags: 0, what: what as u32, reserved: 0, value, old: 0 };
        self.extension(0x47, &mut raw).map(|()| raw.old)
    }

    /// The device no longer needs a range.
    pub fn discard(&self, addr: usize, npages: usize) -> Result<(), Errno> {
        let size = size_of::<Discard>() as u32;
        let mut raw = Discard { size, flags: 0, addr: addr as u64, npages: npages as u64 };
        self.extension(0x48, &mut raw)
    }

    /// Issues extension `number` with `words` as its argument, to see it fail or
    /// not: the first holds size and flags. No address may be among them.
    pub fn probe_extension(&self, number: u8, words: &mut [u64]) -> Result<(), Errno> {
        assert!(words.len() * 8 <= 2 * PAGE_SIZE);
        let size = words.first().map_or(0, |word| *word as u32) as usize;
        assert!(size <= words.len() * 8, "the kernel may write beyond the words");
        let request = iowr(number, 8);
        // SAFETY: the kernel reads and writes at most `size` bytes.
        let ret = unsafe { libc::ioctl(self.fd(), request as _, words.as_mut_ptr()) };
        Errno::check(ret.into()).map(|_| ())
    }

    /// Issues extension `number` with its argument in `map`, `offset` bytes from
    /// the start: what of it lies behind the mapping is in the guard page.
    pub fn probe_extension_in(
        &self,
        number: u8,
        map: &Mapping,
        offset: usize,
    ) -> Result<(), Errno> {
        // SAFETY: the kernel reads and writes upwards from there, and meets the guard page.
        let ret = unsafe { libc::ioctl(self.fd(), iowr(number, 8) as _, map.addr() + offset) };
        Errno::check(ret.into()).map(|_| ())
    }

    /// Migrates with a place for outcomes that may not be accessible: the start
    /// of a mapping, or the guard page in front of it.
    pub fn probe_outcomes(
        &self,
        addr: usize,
        npages: usize,
        to: Ptr<'_>,
    ) -> Result<Migration, Errno> {
        let outcomes = match to {
            Ptr::Map(map) => map.addr() as u64,
            Ptr::Guard(map) => map.guard() as u64,
            Ptr::Null | Ptr::Slice(_) => 0,
        };
        let mut raw = Migration {
            size: size_of::<Migration>() as u32,
            addr: addr as u64,
            npages: npages as u64,
            outcomes,
            ..Migration::default()
        };
        self.extension(0x46, &mut raw).map(|()| raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_depends_on_order_and_content() {
        assert_eq!(checksum([]), 0);
        assert_ne!(checksum([1, 2]), checksum([2, 1]));
        assert_ne!(checksum([1]), checksum([1, 0]));
    }
}
