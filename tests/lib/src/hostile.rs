// SPDX-License-Identifier: GPL-2.0
//! Credentials, limits and control groups of this process, for security tests.

use crate::errno::Errno;
use std::ffi::CString;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{
    Duration,
    Instant, //
};

/// Changes to user and group `user` permanently.
pub fn become_user(user: u32) -> Result<(), Errno> {
    // SAFETY: system calls on numbers; an empty list of groups.
    unsafe {
        Errno::check(libc::setgroups(0, std::ptr::null()).into())?;
        Errno::check(libc::setgid(user).into())?;
        Errno::check(libc::setuid(user).into())?;
    }
    Ok(())
}

/// Sets the soft and hard limit of RLIMIT_MEMLOCK to 0. CAP_IPC_LOCK still exempts from the limit.
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

/// Waits until process `pid` executes a program with `name` in its path. Returns the start
/// addresses of its mappings.
pub fn wait_for_program(pid: i32, name: &str) -> io::Result<Vec<usize>> {
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(20) {
        let runs = fs::read_link(format!("/proc/{pid}/exe"))?;
        if runs.to_string_lossy().contains(name) {
            // The loader may still be mapping libraries.
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

/// A value in KiB of file `path`, in the format of `/proc/self/status`.
fn kib_of(path: &str, name: &str) -> io::Result<u64> {
    let value = crate::procfs::parse_table(&fs::read_to_string(path)?).get(name).copied();
    value.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such line"))
}

/// A value in KiB of `/proc/self/status`.
pub fn status_kib(name: &str) -> io::Result<u64> {
    kib_of("/proc/self/status", name)
}

/// Resident memory of process `pid`, in KiB.
pub fn resident_kib(pid: i32) -> io::Result<u64> {
    kib_of(&format!("/proc/{pid}/status"), "VmRSS")
}

/// A memory control group (version 2); removed when dropped, if it is empty.
#[derive(Debug)]
pub struct Group(PathBuf);

impl Group {
    /// Creates it, after mounting the hierarchy if necessary; `None` if the kernel has no such
    /// controller.
    pub fn new(name: &str) -> io::Result<Option<Group>> {
        let top = PathBuf::from("/sys/fs/cgroup");
        let control = top.join("cgroup.subtree_control");
        if !control.exists() {
            let kind = c"cgroup2".as_ptr();
            let place = c"/sys/fs/cgroup".as_ptr();
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

    /// Bytes charged to it, including device memory.
    pub fn bytes(&self) -> io::Result<u64> {
        let text = fs::read_to_string(self.0.join("memory.current"))?;
        text.trim().parse().map_err(io::Error::other)
    }

    /// Makes the kernel reclaim as much as possible of its memory.
    pub fn reclaim(&self) -> io::Result<()> {
        match fs::write(self.0.join("memory.reclaim"), "1G") {
            // Less was reclaimed than requested.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(()),
            result => result,
        }
    }

    /// Bytes of kernel memory charged to it, without CPU page tables.
    pub fn kernel_bytes(&self) -> io::Result<u64> {
        let table = crate::procfs::parse_table(&fs::read_to_string(self.0.join("memory.stat"))?);
        let value = |name: &str| table.get(name).copied().unwrap_or(0);
        Ok(value("kernel").saturating_sub(value("pagetables")))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Fails, harmlessly, while a process is in the group.
        let _ = fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_of_this_process_is_read() {
        assert_eq!(status_kib("VmPin").unwrap(), 0);
        assert!(status_kib("VmRSS").unwrap() > 0);
        assert!(status_kib("VmNothing").is_err());
    }

    #[test]
    fn missing_program_is_an_error() {
        assert_eq!(exec(&["/no/such/program"]), Errno(libc::ENOENT));
    }
}
