// SPDX-License-Identifier: GPL-2.0
//! Copies of a page by the kernel, whose faults and copies may fail.

use crate::abi::PAGE_SIZE;
use crate::child::pipe;
use crate::errno::Errno;
use crate::managed::Managed;
use crate::mapping::Mapping;
use std::fs;
use std::io::{
    Read,
    Write, //
};
use std::os::fd::AsRawFd;

fn whole_pages(map: &Mapping, page: usize) -> *mut libc::c_void {
    assert!(page < map.pages(), "the page is outside of the mapping");
    map.page_addr(page) as *mut _
}

fn managed_page(memory: &Managed, page: usize) -> *mut libc::c_void {
    assert!(page < memory.pages(), "the page is outside of the memory");
    (memory.addr() + page * PAGE_SIZE) as *mut _
}

/// Makes the kernel read a page of a mapping, as a system call does, so that a failed fault is an
/// error and not a signal.
pub fn kernel_reads(map: &Mapping, page: usize) -> Result<Vec<u8>, Errno> {
    // SAFETY: a page of the mapping.
    unsafe { reads(whole_pages(map, page)) }
}

/// Like [`kernel_reads`], for managed memory.
pub fn kernel_reads_managed(memory: &Managed, page: usize) -> Result<Vec<u8>, Errno> {
    // SAFETY: a page of the memory.
    unsafe { reads(managed_page(memory, page)) }
}

/// # Safety
///
/// A page of memory begins at `at`.
unsafe fn reads(at: *const libc::c_void) -> Result<Vec<u8>, Errno> {
    let (read, write) = pipe()?;
    let mut read = fs::File::from(read);
    // SAFETY: the kernel reads a page.
    let ret = unsafe { libc::write(write.as_raw_fd(), at, PAGE_SIZE) };
    let done = Errno::check(ret as i64)? as usize;
    if done < PAGE_SIZE {
        return Err(Errno::EFAULT);
    }
    let mut bytes = vec![0; PAGE_SIZE];
    read.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Makes the kernel write a page of a mapping.
pub fn kernel_writes(map: &Mapping, page: usize, bytes: &[u8]) -> Result<(), Errno> {
    // SAFETY: a page of the mapping, to which there are no references.
    unsafe { writes(whole_pages(map, page), bytes) }
}

/// Like [`kernel_writes`], for managed memory.
pub fn kernel_writes_managed(memory: &Managed, page: usize, bytes: &[u8]) -> Result<(), Errno> {
    // SAFETY: a page of the memory, to which there are no references.
    unsafe { writes(managed_page(memory, page), bytes) }
}

/// # Safety
///
/// A page of memory begins at `at`, to which there are no references.
unsafe fn writes(at: *mut libc::c_void, bytes: &[u8]) -> Result<(), Errno> {
    assert_eq!(bytes.len(), PAGE_SIZE);
    let (read, write) = pipe()?;
    fs::File::from(write).write_all(bytes)?;
    // SAFETY: the kernel writes a page.
    let ret = unsafe { libc::read(read.as_raw_fd(), at, PAGE_SIZE) };
    match Errno::check(ret as i64)? as usize {
        PAGE_SIZE => Ok(()),
        _ => Err(Errno::EFAULT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_reads_and_writes_pages() {
        let map = Mapping::anon(2).unwrap();
        let bytes = crate::pattern::buffer(3, 1, 1);
        kernel_writes(&map, 1, &bytes).unwrap();
        assert_eq!(map.check_pages(3, 1, 1), Ok(()));
        assert_eq!(kernel_reads(&map, 1).unwrap(), bytes);
        map.protect(crate::Prot::None).unwrap();
        assert_eq!(kernel_reads(&map, 1), Err(Errno::EFAULT));
        assert_eq!(kernel_writes(&map, 1, &bytes), Err(Errno::EFAULT));
    }
}
