// SPDX-License-Identifier: GPL-2.0

//! The pages that a device page table names, as DMA addresses.
//!
//! C header: [`include/linux/hmm-dma.h`](srctree/include/linux/hmm-dma.h)
//!
//! For each 2 MiB of the address space there is a *window*: behind an IOMMU one range of IOVA, into which the pages are
//! linked where they lie in the 2 MiB; elsewhere 512 addresses. It is made before it is needed, where one may sleep;
//! pages are mapped under the table lock, which needs no memory that one would have to wait for.
//!
//! A place of a window goes from free to live when an entry is installed, to dying when the entry goes, and back to free
//! when the device's flush is over: then the page is unmapped. Dying places bear the number of the flush that they
//! wait for (a *tick*), so that each flush unmaps what was removed before it, and nothing else. A place that is dying
//! cannot be used: who wants to install there tries again.
//!
//! [`Maps::close`], when the device or the table goes, unmaps all places that are not free. Entries
//! may be removed concurrently: that makes a place dying, and never free.

use super::{address::DmaAddress, DmaDevice, Maps};
use crate::{
    bindings,
    inject::{fails, Point},
    locks,
    mm::addr::{PageRange, PMD_PAGES, PMD_SIZE}, //
};
use core::ptr::NonNull;
use kernel::{
    error::to_result,
    page::PAGE_SHIFT,
    prelude::*,
    rbtree::{RBTree, RBTreeNode},
    sync::{
        atomic::{
            ordering::{Acquire, Full, Relaxed, Release},
            Atomic, AtomicFlag,
        },
        Arc, Mutex, SpinLock,
    },
    time::{delay::fsleep, Delta},
};

const FREE: u64 = 0;
const LIVE: u64 = 1;
const DYING: u64 = 2;
/// Bits of a place that say which of these it is.
const STATE: u64 = 3;
const SHIFT: u32 = 2;

/// Time between two looks at whether a window is in use.
const PAUSE: Delta = Delta::from_millis(1);

/// # Invariants
///
/// `raw` is 0, or a window of `device`, which is bound as long as that is so. Exactly the places that are not free are
/// mapped, if `raw` is not 0 and [`Maps::close`] is not unmapping the window.
struct Window {
    device: NonNull<bindings::device>,
    raw: Atomic<usize>,
    /// What a place is, and the frame number or the tick.
    places: KVec<Atomic<u64>>,
    live: Atomic<usize>,
    dying: Atomic<usize>,
    /// Who has it in hand. Raised under the lock of the tree.
    users: Atomic<usize>,
    /// What it was for is not mapped any more.
    gone: AtomicFlag,
}

// SAFETY: The device may be used anywhere, and the C side's parts are used by one at a time: places by who holds the
// table lock, or by the flush that they wait for.
unsafe impl Send for Window {}
// SAFETY: As above.
unsafe impl Sync for Window {}

