// SPDX-License-Identifier: GPL-2.0

//! The C functions and constants that the sources use.

use crate::stand_ins::range_tree::RangeTree;
use kernel::{
    ffi,
    sync::{
        atomic::{
            ordering::{
                Acquire,
                Relaxed,
                Release, //
            },
            Atomic, //
        },
        LockClassKey,
        Refcount,
        SpinLock, //
    }, //
};
pub use kernel::sync::RawCompletion as completion;

/// Order of what a PMD maps.
pub const RUST_HMM_PMD_ORDER: u32 = kernel::page::PAGE_SHIFT as u32 - 3;

pub const EDEADLK: ffi::c_uint = 35;
pub const ECANCELED: ffi::c_uint = 125;

pub unsafe fn synchronize_rcu() {
    kernel::sync::rcu::synchronize_rcu();
}

pub unsafe fn rust_hmm_may_sleep() -> bool {
    true
}

pub unsafe fn ktime_get() -> i64 {
    0
}

pub unsafe fn init_completion(this: *mut completion) {
    unsafe { this.write(completion::new()) };
}

pub unsafe fn complete(this: *mut completion) {
    unsafe { (*this).complete() };
}

pub unsafe fn complete_all(this: *mut completion) {
    unsafe { (*this).complete_all() };
}

pub unsafe fn wait_for_completion_interruptible(this: *mut completion) -> ffi::c_int {
    unsafe { (*this).wait() };
    0
}

pub unsafe fn wait_for_completion_killable(this: *mut completion) -> ffi::c_int {
    unsafe { (*this).wait() };
    0
}

pub unsafe fn wait_for_completion(this: *mut completion) {
    unsafe { (*this).wait() };
}

pub unsafe fn wait_for_completion_timeout(
    this: *mut completion,
    timeout: ffi::c_ulong,
) -> ffi::c_ulong {
    unsafe { (*this).wait() };
    timeout
}

pub unsafe fn wait_for_completion_interruptible_timeout(
    this: *mut completion,
    timeout: ffi::c_ulong,
) -> ffi::c_long {
    unsafe { (*this).wait() };
    timeout as ffi::c_long
}

pub unsafe fn wait_for_completion_killable_timeout(
    this: *mut completion,
    timeout: ffi::c_ulong,
) -> ffi::c_long {
    unsafe { (*this).wait() };
    timeout as ffi::c_long
}

/// A work item of a worker.
#[repr(C)]
pub struct rust_hmm_deferred {
    pub drop: Option<unsafe extern "C" fn(*mut ffi::c_void)>,
}

/// The queued work items.
pub mod works {
    use super::rust_hmm_deferred;
    use crate::stand_ins::PerExecution;
    use kernel::sync::{
        LockClassKey,
        SpinLock, //
    };

    type Queue = SpinLock<Vec<usize>>;

    static QUEUE: PerExecution<Queue> = PerExecution::new();

    /// Must be called at the start of each execution.
    pub fn reset() {
        let key = core::pin::Pin::static_ref(&LockClassKey);
        QUEUE.set(Queue::new(Vec::new(), c"works", key));
    }

    pub(super) fn add(work: *mut rust_hmm_deferred) {
        QUEUE.get().lock().push(work as usize);
    }

    /// Runs the items that are queued, as a worker does. Returns whether there was one.
    pub fn run() -> bool {
        let items = core::mem::take(&mut *QUEUE.get().lock());
        for item in &items {
            let work = *item as *mut rust_hmm_deferred;
            unsafe { (*work).drop.expect("a function")(work.cast()) };
        }
        !items.is_empty()
    }
}

pub unsafe fn rust_hmm_deferred_init() -> ffi::c_int {
    0
}

pub unsafe fn rust_hmm_deferred_exit() {}

pub unsafe fn rust_hmm_deferred_queue(work: *mut rust_hmm_deferred) {
    works::add(work);
}

pub unsafe fn rust_hmm_notifier_register(mm: *mut kernel::mm::MmWithUser) -> ffi::c_int {
    unsafe { (*mm).tree.write(1) };
    0
}

/// A maple tree with its lock.
pub struct maple_tree(SpinLock<RangeTree>);

