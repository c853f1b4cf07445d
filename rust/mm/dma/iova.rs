// SPDX-License-Identifier: GPL-2.0

//! DMA mappings of the pages in a device page table.
//!
//! C header: [`include/linux/hmm-dma.h`](srctree/include/linux/hmm-dma.h)
//!
//! For each block of the address space that is in use, which one PMD maps, there is a *window*.
//! Behind an IOMMU it is one range of IOVA, in which each page is linked at its offset in the
//! block. Otherwise it is an array of DMA addresses. A window is created before the table lock is
//! taken, where sleeping is allowed. Pages are mapped under the table lock, which does not wait for
//! memory.
//!
//! A window has a *place* for each page of its block. Installing an entry makes a free place live.
//! Removing the entry makes it dying. The end of the next device flush unmaps the page and makes
//! the place free. A dying place holds the number of the flush that it waits for (a *tick*), so
//! that each flush unmaps exactly the pages that were removed before it. A dying place cannot be
//! used: an attempt to install an entry there returns `EBUSY`, and the caller retries.
//!
//! [`DmaUser::close`] is called when the device is closed or the table is freed. It unmaps all
//! places that are not free. Entries may be removed concurrently, which makes their places dying,
//! but never free.

use super::{
    DmaDevice,
    DmaUser, //
};
use crate::{
    kernel::lock_classes,
    mm::addr::{
        PageRange,
        PMD_SIZE, //
    }, //
};
use kernel::{
    page::PAGE_SHIFT,
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
            Atomic, //
        },
        Arc,
        Mutex,
        SpinLock, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

mod cursor;
mod window;

pub(crate) use cursor::WindowCursor;

use window::{
    DmaWindow,
    SLOT_FREE,
    SLOT_MAPPED,
    SLOT_NUMBER_SHIFT,
    SLOT_RETIRED,
    SLOT_STATE_MASK, //
};

/// Interval at which [`DmaUser::close`] polls the users of a window.
const WINDOW_POLL_INTERVAL: Delta = Delta::from_millis(1);

struct WindowTree {
    windows: RBTree<usize, Arc<DmaWindow>>,
    /// The device is closed: nothing is mapped, and nothing can be mapped.
    closed: bool,
}

/// The windows of one page table.
#[pin_data]
pub(crate) struct DmaWindows {
    device: Arc<DmaDevice>,
    /// Tick of the next flush.
    tick: Atomic<u32>,
    #[pin]
    tree: SpinLock<WindowTree>,
    /// Whether all pages were unmapped finally. Held meanwhile, by the table or the device,
    /// whichever is first.
    #[pin]
    closing: Mutex<bool>,
}

/// A window in use, which is not dropped or freed meanwhile.
struct WindowGuard<'w> {
    window: Arc<DmaWindow>,
    /// The device was not closed when the use began. It is not closed before the use ends.
    open: bool,
    _windows: &'w DmaWindows,
}

impl WindowGuard<'_> {
    /// Ends the use. Returns whether the process has unmapped the block, so that the caller drops
    /// the window if it is idle.
    ///
    /// This loads `gone` after it has decremented `users`, and [`DmaWindows::retire_windows`] loads
    /// `users` after it has set `gone`, with a full barrier in between on both sides. Therefore at
    /// least one of the two finds the window gone and idle.
    fn end(self) -> bool {
        let window = self.window.clone();
        drop(self);
        window.gone.load(Relaxed)
    }
}

impl Drop for WindowGuard<'_> {
    fn drop(&mut self) {
        // Release: `close` and `is_idle` see all that the user did. Full barrier: see `end`.
        self.window.users.fetch_sub(1, Full);
    }
}

fn block_of(addr: usize) -> usize {
    addr / PMD_SIZE
}

fn index_of(addr: usize) -> usize {
    addr % PMD_SIZE >> PAGE_SHIFT
}

