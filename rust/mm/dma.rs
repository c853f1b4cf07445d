// SPDX-License-Identifier: GPL-2.0

//! DMA mappings of pages, and the devices for which they exist.
//!
//! C header: [`include/linux/dma-mapping.h`](srctree/include/linux/dma-mapping.h)

#[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
use super::pin::PinnedPages;
#[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
use crate::inject::{
    fails,
    FailPoint, //
};
use crate::{
    bindings,
    kernel::{
        deferred::{
            Deferred,
            DropWaits, //
        },
        lock_classes, //
    }, //
};
use core::ptr::NonNull;
use kernel::{
    device::{
        self,
        Core, //
    },
    devres,
    error::to_result,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        atomic::{
            ordering::{
                Acquire,
                Full,
                Relaxed,
                Release, //
            },
            Atomic,
            AtomicFlag, //
        },
        Arc,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

mod address;
mod iova;
mod streaming;

pub use address::{
    DeviceAddress,
    DmaAddress,
    PeerAddress, //
};
pub(crate) use iova::{
    DmaWindows,
    OwnedWindows,
    WindowCursor, //
};
pub(crate) use streaming::DmaRun;
pub use streaming::{
    DmaBuffer,
    DmaDirection, //
};

/// Interval at which [`DmaDevice::close`] polls the number of calls in progress.
const CLOSE_POLL_INTERVAL: Delta = Delta::from_millis(1);

/// Number of polls after which a call that does not return is reported.
const CLOSE_REPORT_POLLS: usize = 10_000;

/// An owner of DMA mappings for a device.
pub(crate) trait DmaUser: Send + Sync {
    /// Unmaps everything, because the device is being unbound. If the owner unmaps concurrently,
    /// waits until that is complete. Returns the number of pages that the device could still access
    /// until now.
    ///
    /// # Context
    ///
    /// May sleep.
    fn close(&self) -> usize;
}

/// All owners of mappings for a device.
type DmaUsers = RBTree<usize, Arc<dyn DmaUser>>;

/// Returns the key of `user` in [`DmaUsers`].
fn place(user: &Arc<dyn DmaUser>) -> usize {
    Arc::as_ptr(user).addr()
}

/// Pages mapped and unmapped for all devices since the module was loaded.
static PAGES_MAPPED: Atomic<u64> = Atomic::new(0);
static PAGES_UNMAPPED: Atomic<u64> = Atomic::new(0);

/// Returns the numbers of pages that were mapped for DMA and unmapped, for all devices since the
/// module was loaded.
///
/// # Context
///
/// Any.
// Not inlined: the counters are those of this module, whichever module calls this.
#[inline(never)]
pub fn totals() -> (u64, u64) {
    // Load `PAGES_UNMAPPED` first, so that it never exceeds `PAGES_MAPPED`.
    let unmapped = PAGES_UNMAPPED.load(Acquire);
    (PAGES_MAPPED.load(Relaxed), unmapped)
}

#[inline(never)]
fn count_totals(mapped: usize, unmapped: usize) {
    // Release: pairs with the acquire in `totals`. The owner of a page counts it as mapped before
    // it counts it as unmapped: both are done with the table lock held, or a close waits for the
    // task that has mapped the page.
    PAGES_MAPPED.fetch_add(mapped as u64, Relaxed);
    PAGES_UNMAPPED.fetch_add(unmapped as u64, Release);
}

/// A device that performs DMA.
///
/// A device that was created by [`bound`](Self::bound) is closed before it is unbound from its
/// driver, by a devres action. Closing it unmaps all mappings that still exist, including those
/// whose owner was leaked.
///
/// # Context
///
/// Dropping the last reference may sleep, because unregistering a device does. In a callback and in
/// atomic context a worker does that.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::device::Core;
/// use kernel::device::Device;
/// use kernel::sync::Arc;
/// use rust_hmm::mm::dma::DmaDevice;
///
/// /// Called by `probe` of a driver whose device uses addresses of 48 bits.
/// fn prepare(device: &Device<Core<'_>>) -> Result<Arc<DmaDevice>> {
///     DmaDevice::bound(device, 48)
/// }
///
/// // A device without hardware.
/// let device = DmaDevice::software(c"example")?;
/// assert!(device.is_coherent());
/// assert_eq!(device.live(), 0);
/// # Ok::<(), Error>(())
/// ```
#[pin_data(PinnedDrop)]
pub struct DmaDevice {
    raw: Deferred<RawDevice>,
    /// Whether the device is DMA-coherent and its DMA is not bounced. Constant while the device is
    /// bound.
    coherent: bool,
    closed: AtomicFlag,
    /// Number of calls that prevent the device from being closed.
    calls: Atomic<usize>,
    mapped: Atomic<u64>,
    unmapped: Atomic<u64>,
    /// Owners of mappings, by address. A tree, because there may be one owner for each locked page.
    #[pin]
    users: Mutex<DmaUsers>,
}

/// A `struct device`, which is unregistered or released when this is dropped.
///
/// # Invariants
///
/// We have a reference of `device`. As long as its [`DmaDevice`] is not closed, it is registered
/// and prepared for DMA, and if it is not `software`, bound to its driver; with `software` it is
/// ours.
struct RawDevice {
    device: NonNull<bindings::device>,
    software: bool,
}

// SAFETY: A `struct device` is reference-counted and may be used and unregistered by any task.
unsafe impl Send for RawDevice {}
// SAFETY: The DMA API may be called for a device by several tasks concurrently.
unsafe impl Sync for RawDevice {}

impl DropWaits for RawDevice {}

impl Drop for RawDevice {
    fn drop(&mut self) {
        // SAFETY: The device is ours by the type invariant, and this is the last use of it.
        unsafe {
            if self.software {
                bindings::rust_hmm_dma_destroy(self.device.as_ptr())
            } else {
                bindings::rust_hmm_dma_release(self.device.as_ptr())
            }
        }
    }
}

/// A call in progress, which prevents the device from being closed.
pub(crate) struct OpenDevice<'d>(&'d DmaDevice);

