// SPDX-License-Identifier: GPL-2.0

//! Stand-in for the owner of chunks of device memory, with chunks of 512 pages.

use crate::{
    bindings::dev_pagemap_ops,
    mm::folio::LockedFolio, //
};
use core::marker::PhantomData;
use kernel::prelude::*;

pub const CHUNK_PAGES: usize = 512;
pub const CHUNK_BYTES: u64 = (CHUNK_PAGES as u64) << 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    Private,
    Coherent { start: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRange {
    pub first: usize,
    pub count: usize,
}

pub enum FaultError {
    NoMemory,
    Lost,
    Retry,
}

pub struct CpuFault<'a>(PhantomData<&'a ()>);

impl CpuFault<'_> {
    pub(super) unsafe fn from_raw(_vmf: *mut crate::bindings::vm_fault) -> Self {
        Self(PhantomData)
    }
}

pub trait DevicePageOps: Send + Sync + Sized + 'static {
    fn migrate_to_ram(pages: &DevicePages<Self>, fault: CpuFault<'_>) -> Result<(), FaultError>;

    fn freed(pages: &DevicePages<Self>, range: DeviceRange) {
        let _ = (pages, range);
    }
}

pub struct DevicePages<T: DevicePageOps>(pub(super) PhantomData<T>);

impl<T: DevicePageOps> DevicePages<T> {
    pub(super) fn ops(&self) -> *const dev_pagemap_ops {
        &super::chunk::Chunk::<T>::OPS
    }

    pub(super) fn pages_released(
        &self,
        _piece: &super::chunk::Chunk<T>,
        _range: DeviceRange,
        _is_used: bool,
    ) {
    }
}