impl DmaWindows {
    /// Returns the device for which the pages are mapped.
    pub(crate) fn device(&self) -> &DmaDevice {
        &self.device
    }

    /// Creates the windows of a table of `device`.
    ///
    /// # Errors
    ///
    /// * `ENOMEM`: memory allocation failed.
    /// * `ENODEV`: the device is closed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new(device: &Arc<DmaDevice>) -> Result<Arc<Self>> {
        let (name, key) = lock_classes::dma_windows();
        let (closing_name, closing_key) = lock_classes::dma_closing();
        let this = Arc::pin_init(
            pin_init!(Self {
                device: device.clone(),
                tick: Atomic::new(0),
                tree <- SpinLock::new(
                    WindowTree {
                        windows: RBTree::new(),
                        closed: false,
                    },
                    name,
                    key,
                ),
                closing <- Mutex::new(false, closing_name, closing_key),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        device.add(this.clone())?;
        Ok(this)
    }

    /// Creates the missing windows of `range`, so that its pages can be mapped.
    ///
    /// # Errors
    ///
    /// * `ENOMEM`: memory allocation failed.
    /// * `ENODEV`: the device is closed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn prepare(&self, range: PageRange) -> Result {
        for block in block_of(range.start())..=block_of(range.end() - 1) {
            if self.tree.lock().windows.get(&block).is_some() {
                continue;
            }
            let _open = self.device.begin()?;
            let window = DmaWindow::new(&self.device)?;
            let node = RBTreeNode::new(block, window, GFP_KERNEL_ACCOUNT)?;
            let mut tree = self.tree.lock();
            let superfluous = if tree.closed || tree.windows.get(&block).is_some() {
                Some(node)
            } else {
                tree.windows.insert(node)
            };
            drop(tree);
            drop(superfluous);
        }
        Ok(())
    }

    fn used(&self, tree: &WindowTree, window: &Arc<DmaWindow>) -> WindowGuard<'_> {
        // The lock of the tree, which is held, orders this with `closed` and with the check in
        // `drop_if_idle`.
        window.users.fetch_add(1, Acquire);
        WindowGuard {
            window: window.clone(),
            open: !tree.closed,
            _windows: self,
        }
    }

    /// Returns the window of `block`, if there is one.
    fn get(&self, block: usize) -> Option<WindowGuard<'_>> {
        let tree = self.tree.lock();
        Some(self.used(&tree, tree.windows.get(&block)?))
    }

    /// Returns the first window at or after `block`.
    fn next(&self, block: usize) -> Option<(usize, WindowGuard<'_>)> {
        let tree = self.tree.lock();
        let cursor = tree.windows.cursor_lower_bound(&block)?;
        let (block, window) = cursor.current();
        Some((*block, self.used(&tree, window)))
    }

    /// Returns a cursor for accesses to consecutive pages.
    pub(crate) fn cursor(&self) -> WindowCursor<'_> {
        WindowCursor::new(self)
    }

    /// Begins a flush: returns its tick, for which all places that became dying so far wait. The
    /// caller holds the table lock.
    pub(crate) fn tick(&self) -> u32 {
        // Relaxed: the table lock orders this with `retire`, which stores the tick in a place.
        self.tick.fetch_add(1, Relaxed)
    }

    /// Ends flush `tick`: unmaps the places in `range` that wait for it. Callable from any context
    /// but interrupts.
    pub(crate) fn unmap(&self, range: PageRange, tick: u32) {
        let last = block_of(range.end() - 1);
        let mut from = block_of(range.start());
        let mine = u64::from(tick) << SLOT_NUMBER_SHIFT | SLOT_RETIRED;
        while let Some((block, used)) = self.next(from).filter(|(block, _)| *block <= last) {
            let window = &used.window;
            // Relaxed: places that wait for this flush were counted under the table lock before the
            // tick was taken, and only this flush subtracts them. So the count is not 0 if there
            // are any.
            if window.dying.load(Relaxed) != 0 && used.open {
                let start = block * PMD_SIZE;
                let first = index_of(range.start().max(start));
                let end = index_of((range.end() - 1).min(start + (PMD_SIZE - 1))) + 1;
                let count = window.unmap(first, end, |place| place == mine);
                self.device.count_unmapped(count);
                // `is_idle` reads the count after that of the users, one of which is `used`. Thus
                // the end of `used` orders this, too.
                window.dying.fetch_sub(count, Release);
            }
            if used.end() {
                self.drop_if_idle(block);
            }
            match block.checked_add(1) {
                Some(next) => from = next,
                None => break,
            }
        }
    }

    /// Drops the windows of `range`, which the process has unmapped, as soon as they are idle. The
    /// caller holds the table lock.
    pub(crate) fn retire_windows(&self, range: PageRange) {
        let last = block_of(range.end() - 1);
        let mut from = block_of(range.start());
        while let Some((block, used)) = self.next(from).filter(|(block, _)| *block <= last) {
            // Full barrier between this and the load of `users`: see `WindowGuard::end`.
            used.window.gone.xchg(true, Full);
            drop(used);
            self.drop_if_idle(block);
            from = block + 1;
        }
    }

    fn drop_if_idle(&self, block: usize) {
        let mut tree = self.tree.lock();
        // Relaxed: see `WindowGuard::end`.
        let goes = |window: &Arc<DmaWindow>| window.gone.load(Relaxed) && window.is_idle();
        let node = if tree.windows.get(&block).is_some_and(goes) {
            tree.windows.remove_node(&block)
        } else {
            None
        };
        drop(tree);
        drop(node);
    }

    /// Returns the number of windows, for tests.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(crate) fn count(&self) -> usize {
        self.tree.lock().windows.iter().count()
    }
}