impl Drop for OpenDevice<'_> {
    fn drop(&mut self) {
        // Pairs with the acquire in `close`: the call has ended its use of the device before the
        // device is closed.
        self.0.calls.fetch_sub(1, Release);
    }
}

impl DmaDevice {
    /// Creates a software device, which can address all memory. It is DMA-coherent on all
    /// architectures, because code on the CPU performs its accesses.
    ///
    /// # Errors
    ///
    /// * `ENOMEM`: memory allocation or registration failed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn software(name: &CStr) -> Result<Arc<Self>> {
        // SAFETY: The helper copies the name.
        let raw = unsafe { bindings::rust_hmm_dma_create(name.as_char_ptr()) };
        // SAFETY: `raw` was registered and prepared for DMA by the helper, and its reference is
        // ours.
        unsafe { Self::make(NonNull::new(raw).ok_or(ENOMEM)?, true) }
    }

    /// Creates a software device whose DMA is always bounced.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(crate) fn bouncing(name: &CStr) -> Result<Arc<Self>> {
        // SAFETY: The helper copies the name.
        let raw = unsafe { bindings::rust_hmm_dma_create(name.as_char_ptr()) };
        let raw = NonNull::new(raw).ok_or(ENOMEM)?;
        // SAFETY: `raw` was registered above, and no page is mapped for it yet.
        unsafe { bindings::rust_hmm_dma_bounce(raw.as_ptr()) };
        // SAFETY: `raw` was registered and prepared for DMA by the helper, and its reference is
        // ours.
        unsafe { Self::make(raw, true) }
    }

    /// Prepares a device that is bound to a driver for DMA with addresses of `bits` bits. To be
    /// called from the driver's `probe`. The device is closed after the driver's `unbind`, or after
    /// a failed probe, and before it counts as unbound.
    ///
    /// Resources that are registered with devres after this call, such as an
    /// [`Interrupt`](crate::mm::pci::Interrupt), are released before the device is closed.
    ///
    /// # Errors
    ///
    /// * `EOPNOTSUPP`, with a message that names the cause: the device is not DMA-coherent; its DMA
    ///   is bounced (`swiotlb=force`, or an encrypted guest); or it cannot address all memory that
    ///   it may be given, which is all system memory without an IOMMU, and 32 bits of addresses
    ///   with one.
    /// * `EIO`: the platform does not support DMA for the device.
    /// * `EINVAL`: `bits` is not in the range of 1 to 64.
    /// * `ENOMEM`: memory allocation failed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn bound(device: &device::Device<Core<'_>>, bits: u32) -> Result<Arc<Self>> {
        let raw = NonNull::from(device).cast::<bindings::device>();
        // SAFETY: The device is in a bus callback and thus bound, and no page is mapped for it yet.
        to_result(unsafe { bindings::rust_hmm_dma_adopt(raw.as_ptr(), bits) })?;
        // SAFETY: `raw` was prepared for DMA, and the helper took a reference for us.
        let this = unsafe { Self::make(raw, false)? };
        // INVARIANT: devres closes the device before it is unbound, or immediately if the
        // registration fails.
        devres::register(device, CloseOnUnbind(this.clone()), GFP_KERNEL)?;
        Ok(this)
    }

    /// # Safety
    ///
    /// `raw` must meet the invariants of [`RawDevice`]. Ownership passes to this function, also if
    /// it fails.
    unsafe fn make(raw: NonNull<bindings::device>, software: bool) -> Result<Arc<Self>> {
        let (name, key) = lock_classes::dma_users();
        // INVARIANT: `raw` meets the invariants by the function's requirements.
        let raw = RawDevice {
            device: raw,
            software,
        };
        // SAFETY: `raw` is registered and prepared for DMA by the function's requirements.
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

    /// Prevents the device from being closed while the result exists.
    ///
    /// # Errors
    ///
    /// * `ENODEV`: the device is closed, or is being closed.
    pub(crate) fn begin(&self) -> Result<OpenDevice<'_>> {
        // Full barrier: this increments `calls` before it loads `closed`, and `close` sets `closed`
        // before it loads `calls`. Therefore this sees that the device is closed, or `close` waits
        // for the call.
        self.calls.fetch_add(1, Full);
        let open = OpenDevice(self);
        // Uses no data of the closing task, so that the barrier above is sufficient.
        if self.closed.load(Acquire) {
            Err(ENODEV)
        } else {
            Ok(open)
        }
    }

    /// Unmaps everything that is mapped for the device, and refuses further mappings. The device
    /// must not perform DMA from now on. Waits for calls and copies in progress, and for concurrent
    /// unmapping.
    ///
    /// Returns the number of pages that the device could still access until now: locked memory, and
    /// entries of mirrors that were not [unplugged](crate::memory::Memory::unplug).
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn close(&self) -> usize {
        // Full barrier before `calls` is loaded: see `begin`.
        if self.closed.xchg(true, Full) {
            return 0;
        }
        for look in 1.. {
            // Pairs with the release when a call ends: the mappings are unmapped after its last
            // use.
            if self.calls.load(Acquire) == 0 {
                break;
            }
            if look == CLOSE_REPORT_POLLS {
                crate::alarm!(
                    DeviceInUse,
                    "calls that use an unbound device do not return: a copy was not completed"
                );
            }
            fsleep(CLOSE_POLL_INTERVAL);
        }
        let users = core::mem::replace(&mut *self.users.lock(), RBTree::new());
        let left = users.values().map(|user| user.close()).sum();
        self.check_live();
        left
    }

    /// Reports mappings that have leaked.
    fn check_live(&self) {
        let live = self.live();
        if live != 0 {
            crate::alarm!(PagesStayMapped, "{live} pages of a device that is unbound");
        }
    }

    /// Adds an owner of mappings, which is closed together with the device.
    ///
    /// # Errors
    ///
    /// * `ENOMEM`: memory allocation failed.
    /// * `ENODEV`: the device is closed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn add(&self, user: Arc<dyn DmaUser>) -> Result {
        let _open = self.begin()?;
        let node = RBTreeNode::new(place(&user), user, GFP_KERNEL)?;
        self.users.lock().insert(node);
        Ok(())
    }

    /// Removes an owner of mappings. May sleep.
    pub(crate) fn remove(&self, user: &Arc<dyn DmaUser>) {
        // Drop the node after the lock is released.
        let gone = self.users.lock().remove(&place(user));
        drop(gone);
    }

    fn count_mapped(&self, pages: usize) {
        self.mapped.fetch_add(pages as u64, Relaxed);
        count_totals(pages, 0);
    }

    fn count_unmapped(&self, pages: usize) {
        if pages != 0 {
            // Release: pairs with the acquire in `unmapped`, so that `live` never finds more pages
            // unmapped than mapped. See `count_totals`.
            self.unmapped.fetch_add(pages as u64, Release);
            count_totals(0, pages);
        }
    }

    /// Returns the number of pages that were mapped since the device was created.
    ///
    /// # Context
    ///
    /// Any.
    pub fn mapped(&self) -> u64 {
        self.mapped.load(Relaxed)
    }

    /// Returns the number of pages that were unmapped since the device was created.
    ///
    /// # Context
    ///
    /// Any.
    pub fn unmapped(&self) -> u64 {
        self.unmapped.load(Acquire)
    }

    /// Returns the number of pages that are mapped now.
    ///
    /// # Context
    ///
    /// Any.
    pub fn live(&self) -> u64 {
        // Loaded first, with acquire ordering: see `count_unmapped`.
        let unmapped = self.unmapped();
        self.mapped().saturating_sub(unmapped)
    }

    /// Returns whether the device is bound to a driver, by [`bound`](Self::bound), rather than a
    /// software device.
    pub(crate) fn is_bound(&self) -> bool {
        !self.raw.software
    }

    /// Whether device and CPU observe each other's writes without explicit synchronization: the
    /// device is DMA-coherent, and its DMA is not bounced.
    ///
    /// # Context
    ///
    /// Any.
    pub fn is_coherent(&self) -> bool {
        self.coherent
    }
}

