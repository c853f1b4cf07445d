// SPDX-License-Identifier: GPL-2.0

//! Addresses by which devices reach pages.
//!
//! C header: [`include/linux/dma-mapping.h`](srctree/include/linux/dma-mapping.h)

use super::pin::PinnedPages;
use crate::{
    bindings,
    inject::{fails, Point},
    locks, //
};
use core::ptr::NonNull;
use kernel::{
    device::{self, Core},
    error::to_result,
    prelude::*,
    rbtree::{RBTree, RBTreeNode},
    sync::{
        atomic::{
            ordering::{Acquire, Full, Relaxed, Release},
            Atomic, AtomicFlag,
        },
        Arc, Mutex,
    },
    time::{delay::fsleep, Delta},
};

mod address;
mod run;
mod window;

pub use address::{DeviceAddress, DmaAddress, PeerAddress};
pub(crate) use run::DmaRun;
pub use run::{Direction, DmaBuffer};
pub(crate) use window::{Cursor, Owned, Windows};

/// Time between two looks at whether a device is in use.
const PAUSE: Delta = Delta::from_millis(1);

/// Looks before it is reported.
const LOOKS: usize = 10_000;

/// What has mappings for a device.
pub(crate) trait Maps: Send + Sync {
    /// The device goes: unmaps everything. Returns how many pages the device could still use. Context: may sleep.
    fn close(&self) -> usize;
}

/// All that have mappings for a device.
type Users = RBTree<usize, Arc<dyn Maps>>;

/// The key of `user`.
fn place(user: &Arc<dyn Maps>) -> usize {
    Arc::as_ptr(user).addr()
}

/// Pages mapped and unmapped for all devices.
static MAPPED: Atomic<u64> = Atomic::new(0);
static UNMAPPED: Atomic<u64> = Atomic::new(0);

/// Pages that were ever mapped for DMA, and unmapped, for any device. Context: any.
// Not inlined: there is one in all modules.
#[inline(never)]
pub fn totals() -> (u64, u64) {
    // In this order, lest more is unmapped than mapped.
    let unmapped = UNMAPPED.load(Acquire);
    (MAPPED.load(Relaxed), unmapped)
}

#[inline(never)]
fn count_totals(mapped: usize, unmapped: usize) {
    MAPPED.fetch_add(mapped as u64, Relaxed);
    UNMAPPED.fetch_add(unmapped as u64, Release);
}

/// A device that accesses memory by itself.
///
/// # Invariants
///
/// We have a reference of `raw`. As long as it is not closed, it is registered and prepared for DMA; with `software`
/// it is ours.
#[pin_data(PinnedDrop)]
pub struct DmaDevice {
    raw: NonNull<bindings::device>,
    software: bool,
    closed: AtomicFlag,
    /// Calls that need the device to be there.
    calls: Atomic<usize>,
    mapped: Atomic<u64>,
    unmapped: Atomic<u64>,
    /// By where they are in memory: there may be one for each locked page.
    #[pin]
    users: Mutex<Users>,
}

// SAFETY: A device may be used and unregistered anywhere.
unsafe impl Send for DmaDevice {}
// SAFETY: Its DMA functions may be called by several tasks.
unsafe impl Sync for DmaDevice {}

/// Somebody needs the device to be there: it stays open.
pub(crate) struct Open<'d>(&'d DmaDevice);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Release);
    }
}

impl DmaDevice {
    /// A software device, which reaches all memory. Context: may sleep. `ENOMEM`.
    pub fn software(name: &CStr) -> Result<Arc<Self>> {
        // SAFETY: The name is copied.
        let raw = unsafe { bindings::rust_hmm_dma_create(name.as_char_ptr()) };
        // SAFETY: Just registered and prepared.
        unsafe { Self::make(NonNull::new(raw).ok_or(ENOMEM)?, true) }
    }