impl DmaUser for DmaWindows {
    fn close(&self) -> usize {
        let mut closed = self.closing.lock();
        if core::mem::replace(&mut *closed, true) {
            return 0;
        }
        self.tree.lock().closed = true;
        let mut left = 0;
        let mut from = 0;
        // Later users find `closed` set. Wait for users that began earlier, until the only one left
        // is this function.
        while let Some((block, used)) = self.next(from) {
            // Pairs with the decrement in `WindowGuard::drop`: the states of the places that users
            // have changed are visible below.
            while used.window.users.load(Acquire) != 1 {
                fsleep(WINDOW_POLL_INTERVAL);
            }
            // Read the states only: entries are removed concurrently, and later windows still need
            // their frame numbers. A place that is not free cannot become free, see
            // `DmaWindow::retire`.
            let window = &used.window;
            let mut frames = 0;
            for (index, place) in window.places.iter().enumerate() {
                // Users that map pages have left. A later user only makes a place dying, which is
                // the state of a mapped place, too.
                let state = place.load(Acquire) & SLOT_STATE_MASK;
                if state != SLOT_FREE {
                    left += usize::from(state == SLOT_MAPPED);
                    // SAFETY: The place is not free, thus mapped by the type invariant. Users that
                    // began before `closed` was set have ended, and later ones do not unmap.
                    unsafe { window.unlink(index, 1) };
                    frames += 1;
                }
            }
            self.device.count_unmapped(frames);
            window.free();
            drop(used);
            match block.checked_add(1) {
                Some(next) => from = next,
                None => break,
            }
        }
        left
    }
}

/// The table's reference of its windows. Dropping it unmaps all remaining pages.
pub(crate) struct OwnedWindows(pub(crate) Arc<DmaWindows>);

impl Drop for OwnedWindows {
    fn drop(&mut self) {
        // The table is freed and has no entries. Pages that the device unmapped when it was closed
        // are not counted.
        let left = DmaUser::close(&*self.0);
        if left != 0 {
            crate::alarm!(PagesStayMapped, "{left} pages of a table that is freed");
        }
        let this: Arc<dyn DmaUser> = self.0.clone();
        self.0.device.remove(&this);
    }
}
