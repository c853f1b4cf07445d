// SPDX-License-Identifier: GPL-2.0
//! Managed memory, at addresses that the lane has reserved or that the kernel chooses.

use super::{
    fail,
    Fail,
    Lane, //
};
use crate::torture::bus::{
    is_known,
    Known, //
};
use hmm::abi::HUGE_PAGES;
use hmm::{
    Command,
    EngineOp,
    Errno,
    Managed,
    ManagedFlags,
    State,
    PAGE_SIZE, //
};

/// Errors that an allocation may return.
const NO_ROOM: [Errno; 2] = [Errno::ENOMEM, Errno::EBUSY];

/// Flags of managed memory, from the low bits of `bits`.
fn managed_flags(bits: u64) -> ManagedFlags {
    ManagedFlags { host_shared: bits & 1 != 0, populate: bits & 2 != 0, huge: bits & 4 != 0 }
}

/// Registers memory at an address that the kernel chose. Fails if the lane has unmapped this
/// address.
fn register(memory: &Managed) -> Result<Known, Fail> {
    if is_known(memory.addr(), memory.len()) {
        return fail("managed memory", "lies where a lane has unmapped: see env::Clearing");
    }
    Known::new(memory.addr(), memory.len(), true).ok_or("too many ranges of memory".into())
}

impl Lane<'_> {
    /// Allocates managed memory at an address that the kernel chooses, uses it, and frees it.
    pub(super) fn managed(
        &mut self,
        dev: usize,
        pages: usize,
        populate: bool,
        seed: u64,
    ) -> Result<(), Fail> {
        let flags = ManagedFlags { populate, ..ManagedFlags::default() };
        match self.devices[dev].alloc(pages * PAGE_SIZE, flags) {
            Ok(memory) => {
                let _known = register(&memory)?;
                self.use_managed(dev, &memory, seed)
            }
            // No free device memory, or an injected copy failure.
            Err(error) => self.expect("allocation", error, &NO_ROOM),
        }
    }

    /// Managed memory at a reserved address, concurrently with the operations of all other lanes.
    pub(super) fn managed_beside(
        &mut self,
        dev: usize,
        pages: usize,
        bits: u64,
        seed: u64,
    ) -> Result<(), Fail> {
        let flags = managed_flags(bits);
        let pages = if flags.huge { HUGE_PAGES } else { pages };
        match self.devices[dev].map_managed_in(&self.area, pages, flags) {
            Ok(memory) => self.use_managed(dev, &memory, seed),
            Err(error) => self.expect("managed mapping", error, &NO_ROOM),
        }
    }

    /// Managed memory at an address that the kernel chooses, populated by a queue. Rarely with huge
    /// pages.
    pub(super) fn managed_later(
        &mut self,
        dev: usize,
        pages: usize,
        bits: u64,
        seed: u64,
    ) -> Result<(), Fail> {
        let flags = managed_flags(bits);
        let flags = ManagedFlags { huge: flags.huge && bits & 0x18 == 0, ..flags };
        let pages = if flags.huge { HUGE_PAGES } else { pages };
        let text = |error: Errno| format!("queue for an allocation: {error}");
        let device = hmm::Device::open(dev as u32).map_err(text)?;
        let queue = device.queue().map_err(text)?;
        let (memory, fence) = match device.alloc_later(pages * PAGE_SIZE, flags, &queue) {
            Ok(made) => made,
            Err(error) => return self.expect("allocation for later", error, &NO_ROOM),
        };
        let known = register(&memory)?;
        match fence.sync(None).map_err(text)?.state {
            State::Done => self.use_managed(dev, &memory, seed),
            State::NotDone => fail("allocation for later", "is not done after the wait for it"),
            State::Failed(error) => {
                // The failed operation has unmapped it, and the addresses may already belong to
                // another lane: do not unmap again.
                drop(known);
                std::mem::forget(memory);
                self.expect("allocation for later", error, &NO_ROOM)
            }
        }
    }

    /// CPU and device write managed memory in turn, and each word is compared.
    fn use_managed(&mut self, dev: usize, memory: &Managed, seed: u64) -> Result<(), Fail> {
        memory.fill(seed);
        let add = Command::new(EngineOp::AtomicAdd, memory.addr(), memory.len());
        let add = add.value(1).stride(PAGE_SIZE);
        let error = match self.run(dev, add) {
            Ok(ended) => ended.error,
            // The other lanes may already have the maximum number of commands in flight.
            Err(error) => return self.expect("command on managed memory", error, &NO_ROOM),
        };
        if let Some(error) = error {
            self.expect_room("device write to managed memory", error)?;
        }
        let mut whole = true;
        for page in 0..memory.pages() {
            let added = memory.get(page, 0).wrapping_sub(hmm::pattern::word(seed, page, 0));
            // A failed command ended at the first page without its addition.
            whole &= added == 1;
            if added != u64::from(whole) || (error.is_none() && !whole) {
                return fail("managed memory", format!("page {page}: {added} more"));
            }
            memory.set(page, 0, hmm::pattern::word(seed, page, 0));
        }
        if let Err(mismatch) = memory.check(seed) {
            return fail("managed memory", mismatch);
        }
        if seed % 4 == 0 {
            self.evict(dev, memory.addr(), memory.pages())?;
            return memory.check(seed).or_else(|mismatch| fail("evicted managed memory", mismatch));
        }
        Ok(())
    }
}
