// SPDX-License-Identifier: GPL-2.0

//! The registration of a node, and the file operations through which the kernel calls
//! [`OpenFile`].

use super::{
    OpenFile,
    Poller, //
};
use crate::{
    bindings,
    kernel::{
        deferred::{
            Deferred,
            DropWaits, //
        },
        reentry::{
            self,
            ReentryGuard, //
        }, //
    }, //
};
use core::marker::PhantomData;
use kernel::{
    error::to_result,
    ffi,
    fs::File,
    mm::virt::VmaNew,
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        poll::PollTable,
        Arc,
        SetOnce, //
    },
    types::{
        ForeignOwnable,
        Opaque, //
    },
    uaccess::UserSlice, //
};

/// File operations of a node. They are a static of the driver's module, because they are used until
/// the last file is closed, also after the node was removed.
pub struct FileOps<F: OpenFile> {
    table: SetOnce<NodeFileOps>,
    _file: PhantomData<fn() -> F>,
}

struct NodeFileOps(bindings::file_operations);

// SAFETY: A table is never modified.
unsafe impl Send for NodeFileOps {}
// SAFETY: A table is never modified, so that concurrent reads are no data race.
unsafe impl Sync for NodeFileOps {}

impl<F: OpenFile> FileOps<F> {
    /// Creates an empty table, for a static.
    ///
    /// # Context
    ///
    /// Any.
    #[expect(clippy::new_without_default, reason = "only of use in a static")]
    pub const fn new() -> Self {
        Self {
            table: SetOnce::new(),
            _file: PhantomData,
        }
    }

    fn get(&'static self, module: &'static ThisModule) -> Result<&'static NodeFileOps> {
        self.table.populate(NodeFileOps(bindings::file_operations {
            owner: module.as_ptr(),
            open: Some(RegisteredNode::<F>::open),
            release: Some(RegisteredNode::<F>::release),
            unlocked_ioctl: Some(RegisteredNode::<F>::ioctl),
            read: Some(RegisteredNode::<F>::read),
            poll: Some(RegisteredNode::<F>::poll),
            mmap: Some(RegisteredNode::<F>::mmap),
            // Aligns mappings for huge pages.
            #[cfg(CONFIG_TRANSPARENT_HUGEPAGE)]
            get_unmapped_area: Some(bindings::thp_get_unmapped_area),
            ..pin_init::zeroed()
        }));
        self.table.as_ref().ok_or(EBUSY)
    }

    /// Returns whether `operations` are those of a file that was opened with these.
    pub(super) fn matches(&self, operations: *const bindings::file_operations) -> bool {
        self.table
            .as_ref()
            .is_some_and(|table| core::ptr::eq(operations, &table.0))
    }
}

/// Address of the task that is in [`OpenFile::open`]; 0 if there is none.
///
/// There is at most one such task, because the kernel holds `misc_mtx` during `open`. Registration
/// and removal of a node take this mutex, too.
static OPENING_TASK: Atomic<usize> = Atomic::new(0);

/// Returns whether the current task is in [`OpenFile::open`], and must not take `misc_mtx` again.
// Not inlined: all modules must use the same `OPENING_TASK`.
#[inline(never)]
fn is_opening() -> bool {
    OPENING_TASK.load(Relaxed) == reentry::current_task()
}

/// Records whether the current task is in [`OpenFile::open`]. Context: `misc_mtx` is held.
#[inline(never)]
fn set_opening(is_opening: bool) {
    let task = if is_opening {
        reentry::current_task()
    } else {
        0
    };
    OPENING_TASK.store(task, Relaxed);
}

/// A registered node below `/dev`, readable and writable by root.
///
/// Dropping it removes the node. Open files stay usable.
///
/// # Context
///
/// The drop may sleep. In a callback, in atomic context and in [`OpenFile::open`] it returns
/// immediately, and a worker removes the node.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::sync::Arc;
/// use rust_hmm::kernel::miscdevice::FileOps;
/// use rust_hmm::kernel::miscdevice::Node;
/// use rust_hmm::kernel::miscdevice::OpenFile;
///
/// /// A bound device, whose node is removed when the driver is unbound.
/// struct Bound<F: OpenFile> {
///     node: Pin<KBox<Node<F>>>,
/// }
///
/// fn probe<F: OpenFile>(
///     module: &'static ThisModule,
///     ops: &'static FileOps<F>,
///     card: Arc<F::Device>,
/// ) -> Result<Bound<F>> {
///     let node = KBox::pin_init(Node::new(c"card", ops, module, card), GFP_KERNEL)?;
///     Ok(Bound { node })
/// }
/// ```
pub struct Node<F: OpenFile> {
    registered: Deferred<RegisteredNode<F>>,
}