impl Window {
    fn new(device: &DmaDevice) -> Result<Arc<Self>> {
        let mut places = KVec::with_capacity(PMD_PAGES, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..PMD_PAGES {
            places.push(Atomic::new(FREE), GFP_KERNEL_ACCOUNT)?;
        }
        let mut window = Self {
            device: device.raw.device,
            raw: Atomic::new(0),
            places,
            live: Atomic::new(0),
            dying: Atomic::new(0),
            users: Atomic::new(0),
            gone: AtomicFlag::new(false),
        };
        let mut error = 0;
        // SAFETY: The device is bound: whoever closes it waits for us, see `DmaDevice::begin`.
        let raw =
            unsafe { bindings::rust_hmm_dma_window_alloc(window.device.as_ptr(), &mut error) };
        to_result(error)?;
        // INVARIANT: Nothing is mapped.
        window.raw = Atomic::new(raw as usize);
        Ok(Arc::new(window, GFP_KERNEL_ACCOUNT)?)
    }

    fn raw(&self) -> Option<NonNull<bindings::rust_hmm_dma_window>> {
        NonNull::new(self.raw.load(Acquire) as *mut _)
    }

    fn is_idle(&self) -> bool {
        self.users.load(Acquire) == 0
            && self.live.load(Relaxed) == 0
            // Of a window that was closed, nothing is mapped, whatever its places say.
            && (self.dying.load(Acquire) == 0 || self.raw().is_none())
    }

    /// Unmaps the places from `first` to before `end` for which `which` says so. Returns how many.
    fn unmap(&self, first: usize, end: usize, which: impl Fn(u64) -> bool) -> usize {
        let mut total = 0;
        let mut index = first;
        let of = |index: usize| {
            self.places
                .get(index)
                .map_or(FREE, |place| place.load(Acquire))
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
            // SAFETY: By the type invariant they are mapped; they become free below.
            unsafe { self.unlink(start, count) };
            for place in self.places.iter().skip(start).take(count) {
                // INVARIANT: Just unmapped.
                place.store(FREE, Release);
            }
            total += count;
        }
        total
    }

    /// Unmaps `count` places from `start` on, and leaves their states to the caller.
    ///
    /// # Safety
    ///
    /// They must be mapped, and nobody may unmap them again.
    unsafe fn unlink(&self, start: usize, count: usize) {
        if let Some(raw) = self.raw() {
            // CAST: At most 512.
            // SAFETY: Mapped by the function's requirements; the device is bound by the type
            // invariant.
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

    /// Makes `place`, which is live, dying. Its page is unmapped after the flush `tick`, or by
    /// [`Maps::close`]; the place must not become free before.
    fn retire(&self, place: &Atomic<u64>, tick: u32) {
        // First the count, which keeps the window from being dropped.
        self.dying.fetch_add(1, Relaxed);
        place.store(u64::from(tick) << SHIFT | DYING, Release);
        self.live.fetch_sub(1, Relaxed);
    }

    /// Frees the C side. Nobody uses it.
    fn free(&self) {
        if let Some(raw) = NonNull::new(self.raw.xchg(0, Full) as *mut _) {
            // SAFETY: A window of the device, by the type invariant, of which nothing is mapped.
            unsafe { bindings::rust_hmm_dma_window_free(self.device.as_ptr(), raw.as_ptr()) };
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.free();
    }
}

struct Tree {
    windows: RBTree<usize, Arc<Window>>,
    /// The device is gone: nothing is mapped any more.
    closed: bool,
}

/// The windows of one page table.
#[pin_data]
pub(crate) struct Windows {
    device: Arc<DmaDevice>,
    /// The tick of the next flush.
    tick: Atomic<u32>,
    #[pin]
    tree: SpinLock<Tree>,
    /// Whether all was unmapped for good. Held while that is done, by the table or the device, whichever is first.
    #[pin]
    closing: Mutex<bool>,
}

/// A window in hand: it stays.
struct Used<'w> {
    window: Arc<Window>,
    /// Whether the device was there when this began; then it still is.
    open: bool,
    _windows: &'w Windows,
}

impl Used<'_> {
    /// Ends the use. Returns whether the range was unmapped by the process, so that an idle window
    /// can be dropped.
    ///
    /// This loads `gone` after it has decremented `users`, and [`Windows::forget`] loads `users`
    /// after it has set `gone`, with a full barrier in between on both sides: at least one of the
    /// two finds the window gone and idle.
    fn end(self) -> bool {
        let window = self.window.clone();
        drop(self);
        window.gone.load(Relaxed)
    }
}

impl Drop for Used<'_> {
    fn drop(&mut self) {
        self.window.users.fetch_sub(1, Full);
    }
}

fn block_of(addr: usize) -> usize {
    addr / PMD_SIZE
}

fn index_of(addr: usize) -> usize {
    addr % PMD_SIZE >> PAGE_SHIFT
}

impl Windows {
    /// The device for which pages are mapped.
    pub(crate) fn device(&self) -> &DmaDevice {
        &self.device
    }

