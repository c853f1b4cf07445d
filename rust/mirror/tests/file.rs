// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: a device node whose callbacks call the library, and drop the node.

use super::{
    dropped::Counted,
    nosy::{
        call_all,
        Cargo,
        Nosy,
        Target, //
    },
    *, //
};
use crate::kernel::miscdevice::{
    map_file,
    FileOps,
    Node,
    OpenFile, //
};
use core::ptr::null_mut;
use kernel::{
    error::from_err_ptr,
    mm::virt::VmaNew,
    sync::SpinLock, //
};

static FILE_OPS: FileOps<File> = FileOps::new();

// SAFETY: NULL stands for built-in code. The test closes its files before it ends.
static BUILT_IN: ThisModule = unsafe { ThisModule::from_ptr(null_mut()) };

/// Behaviour of a node's callbacks.
#[pin_data]
pub(super) struct Gate {
    /// Objects that the next open drops.
    #[pin]
    cargo: SpinLock<Option<Cargo>>,
    /// Mirror and range that the next mmap uses.
    #[pin]
    target: SpinLock<Target>,
    called: Atomic<u32>,
    refused: Atomic<u32>,
    /// Error of a node that open tried to create, as an errno.
    made: Atomic<i32>,
    _counted: Counted,
}

impl Gate {
    pub(super) fn new(counted: Counted) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                cargo <- kernel::new_spinlock!(None),
                target <- kernel::new_spinlock!(None),
                called: Atomic::new(0),
                refused: Atomic::new(0),
                made: Atomic::new(0),
                _counted: counted,
            }),
            GFP_KERNEL,
        )
    }

    /// Registers a node with these callbacks. Only one can exist at a time.
    pub(super) fn node(self: &Arc<Self>) -> Result<Pin<KBox<Node<File>>>> {
        let node = Node::new(c"hmm_kunit", &FILE_OPS, &BUILT_IN, self.clone());
        KBox::pin_init(node, GFP_KERNEL)
    }

    /// Registers a node on the stack, and removes it. Allocates nothing if that is refused, so that
    /// it can be called in an interrupt.
    pub(super) fn try_node(self: &Arc<Self>) -> Result {
        let node = Node::new(c"hmm_kunit", &FILE_OPS, &BUILT_IN, self.clone());
        pin_init::stack_try_pin_init!(let node = node);
        node.map(|_| ())
    }

    /// Makes the next open drop `cargo`.
    pub(super) fn load(&self, cargo: Cargo) {
        *self.cargo.lock() = Some(cargo);
    }

    /// Makes the next mmap call functions of `mirror`.
    pub(super) fn arm(&self, mirror: &Arc<Mirror<Nosy>>, range: PageRange) {
        *self.target.lock() = Some((mirror.clone(), range));
    }

    /// Returns the number of calls that mmap has made, and how many of them were refused.
    pub(super) fn refused(&self) -> (u32, u32) {
        (self.called.load(Relaxed), self.refused.load(Relaxed))
    }

    /// Returns the error of a node that open tried to create.
    pub(super) fn made(&self) -> Option<Error> {
        match self.made.load(Relaxed) {
            0 => None,
            errno => Some(Error::from_errno(errno)),
        }
    }
}

/// An open file of the node.
pub(super) struct File(Arc<Gate>);

impl OpenFile for File {
    type Device = Gate;

    fn open(gate: Arc<Gate>) -> Result<Pin<KBox<Self>>> {
        let cargo = gate.cargo.lock().take();
        drop(cargo);
        if let Err(error) = gate.node() {
            gate.made.store(error.to_errno(), Relaxed);
        }
        Ok(KBox::pin(Self(gate), GFP_KERNEL)?)
    }

    fn ioctl(&self, _command: u32, _argument: usize) -> Result<isize> {
        Err(ENOTTY)
    }

    fn mmap(&self, _vma: &VmaNew) -> Result {
        let target = self.0.target.lock().take();
        if let Some((mirror, range)) = target {
            let (called, refused) = call_all(&mirror, range);
            self.0.called.store(called, Relaxed);
            self.0.refused.store(refused, Relaxed);
        }
        Err(ENODEV)
    }
}

/// A node that is opened like a process does it.
///
/// # Invariants
///
/// We have a reference of the file.
pub(super) struct OpenNode(*mut bindings::file);

impl OpenNode {
    /// Opens the node with the minor number `minor`.
    pub(super) fn new(minor: u32) -> Result<Self> {
        // SAFETY: The function has no preconditions.
        let file = unsafe { bindings::rust_hmm_kunit_open_misc(minor) };
        // INVARIANT: Opening the file has returned a reference to it.
        Ok(Self(from_err_ptr(file)?))
    }

    /// Maps a page of the file. Returns the error.
    pub(super) fn map(&self) -> Result<usize> {
        // SAFETY: `self.0` is an open file, to which we have a reference.
        unsafe { map_file(self.0, PAGE_SIZE, 0) }
    }
}

impl Drop for OpenNode {
    fn drop(&mut self) {
        // Release the file synchronously: its operations are in this module, which may be unloaded
        // after the tests.
        //
        // SAFETY: We have a reference to the file, and this is a kernel thread.
        unsafe { bindings::__fput_sync(self.0) };
    }
}
