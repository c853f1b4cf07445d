// SPDX-License-Identifier: GPL-2.0

//! Walkers for the images of tables, which use only the format and the address of the root. They
//! are written from the manuals and share no code with the encoders.

use super::*;
use crate::pgtable::{
    formats::*,
    BreakBeforeMake, //
};
use kernel::sync::rcu;

/// A translation, the result of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Found {
    /// Address of the page.
    pub(super) address: u64,
    pub(super) writable: bool,
    /// Whether the page is in the memory of the device, if the entry says so.
    pub(super) device: Option<bool>,
    /// Log2 of the number of pages that a TLB may hold in one entry.
    pub(super) order: u32,
}

/// Reads tables, given by their device addresses.
pub(super) struct HardwareWalker<'t, F: Format> {
    table: &'t Table<F>,
    /// Address and index of the most recently found table of each level.
    memo: [Cell<(u64, u32)>; 5],
}

impl<'t, F: Format<Word = u64>> HardwareWalker<'t, F> {
    pub(super) fn new(table: &'t Table<F>) -> Self {
        Self {
            table,
            memo: [const { Cell::new((u64::MAX, 0)) }; 5],
        }
    }

    fn root(&self) -> Result<u64> {
        self.table.reader().root_address().ok_or(ENODEV)
    }

    /// Reads a word of the table at `address`.
    ///
    /// # Errors
    ///
    /// - `EFAULT`: there is no table at that address.
    fn read(&self, level: u32, address: u64, slot: usize) -> Result<u64> {
        let memo = self.memo.get(level as usize).ok_or(EINVAL)?;
        let pool = &self.table.pool;
        let guard = rcu::read_lock();
        if memo.get().0 != address {
            let places = u32::try_from(pool.places() * crate::pgtable::chunk::CHUNK)?;
            let index = (0..places).find(|index| pool.address(&guard, *index) == Some(address));
            memo.set((address, index.ok_or(EFAULT)?));
        }
        let (images, at) = pool.images(&guard, memo.get().1).ok_or(EFAULT)?;
        let unit = images.unit(&guard, at).ok_or(EFAULT)?;
        Ok(unit.read_u64(slot))
    }

    /// Checks that all words of the run of `1 << order` entries around `slot` are marked as
    /// members of the run. Each maps `1 << shift` bytes.
    fn check_run(&self, level: u32, address: u64, slot: usize, order: u32, shift: u32) -> Result {
        let first = slot & !((1 << order) - 1);
        let expected = self.read(level, address, first)?;
        for index in 0..1 << order {
            let word = self.read(level, address, first + index)?;
            if word != expected + ((index as u64) << shift) {
                pr_err!("run at slot {first}: {expected:#x}, then {word:#x} at {index}\n");
                return Err(EIO);
            }
        }
        Ok(())
    }
}

/// A format with a walker of its own.
pub(super) trait Walked: Format<Word = u64> {
    /// Log2 of the device pages of a run, which is smaller than a leaf of level 1.
    const RUN: u32 = 4;

    /// Walks the table for `addr` as the hardware does.
    ///
    /// # Errors
    ///
    /// - `EIO`: an entry is not valid for the hardware.
    fn walk(walker: &HardwareWalker<'_, Self>, addr: usize) -> Result<Option<Found>>;
}

impl Walked for Lpae {
    fn walk(walker: &HardwareWalker<'_, Self>, addr: usize) -> Result<Option<Found>> {
        walker.lpae(addr, 12)
    }
}

impl Walked for Lpae16k {
    const RUN: u32 = 7;

