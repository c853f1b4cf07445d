// SPDX-License-Identifier: GPL-2.0

//! Accesses of the engine to memory of a process, by the page table or to locked memory.

use super::{
    transfers,
    Access,
    EngineRegisters,
    PAGE_BYTES,
    TRANSFER_BYTES, //
};
use crate::{
    file::Client,
    gpu::{
        View,
        VRAM, //
    },
    walk::{
        self,
        Miss,
        Translation, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};
use rust_hmm::{
    host_lock::APERTURE,
    mirror::Mirror,
    mm::dma::DeviceAddress, //
};

impl walk::Bus for EngineRegisters {
    /// Reads a word of a page table. The tables are in device memory or, without a part of it for
    /// them, in coherent memory that the engine reads by DMA.
    fn read(&self, address: u64) -> Result<u64, Miss> {
        let word = match &self.tables {
            Some(tables) => tables.read(address),
            None => self.fetch(address).ok(),
        };
        word.ok_or(Miss::Bus(address))
    }
}

impl EngineRegisters {
    /// Walks the device page table of `mirror` to `addr`. Returns `None` if the access faults.
    fn translate(&self, mirror: &Mirror<View>, addr: usize, write: bool) -> Option<Translation> {
        let root = mirror.table_root()?;
        let addr = u64::try_from(addr).ok()?;
        let found = walk::Format::Radix4.walk(self, root, addr);
        found.ok().filter(|found| found.writable || !write)
    }

    /// Returns the bus address of a translated device page.
    fn bus_address(&self, found: Translation) -> Result<u64> {
        Ok(match found.address.checked_sub(VRAM) {
            Some(at) => {
                let at = self
                    .vram
                    .address(DeviceAddress::START.plus(at), TRANSFER_BYTES);
                at.ok_or(ENODEV)?.raw()
            }
            None => found.address,
        })
    }

    /// Reads the word at the DMA address `address`, with the table that contains it.
    fn fetch(&self, address: u64) -> Result<u64> {
        let to = self.staging.address(2 * PAGE_SIZE).ok_or(EINVAL)?;
        let offset = address % TRANSFER_BYTES;
        self.load(address - offset)?;
        self.store(to.raw())?;
        let mut word = [0; size_of::<u64>()];
        self.staging
            .read(2 * PAGE_SIZE + usize::try_from(offset)?, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    /// Moves a device page between `staging` and `at`, through the internal buffer.
    fn transfer(&self, staging: u64, at: u64, write: bool) -> Result {
        let (from, to) = if write { (staging, at) } else { (at, staging) };
        self.load(from)?;
        self.store(to)
    }

    /// Accesses a page of locked memory, which is pinned while its region is held, so that no flush
    /// waits for the access.
    fn access_locked(&self, mirror: &Mirror<View>, access: &Access, staging: u64) -> Result {
        let region = mirror.locked(access.addr).ok_or(EFAULT)?;
        let at = region.dma(&self.engine.dma, access.addr).ok_or(EFAULT)?;
        for offset in transfers() {
            self.transfer(staging + offset, at.raw() + offset, access.write)?;
        }
        Ok(())
    }

    /// Accesses a page by the page table. Returns whether the device had a translation of each of
    /// its device pages. As hardware that fetches entries by the cache line, the walker translates
    /// all of them before the first is used.
    fn access_mirrored(
        &self,
        mirror: &Mirror<View>,
        access: &Access,
        staging: u64,
    ) -> Result<bool> {
        let mut addresses = [0; (PAGE_BYTES / TRANSFER_BYTES) as usize];
        let parts = (access.addr..).step_by(TRANSFER_BYTES as usize);
        for (address, addr) in addresses.iter_mut().zip(parts) {
            let Some(found) = self.translate(mirror, addr, access.write) else {
                return Ok(false);
            };
            *address = self.bus_address(found)?;
        }
        for (offset, at) in transfers().zip(addresses) {
            self.transfer(staging + offset, at, access.write)?;
        }
        Ok(true)
    }

    /// Performs an access. Returns whether the device had a translation.
    pub(super) fn access(
        &self,
        client: &Client,
        access: &Access,
        contents: &mut [u8],
    ) -> Result<bool> {
        let staging = self.staging.address(0).ok_or(EINVAL)?.raw();
        if access.write {
            self.staging.write(0, contents)?;
        }
        let mirror = client.mirror();
        if access.addr & APERTURE != 0 {
            self.access_locked(mirror, access, staging)?;
        } else {
            // Set before the walk. If the walk does not see a table change, the flush of that
            // change starts later, finds this access and waits for it.
            *self.engine.in_flight.lock() = Some((mirror.device().tag(), access.addr));
            let result = self.access_mirrored(mirror, access, staging);
            *self.engine.in_flight.lock() = None;
            self.engine.access_done.notify_all();
            if !result? {
                return Ok(false);
            }
        }
        if !access.write {
            self.staging.read(0, contents)?;
        }
        Ok(true)
    }
}
