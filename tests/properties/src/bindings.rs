// SPDX-License-Identifier: GPL-2.0

//! The C functions that the sources use: the maple tree, which is a map here, and a device with
//! DMA.

use crate::stand_ins::range_tree::RangeTree;
use kernel::ffi;
use std::thread::panicking;

/// Order of what a PMD maps.
pub const RUST_HMM_PMD_ORDER: u32 = kernel::page::PAGE_SHIFT as u32 - 3;

pub unsafe fn synchronize_rcu() {
    kernel::sync::rcu::synchronize_rcu();
}

/// A maple tree.
pub struct maple_tree(Option<Box<RangeTree>>);

fn ranges(tree: *mut maple_tree) -> &'static mut RangeTree {
    // SAFETY: Initialized, and accessed by one thread only.
    unsafe { (*tree).0.as_mut().expect("initialized") }
}

pub unsafe fn rust_hmm_ranges_init(tree: *mut maple_tree) {
    // SAFETY: The caller provides memory that may be written.
    unsafe { tree.write(maple_tree(Some(Box::default()))) };
}

pub unsafe fn rust_hmm_ranges_set(
    tree: *mut maple_tree,
    first: usize,
    last: usize,
    value: usize,
    _wait: bool,
) -> ffi::c_int {
    if first > last {
        return -22;
    }
    ranges(tree).set(first, last, value);
    0
}

pub unsafe fn rust_hmm_ranges_find(
    tree: *mut maple_tree,
    from: usize,
    to: usize,
    first: &mut usize,
    last: &mut usize,
) -> usize {
    let Some((range, value)) = ranges(tree).find(from, to) else {
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
    let (range, value) = ranges(tree).at(index);
    (*first, *last) = range;
    value
}

pub unsafe fn rust_hmm_ranges_clear(tree: *mut maple_tree) {
    ranges(tree).clear();
}

/// A DMA device.
pub struct device {
    _private: u8,
}

/// The page frames mapped in a window, by slot; 0: none.
pub struct rust_hmm_dma_window {
    places: [usize; 1 << RUST_HMM_PMD_ORDER],
}

/// The DMA address of page frame `n` is that of page `n + OFFSET`.
pub const OFFSET: usize = 1 << 16;

pub unsafe fn rust_hmm_dma_create(_name: *const ffi::c_char) -> *mut device {
    Box::leak(Box::new(device { _private: 0 }))
}

pub unsafe fn rust_hmm_dma_destroy(device: *mut device) {
    drop(unsafe { Box::from_raw(device) });
}

pub unsafe fn rust_hmm_dma_release(_device: *mut device) {}

pub unsafe fn rust_hmm_dma_bounce(_device: *mut device) {}

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
    Box::leak(Box::new(rust_hmm_dma_window { places: [0; 1 << RUST_HMM_PMD_ORDER] }))
}

pub unsafe fn rust_hmm_dma_window_free(_device: *mut device, window: *mut rust_hmm_dma_window) {
    let window = unsafe { Box::from_raw(window) };
    if !panicking() {
        assert!(
            window.places.iter().all(|place| *place == 0),
            "a window is freed, and a page is mapped"
        );
    }
}

pub unsafe fn rust_hmm_dma_window_map(
    _device: *mut device,
    window: *mut rust_hmm_dma_window,
    index: u32,
    pfn: usize,
    fresh: bool,
    fail: bool,
    address: &mut u64,
) -> ffi::c_int {
    if fail {
        return -12;
    }
    let place = unsafe { &mut (*window).places[index as usize] };
    // Frame 0 is valid, so that slots contain the frame number plus 1.
    let expected = if fresh { 0 } else { pfn + 1 };
    assert_eq!(*place, expected, "a place is mapped twice");
    *place = pfn + 1;
    *address = ((pfn + OFFSET) as u64) << kernel::page::PAGE_SHIFT;
    0
}

pub unsafe fn rust_hmm_dma_window_unmap(
    _device: *mut device,
    window: *mut rust_hmm_dma_window,
    first: u32,
    count: u32,
) {
    for index in first..first + count {
        let place = unsafe { &mut (*window).places[index as usize] };
        if !panicking() {
            assert_ne!(*place, 0, "a place is unmapped that is not mapped");
        }
        *place = 0;
    }
}

// Declarations of functions that are not called.

pub struct page {
    _private: u8,
}

pub unsafe fn rust_hmm_page_to_pfn(_page: *mut page) -> usize {
    unreachable!()
}

pub unsafe fn rust_hmm_dma_map_run(
    _device: *mut device,
    _pfn: usize,
    _pages: usize,
    _direction: i32,
    _coherent: bool,
    _fail: bool,
    _address: &mut u64,
) -> ffi::c_int {
    unreachable!()
}

pub unsafe fn rust_hmm_dma_unmap_run(
    _: *mut device,
    _: u64,
    _pages: usize,
    _direction: i32,
    _coherent: bool,
) {
    unreachable!()
}

pub unsafe fn rust_hmm_dma_buffer(_: *mut device, _: usize, _: &mut u64) -> *mut ffi::c_void {
    unreachable!()
}

pub unsafe fn rust_hmm_dma_buffer_free(_: *mut device, _: usize, _: *mut ffi::c_void, _: u64) {
    unreachable!()
}

pub unsafe fn rust_hmm_copy_bytes(_: *mut ffi::c_void, _: *const ffi::c_void, _bytes: usize) {
    unreachable!()
}

pub unsafe fn rust_hmm_dma_map(
    _device: *mut device,
    _pfn: usize,
    _coherent: bool,
    _fail: bool,
    _address: &mut u64,
) -> ffi::c_int {
    unreachable!()
}

pub unsafe fn rust_hmm_dma_unmap(_device: *mut device, _address: u64, _coherent: bool) {
    unreachable!()
}

pub unsafe fn rust_hmm_dma_sync(_device: *mut device, _address: u64, _for_device: bool) {
    unreachable!()
}
