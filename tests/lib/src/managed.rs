// SPDX-License-Identifier: GPL-2.0
//! Managed memory: it migrates on faults of the CPU and of devices.

use crate::abi::PAGE_SIZE;
use crate::device::Device;
use crate::engine::Extension;
use crate::errno::Errno;
use crate::mapping::Mapping;
use crate::pattern::{
    self,
    Mismatch,
    WORDS, //
};
use crate::queue::{
    Fence,
    Queue, //
};

/// `struct dmirror_alloc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawAlloc {
    pub(crate) size: u32,
    pub(crate) flags: u32,
    pub(crate) fd: i32,
    pub(crate) queue: u32,
    pub(crate) bytes: u64,
    pub(crate) addr: u64,
    pub(crate) fence: u64,
}
// SAFETY: Plain numbers.
unsafe impl Extension for RawAlloc {}

/// Flags of managed memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ManagedFlags {
    /// Device faults map the memory without a migration.
    pub host_shared: bool,
    /// Populates the memory on the device.
    pub populate: bool,
    /// Huge pages are preferred.
    pub huge: bool,
}

impl ManagedFlags {
    fn bits(self) -> u32 {
        u32::from(self.host_shared) | (u32::from(self.populate) << 1) | (u32::from(self.huge) << 2)
    }
}

/// Managed memory, which is unmapped on drop.
#[derive(Debug)]
pub struct Managed {
    addr: usize,
    len: usize,
    /// Whether the address range stays reserved when the memory is unmapped.
    reserved: bool,
}

impl Managed {
    /// Returns the start address.
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the length in pages.
    pub fn pages(&self) -> usize {
        self.len / PAGE_SIZE
    }

    fn word(&self, page: usize, word: usize) -> *mut u64 {
        assert!(page < self.pages() && word < WORDS, "beyond the memory");
        (self.addr + page * PAGE_SIZE + word * 8) as *mut u64
    }

    /// Reads a word.
    pub fn get(&self, page: usize, word: usize) -> u64 {
        // SAFETY: within the mapping, which is ours; a device may write it.
        unsafe { self.word(page, word).read_volatile() }
    }

    /// Writes a word.
    pub fn set(&self, page: usize, word: usize, value: u64) {
        // SAFETY: as above.
        unsafe { self.word(page, word).write_volatile(value) }
    }

    /// Fills it with the pattern `seed`.
    pub fn fill(&self, seed: u64) {
        for page in 0..self.pages() {
            (0..WORDS).for_each(|word| self.set(page, word, pattern::word(seed, page, word)));
        }
    }

    /// Whether it holds the pattern `seed`.
    pub fn check(&self, seed: u64) -> Result<(), Mismatch> {
        for page in 0..self.pages() {
            let words = (0..WORDS).flat_map(|word| self.get(page, word).to_ne_bytes());
            pattern::check(seed, page, &words.collect::<Vec<u8>>())?;
        }
        Ok(())
    }

    /// Moves it to another address, with the same size.
    pub fn remap(&mut self) -> Result<(), Errno> {
        let old = self.addr as *mut libc::c_void;
        // SAFETY: our mapping, and a target that is reserved first; no references into either
        // exist.
        let new = unsafe {
            let place = libc::mmap(
                std::ptr::null_mut(),
                self.len,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            libc::mremap(old, self.len, self.len, flags, place)
        };
        if new == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        self.addr = new as usize;
        Ok(())
    }

    /// Locks or unlocks it with `mlock` or `munlock`.
    pub fn mlock(&self, lock: bool) -> Result<(), Errno> {
        let at = self.addr as *const libc::c_void;
        // SAFETY: our mapping.
        let ret = unsafe {
            if lock {
                libc::mlock(at, self.len)
            } else {
                libc::munlock(at, self.len)
            }
        };
        Errno::check(ret.into()).map(|_| ())
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        let at = self.addr as *mut libc::c_void;
        // SAFETY: our mapping, or nothing at all if its population failed. In a reserved area
        // it is replaced, so that no other mapping can take its place.
        unsafe {
            if self.reserved {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                libc::mmap(at, self.len, libc::PROT_NONE, flags, -1, 0);
            } else {
                libc::munmap(at, self.len);
            }
        }
    }
}

impl Device {
    fn alloc_call(&self, bytes: usize, flags: u32, queue: u32) -> Result<RawAlloc, Errno> {
        let size = size_of::<RawAlloc>() as u32;
        let fd = self.fd();
        let bytes = bytes as u64;
        let mut raw = RawAlloc { size, flags, fd, queue, bytes, ..RawAlloc::default() };
        self.extension(0x79, &mut raw).map(|()| raw)
    }

