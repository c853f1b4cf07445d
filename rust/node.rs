// SPDX-License-Identifier: GPL-2.0

//! A character device through which a process reaches a driver.
//!
//! [`kernel::miscdevice`] would do, but on 7.2 it sets no owner, so that the module could be
//! removed while a file is open; and it does not tell `open` which of several devices is meant.
//!
//! C header: [`include/linux/miscdevice.h`](srctree/include/linux/miscdevice.h)

use crate::{
    bindings,
    deferred::{
        Deferred,
        DropWaits, //
    },
    mm::anon,
    within::{
        self,
        Within, //
    },
};
use core::{marker::PhantomData, ptr::NonNull};
use kernel::{
    error::to_result,
    ffi,
    fs::File,
    mm::virt::VmaNew,
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        poll::{PollCondVar, PollTable},
        Arc, SetOnce,
    },
    types::{ForeignOwnable, Opaque},
    uaccess::{UserSlice, UserSliceWriter}, //
};

/// What a driver does for one open file.
pub trait OpenFile: Send + Sync + Sized + 'static {
    /// What all files of one node share.
    type Device: Send + Sync + 'static;

    /// Opens the node for the current process.
    fn open(device: Arc<Self::Device>) -> Result<Pin<KBox<Self>>>;

    /// Serves an ioctl. Context: any number of threads, also of other processes that inherited the
    /// file or were sent it.
    fn ioctl(&self, command: u32, argument: usize) -> Result<isize>;

    /// Serves a read: writes to `to`, and returns how many bytes. With `wait` it may wait for some. By default
    /// `EINVAL`. Context: as [`Self::ioctl`].
    fn read(&self, to: &mut UserSliceWriter, wait: bool) -> Result<usize> {
        let _ = (to, wait);
        Err(EINVAL)
    }

    /// What can be done without waiting; who waits for that is to be [added](Waiter::add) before it is looked at. By
    /// default everything. Context: as [`Self::ioctl`]; also called while others wait, so must not wait itself.
    fn poll(&self, waiter: &Waiter<'_>) -> Ready {
        let _ = waiter;
        Ready::EVERYTHING
    }

    /// Serves an mmap. By default it is refused with `ENODEV`. Context: the mmap lock is held for
    /// writing, so that functions of this library that wait fail with `EDEADLK`.
    fn mmap(&self, vma: &VmaNew) -> Result {
        let _ = vma;
        Err(ENODEV)
    }
}

/// What can be done with a file without waiting, as `poll` tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready(u32);

impl Ready {
    // As in include/uapi/linux/eventpoll.h, whose macros the bindings lack.
    const EPOLLIN: u32 = 0x1;
    const EPOLLPRI: u32 = 0x2;
    const EPOLLOUT: u32 = 0x4;
    const EPOLLERR: u32 = 0x8;
    const EPOLLRDNORM: u32 = 0x40;
    const EPOLLWRNORM: u32 = 0x100;

    /// Nothing.
    pub const NOTHING: Self = Self(0);
    /// Reading.
    pub const READ: Self = Self(Self::EPOLLIN | Self::EPOLLRDNORM);
    /// Something other than data: what, the driver says.
    pub const PRIORITY: Self = Self(Self::EPOLLPRI);
    /// Reading and writing.
    pub const EVERYTHING: Self = Self(Self::READ.0 | Self::EPOLLOUT | Self::EPOLLWRNORM);
    /// Nothing ever: it would fail.
    pub const ERROR: Self = Self(Self::EPOLLERR);
}

impl core::ops::BitOr for Ready {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Who polls a file, and may be told when something has changed.
pub struct Waiter<'p> {
    file: &'p File,
    table: PollTable<'p>,
}

impl Waiter<'_> {
    /// Adds it to those whom notifications of `changed` wake.
    pub fn add(&self, changed: &PollCondVar) {
        self.table.register_wait(self.file, changed);
    }
}

/// File operations, in a static of the driver's module: they are used until the last file is
/// closed, whatever became of the node.
pub struct FileOps<F: OpenFile> {
    table: SetOnce<Table>,
    _file: PhantomData<fn() -> F>,
}

struct Table(bindings::file_operations);

// SAFETY: The table is only read.
unsafe impl Send for Table {}
// SAFETY: As above.
unsafe impl Sync for Table {}

impl<F: OpenFile> FileOps<F> {
    /// To be put into a static.
    #[expect(clippy::new_without_default, reason = "only of use in a static")]
    pub const fn new() -> Self {
        Self {
            table: SetOnce::new(),
            _file: PhantomData,
        }
    }

    fn get(&'static self, module: &'static ThisModule) -> Result<&'static Table> {
        self.table.populate(Table(bindings::file_operations {
            owner: module.as_ptr(),
            open: Some(Registered::<F>::open),
            release: Some(Registered::<F>::release),
            unlocked_ioctl: Some(Registered::<F>::ioctl),
            read: Some(Registered::<F>::read),
            poll: Some(Registered::<F>::poll),
            mmap: Some(Registered::<F>::mmap),
            // Aligned for huge pages, where there are.
            #[cfg(CONFIG_TRANSPARENT_HUGEPAGE)]
            get_unmapped_area: Some(bindings::thp_get_unmapped_area),
            ..pin_init::zeroed()
        }));
        self.table.as_ref().ok_or(EBUSY)
    }
}

