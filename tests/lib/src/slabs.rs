// SPDX-License-Identifier: GPL-2.0
//! Number of objects in the kernel's slab caches (`/sys/kernel/slab`), for comparison before and
//! after a test.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{
    self,
    Write, //
};
use std::os::unix::fs::FileExt;

const CACHES: &str = "/sys/kernel/slab";

/// Files of one cache, open.
struct Cache {
    name: String,
    objects: File,
    shrink: File,
}

impl Cache {
    /// Opens its files; `None` if the cache was removed in the meantime.
    fn open(name: String) -> io::Result<Option<Self>> {
        let path = |file: &str| format!("{CACHES}/{name}/{file}");
        let files = File::open(path("objects"))
            .and_then(|objects| Ok((objects, File::options().write(true).open(path("shrink"))?)));
        match files {
            Ok((objects, shrink)) => Ok(Some(Self { name, objects, shrink })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Frees empty slabs, per-CPU free objects, and with KASAN the quarantine.
    fn shrink(&mut self) -> io::Result<()> {
        gone(self.shrink.write_all(b"1")).map(drop)
    }

    /// Number of objects; `None` if the cache was removed in the meantime.
    fn objects(&self) -> io::Result<Option<u64>> {
        let mut text = [0; 256];
        let len = gone(self.objects.read_at(&mut text, 0))?.unwrap_or(0);
        let text = text.get(..len).unwrap_or_default();
        Ok(parse_objects(&String::from_utf8_lossy(text)))
    }
}

/// `None` for `ENODEV`, the error of a sysfs file that was removed.
fn gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        result => result.map(Some),
    }
}

/// The first number of a file like `123 N0=100 N1=23`.
fn parse_objects(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// Waits for an RCU grace period.
fn wait_for_rcu() -> io::Result<()> {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: The command takes no pointer.
    match unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// All caches; none on kernels without these files.
fn open_all() -> io::Result<Vec<Cache>> {
    let mut caches = Vec::new();
    let entries = match std::fs::read_dir(CACHES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(caches),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        // Merged caches have a symlink for each further name.
        if !entry.file_type()?.is_symlink() {
            caches.extend(Cache::open(entry.file_name().to_string_lossy().into_owned())?);
        }
    }
    Ok(caches)
}

/// Objects in each slab cache, after dropping the page cache, dentries and inodes. Empty on kernels
/// without these files.
///
/// Opening a file allocates a dentry and an inode, and there are several hundred files here. All
/// are opened before the caches are dropped and stay open until all are read, so that each call
/// counts the same number of them. Dentries and inodes are freed by RCU to per-CPU lists, and count
/// as used until the cache is shrunk.
pub fn objects() -> io::Result<BTreeMap<String, u64>> {
    let mut caches = open_all()?;
    std::fs::write("/proc/sys/vm/drop_caches", "3")?;
    // RCU callbacks may start after the first grace period, and have usually completed after a
    // second one.
    wait_for_rcu()?;
    wait_for_rcu()?;
    for cache in &mut caches {
        cache.shrink()?;
    }
    let mut objects = BTreeMap::new();
    for cache in caches {
        if let Some(count) = cache.objects()? {
            objects.insert(cache.name, count);
        }
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total_of_all_nodes_is_parsed() {
        assert_eq!(parse_objects("123 N0=100 N1=23\n"), Some(123));
        assert_eq!(parse_objects("0\n"), Some(0));
        assert_eq!(parse_objects(""), None);
    }
}