pub unsafe fn rust_hmm_ranges_init(tree: *mut maple_tree) {
    let key = core::pin::Pin::static_ref(&LockClassKey);
    unsafe { tree.write(maple_tree(SpinLock::new(RangeTree::default(), c"ranges", key))) };
}

pub unsafe fn rust_hmm_ranges_set(
    tree: *mut maple_tree,
    first: usize,
    last: usize,
    value: usize,
    _wait: bool,
) -> ffi::c_int {
    unsafe { (*tree).0.lock() }.set(first, last, value);
    0
}

pub unsafe fn rust_hmm_ranges_find(
    tree: *mut maple_tree,
    from: usize,
    to: usize,
    first: &mut usize,
    last: &mut usize,
) -> usize {
    let Some((range, value)) = unsafe { (*tree).0.lock() }.find(from, to) else {
        return 0;
    };
    (*first, *last) = range;
    value
}

pub unsafe fn rust_hmm_ranges_at(
    tree: *mut maple_tree,
    index: usize,
    first: &mut usize,
    last: &mut usize,
) -> usize {
    let (range, value) = unsafe { (*tree).0.lock() }.at(index);
    (*first, *last) = range;
    value
}

pub unsafe fn rust_hmm_ranges_clear(tree: *mut maple_tree) {
    unsafe { (*tree).0.lock() }.clear();
}

/// An XArray with one place.
pub struct xarray {
    place: Atomic<*mut ffi::c_void>,
}

pub const XA_PRESENT: u32 = 8;

pub unsafe fn xa_init_flags(array: *mut xarray, _flags: u32) {
    unsafe { array.write(xarray { place: Atomic::new(core::ptr::null_mut()) }) };
}

pub unsafe fn xa_load(array: *mut xarray, _index: usize) -> *mut ffi::c_void {
    unsafe { (*array).place.load(Acquire) }
}

/// As [`xa_load`], without the order of the address dependency.
pub unsafe fn xa_load_relaxed(array: *mut xarray, _index: usize) -> *mut ffi::c_void {
    unsafe { (*array).place.load(Relaxed) }
}

pub unsafe fn rust_hmm_xa_insert(
    array: *mut xarray,
    _index: usize,
    entry: *mut ffi::c_void,
) -> ffi::c_int {
    match unsafe { (*array).place.cmpxchg(core::ptr::null_mut(), entry, Release) } {
        Ok(_) => 0,
        Err(_) => -16,
    }
}

/// The lock of an XArray orders its changes.
pub unsafe fn xa_erase(array: *mut xarray, _index: usize) -> *mut ffi::c_void {
    unsafe { (*array).place.xchg(core::ptr::null_mut(), Acquire) }
}

pub unsafe fn xa_find(
    array: *mut xarray,
    _index: &mut usize,
    _last: usize,
    _filter: u32,
) -> *mut ffi::c_void {
    unsafe { xa_load(array, 0) }
}

pub unsafe fn xa_destroy(array: *mut xarray) {
    unsafe { core::ptr::drop_in_place(array) };
}

pub unsafe fn rust_hmm_refcount_inc_not_zero(count: *mut ffi::c_void) -> bool {
    unsafe { (*count.cast::<Refcount>()).inc_not_zero() }
}

/// Frees an object that begins with a reference count, after a grace period.
pub unsafe fn rust_hmm_free_rcu(object: *mut ffi::c_void) {
    kernel::sync::rcu::synchronize_rcu();
    unsafe { free_counted(object) };
}

/// As [`rust_hmm_free_rcu`], without the grace period. The memory itself is kept.
pub unsafe fn free_counted(object: *mut ffi::c_void) {
    unsafe { core::ptr::drop_in_place(object.cast::<Refcount>()) };
}

/// Device memory: the first frames of each region are plain memory of the model.
pub mod frames {
    use super::*;
    use kernel::model::{
        Hidden,
        Memory, //
    };

    /// Number of modelled frames of a region.
    pub const WATCHED: usize = 2;
    const REGIONS: usize = 4;

