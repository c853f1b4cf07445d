// SPDX-License-Identifier: GPL-2.0
//! Files to map, with recognizable contents.

use crate::abi::{
    HUGE_SIZE,
    PAGE_SIZE, //
};
use crate::errno::Errno;
use crate::mapping::Mapping;
use crate::procfs::Settings;
use crate::{
    pagemap,
    pattern, //
};
use std::fs::File;
use std::io;
use std::os::fd::{
    AsRawFd,
    FromRawFd,
    OwnedFd, //
};
use std::time::{
    Duration,
    Instant, //
};

/// A file without a name in `dir`, `npages` long, with the pattern `seed`.
pub fn temp_file(dir: &str, seed: u64, npages: usize) -> io::Result<File> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .mode(0o600)
        .open(dir)?;
    file.write_all(&pattern::buffer(seed, 0, npages))?;
    Ok(file)
}

/// Punches a hole of `npages` pages into a file, whose size stays the same.
pub fn punch(file: &File, first: usize, npages: usize) -> Result<(), Errno> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let at = (first * PAGE_SIZE) as libc::off_t;
    let len = (npages * PAGE_SIZE) as libc::off_t;
    // SAFETY: plain numbers.
    Errno::check(unsafe { libc::fallocate(file.as_raw_fd(), mode, at, len) }.into()).map(|_| ())
}

/// A memfd of `npages` pages with the pattern `seed`.
pub fn memfd(seed: u64, npages: usize) -> io::Result<File> {
    use std::io::Write;
    // SAFETY: a constant string and no flags.
    let fd = unsafe { libc::memfd_create(c"hmm".as_ptr(), 0) };
    let fd = Errno::check(fd.into())?;
    // SAFETY: memfd_create() returned a new descriptor, which is owned here.
    let mut file = unsafe { File::from_raw_fd(fd as i32) };
    file.write_all(&pattern::buffer(seed, 0, npages))?;
    Ok(file)
}

/// Pages to which a pipe holds references, so that they cannot migrate.
#[derive(Debug)]
pub struct Pin {
    _pipe: [OwnedFd; 2],
}

impl Pin {
    /// Maximum number of pages that one pipe can hold.
    pub const MOST: usize = 256;

    /// Takes a reference to the page at `addr`, which must be readable.
    pub fn of(addr: usize) -> io::Result<Pin> {
        Self::of_pages(addr, 1)
    }

    /// Takes references to `npages` pages from `addr` on, at most [`Self::MOST`], which must be
    /// readable.
    pub fn of_pages(addr: usize, npages: usize) -> io::Result<Pin> {
        let mut ends = [0; 2];
        // SAFETY: The array has the two elements that the kernel writes.
        Errno::check(unsafe { libc::pipe(ends.as_mut_ptr()) }.into())?;
        // SAFETY: pipe() returned two new descriptors, which are owned here.
        let pipe = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        let bytes = npages * PAGE_SIZE;
        if npages > 1 {
            // SAFETY: plain numbers.
            let size = unsafe { libc::fcntl(pipe[1].as_raw_fd(), libc::F_SETPIPE_SZ, bytes) };
            Errno::check(size.into())?;
        }
        let part = libc::iovec { iov_base: addr as *mut _, iov_len: bytes };
        // SAFETY: the kernel checks the addresses, and only reads there.
        let spliced = unsafe { libc::vmsplice(pipe[1].as_raw_fd(), &part, 1, 0) };
        if Errno::check(spliced as i64)? != bytes as i64 {
            return Err(io::Error::other("the pages do not go into the pipe"));
        }
        Ok(Pin { _pipe: pipe })
    }
}

/// KSM, enabled while this exists.
#[derive(Debug)]
pub struct Ksm {
    _settings: Settings,
}

impl Ksm {
    const DIR: &'static str = "/sys/kernel/mm/ksm";

    /// Enables KSM with short intervals, until this is dropped.
    pub fn start() -> io::Result<Ksm> {
        let mut settings = Settings::new();
        settings.set(format!("{}/sleep_millisecs", Self::DIR), "1")?;
        settings.set(format!("{}/pages_to_scan", Self::DIR), "4096")?;
        if settings.set(format!("{}/run", Self::DIR), "1")? {
            Ok(Ksm { _settings: settings })
        } else {
            Err(io::Error::new(io::ErrorKind::NotFound, "this kernel has none"))
        }
    }

    /// Allows KSM to merge the pages of `map`.
    pub fn advise(&self, map: &Mapping) -> Result<(), Errno> {
        map.advise(libc::MADV_MERGEABLE)
    }

    /// Waits until most pages of `map`, which all have the same contents, are merged.
    pub fn merge(&self, map: &Mapping) -> io::Result<()> {
        self.advise(map)?;
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let mut frames = pagemap::pfns(map.addr(), map.pages())?;
            frames.sort_unstable();
            frames.dedup();
            if frames.len() <= map.pages() / 4 {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(io::Error::other("the kernel does not merge"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A kernel feature that is enabled while this exists, with a counter of its work.
#[derive(Debug)]
struct Counted {
    _settings: Settings,
    count: String,
    before: u64,
}

impl Counted {
    /// Writes these files below `dir`, in this order, until this is dropped. `count` is the file
    /// with the counter.
    fn start(dir: &str, count: &str, files: &[(&str, &str)]) -> io::Result<Counted> {
        let count = format!("{dir}/{count}");
        let before = number(&count)?;
        let mut settings = Settings::new();
        for (file, value) in files {
            settings.set(format!("{dir}/{file}"), value)?;
        }
        Ok(Counted { _settings: settings, count, before })
    }

    fn since(&self) -> io::Result<u64> {
        Ok(number(&self.count)? - self.before)
    }
}

/// khugepaged, enabled while this exists.
#[derive(Debug)]
pub struct Khugepaged(Counted);

impl Khugepaged {
    /// Enables khugepaged with short intervals, until this is dropped.
    pub fn start() -> io::Result<Khugepaged> {
        let dir = "/sys/kernel/mm/transparent_hugepage/khugepaged";
        // The last one wakes it.
        let files = [
            ("pages_to_scan", "65536"),
            ("alloc_sleep_millisecs", "1"),
            ("scan_sleep_millisecs", "1"),
        ];
        Counted::start(dir, "pages_collapsed", &files).map(Khugepaged)
    }

    /// Number of huge pages that it has collapsed since.
    pub fn collapsed(&self) -> io::Result<u64> {
        self.0.since()
    }
}

/// Folios of 64 KiB instead of huge pages on faults of [`Mapping::anon_huge`].
#[derive(Debug)]
pub struct SmallThp(Counted);

impl SmallThp {
    /// Switches them on until this is dropped.
    pub fn start() -> io::Result<SmallThp> {
        let dir = "/sys/kernel/mm/transparent_hugepage";
        let huge = format!("hugepages-{}kB/enabled", HUGE_SIZE / 1024);
        let files = [(huge.as_str(), "never"), ("hugepages-64kB/enabled", "always")];
        Counted::start(dir, "hugepages-64kB/stats/anon_fault_alloc", &files).map(SmallThp)
    }

    /// Number of such folios allocated since.
    pub fn made(&self) -> io::Result<u64> {
        self.0.since()
    }
}

fn number(path: &str) -> io::Result<u64> {
    std::fs::read_to_string(path)?.trim().parse().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_their_pattern() {
        let file = memfd(5, 2).unwrap();
        let map = Mapping::file_private(&file, 2).unwrap();
        assert_eq!(map.check(5), Ok(()));
    }
}