/// The task in whose [`OpenFile::open`] a file of a node is being opened, by its address; 0 if none.
///
/// There is at most one: the kernel holds `misc_mtx` meanwhile, under which nodes are registered
/// and removed.
static OPENING: Atomic<usize> = Atomic::new(0);

/// Whether the current task is within [`OpenFile::open`], so that it must not wait for `misc_mtx`.
// Not inlined: there is one task in all modules.
#[inline(never)]
fn is_opening() -> bool {
    OPENING.load(Relaxed) == within::current_task()
}

/// Notes whether the current task is within [`OpenFile::open`]. Context: `misc_mtx` is held.
#[inline(never)]
fn set_opening(is_opening: bool) {
    let task = if is_opening {
        within::current_task()
    } else {
        0
    };
    OPENING.store(task, Relaxed);
}

/// A registered node below `/dev`, readable and writable by root.
///
/// Dropping it removes the node; files that are open stay usable.
///
/// # Context
///
/// The drop may sleep. In a callback, in atomic context and in [`OpenFile::open`] it returns at
/// once, and a worker removes the node.
pub struct Node<F: OpenFile> {
    registered: Deferred<Registered<F>>,
}

/// The registration.
///
/// # Invariants
///
/// `misc` is registered.
#[pin_data(PinnedDrop)]
struct Registered<F: OpenFile> {
    #[pin]
    misc: Opaque<bindings::miscdevice>,
    device: Arc<F::Device>,
}

// SAFETY: A registration may be used and dropped anywhere; the device is `Send + Sync`.
unsafe impl<F: OpenFile> Send for Registered<F> {}
// SAFETY: As above.
unsafe impl<F: OpenFile> Sync for Registered<F> {}

impl<F: OpenFile> DropWaits for Registered<F> {
    fn waits_for_current(&self) -> bool {
        is_opening()
    }
}

impl<F: OpenFile> Node<F> {
    /// Registers `/dev/NAME`. The module cannot be removed while a file is open.
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
                within::may_wait()?;
                if is_opening() {
                    return Err(within::deadlock());
                }
                Deferred::pinned(Registered::new(name, ops, module, device), GFP_KERNEL)?
            },
        }? Error)
    }
}

#[cfg(CONFIG_KUNIT = "y")]
impl<F: OpenFile> Node<F> {
    /// The minor number.
    pub(crate) fn minor(&self) -> u32 {
        // SAFETY: Registered, after which the number does not change.
        let minor = unsafe { (*self.registered.misc.get()).minor };
        minor.unsigned_abs()
    }
}