    fn walk(walker: &HardwareWalker<'_, Self>, addr: usize) -> Result<Option<Found>> {
        walker.lpae(addr, 14)
    }
}

impl Walked for BreakBeforeMake<Lpae> {
    fn walk(walker: &HardwareWalker<'_, Self>, addr: usize) -> Result<Option<Found>> {
        walker.lpae(addr, 12)
    }
}

impl<F: Format<Word = u64>> HardwareWalker<'_, F> {
    /// Arm ARM, D8.2.7, D8.2.8 and D8.3: levels 0 to 3 with a granule of 4 KiB (`granule` is 12),
    /// or levels 1 to 3 with one of 16 KiB (14), for 47 bits of addresses.
    fn lpae(&self, addr: usize, granule: u32) -> Result<Option<Found>> {
        let walker = self;
        let mut at = walker.root()?;
        let bits = granule - 3;
        let addresses = 0x0000_ffff_ffff_ffff & !((1 << granule) - 1);
        let first = if granule == 12 { 0 } else { 1 };
        for level in first..4u32 {
            let low = granule + bits * (3 - level);
            let slot = (addr >> low) & ((1 << bits) - 1);
            let descriptor = walker.read(level, at, slot)?;
            match (descriptor & 0b11, level) {
                (0b00 | 0b10, _) => return Ok(None),
                (0b11, 0..=2) => at = descriptor & addresses,
                // Without LPA2 there are blocks of level 1 only with a granule of 4 KiB.
                (0b01, 1) if granule != 12 => return Err(EIO),
                (0b01, 1 | 2) | (0b11, 3) => {
                    // The access flag, and AP[1].
                    if descriptor >> 10 & 1 == 0 || descriptor >> 6 & 1 == 0 {
                        return Err(EIO);
                    }
                    // AttrIndx and SH, which require break-before-make to change.
                    if descriptor >> 2 & 0b111 != 1 || descriptor >> 8 & 0b11 != 0b11 {
                        return Err(EIO);
                    }
                    // The Contiguous bit: 16 entries; or 128 pages, or 32 blocks.
                    let run = match (descriptor >> 52 & 1, granule, level) {
                        (0, ..) => 0,
                        (_, 12, _) => 4,
                        (_, _, 3) => 7,
                        _ => 5,
                    };
                    walker.check_run(level, at, slot, run, low)?;
                    let offset = addr as u64 & ((1 << low) - 1) & !0xfff;
                    let output = descriptor & addresses;
                    if output & ((1 << low) - 1) != 0 {
                        return Err(EIO);
                    }
                    return Ok(Some(Found {
                        address: output | offset,
                        writable: descriptor >> 7 & 1 == 0,
                        device: None,
                        order: low - granule + run,
                    }));
                }
                _ => return Err(EIO),
            }
        }
        Err(EIO)
    }
}

impl Walked for Gfx9 {
    /// PDB2, PDB1, PDB0 and PTB, as `drivers/gpu/drm/amd/amdgpu` sets them up.
    fn walk(walker: &HardwareWalker<'_, Self>, addr: usize) -> Result<Option<Found>> {
        let mut at = walker.root()?;
        for level in 0..4u32 {
            let low = 39 - 9 * level;
            let slot = (addr >> low) & 0x1ff;
            let word = walker.read(level, at, slot)?;
            let address = word & 0x0000_ffff_ffff_f000;
            if word & 1 == 0 {
                return Ok(None);
            }
            let is_pte = level == 3 || word >> 54 & 1 != 0;
            if !is_pte {
                at = address;
                continue;
            }
            let fragment = (word >> 7 & 0x1f) as u32;
            // Only PDB0 may have PTEs; such an entry is a single PTE.
            if level < 2 || word >> 5 & 1 == 0 || (level == 2 && fragment != 9) {
                return Err(EIO);
            }
            if level == 3 {
                walker.check_run(level, at, slot, fragment, low)?;
            }
            return Ok(Some(Found {
                address: address | (addr as u64 & ((1 << low) - 1) & !0xfff),
                writable: word >> 6 & 1 != 0,
                device: Some(word >> 1 & 1 == 0),
                order: fragment,
            }));
        }
        Err(EIO)
    }
}

impl<const LEVELS: u32> Walked for Radix<LEVELS> {
    /// A page table of x86-64 with this number of levels.
    fn walk(walker: &HardwareWalker<'_, Self>, addr: usize) -> Result<Option<Found>> {
        let mut at = walker.root()?;
        for level in (0..LEVELS).rev() {
            let low = 12 + 9 * level;
            let word = walker.read(level, at, (addr >> low) & 0x1ff)?;
            if word & 1 == 0 {
                return Ok(None);
            }
            let address = word & !0xfff;
            if level == 0 || word >> 7 & 1 != 0 {
                return Ok(Some(Found {
                    address: address | (addr as u64 & ((1 << low) - 1) & !0xfff),
                    writable: word >> 1 & 1 != 0,
                    device: Some(word >> 9 & 1 != 0),
                    order: low - 12,
                }));
            }
            at = address;
        }
        Err(EIO)
    }
}