    /// Allocates managed memory for this device.
    pub fn alloc(&self, bytes: usize, flags: ManagedFlags) -> Result<Managed, Errno> {
        let raw = self.alloc_call(bytes, flags.bits(), 0)?;
        let unit = if flags.huge { crate::abi::HUGE_SIZE } else { PAGE_SIZE };
        Ok(Managed { addr: raw.addr as usize, len: bytes.next_multiple_of(unit), reserved: false })
    }

    /// Allocates managed memory that `queue` will populate.
    pub fn alloc_later<'d>(
        &'d self,
        bytes: usize,
        flags: ManagedFlags,
        queue: &Queue<'_>,
    ) -> Result<(Managed, Fence<'d>), Errno> {
        let raw = self.alloc_call(bytes, flags.bits(), queue.number())?;
        let unit = if flags.huge { crate::abi::HUGE_SIZE } else { PAGE_SIZE };
        let addr = raw.addr as usize;
        let len = bytes.next_multiple_of(unit);
        let managed = Managed { addr, len, reserved: false };
        Ok((managed, self.fence(raw.fence)))
    }

    /// Maps managed memory from the device file.
    pub fn map_managed(&self, npages: usize, flags: ManagedFlags) -> Result<Managed, Errno> {
        self.map_managed_at(0, npages * PAGE_SIZE, flags)
    }

    /// Maps new managed memory over `old`, which is thereby unmapped.
    pub fn map_managed_over(&self, old: Managed, flags: ManagedFlags) -> Result<Managed, Errno> {
        let old = std::mem::ManuallyDrop::new(old);
        self.map_managed_at(old.addr, old.len, flags)
    }

    /// Maps managed memory over the first pages of `area`. Dropping the memory returns these pages
    /// to `area`, and has to precede the drop of `area`.
    pub fn map_managed_in(
        &self,
        area: &Mapping,
        npages: usize,
        flags: ManagedFlags,
    ) -> Result<Managed, Errno> {
        assert!(npages <= area.pages(), "the area is too small");
        let addr = area.addr();
        let len = npages * PAGE_SIZE;
        let managed = self.map_managed_at(addr, len, flags);
        // A failed call may have unmapped the range: dropping this reserves it again.
        let reserved = Managed { addr, len, reserved: true };
        match managed {
            Ok(managed) => {
                std::mem::forget(managed);
                Ok(reserved)
            }
            Err(error) => Err(error),
        }
    }

    fn map_managed_at(&self, at: usize, len: usize, flags: ManagedFlags) -> Result<Managed, Errno> {
        let offset = (1i64 << 48) | (i64::from(flags.bits()) << 49);
        let fixed = if at == 0 { 0 } else { libc::MAP_FIXED };
        // SAFETY: a new mapping at a free address, or over memory to which no references exist.
        let addr = unsafe {
            libc::mmap(
                at as *mut libc::c_void,
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | fixed,
                self.fd(),
                offset,
            )
        };
        if addr == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        Ok(Managed { addr: addr as usize, len, reserved: false })
    }

    /// Tries to map the device file with these flags and this offset, and unmaps it again.
    pub fn probe_map(&self, flags: i32, offset: i64) -> Result<(), Errno> {
        // SAFETY: a new mapping at a free address, to which no references exist.
        unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let addr = libc::mmap(std::ptr::null_mut(), PAGE_SIZE, prot, flags, self.fd(), offset);
            if addr == libc::MAP_FAILED {
                return Err(Errno::last());
            }
            libc::munmap(addr, PAGE_SIZE);
        }
        Ok(())
    }
}
