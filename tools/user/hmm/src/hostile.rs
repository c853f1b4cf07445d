// SPDX-License-Identifier: GPL-2.0
//! Rights, limits and control groups of this process, for tests of what others may do.

use crate::errno::Errno;
use std::ffi::CString;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Becomes `user`, with that group only, for good.
pub fn become_user(user: u32) -> Result<(), Errno> {
    // SAFETY: system calls on numbers; an empty list of groups.
    unsafe {
        Errno::check(libc::setgroups(0, std::ptr::null()).into())?;
        Errno::check(libc::setgid(user).into())?;
        Errno::check(libc::setuid(user).into())?;
    }
    Ok(())
}

/// Takes away the right to lock memory, and every exception from that.
pub fn forbid_locked_memory() {
    let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid structure.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) };
}

/// Runs another program in this process; returns only with an error.
pub fn exec(words: &[&str]) -> Errno {
    let words: Vec<CString> = words.iter().filter_map(|word| CString::new(*word).ok()).collect();
    let mut list: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
    list.push(std::ptr::null());
    // SAFETY: strings and a list that end with zeros and outlive the call.
    unsafe { libc::execv(list[0], list.as_ptr()) };
    Errno::last()
}

/// Waits until process `pid` runs a program with `name` in its path; the starts of its mappings.
pub fn wait_for_program(pid: i32, name: &str) -> io::Result<Vec<usize>> {
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(20) {
        let runs = fs::read_link(format!("/proc/{pid}/exe"))?;
        if runs.to_string_lossy().contains(name) {
            // The loader may still map parts.
            std::thread::sleep(Duration::from_millis(100));
            let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
            let start = |line: &str| {
                let (start, _) = line.split_once('-')?;
                usize::from_str_radix(start, 16).ok().filter(|start| *start < 1 << 47)
            };
            return Ok(maps.lines().filter_map(start).collect());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "it does not run"))
}

/// A number in KiB of the file `path`, which is like `/proc/self/status`.
fn kib_of(path: &str, name: &str) -> io::Result<u64> {
    let value = crate::procfs::parse_table(&fs::read_to_string(path)?).get(name).copied();
    value.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such line"))
}

/// A number in KiB of `/proc/self/status`.
pub fn status_kib(name: &str) -> io::Result<u64> {
    kib_of("/proc/self/status", name)
}

/// Memory that process `pid` maps now, in KiB.
pub fn resident_kib(pid: i32) -> io::Result<u64> {
    kib_of(&format!("/proc/{pid}/status"), "VmRSS")
}

/// A memory control group (version 2); removed when dropped, if it is empty.
#[derive(Debug)]
pub struct Group(PathBuf);

impl Group {
    /// Makes it, mounting the hierarchy if need be; `None` where the kernel has none.
    pub fn new(name: &str) -> io::Result<Option<Group>> {
        let top = PathBuf::from("/sys/fs/cgroup");
        let control = top.join("cgroup.subtree_control");
        if !control.exists() {
            let (kind, place) = (c"cgroup2".as_ptr(), c"/sys/fs/cgroup".as_ptr());
            // SAFETY: strings that outlive the call.
            let ret = unsafe { libc::mount(kind, place, kind, 0, std::ptr::null()) };
            if ret != 0 {
                return Ok(None);
            }
        }
        if fs::write(&control, "+memory").is_err() {
            return Ok(None);
        }
        let group = Group(top.join(name));
        match fs::create_dir(&group.0) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(Some(group)),
        }
    }

    /// Moves this process into it.
    pub fn enter(&self) -> io::Result<()> {
        fs::write(self.0.join("cgroup.procs"), "0")
    }

    /// Bytes that are charged to it, of memory on devices, too.
    pub fn bytes(&self) -> io::Result<u64> {
        let text = fs::read_to_string(self.0.join("memory.current"))?;
        text.trim().parse().map_err(io::Error::other)
    }

    /// Has the kernel reclaim all that it can of the memory that is charged to it.
    pub fn reclaim(&self) -> io::Result<()> {
        match fs::write(self.0.join("memory.reclaim"), "1G") {
            // There was less.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(()),
            result => result,
        }
    }

    /// Bytes of kernel memory that are charged to it, but for page tables of the CPU.
    pub fn kernel_bytes(&self) -> io::Result<u64> {
        let table = crate::procfs::parse_table(&fs::read_to_string(self.0.join("memory.stat"))?);
        let value = |name: &str| table.get(name).copied().unwrap_or(0);
        Ok(value("kernel").saturating_sub(value("pagetables")))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Whoever is in it goes on.
        let _ = fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_this_process() {
        assert_eq!(status_kib("VmPin").unwrap(), 0);
        assert!(status_kib("VmRSS").unwrap() > 0);
        assert!(status_kib("VmNothing").is_err());
    }

    #[test]
    fn a_program_that_there_is_not() {
        assert_eq!(exec(&["/no/such/program"]), Errno(libc::ENOENT));
    }
}
