// SPDX-License-Identifier: GPL-2.0
//! `/proc/PID/pagemap`: physical pages of virtual addresses.

use crate::procfs;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// One entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry(pub u64);

impl Entry {
    const PFN: u64 = (1 << 55) - 1;

    /// Whether the page is in system memory and mapped.
    pub fn is_present(self) -> bool {
        (self.0 >> 63) & 1 == 1
    }

    /// Whether this is a swap, migration or device-private entry.
    pub fn is_swap(self) -> bool {
        (self.0 >> 62) & 1 == 1
    }

    /// Whether the page is a file page or shared anonymous memory.
    pub fn is_file_or_shared(self) -> bool {
        (self.0 >> 61) & 1 == 1
    }

    /// Whether the page is mapped only once.
    pub fn is_exclusive(self) -> bool {
        (self.0 >> 56) & 1 == 1
    }

    /// The page frame, if the page is present and the reader is privileged.
    pub fn pfn(self) -> Option<u64> {
        let pfn = self.0 & Self::PFN;
        (self.is_present() && pfn != 0).then_some(pfn)
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match (self.is_present(), self.is_swap()) {
            (true, _) => "present",
            (_, true) => "swap",
            _ => "none",
        };
        write!(f, "{kind}:{:#x}", self.0 & Self::PFN)
    }
}

/// The entries of `npages` from `addr` on, of this process.
pub fn read(addr: usize, npages: usize) -> io::Result<Vec<Entry>> {
    read_of("self", addr, npages)
}

/// The entries of `npages` from `addr` on, of process `pid`.
pub fn read_of(pid: &str, addr: usize, npages: usize) -> io::Result<Vec<Entry>> {
    let file = File::open(format!("/proc/{pid}/pagemap"))?;
    let mut raw = vec![0u8; npages * 8];
    file.read_exact_at(&mut raw, (addr / procfs::page_size() * 8) as u64)?;
    let word = |raw: &[u8]| u64::from_ne_bytes(raw.try_into().unwrap_or_default());
    Ok(raw.chunks_exact(8).map(|raw| Entry(word(raw))).collect())
}

/// The page frames of `npages` from `addr` on; an error if one is not known.
pub fn pfns(addr: usize, npages: usize) -> io::Result<Vec<u64>> {
    let unknown = |page: usize, entry: Entry| {
        io::Error::other(format!("page {page} has no known page frame ({entry:?})"))
    };
    let entries = read(addr, npages)?.into_iter().enumerate();
    entries.map(|(page, entry)| entry.pfn().ok_or_else(|| unknown(page, entry))).collect()
}

/// The flags of page frame `pfn` in `/proc/kpageflags`, see the kernel's
/// `linux/kernel-page-flags.h`.
pub fn flags(pfn: u64) -> io::Result<u64> {
    let mut word = [0; 8];
    File::open("/proc/kpageflags")?.read_exact_at(&mut word, pfn * 8)?;
    Ok(u64::from_ne_bytes(word))
}

/// Whether page frame `pfn` is a zero page, or part of the huge one.
pub fn is_zero(pfn: u64) -> io::Result<bool> {
    const ZERO_PAGE: u32 = 24;
    Ok(flags(pfn)? & (1 << ZERO_PAGE) != 0)
}

/// Whether the kernel has merged page frame `pfn` (KSM).
pub fn is_merged(pfn: u64) -> io::Result<bool> {
    const KSM: u32 = 21;
    Ok(flags(pfn)? & (1 << KSM) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Mapping;

    #[test]
    fn bits_are_distinguished() {
        let present = Entry((1 << 63) | (1 << 56) | 0x1234);
        assert!(present.is_present() && present.is_exclusive() && !present.is_swap());
        assert_eq!(present.pfn(), Some(0x1234));
        let swap = Entry((1 << 62) | 0x77);
        assert!(swap.is_swap() && !swap.is_present());
        assert_eq!(swap.pfn(), None);
        assert!(Entry(1 << 61).is_file_or_shared());
    }

    #[test]
    fn own_memory_becomes_present() {
        let map = Mapping::anon(2).unwrap();
        assert!(!read(map.addr(), 2).unwrap()[0].is_present());
        map.set(0, 0, 1);
        let entries = read(map.addr(), 2).unwrap();
        assert!(entries[0].is_present() && !entries[1].is_present());
    }
}
