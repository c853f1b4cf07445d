// SPDX-License-Identifier: GPL-2.0

//! A command of an engine, executed in steps. A step is one access, so that a command can stop at a
//! fault and resume there.

use super::{
    bus::{
        Access,
        Action, //
    },
    counters::Counted,
    port::{
        self,
        Port, //
    },
    status::EILSEQ, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};
use rust_hmm::mm::addr::PageRange;

/// Multiplier of the checksum of `DMIRROR_OP_CHECKSUM`.
const CHECKSUM_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

const WORD_BYTES: usize = size_of::<u64>();

/// `DMIRROR_OP_*`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Read,
    Write,
    Fill,
    AtomicAdd,
    Memcpy,
    Checksum,
    Strided,
    Chase,
}

impl Op {
    fn new(number: u32) -> Result<Self> {
        Ok(match number {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Fill,
            3 => Self::AtomicAdd,
            4 => Self::Memcpy,
            5 => Self::Checksum,
            6 => Self::Strided,
            7 => Self::Chase,
            _ => return Err(EINVAL),
        })
    }

    fn uses_stride(self) -> bool {
        matches!(self, Self::AtomicAdd | Self::Strided)
    }

    fn has_result(self) -> bool {
        matches!(self, Self::Read | Self::Checksum | Self::Strided)
    }
}

/// Validated parameters of a command.
#[derive(Clone, Copy)]
pub(crate) struct CommandDesc {
    op: Op,
    addr: usize,
    bytes: usize,
    src: usize,
    value: u64,
    stride: usize,
    /// 0: until stopped.
    pub(crate) rounds: u64,
    pub(crate) think_ns: u64,
    verify: bool,
}

/// Fields of `struct dmirror_submit` that describe a command.
pub(crate) struct RawCommandDesc {
    pub(crate) op: u32,
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    pub(crate) src: u64,
    pub(crate) value: u64,
    pub(crate) stride: u64,
    pub(crate) rounds: u64,
    pub(crate) think_ns: u64,
    pub(crate) verify: bool,
}

impl CommandDesc {
    /// Validates a command. `EINVAL`.
    pub(crate) fn new(raw: &RawCommandDesc) -> Result<Self> {
        let spec = Self {
            op: Op::new(raw.op)?,
            addr: usize::try_from(raw.addr)?,
            bytes: usize::try_from(raw.bytes)?,
            src: usize::try_from(raw.src)?,
            value: raw.value,
            stride: usize::try_from(raw.stride)?,
            rounds: raw.rounds,
            think_ns: raw.think_ns,
            verify: raw.verify,
        };
        let words = [spec.addr, spec.bytes, spec.src, spec.stride];
        let end = |start: usize| start.checked_add(spec.bytes);
        let copies = spec.op == Op::Memcpy;
        let valid = words.iter().all(|value| value % WORD_BYTES == 0)
            && spec.bytes != 0
            && end(spec.addr).is_some()
            && end(spec.src).is_some()
            && (spec.stride != 0) == spec.op.uses_stride()
            && (copies || spec.src == 0)
            && (!spec.verify || spec.op.has_result())
            && spec.think_ns <= 1_000_000_000;
        if !valid {
            return Err(EINVAL);
        }
        if copies && end(spec.addr) > Some(spec.src) && end(spec.src) > Some(spec.addr) {
            return Err(EINVAL);
        }
        Ok(spec)
    }
}

impl CommandDesc {
    /// Describes a copy of `from` to `to`.
    pub(crate) fn copy(to: PageRange, from: PageRange) -> Result<Self> {
        Self::new(&RawCommandDesc {
            // `DMIRROR_OP_MEMCPY`.
            op: 4,
            addr: to.start() as u64,
            bytes: (to.end() - to.start()) as u64,
            src: from.start() as u64,
            value: 0,
            stride: 0,
            rounds: 1,
            think_ns: 0,
            verify: false,
        })
    }
}

/// Progress of a round.
#[derive(Clone, Copy, Default)]
pub(crate) struct Progress {
    /// Number of bytes of the range that are completed.
    done: usize,
    /// Intermediate sum or checksum, or next address of the chain.
    result: u64,
}