/// A device that is prepared as by [`DmaDevice::bound`], and unbound when this is dropped.
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
pub(crate) struct TestDriver {
    pub(crate) device: Arc<DmaDevice>,
    _registered: Arc<DmaDevice>,
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
impl TestDriver {
    pub(crate) fn bind(name: &CStr) -> Result<Self> {
        let registered = DmaDevice::software(name)?;
        // SAFETY: The device is registered, and no page is mapped for it yet.
        to_result(unsafe { bindings::rust_hmm_dma_adopt(registered.as_raw(), 64) })?;
        // SAFETY: The device was prepared for DMA, and the helper took a reference for us. `drop`
        // closes it before the device is unregistered.
        let device = unsafe { DmaDevice::make(registered.raw.device, false) }?;
        Ok(Self {
            device,
            _registered: registered,
        })
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
impl Drop for TestDriver {
    fn drop(&mut self) {
        self.device.close();
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
        // Mappings hold a reference of the device, so that none is left.
        self.check_live();
    }
}

/// Pages with one mapping each, which are unmapped when this is dropped.
///
/// # Invariants
///
/// Each element of `list` is the mapping of a page for `device`, which is not closed before this is
/// dropped.
#[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
struct DmaAddresses {
    device: Arc<DmaDevice>,
    list: KVVec<u64>,
}

#[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
impl Drop for DmaAddresses {
    fn drop(&mut self) {
        let coherent = self.device.is_coherent();
        for address in &self.list {
            // SAFETY: `address` is mapped by the type invariant, and this is its last use.
            unsafe { bindings::rust_hmm_dma_unmap(self.device.as_raw(), *address, coherent) };
        }
        self.device.count_unmapped(self.list.len());
    }
}

/// Addresses of pinned pages, until the owner drops them or the device is closed.
#[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
#[pin_data]
struct PinnedAddresses {
    device: Arc<DmaDevice>,
    // Held while the pages are unmapped, so that `DmaDevice::close` waits for a concurrent
    // unmapping.
    #[pin]
    addresses: Mutex<Option<DmaAddresses>>,
}

#[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
impl DmaUser for PinnedAddresses {
    fn close(&self) -> usize {
        let mut addresses = self.addresses.lock();
        let pages = addresses.as_ref().map_or(0, |all| all.list.len());
        *addresses = None;
        pages
    }
}

/// Pinned pages that are mapped for a device. The pages must outlive the mapping.
#[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
pub(crate) struct DmaMapping(Arc<PinnedAddresses>);

#[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
impl DmaMapping {
    /// Maps all of `pages`. For a coherent device this fails if a page would be bounced.
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
    /// * `ENOMEM`: memory allocation or a mapping failed.
    /// * `ENODEV`: the device is closed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) unsafe fn new(device: &Arc<DmaDevice>, pages: &PinnedPages) -> Result<Self> {
        let frames = (0..pages.count()).map(|index| pages.pfn(index).ok_or(EINVAL));
        // SAFETY: The pages stay pinned by the function's requirements.
        unsafe { Self::of_frames(device, pages.count(), frames) }
    }

    /// # Safety
    ///
    /// As for [`Self::new`], applied to the pages of `frames`.
    unsafe fn of_frames(
        device: &Arc<DmaDevice>,
        count: usize,
        frames: impl Iterator<Item = Result<usize>>,
    ) -> Result<Self> {
        let _open = device.begin()?;
        // INVARIANT: The list is empty.
        let mut addresses = DmaAddresses {
            device: device.clone(),
            list: KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?,
        };
        let coherent = device.is_coherent();
        for pfn in frames {
            let pfn = pfn?;
            let mut address = 0;
            let fails = fails(FailPoint::Dma);
            // SAFETY: The page is pinned, and `_open` keeps the device registered.
            to_result(unsafe {
                bindings::rust_hmm_dma_map(device.as_raw(), pfn, coherent, fails, &mut address)
            })?;
            device.count_mapped(1);
            // INVARIANT: `address` was mapped above. The push does not allocate.
            addresses.list.push(address, GFP_KERNEL_ACCOUNT)?;
        }
        let (name, key) = lock_classes::dma_addresses();
        let mapping = Arc::pin_init(
            pin_init!(PinnedAddresses {
                device: device.clone(),
                addresses <- Mutex::new(Some(addresses), name, key),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        device.add(mapping.clone())?;
        Ok(Self(mapping))
    }

    /// Whether the pages are mapped for `device`.
    pub(crate) fn is_for(&self, device: &DmaDevice) -> bool {
        core::ptr::eq(&*self.0.device, device)
    }

    /// Returns the DMA address of page `index`; `None` if there is no such page, or if the device
    /// is closed. May sleep.
    pub(crate) fn address(&self, index: usize) -> Option<DmaAddress> {
        let addresses = self.0.addresses.lock();
        let address = *addresses.as_ref()?.list.get(index)?;
        Some(DmaAddress::new(address))
    }

    /// Synchronizes page `index` for the device, or for the CPU. Needed only for a device that is
    /// not coherent.
    pub(crate) fn sync(&self, index: usize, for_device: bool) {
        let Ok(_open) = self.0.device.begin() else {
            return;
        };
        if let Some(address) = self.address(index) {
            // SAFETY: `address` is mapped by the type invariant, because the device is not closed.
            unsafe {
                bindings::rust_hmm_dma_sync(self.0.device.as_raw(), address.raw(), for_device)
            };
        }
    }
}

#[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
impl Drop for DmaMapping {
    fn drop(&mut self) {
        self.0.close();
        let this: Arc<dyn DmaUser> = self.0.clone();
        self.0.device.remove(&this);
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
mod tests;
