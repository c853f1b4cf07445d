// SPDX-License-Identifier: GPL-2.0

//! Addresses by which devices reach pages.
//!
//! C header: [`include/linux/dma-mapping.h`](srctree/include/linux/dma-mapping.h)

use super::pin::PinnedPages;
use crate::{
    bindings,
    deferred::{
        Deferred,
        DropWaits, //
    },
    inject::{fails, Point},
    locks, //
};
use core::ptr::NonNull;
use kernel::{
    device::{self, Core},
    devres,
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
    /// Unmaps everything, because the device is unbound. If the owner of the mappings does so concurrently, waits until
    /// it has. Returns how many pages the device could still use. Context: may sleep.
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
/// One that a driver is bound to closes before it is unbound, by a devres action that [`bound`](Self::bound) registers.
/// Whatever still has mappings then loses them, also if its owner forgot to drop it.
///
/// # Context
///
/// Dropping the last reference may sleep, as unregistering a device does. In a callback and in atomic context a worker
/// does that.
#[pin_data(PinnedDrop)]
pub struct DmaDevice {
    raw: Deferred<RawDevice>,
    /// Device and CPU see each other's writes, and no page is bounced. Does not change while the device is bound.
    coherent: bool,
    closed: AtomicFlag,
    /// Calls that need the device to be there.
    calls: Atomic<usize>,
    mapped: Atomic<u64>,
    unmapped: Atomic<u64>,
    /// By where they are in memory: there may be one for each locked page.
    #[pin]
    users: Mutex<Users>,
}

/// A device of the kernel's, which dropping this unregisters or gives back.
///
/// # Invariants
///
/// We have a reference of `device`. As long as its [`DmaDevice`] is not closed, it is registered and prepared for DMA,
/// and if it is not `software`, bound to its driver; with `software` it is ours.
struct RawDevice {
    device: NonNull<bindings::device>,
    software: bool,
}

// SAFETY: A device may be used and unregistered anywhere.
unsafe impl Send for RawDevice {}
// SAFETY: Its DMA functions may be called by several tasks.
unsafe impl Sync for RawDevice {}

impl DropWaits for RawDevice {}

impl Drop for RawDevice {
    fn drop(&mut self) {
        // SAFETY: Ours by the type invariant, and not used any more.
        unsafe {
            match self.software {
                true => bindings::rust_hmm_dma_destroy(self.device.as_ptr()),
                false => bindings::rust_hmm_dma_release(self.device.as_ptr()),
            }
        }
    }
}

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

    /// A software device whose DMA is always bounced.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(crate) fn bouncing(name: &CStr) -> Result<Arc<Self>> {
        // SAFETY: The name is copied.
        let raw = unsafe { bindings::rust_hmm_dma_create(name.as_char_ptr()) };
        let raw = NonNull::new(raw).ok_or(ENOMEM)?;
        // SAFETY: Just registered, and nothing is mapped for it.
        unsafe { bindings::rust_hmm_dma_bounce(raw.as_ptr()) };
        // SAFETY: Just registered and prepared.
        unsafe { Self::make(raw, true) }
    }

    /// A device that a driver is bound to, which sends `bits` bits of address. Called while it is probed. It is closed
    /// after the driver's `unbind`, or if the probe fails, before the device counts as unbound.
    ///
    /// Resources that were registered with devres later, as an [`Interrupt`](crate::mm::pci::Interrupt), are released
    /// before it is closed. Context: may sleep.
    ///
    /// # Errors
    ///
    /// * `EOPNOTSUPP`, with a message that says which: the device is not DMA-coherent; its DMA is bounced
    ///   (`swiotlb=force`, an encrypted guest); it reaches less than it may be given, which is without an IOMMU all
    ///   memory, and behind one 32 bits.
    /// * `EIO`: the platform cannot do it.
    /// * `EINVAL`: `bits` is not 1 to 64.
    /// * `ENOMEM`.
    pub fn bound(device: &device::Device<Core<'_>>, bits: u32) -> Result<Arc<Self>> {
        let raw = NonNull::from(device).cast::<bindings::device>();
        // SAFETY: The device is within a callback of its bus, so that it is bound, and nobody maps for it yet.
        to_result(unsafe { bindings::rust_hmm_dma_adopt(raw.as_ptr(), bits) })?;
        // SAFETY: Prepared, and we have a reference.
        let this = unsafe { Self::make(raw, false)? };
        // INVARIANT: Closed before the device is unbound; at once if this fails.
        devres::register(device, CloseOnUnbind(this.clone()), GFP_KERNEL)?;
        Ok(this)
    }

    /// # Safety
    ///
    /// `raw` must be as the type invariant has it. It becomes this one's, also after an error.
    unsafe fn make(raw: NonNull<bindings::device>, software: bool) -> Result<Arc<Self>> {
        let (name, key) = locks::dma_users();
        // INVARIANT: By the function's requirements.
        let raw = RawDevice {
            device: raw,
            software,
        };
        // SAFETY: Registered and prepared by the function's requirements.
        let coherent = unsafe { bindings::rust_hmm_dma_is_coherent(raw.device.as_ptr()) };
        Arc::pin_init(
            try_pin_init!(Self {
                raw: Deferred::new(|| Ok(raw), GFP_KERNEL)?,
                coherent,
                closed: AtomicFlag::new(false),
                calls: Atomic::new(0),
                mapped: Atomic::new(0),
                unmapped: Atomic::new(0),
                users <- Mutex::new(RBTree::new(), name, key),
            }? Error),
            GFP_KERNEL,
        )
    }

    pub(super) fn as_raw(&self) -> *mut bindings::device {
        self.raw.device.as_ptr()
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

    /// Unmaps everything that is mapped for the device, and refuses further mappings. Waits for calls and copies under
    /// way, and for concurrent unmapping. The device must not access memory any more. Returns the pages that it could
    /// still have used: locked memory, and entries of mirrors that were not
    /// [unplugged](crate::memory::Memory::unplug). Context: may sleep.
    pub(crate) fn close(&self) -> usize {
        if self.closed.xchg(true, Full) {
            return 0;
        }
        for look in 1.. {
            if self.calls.load(Acquire) == 0 {
                break;
            }
            if look == LOOKS {
                crate::alarm!(
                    DeviceInUse,
                    "calls that use an unbound device do not return: a copy was not completed"
                );
            }
            fsleep(PAUSE);
        }
        let users = core::mem::replace(&mut *self.users.lock(), RBTree::new());
        let left = users.values().map(|user| user.close()).sum();
        self.check_live();
        left
    }

    /// Reports mappings that nobody owns any more.
    fn check_live(&self) {
        let live = self.live();
        if live != 0 {
            crate::alarm!(PagesStayMapped, "{live} pages of a device that is unbound");
        }
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

    /// Whether device and CPU see each other's writes without being told to look: the device is DMA-coherent, and its
    /// DMA is not bounced.
    pub fn is_coherent(&self) -> bool {
        self.coherent
    }
}

/// Closes a device when devres drops it, before the device is unbound.
struct CloseOnUnbind(Arc<DmaDevice>);

impl Drop for CloseOnUnbind {
    fn drop(&mut self) {
        let left = self.0.close();
        if left != 0 {
            pr_info!("{left} pages were still mapped for a device that is unbound\n");
        }
    }
}

#[pinned_drop]
impl PinnedDrop for DmaDevice {
    fn drop(self: Pin<&mut Self>) {
        // Mappings hold a reference of this.
        self.check_live();
    }
}

/// Pages that are mapped one by one. Dropping it unmaps them.
///
/// # Invariants
///
/// Each element of `list` is the mapping of a page for `device`, which is not closed before this is
/// dropped.
struct Addresses {
    device: Arc<DmaDevice>,
    list: KVVec<u64>,
}

impl Drop for Addresses {
    fn drop(&mut self) {
        let coherent = self.device.is_coherent();
        for address in &self.list {
            // SAFETY: Mapped by the type invariant, and not used any more.
            unsafe { bindings::rust_hmm_dma_unmap(self.device.as_raw(), *address, coherent) };
        }
        self.device.count_unmapped(self.list.len());
    }
}

/// The addresses of pinned pages, until their owner or the device unmaps them.
#[pin_data]
struct Pinned {
    device: Arc<DmaDevice>,
    // Held while the pages are unmapped, so that `DmaDevice::close` waits for an unmapping under way.
    #[pin]
    addresses: Mutex<Option<Addresses>>,
}

impl Maps for Pinned {
    fn close(&self) -> usize {
        let mut addresses = self.addresses.lock();
        let pages = addresses.as_ref().map_or(0, |all| all.list.len());
        *addresses = None;
        pages
    }
}

/// Pinned pages as a device sees them. The pages outlive this.
pub(crate) struct DmaMapping(Arc<Pinned>);

impl DmaMapping {
    /// Maps all of `pages`. For a coherent device, mapping fails where a page would be bounced.
    ///
    /// All mappings of one device have the same attributes. `kernel/dma/debug.c` does not
    /// distinguish two mappings of a page, and warns if their attributes differ.
    ///
    /// # Safety
    ///
    /// The pages must stay pinned until this is dropped.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `ENODEV` if the device is gone. Context: may sleep.
    pub(crate) unsafe fn new(device: &Arc<DmaDevice>, pages: &PinnedPages) -> Result<Self> {
        let frames = (0..pages.count()).map(|index| pages.pfn(index).ok_or(EINVAL));
        // SAFETY: They are pinned by the function's requirements.
        unsafe { Self::of_frames(device, pages.count(), frames) }
    }

    /// # Safety
    ///
    /// As for [`Self::new`], of the pages of `frames`.
    unsafe fn of_frames(
        device: &Arc<DmaDevice>,
        count: usize,
        frames: impl Iterator<Item = Result<usize>>,
    ) -> Result<Self> {
        let _open = device.begin()?;
        // INVARIANT: Nothing is mapped yet.
        let mut addresses = Addresses {
            device: device.clone(),
            list: KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?,
        };
        let coherent = device.is_coherent();
        for pfn in frames {
            let (pfn, mut address) = (pfn?, 0);
            let fails = fails(Point::Dma);
            // SAFETY: The page is pinned, and the device registered.
            to_result(unsafe {
                bindings::rust_hmm_dma_map(device.as_raw(), pfn, coherent, fails, &mut address)
            })?;
            device.count_mapped(1);
            // INVARIANT: Just mapped. There is room.
            addresses.list.push(address, GFP_KERNEL_ACCOUNT)?;
        }
        let (name, key) = locks::dma_addresses();
        let mapping = Arc::pin_init(
            pin_init!(Pinned {
                device: device.clone(),
                addresses <- Mutex::new(Some(addresses), name, key),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        device.add(mapping.clone())?;
        Ok(Self(mapping))
    }

    /// Whether it is for `device`.
    pub(crate) fn is_for(&self, device: &DmaDevice) -> bool {
        core::ptr::eq(&*self.0.device, device)
    }

    /// The address of page `index`; `None` beyond the end, or if the device is closed. Context: may sleep.
    pub(crate) fn address(&self, index: usize) -> Option<DmaAddress> {
        let addresses = self.0.addresses.lock();
        let address = *addresses.as_ref()?.list.get(index)?;
        Some(DmaAddress::new(address))
    }

    /// Makes page `index` visible to the device, or to the CPU, where that does not happen by itself.
    pub(crate) fn sync(&self, index: usize, for_device: bool) {
        let Ok(_open) = self.0.device.begin() else {
            return;
        };
        if let Some(address) = self.address(index) {
            // SAFETY: Mapped by the type invariant, for the device was not closed.
            unsafe {
                bindings::rust_hmm_dma_sync(self.0.device.as_raw(), address.raw(), for_device)
            };
        }
    }
}

impl Drop for DmaMapping {
    fn drop(&mut self) {
        self.0.close();
        let this: Arc<dyn Maps> = self.0.clone();
        self.0.device.remove(&this);
    }
}

#[cfg(CONFIG_KUNIT = "y")]
mod tests;
