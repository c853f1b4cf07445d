// SPDX-License-Identifier: GPL-2.0

//! DMA mappings of pages, and the devices for which they exist.
//!
//! C header: [`include/linux/dma-mapping.h`](srctree/include/linux/dma-mapping.h)

use crate::{
    bindings,
    kernel::{
        deferred::Deferred,
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
#[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
mod pinned;
mod raw_device;
mod streaming;
mod totals;

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
#[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
pub(crate) use pinned::DmaMapping;
pub(crate) use streaming::DmaRun;
pub use streaming::{
    DmaBuffer,
    DmaDirection, //
};
pub use totals::totals;

use raw_device::RawDevice;
use totals::count_totals;

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
        Self::make(RawDevice::software(name)?)
    }

    /// Creates a software device whose DMA is always bounced.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(crate) fn bouncing(name: &CStr) -> Result<Arc<Self>> {
        Self::make(RawDevice::bouncing(name)?)
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
        // devres closes it before it is unbound, or immediately if the registration below fails.
        let this = Self::make(unsafe { RawDevice::adopt(raw, bits)? })?;
        devres::register(device, CloseOnUnbind(this.clone()), GFP_KERNEL)?;
        Ok(this)
    }

    fn make(raw: RawDevice) -> Result<Arc<Self>> {
        let (name, key) = lock_classes::dma_users();
        let coherent = raw.is_coherent();
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
        self.raw.device().as_ptr()
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
        self.close_in_time(CLOSE_REPORT_POLLS)
    }

    /// As [`Self::close`]. Raises an alarm if calls are in progress after `polls` polls.
    fn close_in_time(&self, polls: usize) -> usize {
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
            if look == polls {
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
        !self.raw.is_software()
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
        // SAFETY: The device is registered, and no page is mapped for it yet. `drop` closes it
        // before the device is unregistered.
        let device = DmaDevice::make(unsafe { RawDevice::adopt(registered.raw.device(), 64)? })?;
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

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
mod tests;
