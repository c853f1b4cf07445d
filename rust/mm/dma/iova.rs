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
    address::DmaAddress,
    DmaDevice,
    DmaUser, //
};
use crate::{
    bindings,
    inject::{
        fails,
        FailPoint, //
    },
    kernel::lock_classes,
    mm::addr::{
        PageRange,
        PMD_PAGES,
        PMD_SIZE, //
    }, //
};
use core::ptr::NonNull;
use kernel::{
    error::to_result,
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
            Atomic,
            AtomicFlag, //
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

const SLOT_FREE: u64 = 0;
const SLOT_MAPPED: u64 = 1;
const SLOT_RETIRED: u64 = 2;
/// Bits of a place that hold its state.
const SLOT_STATE_MASK: u64 = 3;
const SLOT_NUMBER_SHIFT: u32 = 2;

/// Interval at which [`DmaUser::close`] polls the users of a window.
const WINDOW_POLL_INTERVAL: Delta = Delta::from_millis(1);

/// DMA mappings of one block of [`PMD_SIZE`].
///
/// A window has the size of a block so that a huge leaf, which needs consecutive addresses, lies in
/// one window, and so that a fault or a migration step prepares one window only.
///
/// # Invariants
///
/// `raw` is 0, or a window of `device`, which is bound as long as that is so. Exactly the places
/// that are not free are mapped, if `raw` is not 0 and [`DmaUser::close`] is not unmapping the
/// window.
struct DmaWindow {
    device: NonNull<bindings::device>,
    raw: Atomic<usize>,
    /// State of each place, with the frame number (live) or the tick (dying).
    places: KVec<Atomic<u64>>,
    live: Atomic<usize>,
    dying: Atomic<usize>,
    /// Number of [`WindowGuard`]. Incremented under the lock of the tree.
    users: Atomic<usize>,
    /// The process has unmapped the block, so that the window can be dropped once it is idle.
    gone: AtomicFlag,
}

// SAFETY: The device may be used by any task. Accesses to a place on the C side are exclusive: a
// live place is changed under the table lock, a dying one only by the flush that it waits for.
unsafe impl Send for DmaWindow {}
// SAFETY: All fields that change are atomic, and accesses on the C side are exclusive as described
// above.
unsafe impl Sync for DmaWindow {}

impl DmaWindow {
    fn new(device: &DmaDevice) -> Result<Arc<Self>> {
        let mut places = KVec::with_capacity(PMD_PAGES, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..PMD_PAGES {
            places.push(Atomic::new(SLOT_FREE), GFP_KERNEL_ACCOUNT)?;
        }
        let mut window = Self {
            device: device.raw.device(),
            raw: Atomic::new(0),
            places,
            live: Atomic::new(0),
            dying: Atomic::new(0),
            users: Atomic::new(0),
            gone: AtomicFlag::new(false),
        };
        let mut error = 0;
        // SAFETY: The device is bound: the caller holds a `DmaDevice::begin()`, for which
        // `DmaDevice::close()` waits.
        let raw =
            unsafe { bindings::rust_hmm_dma_window_alloc(window.device.as_ptr(), &mut error) };
        to_result(error)?;
        // INVARIANT: All places are free, and nothing is mapped in the new window.
        window.raw = Atomic::new(raw as usize);
        Ok(Arc::new(window, GFP_KERNEL_ACCOUNT)?)
    }

    fn raw(&self) -> Option<NonNull<bindings::rust_hmm_dma_window>> {
        // The lock of the tree publishes a new window. Acquire: a task that finds 0 finds the
        // window closed and its pages unmapped; pairs with the exchange in `free`.
        NonNull::new(self.raw.load(Acquire) as *mut _)
    }

    fn is_idle(&self) -> bool {
        // Acquire: pairs with the decrement in `WindowGuard::drop`. It orders the other loads too,
        // because `live` and `dying` are changed by users only.
        self.users.load(Acquire) == 0
            && self.live.load(Relaxed) == 0
            // A closed window has no mappings, whatever its places say.
            && (self.dying.load(Acquire) == 0 || self.raw().is_none())
    }

    /// Unmaps the places of `first..end` for which `which` returns true, and makes them free.
    /// Returns their number.
    fn unmap(&self, first: usize, end: usize, which: impl Fn(u64) -> bool) -> usize {
        let mut total = 0;
        let mut index = first;
        // Places that wait for a flush were made dying under the table lock, under which the tick
        // of the flush was taken. So this task sees their states, whatever the ordering of the
        // load.
        let of = |index: usize| {
            self.places
                .get(index)
                .map_or(SLOT_FREE, |place| place.load(Acquire))
        };
        while index < end {
            let start = index;
            while index < end && which(of(index)) {
                index += 1;
            }
            let count = index - start;
            if count == 0 {
                index += 1;
                continue;
            }
            // SAFETY: The places are not free, thus mapped by the type invariant. They become free
            // below.
            unsafe { self.unlink(start, count) };
            for place in self.places.iter().skip(start).take(count) {
                // Release: pairs with the acquire in `map`. The next mapping at this place follows
                // the unmapping.
                // INVARIANT: The place was unmapped above.
                place.store(SLOT_FREE, Release);
            }
            total += count;
        }
        total
    }

    /// Unmaps `count` places from `start` on. Does not change their states.
    ///
    /// # Safety
    ///
    /// The places must be mapped, and must not be unmapped again.
    unsafe fn unlink(&self, start: usize, count: usize) {
        if let Some(raw) = self.raw() {
            // CAST: A window has `PMD_PAGES` places.
            // SAFETY: The places are mapped by the function's requirements, and the device is bound
            // by the type invariant.
            unsafe {
                bindings::rust_hmm_dma_window_unmap(
                    self.device.as_ptr(),
                    raw.as_ptr(),
                    start as u32,
                    count as u32,
                )
            };
        }
    }

    /// Makes the live `place` dying. Its page is unmapped after flush `tick`, or by
    /// [`DmaUser::close`]. The place must not become free before that.
    fn retire(&self, place: &Atomic<u64>, tick: u32) {
        // Increment `dying` before `live` is decremented, so that the window never looks idle in
        // between.
        self.dying.fetch_add(1, Relaxed);
        // The caller is a user of the window, so that `is_idle` orders the counts, which are
        // relaxed. The state is read with the table lock held, by the flush that it waits for, or
        // by `close` after the users have left. All of these are ordered after the store without
        // its release.
        place.store(u64::from(tick) << SLOT_NUMBER_SHIFT | SLOT_RETIRED, Release);
        self.live.fetch_sub(1, Relaxed);
    }

    /// Frees the window on the C side. No task may use it.
    fn free(&self) {
        // The exchange makes this the only call that frees `raw`. The caller has waited for the
        // users with acquire ordering, or has the last reference, so that no access is left to be
        // ordered.
        if let Some(raw) = NonNull::new(self.raw.xchg(0, Full) as *mut _) {
            // SAFETY: `raw` is a window of the device, by the type invariant. Nothing is mapped in
            // it, and the exchange makes this the only call for it.
            unsafe { bindings::rust_hmm_dma_window_free(self.device.as_ptr(), raw.as_ptr()) };
        }
    }
}

impl Drop for DmaWindow {
    fn drop(&mut self) {
        self.free();
    }
}

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
        WindowCursor {
            windows: self,
            block: usize::MAX,
            used: None,
        }
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

/// Accesses places of consecutive pages, and looks up each window only once. The caller holds the
/// table lock.
pub(crate) struct WindowCursor<'w> {
    windows: &'w DmaWindows,
    block: usize,
    used: Option<WindowGuard<'w>>,
}

impl WindowCursor<'_> {
    fn place(&mut self, addr: usize) -> Option<(&WindowGuard<'_>, &Atomic<u64>)> {
        let block = block_of(addr);
        if self.used.is_none() || self.block != block {
            self.used = None;
            self.used = self.windows.get(block);
            self.block = block;
        }
        let used = self.used.as_ref()?;
        Some((used, used.window.places.get(index_of(addr))?))
    }

    /// Returns the page frame that is mapped for `addr`.
    pub(crate) fn frame(&mut self, addr: usize) -> Option<usize> {
        let (_, place) = self.place(addr)?;
        // The table lock, which is held, orders this load after the store of the frame.
        let place = place.load(Acquire);
        // CAST: Both have 64 bits.
        (place & SLOT_STATE_MASK == SLOT_MAPPED).then_some((place >> SLOT_NUMBER_SHIFT) as usize)
    }

    /// Maps `frame` for `addr`, unless it is mapped already. Returns its address, and whether the
    /// mapping is new. The frame must be one that the CPU has mapped, or that a migration holds.
    ///
    /// # Errors
    ///
    /// * `EBUSY`: another frame is mapped, the last one is not unmapped yet, or there is no window.
    /// * `ENOMEM`: the page could not be mapped.
    /// * `ENODEV`: the device is closed.
    pub(crate) fn map(&mut self, addr: usize, frame: usize) -> Result<(DmaAddress, bool)> {
        let windows = self.windows;
        let device = &windows.device;
        let (used, place) = self.place(addr).ok_or(EBUSY)?;
        let raw = used.window.raw().filter(|_| used.open).ok_or(ENODEV)?;
        // Pairs with the release in `unmap`, which a flush calls without the table lock: a free
        // place was unmapped before it is mapped again.
        let now = place.load(Acquire);
        // CAST: Both have 64 bits.
        let mapped = (frame as u64) << SLOT_NUMBER_SHIFT | SLOT_MAPPED;
        if now != SLOT_FREE && now != mapped {
            return Err(EBUSY);
        }
        let mut address = 0;
        let fresh = now == SLOT_FREE;
        // CAST: The index is below `PMD_PAGES`.
        // SAFETY: The window belongs to the device, which is bound because `used.open` is true. The
        // place is free, or mapped for this frame. The caller installs the frame in the table, and
        // keeps it allocated until the entry is flushed.
        to_result(unsafe {
            bindings::rust_hmm_dma_window_map(
                used.window.device.as_ptr(),
                raw.as_ptr(),
                index_of(addr) as u32,
                frame,
                fresh,
                fresh && fails(FailPoint::Dma),
                &mut address,
            )
        })?;
        if fresh {
            // INVARIANT: The place was mapped above.
            // Read with the table lock held, or by `close`, which waits for the users. Both order
            // it.
            place.store(mapped, Release);
            used.window.live.fetch_add(1, Relaxed);
            used.window.gone.store(false, Relaxed);
            device.count_mapped(1);
        }
        Ok((DmaAddress::new(address), fresh))
    }

    /// Makes the place of `addr` dying, because its entry is about to be removed. The page is
    /// unmapped at the end of the next flush.
    pub(crate) fn retire(&mut self, addr: usize) {
        let tick = self.windows.tick.load(Relaxed);
        if let Some((used, place)) = self.place(addr) {
            // The place became live under the table lock, which is held.
            if place.load(Acquire) & SLOT_STATE_MASK != SLOT_MAPPED {
                return;
            }
            used.window.retire(place, tick);
        }
    }

    /// Unmaps a page immediately. It was just mapped, and no entry refers to it yet.
    pub(crate) fn release(&mut self, addr: usize) {
        let windows = self.windows;
        if let Some((used, place)) = self.place(addr) {
            // As in `retire`: the table lock is held.
            if place.load(Acquire) & SLOT_STATE_MASK != SLOT_MAPPED {
                return;
            }
            if !used.open {
                return used.window.retire(place, windows.tick.load(Relaxed));
            }
            let index = index_of(addr);
            let count = used.window.unmap(index, index + 1, |_| true);
            windows.device.count_unmapped(count);
            used.window.live.fetch_sub(1, Relaxed);
        }
    }
}
