// SPDX-License-Identifier: GPL-2.0

//! Parameters of a device: module parameters, and settings that tests change at run time.

use crate::{
    format::Selected,
    placement::POLICIES, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::Relaxed,
        Atomic, //
    },
    time::Delta, //
};
use rust_hmm::policy::Parameters;

/// Parameters that are fixed when the module is loaded.
#[derive(Clone, Copy)]
pub(crate) struct Fixed {
    /// Number of engines of a device.
    pub(crate) engines: usize,
    /// Number of entries of an engine's TLB.
    pub(crate) tlb_entries: usize,
    /// Number of threads of the copy engine; 0: the migrating task copies.
    pub(crate) copy_threads: usize,
    /// Initial duration of each copy, in ns.
    pub(crate) copy_delay_ns: u64,
    /// Initial number of copies before one fails.
    pub(crate) copy_fail: u64,
    /// Initial policy of a file, `DMIRROR_POLICY_*`.
    pub(crate) policy: u32,
    /// Format of the page tables.
    pub(crate) format: Selected,
    /// The device suggests the page for each allocation.
    pub(crate) own_alloc: bool,
    /// Parameters of the default policy.
    pub(crate) parameters: Parameters,
}

/// Value of [`Setting::CopyFail`] with which no copy fails.
pub(crate) const NEVER: u64 = u64::MAX;

/// Maximum numbers of engines, copy threads and TLB entries.
const MAX_VALUES: [u64; 3] = [64, 16, 1 << 20];

const NS_PER_SEC: u64 = 1_000_000_000;

impl Fixed {
    /// Checks the values of the module's parameters.
    pub(crate) fn new(
        engines: u64,
        tlb_entries: u64,
        copy_threads: u64,
        copy_delay_us: u64,
        copy_fail: u64,
    ) -> Result<Self> {
        let [most_engines, most_threads, most_lines] = MAX_VALUES;
        let valid = (1..=most_engines).contains(&engines)
            && copy_threads <= most_threads
            && (1..=most_lines).contains(&tlb_entries)
            && copy_delay_us <= NS_PER_SEC / 1000;
        if !valid {
            pr_err!("a parameter is out of range\n");
            return Err(EINVAL);
        }
        Ok(Self {
            engines: usize::try_from(engines)?,
            tlb_entries: usize::try_from(tlb_entries)?,
            copy_threads: usize::try_from(copy_threads)?,
            copy_delay_ns: copy_delay_us * 1000,
            copy_fail,
            policy: 0,
            format: Selected::Radix4,
            own_alloc: false,
            parameters: Parameters::DEFAULT,
        })
    }

    /// Sets the page table format. `EINVAL`.
    pub(crate) fn with_format(self, format: u64) -> Result<Self> {
        let format = Selected::new(format).inspect_err(|_| {
            pr_err!("a parameter is out of range\n");
        })?;
        Ok(Self { format, ..self })
    }

    /// Sets the parameters of placement. `numbers` are the threshold, the number of blocks ahead,
    /// the thrashing count, and its lapse, pin time and delay. `EINVAL`.
    pub(crate) fn with_policy(
        self,
        policy: u64,
        own_alloc: u64,
        numbers: [u64; 6],
    ) -> Result<Self> {
        let least = [1, 0, 1, 0, 0, 0];
        let most = [101, 1024, 1000, 60_000, 60_000, 60_000];
        let mut checks = numbers.iter().zip(least.iter().zip(most));
        let valid = checks.all(|(value, (least, most))| (*least..=most).contains(value))
            && policy < u64::from(POLICIES)
            && own_alloc <= 1;
        if !valid {
            pr_err!("a parameter is out of range\n");
            return Err(EINVAL);
        }
        let [threshold, ahead, count, thrash_lapse, thrash_pin, thrash_delay] = numbers;
        Ok(Self {
            policy: u32::try_from(policy)?,
            own_alloc: own_alloc != 0,
            parameters: Parameters {
                threshold: usize::try_from(threshold)?,
                ahead: usize::try_from(ahead)?,
                thrash_count: u32::try_from(count)?,
                thrash_lapse,
                thrash_pin,
                thrash_delay,
            },
            ..self
        })
    }
}

/// `DMIRROR_SET_*`.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum Setting {
    CopyDelay,
    CopyFail,
    SkipFlush,
    KeepWrite,
    FlushDelay,
    Connection,
}

const SETTING_COUNT: usize = Setting::Connection as usize + 1;

/// Settings that tests change.
pub(crate) struct Settings {
    values: [Atomic<u64>; SETTING_COUNT],
    initial: [u64; SETTING_COUNT],
}

impl Settings {
    pub(crate) fn new(fixed: &Fixed) -> Self {
        let initial = [fixed.copy_delay_ns, fixed.copy_fail, 0, 0, 0, 2];
        Self {
            values: initial.map(Atomic::new),
            initial,
        }
    }

    /// Sets setting `what` and returns its previous value. `EINVAL`.
    pub(crate) fn set(&self, what: u32, value: u64) -> Result<u64> {
        let most = [NS_PER_SEC, NEVER, NEVER, 1, 10 * NS_PER_SEC, 2];
        let what = usize::try_from(what)?;
        if value > *most.get(what).ok_or(EINVAL)? {
            return Err(EINVAL);
        }
        Ok(self.values.get(what).ok_or(EINVAL)?.xchg(value, Relaxed))
    }

    /// Resets all settings to the module parameters.
    pub(crate) fn reset(&self) {
        for (value, initial) in self.values.iter().zip(self.initial) {
            value.store(initial, Relaxed);
        }
    }

    pub(crate) fn get(&self, setting: Setting) -> u64 {
        self.values
            .get(setting as usize)
            .map_or(0, |value| value.load(Relaxed))
    }

    /// Returns a setting in ns as a duration; `None` if it is 0.
    pub(crate) fn delay(&self, setting: Setting) -> Option<Delta> {
        let ns = i64::try_from(self.get(setting)).ok()?;
        (ns > 0).then(|| Delta::from_nanos(ns))
    }

    /// Whether to skip the current flush. Decrements the setting.
    pub(crate) fn skip_flush(&self) -> bool {
        self.update(Setting::SkipFlush, |left| left.checked_sub(1))
            .is_some()
    }

    /// Whether to fail the current copy. Decrements the setting; exactly one of several concurrent
    /// copies fails.
    pub(crate) fn fail_copy(&self) -> bool {
        let before = self.update(Setting::CopyFail, |left| match left {
            NEVER => None,
            // The configured number of copies has succeeded.
            0 => Some(NEVER),
            _ => Some(left - 1),
        });
        before == Some(0)
    }

    /// Updates a setting atomically, unless `f` returns `None`. Returns the previous value.
    fn update(&self, setting: Setting, f: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let value = self.values.get(setting as usize)?;
        let mut now = value.load(Relaxed);
        loop {
            match value.cmpxchg(now, f(now)?, Relaxed) {
                Ok(_) => return Some(now),
                Err(other) => now = other,
            }
        }
    }
}
