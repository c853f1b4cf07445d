// SPDX-License-Identifier: GPL-2.0

//! Parameters of a device: module parameters, and settings that tests change at run time, which are
//! registers of the hardware or belong to the driver.

use crate::{
    format::Selected,
    hardware::registers::{
        Register,
        Registers,
        REGISTER_COUNT, //
    },
    placement::POLICIES,
    tables::Place, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        Arc, //
    }, //
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
    /// Format of the page tables, and their memory.
    pub(crate) format: Selected,
    pub(crate) tables: Place,
    /// The device suggests the page for each allocation.
    pub(crate) own_alloc: bool,
    /// Parameters of the default policy.
    pub(crate) parameters: Parameters,
}

/// Maximum numbers of engines, copy threads and TLB entries.
const MAX_VALUES: [u64; 3] = [64, 16, 1 << 20];

/// Longest copy, in us.
const MAX_COPY_DELAY_US: u64 = 1_000_000;

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
            && copy_delay_us <= MAX_COPY_DELAY_US;
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
            tables: Place::Plain,
            own_alloc: false,
            parameters: Parameters::DEFAULT,
        })
    }

    /// Sets the page table format, and the memory of page tables. `EINVAL`, and `ENODEV` in a
    /// kernel without PCI.
    pub(crate) fn with_format(self, format: u64, tables: u64) -> Result<Self> {
        let numbers = Selected::new(format).and_then(|format| Ok((format, Place::new(tables)?)));
        let (format, tables) = numbers.inspect_err(|_| {
            pr_err!("a parameter is out of range\n");
        })?;
        Ok(Self {
            format,
            tables,
            ..self
        })
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

/// Settings that tests change, `DMIRROR_SET_*`: of the hardware, and of the driver.
pub(crate) struct Settings {
    /// The registers of the device.
    pub(crate) registers: Arc<Registers>,
    initial: [u64; REGISTER_COUNT],
    /// The library keeps the write permission of pages that migrate, as if it had a bug.
    keep_write: Atomic<u64>,
    connection: Atomic<u64>,
}

/// Initial connection to other devices: all of their memory can be accessed.
const UNIFIED: u64 = 2;

impl Settings {
    pub(crate) fn new(fixed: &Fixed) -> Result<Self> {
        let initial = [fixed.copy_delay_ns, fixed.copy_fail, 0, 0];
        Ok(Self {
            registers: Arc::new(Registers::new(initial), GFP_KERNEL)?,
            initial,
            keep_write: Atomic::new(0),
            connection: Atomic::new(UNIFIED),
        })
    }

    /// Sets setting `what` and returns its previous value. `EINVAL`.
    pub(crate) fn set(&self, what: u32, value: u64) -> Result<u64> {
        let register = match what {
            0 => Register::CopyDelay,
            1 => Register::CopyFail,
            2 => Register::SkipFlush,
            3 if value <= 1 => return Ok(self.keep_write.xchg(value, Relaxed)),
            4 => Register::FlushDelay,
            5 if value <= UNIFIED => return Ok(self.connection.xchg(value, Relaxed)),
            _ => return Err(EINVAL),
        };
        self.registers.write(register, value)
    }

    /// Resets all settings to the module parameters.
    pub(crate) fn reset(&self) {
        let registers = [
            Register::CopyDelay,
            Register::CopyFail,
            Register::SkipFlush,
            Register::FlushDelay,
        ];
        for (register, value) in registers.into_iter().zip(self.initial) {
            // Does not fail: the parameters were checked.
            let _before = self.registers.write(register, value);
        }
        self.keep_write.store(0, Relaxed);
        self.connection.store(UNIFIED, Relaxed);
    }

    pub(crate) fn keeps_write(&self) -> bool {
        self.keep_write.load(Relaxed) != 0
    }

    /// Returns the connection of this device to others, `DMIRROR_CONNECTION_*`.
    pub(crate) fn connection(&self) -> u64 {
        self.connection.load(Relaxed)
    }
}