    /// For a table of `device`. Context: may sleep. `ENOMEM`; `ENODEV` if it is gone.
    pub(crate) fn new(device: &Arc<DmaDevice>) -> Result<Arc<Self>> {
        let (name, key) = locks::dma_windows();
        let (closing_name, closing_key) = locks::dma_closing();
        let this = Arc::pin_init(
            pin_init!(Self {
                device: device.clone(),
                tick: Atomic::new(0),
                tree <- SpinLock::new(Tree { windows: RBTree::new(), closed: false }, name, key),
                closing <- Mutex::new(false, closing_name, closing_key),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        device.add(this.clone())?;
        Ok(this)
    }

    /// Sees to it that pages of `range` can be mapped. Context: may sleep. `ENOMEM`; `ENODEV`.
    pub(crate) fn prepare(&self, range: PageRange) -> Result {
        for block in block_of(range.start())..=block_of(range.end() - 1) {
            if self.tree.lock().windows.get(&block).is_some() {
                continue;
            }
            let _open = self.device.begin()?;
            let window = Window::new(&self.device)?;
            let node = RBTreeNode::new(block, window, GFP_KERNEL_ACCOUNT)?;
            let mut tree = self.tree.lock();
            let superfluous = match tree.closed || tree.windows.get(&block).is_some() {
                true => Some(node),
                false => tree.windows.insert(node),
            };
            drop(tree);
            drop(superfluous);
        }
        Ok(())
    }

    fn used(&self, tree: &Tree, window: &Arc<Window>) -> Used<'_> {
        window.users.fetch_add(1, Acquire);
        Used {
            window: window.clone(),
            open: !tree.closed,
            _windows: self,
        }
    }

    /// The window for `block`.
    fn get(&self, block: usize) -> Option<Used<'_>> {
        let tree = self.tree.lock();
        Some(self.used(&tree, tree.windows.get(&block)?))
    }

    /// The first window from `block` on.
    fn next(&self, block: usize) -> Option<(usize, Used<'_>)> {
        let tree = self.tree.lock();
        let cursor = tree.windows.cursor_lower_bound(&block)?;
        let (block, window) = cursor.current();
        Some((*block, self.used(&tree, window)))
    }

    /// Looks at some pages in a row.
    pub(crate) fn cursor(&self) -> Cursor<'_> {
        Cursor {
            windows: self,
            block: usize::MAX,
            used: None,
        }
    }

    /// A flush begins: what was retired before waits for it. Context: the table lock is held.
    pub(crate) fn tick(&self) -> u32 {
        self.tick.fetch_add(1, Relaxed)
    }

