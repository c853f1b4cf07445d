// SPDX-License-Identifier: GPL-2.0
//! Files of the kernel with the data, and diagnosis of missing files.

use crate::places::page_size;
use crate::problem::{
    Problem,
    Result, //
};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{
    Path,
    PathBuf, //
};

/// Directory of the library's files.
const DEBUGFS: &str = "/sys/kernel/debug/rust_hmm";

/// Mount points of tracefs.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Number of bits of the page number in a position of the file `map`.
const PAGE_BITS: u32 = 44;

/// Whether a file system of this type is mounted at `at`, by the text of `/proc/mounts`.
fn is_mounted(mounts: &str, kind: &str, at: &str) -> bool {
    mounts.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next() == Some(at) && words.next() == Some(kind)
    })
}

fn mounted(kind: &str, at: &str) -> bool {
    std::fs::read_to_string("/proc/mounts").is_ok_and(|mounts| is_mounted(&mounts, kind, at))
}

/// The reason for which a file of the library is missing.
fn missing(file: &Path, error: io::Error) -> Problem {
    if error.kind() != io::ErrorKind::NotFound {
        return Problem::io("read", file, error);
    }
    if !mounted("debugfs", "/sys/kernel/debug") {
        return Problem::NotMounted("debugfs");
    }
    if Path::new(DEBUGFS).is_dir() {
        Problem::OldModule(file.display().to_string())
    } else {
        Problem::NoModule
    }
}

/// The text of the library's file `name`.
pub fn text(name: &str) -> Result<String> {
    let path = Path::new(DEBUGFS).join(name);
    std::fs::read_to_string(&path).map_err(|error| missing(&path, error))
}

/// Calls `line` for the lines of mirror `number` in the file `map`.
pub fn map(number: u32, mut line: impl FnMut(&str)) -> Result<()> {
    let path = Path::new(DEBUGFS).join("map");
    let file = File::open(&path).map_err(|error| missing(&path, error))?;
    let own = format!("{number} ");
    let key = u64::from(number) & ((1 << (63 - PAGE_BITS)) - 1);
    let mut at = key << PAGE_BITS;
    let mut buffer = vec![0; 16384];
    loop {
        let read =
            file.read_at(&mut buffer, at).map_err(|error| Problem::io("read", &path, error))?;
        let text = String::from_utf8_lossy(&buffer[..read]);
        let mut next = None;
        for text in text.lines() {
            if !text.starts_with(&own) {
                return Ok(());
            }
            line(text);
            // The next position: behind the last page that was read.
            let mut words = text.split_whitespace().skip(2);
            let start = words
                .next()
                .and_then(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
            let pages = words.next().and_then(|word| word.parse::<u64>().ok());
            next = start
                .zip(pages)
                .map(|(start, pages)| (key << PAGE_BITS) + start / page_size() + pages);
        }
        match next {
            Some(next) => at = next,
            None => return Ok(()),
        }
    }
}

/// Mount point of tracefs, if it has the library's events.
pub fn tracefs() -> Result<PathBuf> {
    let mut denied = None;
    let found =
        TRACEFS.iter().map(Path::new).find(|dir| match std::fs::read_dir(dir.join("instances")) {
            Ok(_) => true,
            Err(error) => {
                if error.kind() == io::ErrorKind::PermissionDenied {
                    denied = Some(Problem::io("read", &dir.join("instances"), error));
                }
                false
            }
        });
    let Some(found) = found else {
        return Err(denied.unwrap_or(Problem::NotMounted("tracefs")));
    };
    if found.join("events/rust_hmm").is_dir() {
        Ok(found.to_path_buf())
    } else {
        Err(Problem::NoModule)
    }
}

/// The name of process `pid`, or an empty string.
pub fn name_of(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_string()
}

/// Seconds since boot.
pub fn uptime() -> Result<f64> {
    let path = Path::new("/proc/uptime");
    let text = std::fs::read_to_string(path).map_err(|error| Problem::io("read", path, error))?;
    let word = text.split_whitespace().next().and_then(|word| word.parse().ok());
    word.ok_or_else(|| Problem::Format(format!("/proc/uptime is '{}'", text.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read() {
        let mounts =
            "none /sys/kernel/debug debugfs rw 0 0\ntracefs /sys/kernel/tracing tracefs rw 0 0\n";
        assert!(is_mounted(mounts, "debugfs", "/sys/kernel/debug"));
        assert!(!is_mounted(mounts, "debugfs", "/sys/kernel/tracing"));
        assert!(!is_mounted("", "debugfs", "/sys/kernel/debug"));
    }
}
