// SPDX-License-Identifier: GPL-2.0
//! Engine commands: operation, submission and status.

use super::Extension;
use crate::device::Device;
use crate::errno::Errno;
use crate::pattern::{
    self,
    WORDS, //
};
use std::time::{
    Duration,
    Instant, //
};

/// Operation of an engine.
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

/// The checksum of the pattern `seed` in `pages` pages, the first of which is page 0.
pub fn checksum_of_pattern(seed: u64, pages: usize) -> u64 {
    checksum(
        (0..pages).flat_map(|page| (0..WORDS).map(move |word| pattern::word(seed, page, word))),
    )
}

/// The checksum of what [`EngineOp::Write`] of `value` writes to `words` words.
pub fn checksum_of_write(value: u64, words: usize) -> u64 {
    checksum((0..words as u64).map(|n| value.wrapping_add(n)))
}

/// A command for an engine.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// Set when the command is submitted.
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
    /// Distance of accesses of [`EngineOp::AtomicAdd`] and [`EngineOp::Strided`].
    pub stride: u64,
    /// Number of rounds; 0: until stopped.
    pub rounds: u64,
    /// Pause after each round, in ns.
    pub think_ns: u64,
    /// Set when the command is submitted.
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
        let addr = addr as u64;
        let bytes = bytes as u64;
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

/// Status of a command.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub(super) size: u32,
    pub(super) flags: u32,
    pub(super) id: u64,
    pub(super) timeout_ns: u64,
    pub(super) status: i32,
    pub(super) reserved: u32,
    /// Result of the last complete round.
    pub result: u64,
    /// Complete rounds.
    pub rounds: u64,
    /// Accesses that faulted.
    pub faults: u64,
    /// Accesses that waited.
    pub stalls: u64,
    /// Total time of these waits in ns.
    pub stall_ns: u64,
}

/// A command that was submitted to an engine.
#[derive(Debug)]
pub struct Job<'d> {
    device: &'d Device,
    id: u64,
}

/// End of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Error of the command, if it failed.
    pub error: Option<Errno>,
    /// Final status.
    pub status: Status,
}

impl Job<'_> {
    /// Identifier of the command.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Requests that the command stops.
    pub fn stop(&self) -> Result<(), Errno> {
        let raw = Stop { size: 16, flags: 0, id: self.id };
        self.device.extension(0x44, &mut { raw }).map(|_| ())
    }

    /// Status of the command; the first value is `None` while it runs. The kernel forgets a command
    /// that has ended.
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

    /// Waits until the command has ended, or returns `ETIMEDOUT` after a time that suffices on slow
    /// machines.
    pub fn wait(&self) -> Result<Ended, Errno> {
        self.wait_for(Duration::from_secs(120))
    }

    /// Waits until the command has ended, or returns `ETIMEDOUT` after `limit`.
    pub fn wait_for(&self, limit: Duration) -> Result<Ended, Errno> {
        let begin = Instant::now();
        loop {
            match self.poll(Duration::from_secs(1)) {
                Ok((Some(ended), _)) => return Ok(ended),
                Ok((None, _)) if begin.elapsed() > limit => return Err(Errno::ETIMEDOUT),
                Ok((None, _)) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Stops the command and waits for it.
    pub fn finish(&self) -> Result<Ended, Errno> {
        self.stop()?;
        self.wait()
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Stop {
    pub(super) size: u32,
    pub(super) flags: u32,
    pub(super) id: u64,
}

// SAFETY: Plain numbers; the addresses are for the device, see `Device`.
unsafe impl Extension for Command {}
// SAFETY: Plain numbers.
unsafe impl Extension for Status {}
// SAFETY: Plain numbers.
unsafe impl Extension for Stop {}

impl Device {
    /// Gives a command to an engine.
    pub fn submit(&self, command: Command) -> Result<Job<'_>, Errno> {
        let mut command = Command { size: Command::SIZE, ..command };
        self.extension(0x42, &mut command)?;
        Ok(Job { device: self, id: command.id })
    }

    /// The command with the identifier of [`Job::id`].
    pub fn job(&self, id: u64) -> Job<'_> {
        Job { device: self, id }
    }

    /// Submits a command and waits for it.
    pub fn run(&self, command: Command) -> Result<Ended, Errno> {
        self.submit(command)?.wait()
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