/// Outcome of a step.
pub(crate) enum Step {
    /// The round continues.
    More,
    /// The round is complete, with this result.
    Round(u64),
    /// The access faulted.
    Fault {
        /// Address of the access.
        addr: usize,
        /// Whether the access was a write.
        write: bool,
    },
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(WORD_BYTES).map(|chunk| {
        let mut word = [0; WORD_BYTES];
        word.copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    })
}

impl CommandDesc {
    /// Returns the number of bytes of the next access, which must not cross a page boundary at
    /// `addr` or `other`.
    fn chunk(&self, done: usize, addr: usize, other: usize) -> usize {
        (self.bytes - done)
            .min(PAGE_SIZE - addr % PAGE_SIZE)
            .min(PAGE_SIZE - other % PAGE_SIZE)
    }

    /// Performs the next access of a round.
    ///
    /// # Errors
    ///
    /// - `EILSEQ`: the result differs from the expected one.
    /// - `EFAULT`: the address in a chain is not aligned.
    /// - Errors of [`port::access`]
    pub(crate) fn step(
        &self,
        port: &impl Port,
        index: usize,
        counted: Counted<'_>,
        progress: &mut Progress,
        buffer: &mut [u8; PAGE_SIZE],
    ) -> Result<Step> {
        let done = progress.done;
        let addr = self.addr + done;
        let fault = |addr, write| Ok(Step::Fault { addr, write });
        match self.op {
            Op::Read | Op::Checksum => {
                let len = self.chunk(done, addr, addr);
                let part = buffer.get_mut(..len).ok_or(EINVAL)?;
                if let Access::Fault = port::access(port, index, counted, addr, Action::Read(part))?
                {
                    return fault(addr, false);
                }
                for word in words(part) {
                    progress.result = if self.op == Op::Read {
                        progress.result.wrapping_add(word)
                    } else {
                        (progress.result.rotate_left(5) ^ word).wrapping_mul(CHECKSUM_MULTIPLIER)
                    };
                }
                progress.done += len;
            }
            Op::Write | Op::Fill => {
                let len = self.chunk(done, addr, addr);
                let part = buffer.get_mut(..len).ok_or(EINVAL)?;
                for (n, chunk) in part.chunks_exact_mut(WORD_BYTES).enumerate() {
                    let plus = if self.op == Op::Write {
                        (done / WORD_BYTES + n) as u64
                    } else {
                        0
                    };
                    chunk.copy_from_slice(&self.value.wrapping_add(plus).to_ne_bytes());
                }
                if let Access::Fault =
                    port::access(port, index, counted, addr, Action::Write(part))?
                {
                    return fault(addr, true);
                }
                progress.done += len;
            }
            Op::Memcpy => {
                let src = self.src + done;
                let len = self.chunk(done, addr, src);
                let part = buffer.get_mut(..len).ok_or(EINVAL)?;
                if let Access::Fault = port::access(port, index, counted, src, Action::Read(part))?
                {
                    return fault(src, false);
                }
                if let Access::Fault =
                    port::access(port, index, counted, addr, Action::Write(part))?
                {
                    return fault(addr, true);
                }
                progress.done += len;
            }
            Op::AtomicAdd => {
                let mut value = self.value;
                if let Access::Fault =
                    port::access(port, index, counted, addr, Action::Add(&mut value))?
                {
                    return fault(addr, true);
                }
                progress.done = done.saturating_add(self.stride);
            }
            Op::Strided => {
                let mut word = [0; WORD_BYTES];
                if let Access::Fault =
                    port::access(port, index, counted, addr, Action::Read(&mut word))?
                {
                    return fault(addr, false);
                }
                progress.result = progress.result.wrapping_add(u64::from_ne_bytes(word));
                progress.done = done.saturating_add(self.stride);
            }
            Op::Chase => {
                let at = if done == 0 {
                    self.addr
                } else {
                    usize::try_from(progress.result)?
                };
                if at % WORD_BYTES != 0 {
                    return Err(EFAULT);
                }
                let mut word = [0; WORD_BYTES];
                if let Access::Fault =
                    port::access(port, index, counted, at, Action::Read(&mut word))?
                {
                    return fault(at, false);
                }
                progress.result = u64::from_ne_bytes(word);
                progress.done += WORD_BYTES;
            }
        }
        if progress.done < self.bytes {
            return Ok(Step::More);
        }
        let result = core::mem::take(progress).result;
        if self.verify && result != self.value {
            return Err(Error::from_errno(EILSEQ));
        }
        Ok(Step::Round(result))
    }
}