    struct Frame {
        /// Written when the region is added or removed, and read by each user of the frame.
        there: Memory,
        /// Written by the owner of the page. Other code only reads `struct page`, as the kernel
        /// does, which may race with these writes.
        contents: Memory,
    }

    struct State {
        frames: Vec<Frame>,
        mapped: [Option<usize>; REGIONS],
        regions: usize,
    }

    static STATE: Hidden<Option<State>> = Hidden::new(None);

    fn state<R>(f: impl FnOnce(&mut State) -> R) -> R {
        STATE.with(|state| f(state.as_mut().expect("frames::reset")))
    }

    /// Must be called at the start of each execution.
    pub fn reset() {
        let frame = |_| Frame { there: Memory::new(0), contents: Memory::new(0) };
        let frames = (0..WATCHED * REGIONS).map(frame).collect();
        STATE.with(|state| *state = Some(State { frames, mapped: [None; REGIONS], regions: 0 }));
    }

    /// First page frame number of a region.
    pub fn first_pfn(region: usize) -> usize {
        (region + 1) << 20
    }

    fn frame(pfn: usize) -> Option<&'static Frame> {
        let region = (pfn >> 20) - 1;
        let index = pfn & 0xfffff;
        state(|state| {
            assert!(state.mapped[region].is_some(), "page frame {pfn:#x} is not there");
            let frame = state.frames.get(region * WATCHED + index);
            // SAFETY: The frames exist until the next execution.
            frame.filter(|_| index < WATCHED).map(|frame| unsafe { &*core::ptr::from_ref(frame) })
        })
    }

    /// Accesses a frame that another task may own.
    #[track_caller]
    pub fn frame_guard(pfn: usize) {
        if let Some(frame) = frame(pfn) {
            frame.there.read();
        }
    }

    /// Accesses a frame of a page that the caller owns.
    #[track_caller]
    pub fn write(pfn: usize) {
        if let Some(frame) = frame(pfn) {
            frame.there.read();
            frame.contents.write(1);
        }
    }

    /// The last reference to page `pfn` is dropped.
    pub fn free(pfn: usize) {
        let pgmap = unsafe { rust_hmm_pfn_pgmap(pfn) };
        unsafe { (*(*pgmap).ops).folio_free.expect("set")(pfn as *mut folio) };
    }

    pub(super) fn request() -> Option<u64> {
        state(|state| {
            let region = state.regions;
            state.regions += 1;
            (region < REGIONS).then(|| (first_pfn(region) as u64) << 12)
        })
    }

    /// Adds or removes the frames of a region.
    fn change(region: usize) {
        for frame in (0..WATCHED).filter_map(|index| frame(first_pfn(region) + index)) {
            frame.there.write(1);
            frame.contents.write(0);
        }
    }

    pub(super) fn map(start: u64, pgmap: usize) {
        let region = (start >> 32) as usize - 1;
        state(|state| assert!(state.mapped[region].replace(pgmap).is_none()));
        change(region);
    }

    pub(super) fn unmap(start: u64) {
        let region = (start >> 32) as usize - 1;
        // All accesses must have happened before.
        change(region);
        state(|state| assert!(state.mapped[region].take().is_some()));
    }

    pub(super) fn pgmap_of(pfn: usize) -> usize {
        state(|state| state.mapped[(pfn >> 20) - 1].expect("a mapped frame"))
    }
}

#[repr(C)]
pub struct folio {
    _private: u8,
}

#[repr(C)]
pub struct page {
    _private: u8,
}

#[repr(C)]
pub struct vm_fault {
    _private: u8,
}

pub type vm_fault_t = ffi::c_uint;
pub const vm_fault_reason_VM_FAULT_OOM: vm_fault_t = 1;
pub const vm_fault_reason_VM_FAULT_SIGBUS: vm_fault_t = 2;
pub const memory_type_MEMORY_DEVICE_PRIVATE: ffi::c_uint = 1;
pub const memory_type_MEMORY_DEVICE_COHERENT: ffi::c_uint = 2;
pub const NUMA_NO_NODE: ffi::c_int = -1;

#[derive(Clone, Copy, Default)]
pub struct range {
    pub start: u64,
    pub end: u64,
}