impl<F: OpenFile> Registered<F> {
    fn new(
        name: &'static CStr,
        ops: &'static FileOps<F>,
        module: &'static ThisModule,
        device: Arc<F::Device>,
    ) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            device,
            // Last: it can be opened before the registration returns.
            misc <- Opaque::try_ffi_init(move |slot: *mut bindings::miscdevice| {
                let table = ops.get(module)?;
                let misc = bindings::miscdevice {
                    // CAST: A small constant.
                    minor: bindings::MISC_DYNAMIC_MINOR as ffi::c_int,
                    name: name.as_char_ptr(),
                    fops: &table.0,
                    ..pin_init::zeroed()
                };
                // SAFETY: `slot` may be written; it is pinned, and stays until it is deregistered.
                // INVARIANT: Registered if this succeeds.
                unsafe {
                    slot.write(misc);
                    to_result(bindings::misc_register(slot))
                }
            }),
        }? Error)
    }

    /// # Safety
    ///
    /// Called by the core for a file of a registered node of this type that is being opened.
    unsafe extern "C" fn open(
        _inode: *mut bindings::inode,
        file: *mut bindings::file,
    ) -> ffi::c_int {
        // SAFETY: `misc_open` has put the `miscdevice` there, and keeps it registered meanwhile.
        let node = unsafe {
            let misc: *mut bindings::miscdevice = (*file).private_data.cast();
            &*kernel::container_of!(Opaque::cast_from(misc), Self, misc)
        };
        set_opening(true);
        let opened = F::open(node.device.clone());
        set_opening(false);
        match opened {
            Ok(state) => {
                // SAFETY: An open file's private data is ours.
                unsafe { (*file).private_data = state.into_foreign() };
                0
            }
            Err(error) => error.to_errno(),
        }
    }

    /// # Safety
    ///
    /// Called by the core once, for a file that `open` succeeded for.
    unsafe extern "C" fn release(
        _inode: *mut bindings::inode,
        file: *mut bindings::file,
    ) -> ffi::c_int {
        // SAFETY: Put there by `open`, and not used any more.
        drop(unsafe { Pin::<KBox<F>>::from_foreign((*file).private_data) });
        0
    }

    /// # Safety
    ///
    /// Called by the core for an open file of this type.
    unsafe extern "C" fn ioctl(
        file: *mut bindings::file,
        command: ffi::c_uint,
        argument: ffi::c_ulong,
    ) -> ffi::c_long {
        // SAFETY: Put there by `open`; it stays until `release`.
        let state = unsafe { Pin::<KBox<F>>::borrow((*file).private_data) };
        match state.get_ref().ioctl(command, argument) {
            Ok(value) => value,
            // CAST: An errno fits.
            Err(error) => error.to_errno() as ffi::c_long,
        }
    }

    /// # Safety
    ///
    /// Called by the core for an open file of this type, with a buffer of user space.
    unsafe extern "C" fn read(
        file: *mut bindings::file,
        buffer: *mut ffi::c_char,
        count: usize,
        _position: *mut bindings::loff_t,
    ) -> isize {
        // SAFETY: As in `ioctl`; flags are a word that may be read at any time.
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
    /// Called by the core for an open file of this type, with a table or null.
    unsafe extern "C" fn poll(
        file: *mut bindings::file,
        table: *mut bindings::poll_table_struct,
    ) -> bindings::__poll_t {
        // SAFETY: As in `ioctl`.
        let state = unsafe { Pin::<KBox<F>>::borrow((*file).private_data) };
        // SAFETY: The caller has a reference of the file, and no position of it is used here. The table is valid or
        // null for this call.
        let waiter = unsafe {
            Waiter {
                file: File::from_raw_file(file),
                table: PollTable::from_raw(table),
            }
        };
        state.get_ref().poll(&waiter).0
    }

    /// # Safety
    ///
    /// Called by the core for an open file of this type, with a mapping being set up.
    unsafe extern "C" fn mmap(
        file: *mut bindings::file,
        vma: *mut bindings::vm_area_struct,
    ) -> ffi::c_int {
        // SAFETY: As in `ioctl`.
        let state = unsafe { Pin::<KBox<F>>::borrow((*file).private_data) };
        // SAFETY: By the function's requirements.
        let vma = unsafe { VmaNew::from_raw(vma) };
        let _within = Within::enter();
        match state.get_ref().mmap(vma) {
            Ok(()) => 0,
            Err(error) => error.to_errno(),
        }
    }
}

/// A file of one of these nodes, with a reference of ours.
///
/// # Invariants
///
/// `open` has put its state there.
struct Held<F: OpenFile> {
    file: NonNull<bindings::file>,
    _file: PhantomData<F>,
}

impl<F: OpenFile> Held<F> {
    fn state(&self) -> &F {
        // SAFETY: By the type invariant; it stays until `release`, which does not come before the
        // reference is gone.
        let state = unsafe { Pin::<KBox<F>>::borrow((*self.file.as_ptr()).private_data) };
        state.get_ref()
    }
}

impl<F: OpenFile> Drop for Held<F> {
    fn drop(&mut self) {
        // SAFETY: `fget` has taken the reference.
        unsafe { bindings::fput(self.file.as_ptr()) };
    }
}

impl<F: OpenFile> FileOps<F> {
    fn hold(&'static self, fd: i32) -> Result<Held<F>> {
        let table = self.table.as_ref().ok_or(EBADF)?;
        // SAFETY: No preconditions.
        let file = unsafe { bindings::fget(u32::try_from(fd).map_err(|_| EBADF)?) };
        let file = NonNull::new(file).ok_or(EBADF)?;
        // SAFETY: We have a reference of the file.
        let ours = core::ptr::eq(unsafe { (*file.as_ptr()).f_op }, &table.0);
        if !ours {
            // SAFETY: `fget` has taken the reference.
            unsafe { bindings::fput(file.as_ptr()) };
            return Err(EBADF);
        }
        // INVARIANT: Its operations are these.
        Ok(Held {
            file,
            _file: PhantomData,
        })
    }

    /// Calls `f` with the open file that descriptor `fd` of the current process names.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is none, or it is not one of these. Context: may sleep.
    pub fn with<R>(&'static self, fd: i32, f: impl FnOnce(&F) -> R) -> Result<R> {
        let held = self.hold(fd)?;
        Ok(f(held.state()))
    }

    /// Maps `bytes` at `offset` of the file into the current process, readable and writable, private.
    /// Returns the address.
    ///
    /// # Errors
    ///
    /// As [`Self::with`], and those of [`OpenFile::mmap`]. Context: may sleep; takes the mmap lock.
    pub fn map(&'static self, fd: i32, bytes: usize, offset: usize) -> Result<usize> {
        let held = self.hold(fd)?;
        // SAFETY: An open file, of which we have a reference.
        unsafe { anon::map_file(held.file.as_ptr(), bytes, offset) }
    }
}

#[pinned_drop]
impl<F: OpenFile> PinnedDrop for Registered<F> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Registered by the type invariant.
        unsafe { bindings::misc_deregister(self.misc.get()) };
    }
}
