// SPDX-License-Identifier: GPL-2.0

//! One mock device, shared by all files that are open on it.

use crate::vram::Vram;
use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering::Full, ordering::Relaxed, Atomic},
        Arc, //
    },
};
use rust_hmm::{
    memory::Memory,
    mirror::Device,
    mm::{addr::PageRange, device_pages::Kind}, //
};

const MIB_PAGES: u64 = 256;

/// One device.
#[pin_data]
pub(crate) struct MockDevice {
    #[pin]
    pub(crate) memory: Memory<Vram>,
    open_files: Atomic<usize>,
}

impl MockDevice {
    /// A device with at most `mib` MiB of memory.
    pub(crate) fn new(kind: Kind, mib: u64) -> Result<Arc<Self>> {
        let pages = usize::try_from(mib.checked_mul(MIB_PAGES).ok_or(EINVAL)?)?;
        let contents = match kind {
            Kind::Private => pages.checked_mul(kernel::page::PAGE_SIZE).ok_or(EINVAL)?,
            Kind::Coherent { .. } => 0,
        };
        let vram = Vram::new(contents)?;
        Arc::pin_init(
            try_pin_init!(Self {
                memory <- Memory::new(vram, kind, pages),
                open_files: Atomic::new(0),
            }? Error),
            GFP_KERNEL,
        )
    }
}

/// An open file's share in the device. The last one that goes takes all pages out of the device.
pub(crate) struct Session(Arc<MockDevice>);

impl Session {
    pub(crate) fn new(device: Arc<MockDevice>) -> Self {
        device.open_files.fetch_add(1, Relaxed);
        Self(device)
    }
}

impl core::ops::Deref for Session {
    type Target = MockDevice;

    fn deref(&self) -> &MockDevice {
        &self.0
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.0.open_files.fetch_sub(1, Full) != 1 {
            return;
        }
        self.0.memory.driver().fail_allocation.store(false, Relaxed);
        // What stays is not lost: a CPU touch brings it back, and unloading tries again.
        if let Err(error) = self.0.memory.evict_all() {
            pr_warn!("cannot evict on close: {error:?}\n");
        }
    }
}

/// The device as a mirror sees it. It has no TLB yet, so there is nothing to flush.
pub(crate) struct Engine(pub(crate) Arc<MockDevice>);

impl Device for Engine {
    type Memory = Vram;
    type Flush = ();

    const FLUSH_SLEEPS: bool = false;

    fn memory(&self) -> Option<&Memory<Vram>> {
        Some(&self.0.memory)
    }

    fn flush_start(&self, _range: PageRange) {}

    fn flush_wait(&self, (): ()) {}
}