pub struct dev_pagemap_ops {
    pub folio_free: Option<unsafe extern "C" fn(*mut folio)>,
    pub migrate_to_ram: Option<unsafe extern "C" fn(*mut vm_fault) -> vm_fault_t>,
    pub memory_failure: Option<unsafe extern "C" fn()>,
    pub folio_split: Option<unsafe extern "C" fn()>,
}

#[derive(Default)]
pub struct Ranges {
    pub range: RangeField,
}

#[derive(Default)]
pub struct RangeField(range);

impl RangeField {
    pub unsafe fn as_mut(&mut self) -> &mut range {
        &mut self.0
    }
}

pub struct dev_pagemap {
    pub type_: ffi::c_uint,
    pub ops: *const dev_pagemap_ops,
    pub owner: *mut ffi::c_void,
    pub nr_range: ffi::c_int,
    pub __bindgen_anon_1: Ranges,
}

impl Default for dev_pagemap {
    fn default() -> Self {
        Self {
            type_: 0,
            ops: core::ptr::null(),
            owner: core::ptr::null_mut(),
            nr_range: 0,
            __bindgen_anon_1: Ranges::default(),
        }
    }
}

pub unsafe fn memremap_pages(pgmap: *mut dev_pagemap, _node: ffi::c_int) -> *mut ffi::c_void {
    frames::map(unsafe { (*pgmap).__bindgen_anon_1.range.0.start }, pgmap as usize);
    pgmap.cast()
}

pub unsafe fn memunmap_pages(pgmap: *mut dev_pagemap) {
    frames::unmap(unsafe { (*pgmap).__bindgen_anon_1.range.0.start });
}

pub unsafe fn rust_hmm_request_free_region(
    _bytes: u64,
    _name: *const ffi::c_char,
    start: &mut u64,
) -> ffi::c_int {
    match frames::request() {
        Some(first) => {
            *start = first;
            0
        }
        None => -34,
    }
}

pub unsafe fn rust_hmm_request_region(
    _start: u64,
    _bytes: u64,
    _name: *const ffi::c_char,
) -> ffi::c_int {
    -16
}

pub unsafe fn rust_hmm_release_region(_start: u64, _bytes: u64) {}

pub unsafe fn rust_hmm_pfn_pgmap(pfn: usize) -> *mut dev_pagemap {
    frames::pgmap_of(pfn) as *mut dev_pagemap
}

pub unsafe fn rust_hmm_page_to_pfn(page: *mut page) -> usize {
    page as usize
}

pub unsafe fn rust_hmm_vmf_page(_vmf: *mut vm_fault) -> *mut page {
    unimplemented!()
}

pub unsafe fn rust_hmm_vmf_retry(_vmf: *mut vm_fault) -> vm_fault_t {
    unimplemented!()
}

pub unsafe fn rust_hmm_device_folio_reset(
    folio: *mut folio,
    order: *mut u32,
    pgmap: *mut *mut dev_pagemap,
) -> usize {
    let pfn = folio as usize;
    frames::write(pfn);
    unsafe {
        order.write(0);
        pgmap.write(rust_hmm_pfn_pgmap(pfn));
    }
    pfn
}

pub unsafe fn rust_hmm_device_folio_init(pfn: usize, _pgmap: *mut dev_pagemap, _order: u32) {
    frames::write(pfn);
}

/// A DMA device.
pub struct device {
    _private: u8,
}

/// A DMA window: the frames mapped in its first slots, as plain memory of the model.
pub struct rust_hmm_dma_window {
    places: [kernel::model::Memory; 2],
}

pub unsafe fn rust_hmm_dma_create(_name: *const ffi::c_char) -> *mut device {
    Box::leak(Box::new(device { _private: 0 }))
}

pub unsafe fn rust_hmm_dma_destroy(device: *mut device) {
    drop(unsafe { Box::from_raw(device) });
}

pub unsafe fn rust_hmm_dma_release(_device: *mut device) {}

pub unsafe fn rust_hmm_dma_adopt(_device: *mut device, _bits: u32) -> ffi::c_int {
    -95
}

pub unsafe fn rust_hmm_dma_is_coherent(_device: *mut device) -> bool {
    true
}

