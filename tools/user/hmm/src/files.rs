// SPDX-License-Identifier: GPL-2.0
//! Files to map, with contents that cannot be mistaken.

use crate::errno::Errno;
use crate::pattern;
use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;

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

/// A memfd of `npages` pages with the pattern `seed`.
pub fn memfd(seed: u64, npages: usize) -> io::Result<File> {
    use std::io::Write;
    // SAFETY: a constant string and no flags.
    let fd = unsafe { libc::memfd_create(c"hmm".as_ptr(), 0) };
    let fd = Errno::check(fd.into())?;
    // SAFETY: a new descriptor that nobody else knows.
    let mut file = unsafe { File::from_raw_fd(fd as i32) };
    file.write_all(&pattern::buffer(seed, 0, npages))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Mapping;

    #[test]
    fn files_have_their_pattern() {
        let file = memfd(5, 2).unwrap();
        let map = Mapping::file_private(&file, 2).unwrap();
        assert_eq!(map.check(5), Ok(()));
    }
}