    /// The flush `tick` is over: unmaps what has waited for it in `range`. Context: any that does not interrupt.
    pub(crate) fn unmap(&self, range: PageRange, tick: u32) {
        let last = block_of(range.end() - 1);
        let mut from = block_of(range.start());
        let mine = u64::from(tick) << SHIFT | DYING;
        while let Some((block, used)) = self.next(from).filter(|(block, _)| *block <= last) {
            let window = &used.window;
            if window.dying.load(Relaxed) != 0 && used.open {
                let start = block * PMD_SIZE;
                let first = index_of(range.start().max(start));
                let end = index_of((range.end() - 1).min(start + (PMD_SIZE - 1))) + 1;
                let count = window.unmap(first, end, |place| place == mine);
                self.device.count_unmapped(count);
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

    /// What `range` was is not mapped any more: its windows may go, when nothing is left in them. Context: the table
    /// lock is held.
    pub(crate) fn forget(&self, range: PageRange) {
        let last = block_of(range.end() - 1);
        let mut from = block_of(range.start());
        while let Some((block, used)) = self.next(from).filter(|(block, _)| *block <= last) {
            used.window.gone.xchg(true, Full);
            drop(used);
            self.drop_if_idle(block);
            from = block + 1;
        }
    }

    fn drop_if_idle(&self, block: usize) {
        let mut tree = self.tree.lock();
        let goes = |window: &Arc<Window>| window.gone.load(Relaxed) && window.is_idle();
        let node = match tree.windows.get(&block).is_some_and(goes) {
            true => tree.windows.remove_node(&block),
            false => None,
        };
        drop(tree);
        drop(node);
    }

    /// Windows that there are, for tests.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(crate) fn count(&self) -> usize {
        self.tree.lock().windows.iter().count()
    }
}

impl Maps for Windows {
    fn close(&self) -> usize {
        let mut closed = self.closing.lock();
        if core::mem::replace(&mut *closed, true) {
            return 0;
        }
        self.tree.lock().closed = true;
        let mut left = 0;
        let mut from = 0;
        // Those who look now see that it is closed; those who began before are waited for.
        while let Some((block, used)) = self.next(from) {
            while used.window.users.load(Acquire) != 1 {
                fsleep(PAUSE);
            }
            // The states are only read: entries are removed concurrently, and later ones still need
            // the frame numbers. A place that is not free stays so, see `Window::retire`.
            let window = &used.window;
            let mut frames = 0;
            for (index, place) in window.places.iter().enumerate() {
                let state = place.load(Acquire) & STATE;
                if state != FREE {
                    left += usize::from(state == LIVE);
                    // SAFETY: Mapped by the type invariant. Callers that began before `closed` was
                    // set have ended, and later ones unmap nothing.
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

/// The table's own reference of its windows; what is left goes with it.
pub(crate) struct Owned(pub(crate) Arc<Windows>);

impl Drop for Owned {
    fn drop(&mut self) {
        // The table is gone: nothing has an entry. What the device has closed before does not count.
        let left = Maps::close(&*self.0);
        if left != 0 {
            crate::alarm!(PagesStayMapped, "{left} pages of a table that is freed");
        }
        let this: Arc<dyn Maps> = self.0.clone();
        self.0.device.remove(&this);
    }
}

/// Looks at pages in a row, and finds each window once. Context: the table lock is held.
pub(crate) struct Cursor<'w> {
    windows: &'w Windows,
    block: usize,
    used: Option<Used<'w>>,
}

impl Cursor<'_> {
    fn place(&mut self, addr: usize) -> Option<(&Used<'_>, &Atomic<u64>)> {
        let block = block_of(addr);
        if self.used.is_none() || self.block != block {
            self.used = None;
            self.used = self.windows.get(block);
            self.block = block;
        }
        let used = self.used.as_ref()?;
        Some((used, used.window.places.get(index_of(addr))?))
    }

    /// The frame that is mapped for `addr`.
    pub(crate) fn frame(&mut self, addr: usize) -> Option<usize> {
        let (_, place) = self.place(addr)?;
        let place = place.load(Acquire);
        // CAST: Both have 64 bits.
        (place & STATE == LIVE).then_some((place >> SHIFT) as usize)
    }

    /// Maps `frame` for `addr`, or finds that it is. Says whether it is new. The frame must be one that the CPU has
    /// mapped, or that a migration holds.
    ///
    /// # Errors
    ///
    /// `EBUSY`: another frame is mapped, or not unmapped yet, or there is no window. `ENOMEM`. `ENODEV`.
    pub(crate) fn map(&mut self, addr: usize, frame: usize) -> Result<(DmaAddress, bool)> {
        let windows = self.windows;
        let device = &windows.device;
        let (used, place) = self.place(addr).ok_or(EBUSY)?;
        let raw = used.window.raw().filter(|_| used.open).ok_or(ENODEV)?;
        let now = place.load(Acquire);
        // CAST: Both have 64 bits.
        let wanted = (frame as u64) << SHIFT | LIVE;
        if now != FREE && now != wanted {
            return Err(EBUSY);
        }
        let mut address = 0;
        let fresh = now == FREE;
        // CAST: Below 512.
        // SAFETY: The window is the device's, which is bound; the place is free, or mapped for this frame. What the
        // engine installs in the table, which calls this, is alive until the entry was flushed.
        to_result(unsafe {
            bindings::rust_hmm_dma_window_map(
                used.window.device.as_ptr(),
                raw.as_ptr(),
                index_of(addr) as u32,
                frame,
                fresh,
                fresh && fails(Point::Dma),
                &mut address,
            )
        })?;
        if fresh {
            // INVARIANT: Just mapped.
            place.store(wanted, Release);
            used.window.live.fetch_add(1, Relaxed);
            used.window.gone.store(false, Relaxed);
            device.count_mapped(1);
        }
        Ok((DmaAddress::new(address), fresh))
    }

    /// The entry for `addr` is about to go: its page is unmapped when the next flush is over.
    pub(crate) fn retire(&mut self, addr: usize) {
        let tick = self.windows.tick.load(Relaxed);
        if let Some((used, place)) = self.place(addr) {
            if place.load(Acquire) & STATE != LIVE {
                return;
            }
            used.window.retire(place, tick);
        }
    }

    /// Unmaps at once what was just mapped, and no entry names yet.
    pub(crate) fn release(&mut self, addr: usize) {
        let windows = self.windows;
        if let Some((used, place)) = self.place(addr) {
            if place.load(Acquire) & STATE != LIVE {
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