    /// A device that a driver is bound to, which sends `bits` bits of address. To be called while it is probed, and
    /// [closed](Self::close) before it is unbound. Context: may sleep.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`, with a message, if the device reaches less than it may be given: without an IOMMU less than all
    /// memory, behind one less than 32 bits. `EIO` if the platform cannot do it; `EINVAL` if `bits` is not 1 to 64;
    /// `ENOMEM`.
    pub fn bound(device: &device::Device<Core<'_>>, bits: u32) -> Result<Arc<Self>> {
        let raw = NonNull::from(device).cast::<bindings::device>();
        // SAFETY: The device is within a callback of its bus, so that it is bound, and nobody maps for it yet.
        to_result(unsafe { bindings::rust_hmm_dma_adopt(raw.as_ptr(), bits) })?;
        // SAFETY: Prepared, and we have a reference.
        unsafe { Self::make(raw, false) }
    }

    /// # Safety
    ///
    /// `raw` must be as the type invariant has it. It becomes this one's, also after an error.
    unsafe fn make(raw: NonNull<bindings::device>, software: bool) -> Result<Arc<Self>> {
        let (name, key) = locks::dma_users();
        let this = Arc::pin_init(
            pin_init!(Self {
                // INVARIANT: By the function's requirements.
                raw,
                software,
                closed: AtomicFlag::new(false),
                calls: Atomic::new(0),
                mapped: Atomic::new(0),
                unmapped: Atomic::new(0),
                users <- Mutex::new(RBTree::new(), name, key),
            }),
            GFP_KERNEL,
        );
        // SAFETY: By the function's requirements; nobody has seen it.
        this.inspect_err(|_| unsafe { Self::give_back(raw, software) })
    }

    /// # Safety
    ///
    /// As for [`Self::make`]; `raw` must not be used any more.
    unsafe fn give_back(raw: NonNull<bindings::device>, software: bool) {
        // SAFETY: By the function's requirements.
        unsafe {
            match software {
                true => bindings::rust_hmm_dma_destroy(raw.as_ptr()),
                false => bindings::rust_hmm_dma_release(raw.as_ptr()),
            }
        }
    }

    pub(super) fn as_raw(&self) -> *mut bindings::device {
        self.raw.as_ptr()
    }

    /// Keeps the device from being closed. `ENODEV` if it is.
    pub(crate) fn begin(&self) -> Result<Open<'_>> {
        self.calls.fetch_add(1, Full);
        let open = Open(self);
        match self.closed.load(Acquire) {
            true => Err(ENODEV),
            false => Ok(open),
        }
    }

    /// The device goes: everything that is mapped for it is unmapped, and nothing can be mapped any more. Its engines
    /// must not access memory any more. Returns the pages that something could still have used: mirrors that were
    /// not [unplugged](crate::memory::Memory::unplug). Context: may sleep.
    pub fn close(&self) -> usize {
        if self.closed.xchg(true, Full) {
            return 0;
        }
        for look in 1.. {
            if self.calls.load(Acquire) == 0 {
                break;
            }
            if look == LOOKS {
                pr_err!("a device that goes is in use\n");
            }
            fsleep(PAUSE);
        }
        let users = core::mem::replace(&mut *self.users.lock(), RBTree::new());
        let left = users.values().map(|user| user.close()).sum();
        let live = self.live();
        if live != 0 {
            pr_err!("{live} pages stay mapped for a device that goes\n");
        }
        left
    }

    /// Adds what has mappings. `ENOMEM`; `ENODEV`. Context: may sleep.
    pub(crate) fn add(&self, user: Arc<dyn Maps>) -> Result {
        let _open = self.begin()?;
        let node = RBTreeNode::new(place(&user), user, GFP_KERNEL)?;
        self.users.lock().insert(node);
        Ok(())
    }

    /// Removes it. Context: may sleep.
    pub(crate) fn remove(&self, user: &Arc<dyn Maps>) {
        // Dropped after the lock is.
        let gone = self.users.lock().remove(&place(user));
        drop(gone);
    }

    fn count_mapped(&self, pages: usize) {
        self.mapped.fetch_add(pages as u64, Relaxed);
        count_totals(pages, 0);
    }

    fn count_unmapped(&self, pages: usize) {
        if pages != 0 {
            self.unmapped.fetch_add(pages as u64, Release);
            count_totals(0, pages);
        }
    }

    /// Pages that were ever mapped.
    pub fn mapped(&self) -> u64 {
        self.mapped.load(Relaxed)
    }

    /// Pages that were unmapped again.
    pub fn unmapped(&self) -> u64 {
        self.unmapped.load(Acquire)
    }

    /// Pages that are mapped now: 0 when nobody uses the device.
    pub fn live(&self) -> u64 {
        let unmapped = self.unmapped();
        self.mapped().saturating_sub(unmapped)
    }

    /// Whether device and CPU see each other's writes without being told to look.
    pub fn is_coherent(&self) -> bool {
        // SAFETY: We have a reference by the type invariant.
        !unsafe { bindings::rust_hmm_dma_needs_sync(self.as_raw()) }
    }
}