/// The registration of a node.
///
/// # Invariants
///
/// `misc` is registered.
#[pin_data(PinnedDrop)]
struct RegisteredNode<F: OpenFile> {
    #[pin]
    misc: Opaque<bindings::miscdevice>,
    device: Arc<F::Device>,
}

// SAFETY: `misc_deregister()` may be called by any task; the device is `Send + Sync`.
unsafe impl<F: OpenFile> Send for RegisteredNode<F> {}
// SAFETY: Methods with a shared reference only read `misc`; the device is `Send + Sync`.
unsafe impl<F: OpenFile> Sync for RegisteredNode<F> {}

impl<F: OpenFile> DropWaits for RegisteredNode<F> {
    fn waits_for_current(&self) -> bool {
        is_opening()
    }
}

impl<F: OpenFile> Node<F> {
    /// Registers `/dev/NAME`. An open file holds a reference to `module`.
    ///
    /// # Errors
    ///
    /// - `EEXIST`: the name is taken
    /// - `EBUSY`: no minor number is free
    /// - `EDEADLK`: in a callback, or in [`OpenFile::open`]
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new(
        name: &'static CStr,
        ops: &'static FileOps<F>,
        module: &'static ThisModule,
        device: Arc<F::Device>,
    ) -> impl PinInit<Self, Error> {
        try_init!(Self {
            registered: {
                reentry::may_wait()?;
                if is_opening() {
                    return Err(reentry::deadlock());
                }
                Deferred::pinned(RegisteredNode::new(name, ops, module, device), GFP_KERNEL)?
            },
        }? Error)
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
impl<F: OpenFile> Node<F> {
    /// Returns the minor number.
    pub(crate) fn minor(&self) -> u32 {
        // SAFETY: `misc` is registered by the type invariant, and the number does not change after
        // that.
        let minor = unsafe { (*self.registered.misc.get()).minor };
        minor.unsigned_abs()
    }
}

impl<F: OpenFile> RegisteredNode<F> {
    fn new(
        name: &'static CStr,
        ops: &'static FileOps<F>,
        module: &'static ThisModule,
        device: Arc<F::Device>,
    ) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            device,
            // Last, because the node can be opened before `misc_register()` returns.
            misc <- Opaque::try_ffi_init(move |slot: *mut bindings::miscdevice| {
                let table = ops.get(module)?;
                let misc = bindings::miscdevice {
                    // CAST: A small constant.
                    minor: bindings::MISC_DYNAMIC_MINOR as ffi::c_int,
                    name: name.as_char_ptr(),
                    fops: &table.0,
                    ..pin_init::zeroed()
                };
                // SAFETY: `slot` is valid for writes and pinned. It stays valid until `drop`
                // deregisters it; `table` is static.
                // INVARIANT: If this succeeds, `misc` is registered.
                unsafe {
                    slot.write(misc);
                    to_result(bindings::misc_register(slot))
                }
            }),
        }? Error)
    }

    /// # Safety
    ///
    /// Must be called by the core, for a file of a registered node of this type that is being
    /// opened.
    unsafe extern "C" fn open(
        _inode: *mut bindings::inode,
        file: *mut bindings::file,
    ) -> ffi::c_int {
        // SAFETY: `misc_open()` has set `private_data` to the `miscdevice` of a
        // `RegisteredNode<F>`. It holds `misc_mtx`, so that the node is not deregistered during
        // this call.
        let node = unsafe {
            let misc: *mut bindings::miscdevice = (*file).private_data.cast();
            &*kernel::container_of!(Opaque::cast_from(misc), Self, misc)
        };
        set_opening(true);
        let opened = F::open(node.device.clone());
        set_opening(false);
        match opened {
            Ok(state) => {
                // SAFETY: `file` is valid, and `private_data` belongs to the file operations from
                // here on.
                unsafe { (*file).private_data = state.into_foreign() };
                0
            }
            Err(error) => error.to_errno(),
        }
    }

    /// # Safety
    ///
    /// Must be called by the core, once, for a file for which `open` has succeeded.
    unsafe extern "C" fn release(
        _inode: *mut bindings::inode,
        file: *mut bindings::file,
    ) -> ffi::c_int {
        // SAFETY: `open` has set `private_data`; this is the last operation of the file.
        drop(unsafe { Pin::<KBox<F>>::from_foreign((*file).private_data) });
        0
    }

    /// # Safety
    ///
    /// Must be called by the core, for an open file of this type.
    unsafe extern "C" fn ioctl(
        file: *mut bindings::file,
        command: ffi::c_uint,
        argument: ffi::c_ulong,
    ) -> ffi::c_long {
        // SAFETY: `open` has set `private_data`, which is valid until `release`. The core does not
        // call that during another operation.
        let state = unsafe { Pin::<KBox<F>>::borrow((*file).private_data) };
        match state.get_ref().ioctl(command, argument) {
            Ok(value) => value,
            // CAST: An errno fits.
            Err(error) => error.to_errno() as ffi::c_long,
        }
    }

    /// # Safety
    ///
    /// Must be called by the core, for an open file of this type, with a buffer of user space.
    unsafe extern "C" fn read(
        file: *mut bindings::file,
        buffer: *mut ffi::c_char,
        count: usize,
        _position: *mut bindings::loff_t,
    ) -> isize {
        // SAFETY: `open` has set `private_data`, which is valid until `release`. `file` is valid,
        // and `f_flags` is one word, which `fcntl()` may change concurrently.
        let (state, flags) = unsafe {
            let state = Pin::<KBox<F>>::borrow((*file).private_data);
            (state, core::ptr::read_volatile(&raw const (*file).f_flags))
        };
        let mut to = UserSlice::new(UserPtr::from_ptr(buffer.cast()), count).writer();
        let wait = flags & bindings::O_NONBLOCK == 0;
        match state.get_ref().read(&mut to, wait) {
            Ok(bytes) => isize::try_from(bytes).unwrap_or(isize::MAX),
            // CAST: An errno fits.
            Err(error) => error.to_errno() as isize,
        }
    }

    /// # Safety
    ///
    /// Must be called by the core, for an open file of this type, with a poll table or null.
    unsafe extern "C" fn poll(
        file: *mut bindings::file,
        table: *mut bindings::poll_table_struct,
    ) -> bindings::__poll_t {
        // SAFETY: `open` has set `private_data`, which is valid until `release`.
        let state = unsafe { Pin::<KBox<F>>::borrow((*file).private_data) };
        // SAFETY: The caller has a reference to the file, and the file position is not used here.
        // The table is null or valid for this call.
        let waiter = unsafe {
            Poller {
                file: File::from_raw_file(file),
                table: PollTable::from_raw(table),
            }
        };
        state.get_ref().poll(&waiter).0
    }

    /// # Safety
    ///
    /// Must be called by the core, for an open file of this type, with a VMA that is being set up.
    unsafe extern "C" fn mmap(
        file: *mut bindings::file,
        vma: *mut bindings::vm_area_struct,
    ) -> ffi::c_int {
        // SAFETY: `open` has set `private_data`, which is valid until `release`.
        let state = unsafe { Pin::<KBox<F>>::borrow((*file).private_data) };
        // SAFETY: `vma` is being set up, by the function's requirements.
        let vma = unsafe { VmaNew::from_raw(vma) };
        let _within = ReentryGuard::enter();
        match state.get_ref().mmap(vma) {
            Ok(()) => 0,
            Err(error) => error.to_errno(),
        }
    }
}

#[pinned_drop]
impl<F: OpenFile> PinnedDrop for RegisteredNode<F> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: `misc` is registered, by the type invariant.
        unsafe { bindings::misc_deregister(self.misc.get()) };
    }
}
