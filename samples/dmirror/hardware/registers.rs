// SPDX-License-Identifier: GPL-2.0

//! Registers of a device that the driver writes while it runs. Tests use them to inject faults and
//! delays.

use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::Relaxed,
        Atomic, //
    },
    time::Delta, //
};

/// Value of [`Register::CopyFail`] with which no copy fails.
const NEVER: u64 = u64::MAX;

const NS_PER_SEC: u64 = 1_000_000_000;

/// A register.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum Register {
    /// Duration of each copy, in ns; 0: as long as it takes.
    CopyDelay,
    /// Number of copies that succeed before one fails.
    CopyFail,
    /// Number of flushes that leave the TLBs as they are.
    SkipFlush,
    /// Duration of each flush, in ns.
    FlushDelay,
}

/// Number of registers.
pub(crate) const REGISTER_COUNT: usize = Register::FlushDelay as usize + 1;

/// The greatest value of each register.
const MOST: [u64; REGISTER_COUNT] = [NS_PER_SEC, NEVER, NEVER, 10 * NS_PER_SEC];

/// The registers of a device.
pub(crate) struct Registers([Atomic<u64>; REGISTER_COUNT]);

impl Registers {
    pub(crate) fn new(initial: [u64; REGISTER_COUNT]) -> Self {
        Self(initial.map(Atomic::new))
    }

    /// Writes a register and returns its previous value. `EINVAL` if the value is too great.
    pub(crate) fn write(&self, register: Register, value: u64) -> Result<u64> {
        let at = register as usize;
        if value > *MOST.get(at).ok_or(EINVAL)? {
            return Err(EINVAL);
        }
        Ok(self.0.get(at).ok_or(EINVAL)?.xchg(value, Relaxed))
    }

    pub(crate) fn read(&self, register: Register) -> u64 {
        self.0
            .get(register as usize)
            .map_or(0, |value| value.load(Relaxed))
    }

    /// Returns a register in ns as a duration; `None` if it is 0.
    pub(crate) fn delay(&self, register: Register) -> Option<Delta> {
        let ns = i64::try_from(self.read(register)).ok()?;
        (ns > 0).then(|| Delta::from_nanos(ns))
    }

    /// Whether to skip the current flush. Decrements the register.
    pub(crate) fn skip_flush(&self) -> bool {
        self.update(Register::SkipFlush, |left| left.checked_sub(1))
            .is_some()
    }

    /// Whether to fail the current copy. Decrements the register; exactly one of several concurrent
    /// copies fails.
    pub(crate) fn fail_copy(&self) -> bool {
        let before = self.update(Register::CopyFail, |left| match left {
            NEVER => None,
            // The configured number of copies has succeeded.
            0 => Some(NEVER),
            _ => Some(left - 1),
        });
        before == Some(0)
    }

    /// Updates a register atomically, unless `f` returns `None`. Returns the previous value.
    fn update(&self, register: Register, f: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let value = self.0.get(register as usize)?;
        let mut now = value.load(Relaxed);
        loop {
            match value.cmpxchg(now, f(now)?, Relaxed) {
                Ok(_) => return Some(now),
                Err(other) => now = other,
            }
        }
    }
}