#[pinned_drop]
impl PinnedDrop for DmaDevice {
    fn drop(self: Pin<&mut Self>) {
        // Its mappings have held a reference of this: they are gone.
        if self.live() != 0 {
            pr_err!("{} pages stay mapped for a device that goes\n", self.live());
        }
        // SAFETY: Ours by the type invariant.
        unsafe { Self::give_back(self.raw, self.software) };
    }
}

/// The addresses of pinned pages.
///
/// # Invariants
///
/// Each element is a mapping of a page for `device`, until `unmapped`.
struct Pinned {
    device: Arc<DmaDevice>,
    addresses: KVVec<u64>,
    unmapped: AtomicFlag,
}

impl Pinned {
    fn unmap(&self) -> usize {
        if self.unmapped.xchg(true, Full) {
            return 0;
        }
        for address in &self.addresses {
            // SAFETY: Mapped by the type invariant, and not used any more.
            unsafe { bindings::rust_hmm_dma_unmap(self.device.as_raw(), *address) };
        }
        self.device.count_unmapped(self.addresses.len());
        self.addresses.len()
    }
}

impl Maps for Pinned {
    fn close(&self) -> usize {
        self.unmap()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.unmap();
    }
}

/// Pinned pages as a device sees them. The pages outlive this.
pub(crate) struct DmaMapping(Arc<Pinned>);

impl DmaMapping {
    /// Maps all of `pages`.
    ///
    /// # Safety
    ///
    /// The pages must stay pinned until this is dropped.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `ENODEV` if the device is gone. Context: may sleep.
    pub(crate) unsafe fn new(device: &Arc<DmaDevice>, pages: &PinnedPages) -> Result<Self> {
        let _open = device.begin()?;
        // INVARIANT: Nothing is mapped yet.
        let mut mapping = Pinned {
            device: device.clone(),
            addresses: KVVec::with_capacity(pages.count(), GFP_KERNEL_ACCOUNT)?,
            unmapped: AtomicFlag::new(false),
        };
        for index in 0..pages.count() {
            let pfn = pages.pfn(index).ok_or(EINVAL)?;
            let mut address = 0;
            // SAFETY: The page is pinned, and the device registered.
            to_result(unsafe {
                bindings::rust_hmm_dma_map(device.as_raw(), pfn, fails(Point::Dma), &mut address)
            })?;
            device.count_mapped(1);
            // INVARIANT: Just mapped. There is room.
            mapping.addresses.push(address, GFP_KERNEL_ACCOUNT)?;
        }
        let mapping = Arc::new(mapping, GFP_KERNEL_ACCOUNT)?;
        device.add(mapping.clone())?;
        Ok(Self(mapping))
    }

    /// Whether it is for `device`.
    pub(crate) fn is_for(&self, device: &DmaDevice) -> bool {
        core::ptr::eq(&*self.0.device, device)
    }

    /// The address of page `index`.
    pub(crate) fn address(&self, index: usize) -> Option<DmaAddress> {
        self.0.addresses.get(index).copied().map(DmaAddress::new)
    }

    /// Makes page `index` visible to the device, or to the CPU, where that does not happen by itself.
    pub(crate) fn sync(&self, index: usize, for_device: bool) {
        let Ok(_open) = self.0.device.begin() else {
            return;
        };
        if let Some(address) = self.0.addresses.get(index) {
            // SAFETY: Mapped by the type invariant, for the device was not closed.
            unsafe { bindings::rust_hmm_dma_sync(self.0.device.as_raw(), *address, for_device) };
        }
    }
}

impl Drop for DmaMapping {
    fn drop(&mut self) {
        self.0.unmap();
        let this: Arc<dyn Maps> = self.0.clone();
        self.0.device.remove(&this);
    }
}