pub unsafe fn rust_hmm_dma_window_alloc(
    _device: *mut device,
    error: &mut ffi::c_int,
) -> *mut rust_hmm_dma_window {
    *error = 0;
    Box::leak(Box::new(rust_hmm_dma_window {
        places: [kernel::model::Memory::new(0), kernel::model::Memory::new(0)],
    }))
}

pub unsafe fn rust_hmm_dma_window_free(_device: *mut device, window: *mut rust_hmm_dma_window) {
    let window = unsafe { Box::from_raw(window) };
    for place in &window.places {
        assert_eq!(place.read(), 0, "a window is freed, and a page is mapped");
        // The slot is not mapped.
        place.write(0);
    }
}

pub unsafe fn rust_hmm_dma_window_map(
    _device: *mut device,
    window: *mut rust_hmm_dma_window,
    index: u32,
    pfn: usize,
    fresh: bool,
    _fail: bool,
    address: &mut u64,
) -> ffi::c_int {
    let place = unsafe { &(*window).places[index as usize] };
    let before = place.read();
    assert_eq!(before, if fresh { 0 } else { pfn as u64 }, "a place is mapped twice");
    if fresh {
        place.write(pfn as u64);
    }
    *address = u64::from(index) << 12;
    0
}

pub unsafe fn rust_hmm_dma_window_unmap(
    _device: *mut device,
    window: *mut rust_hmm_dma_window,
    first: u32,
    count: u32,
) {
    for index in first..first + count {
        let place = unsafe { &(*window).places[index as usize] };
        assert_ne!(place.read(), 0, "a place is unmapped that is not mapped");
        place.write(0);
    }
}

/// Mapping state of a device. Each test has at most one mapping of consecutive pages, or one
/// buffer, at a time.
pub static RUN: kernel::model::Hidden<Option<Box<kernel::model::Memory>>> =
    kernel::model::Hidden::new(None);

fn run(value: u64) {
    let run: *const kernel::model::Memory =
        RUN.with(|run| core::ptr::from_ref(&**run.as_ref().expect("set by the test")));
    unsafe { (*run).write(value) };
}

pub unsafe fn rust_hmm_dma_map_run(
    _device: *mut device,
    _pfn: usize,
    _pages: usize,
    _direction: i32,
    _coherent: bool,
    _fail: bool,
    address: &mut u64,
) -> ffi::c_int {
    run(1);
    *address = 0;
    0
}

pub unsafe fn rust_hmm_dma_unmap_run(
    _device: *mut device,
    _address: u64,
    _pages: usize,
    _direction: i32,
    _coherent: bool,
) {
    run(0);
}

pub unsafe fn rust_hmm_dma_buffer(
    _device: *mut device,
    _bytes: usize,
    address: &mut u64,
) -> *mut ffi::c_void {
    run(1);
    *address = 0;
    Box::leak(Box::new(kernel::model::Memory::new(1))) as *mut kernel::model::Memory as *mut _
}

pub unsafe fn rust_hmm_dma_buffer_free(
    _device: *mut device,
    _bytes: usize,
    cpu: *mut ffi::c_void,
    _address: u64,
) {
    let memory = unsafe { Box::from_raw(cpu.cast::<kernel::model::Memory>()) };
    memory.write(0);
    run(0);
}

/// One of both addresses is a buffer, which is a word of the model here.
pub unsafe fn rust_hmm_copy_bytes(to: *mut ffi::c_void, from: *const ffi::c_void, _bytes: usize) {
    let _ = to;
    let memory = from.cast::<kernel::model::Memory>();
    assert_eq!(unsafe { (*memory).read() }, 1);
}

pub unsafe fn rust_hmm_dma_map(
    _device: *mut device,
    _pfn: usize,
    _coherent: bool,
    _fail: bool,
    address: &mut u64,
) -> ffi::c_int {
    run(1);
    *address = 0;
    0
}

pub unsafe fn rust_hmm_dma_unmap(_device: *mut device, _address: u64, _coherent: bool) {
    run(0);
}

pub unsafe fn rust_hmm_dma_sync(_device: *mut device, _address: u64, _for_device: bool) {}
