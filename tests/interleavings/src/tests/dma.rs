// SPDX-License-Identifier: GPL-2.0

//! DMA mappings. The C side is plain memory with the mapping state of each slot. Mapping a slot
//! twice, unmapping it twice or concurrently, and freeing a window with mapped slots are failures.

use super::{
    addr::PageRange,
    dma::{
        totals,
        DmaBuffer,
        DmaDevice,
        DmaDirection,
        DmaMapping,
        DmaRun,
        DmaWindows,
        OwnedWindows, //
    },
    pin::PinnedPages, //
};
use crate::{
    bindings,
    harness::{
        bounded,
        full,
        Test, //
    },
    kernel::lock_classes, //
};
use kernel::{
    model::{
        spawn,
        Memory, //
    },
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

pub(crate) const TESTS: &[Test] = &[
    full("dma_run_close_waits_for_copies", run),
    full("dma_totals_are_never_negative", count_totals),
    full("dma_live_count_is_never_negative", count_live),
    full("dma_buffer_is_freed_once", buffer),
    full("dma_mapping_is_unmapped_once", mapping),
    bounded("dma_window_place_is_unmapped_after_its_flush", 4, flushes),
    bounded("dma_window_close_unmaps_remaining_pages", 5, close),
    full("dma_window_is_dropped_when_idle", forget),
    full("dma_window_is_kept_when_used_again", again),
];

fn device() -> Arc<DmaDevice> {
    bindings::RUN.with(|run| *run = Some(Box::new(Memory::new(0))));
    // Creates its words at this point.
    totals();
    DmaDevice::software(c"test").unwrap()
}

/// The device is unbound: it must not be used.
fn unbind() {
    let memory = bindings::RUN.with(|run| core::ptr::from_ref(&**run.as_ref().unwrap()));
    unsafe { (*memory).write(2) };
}

fn run() {
    let device = device();
    let other = device.clone();
    let thread = spawn(move || {
        let run = unsafe { DmaRun::new(&other, 1, 1, DmaDirection::Both) };
        drop(run);
    });
    assert_eq!(device.close(), 0);
    unbind();
    assert_eq!(device.live(), 0);
    thread.join();
}

fn count_totals() {
    let device = device();
    let thread = spawn(move || {
        let run = unsafe { DmaRun::new(&device, 1, 1, DmaDirection::Both) };
        drop(run);
    });
    let (mapped, unmapped) = totals();
    assert!(unmapped <= mapped);
    thread.join();
    let (mapped, unmapped) = totals();
    assert_eq!(unmapped, mapped);
}

fn count_live() {
    let device = device();
    let other = device.clone();
    let thread = spawn(move || {
        let run = unsafe { DmaRun::new(&other, 1, 1, DmaDirection::Both) };
        drop(run);
    });
    let unmapped = device.unmapped();
    assert!(unmapped <= device.mapped());
    assert!(device.live() <= 1);
    thread.join();
}

fn buffer() {
    let device = device();
    let buffer = DmaBuffer::new(&device, 1).unwrap();
    let thread = spawn(move || drop(buffer));
    assert_eq!(device.close(), 0);
    unbind();
    thread.join();
}

fn mapping() {
    let device = device();
    let other = device.clone();
    let thread = spawn(move || {
        let mapping = unsafe { DmaMapping::new(&other, &PinnedPages(1)) };
        if let Ok(mapping) = &mapping {
            let _ = mapping.address(0);
        }
        drop(mapping);
    });
    device.close();
    assert_eq!(device.live(), 0);
    thread.join();
}

/// A page table with its lock.
struct Table {
    lock: Mutex<()>,
    windows: Arc<DmaWindows>,
}

fn page(index: usize) -> PageRange {
    PageRange::from_pages(index << 12, 1).unwrap()
}

impl Table {
    fn new(device: &Arc<DmaDevice>) -> Arc<Self> {
        let windows = DmaWindows::new(device).unwrap();
        windows.prepare(page(0)).unwrap();
        let (name, key) = lock_classes::ended();
        let lock = Mutex::new((), name, key);
        Arc::new(Self { lock, windows }, GFP_KERNEL).unwrap()
    }

    /// Installs an entry for `frame`.
    fn map(&self, index: usize, frame: usize) -> Result {
        let _locked = self.lock.lock();
        let (_, fresh) = self.windows.cursor().map(index << 12, frame)?;
        assert!(fresh);
        Ok(())
    }

    /// Removes the entry, and flushes.
    fn unmap(&self, index: usize) {
        let tick = {
            let _locked = self.lock.lock();
            self.windows.cursor().retire(index << 12);
            self.windows.tick()
        };
        self.windows.unmap(page(index), tick);
    }
}

/// Two tasks install and remove an entry in the same slot.
fn flushes() {
    fn cycle(table: &Table, frame: usize) {
        match table.map(0, frame) {
            Ok(()) => table.unmap(0),
            Err(error) => assert_eq!(error, EBUSY),
        }
    }
    let device = device();
    let table = Table::new(&device);
    let other = table.clone();
    let thread = spawn(move || cycle(&other, 1));
    cycle(&table, 2);
    thread.join();
    assert_eq!(device.live(), 0);
    assert_eq!(table.map(0, 3), Ok(()));
    table.unmap(0);
    drop(OwnedWindows(table.windows.clone()));
}

/// The device is closed while an entry is installed and removed.
fn close() {
    let device = device();
    let table = Table::new(&device);
    let other = table.clone();
    let thread = spawn(move || {
        if other.map(0, 1).is_ok() {
            other.unmap(0);
        }
    });
    device.close();
    assert_eq!(device.live(), 0);
    assert_eq!(table.map(0, 2), Err(ENODEV));
    thread.join();
    drop(OwnedWindows(table.windows.clone()));
}

/// A range is unmapped while an entry in it is removed and flushed.
fn forget() {
    let device = device();
    let table = Table::new(&device);
    assert_eq!(table.map(0, 1), Ok(()));
    let other = table.clone();
    let thread = spawn(move || other.unmap(0));
    {
        let _locked = table.lock.lock();
        table.windows.retire_windows(page(0));
    }
    thread.join();
    assert_eq!(device.live(), 0);
    // One of the two tasks has freed the idle window.
    assert_eq!(table.map(0, 2), Err(EBUSY));
    // The window can be prepared again.
    table.windows.prepare(page(0)).unwrap();
    assert_eq!(table.map(0, 2), Ok(()));
    table.unmap(0);
    drop(OwnedWindows(table.windows.clone()));
}

/// A range is unmapped, and another one mapped in the same window, while the last entry of the
/// former is flushed.
fn again() {
    let device = device();
    let table = Table::new(&device);
    assert_eq!(table.map(0, 1), Ok(()));
    {
        let _locked = table.lock.lock();
        table.windows.retire_windows(page(0));
    }
    let other = table.clone();
    let thread = spawn(move || other.unmap(0));
    let mapped = table.map(1, 2);
    thread.join();
    match mapped {
        Ok(()) => table.unmap(1),
        Err(error) => assert_eq!(error, EBUSY),
    }
    assert_eq!(device.live(), 0);
    drop(OwnedWindows(table.windows.clone()));
}
