// SPDX-License-Identifier: GPL-2.0
//! The nodes of the drivers, and their descriptors.

use crate::sys;
use std::{
    ffi::{
        CStr,
        OsStr, //
    },
    os::unix::ffi::OsStrExt,
    path::Path, //
};

/// File descriptors of the nodes; each may be open or closed.
pub const FDS: [i32; 12] = [100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111];

/// Number of descriptors of the mock device. Those of the nodes of [`SMALL`] follow.
pub const LARGE: usize = FDS.len() - SMALL.len();

/// The nodes of the small drivers, if they are loaded.
pub const SMALL: [&CStr; 6] = [
    c"/dev/hmm_c_mirror",
    c"/dev/hmm_mirror_only",
    c"/dev/hmm_lpae",
    c"/dev/hmm_lpae_16k",
    c"/dev/rust_template",
    c"/dev/rust_engines",
];
/// Number of nodes with the calls of `Op::Sample`, and indices of nodes with other calls.
pub(super) const SAMPLES: usize = 4;
pub(super) const TEMPLATE: usize = 4;
pub(super) const ENGINES: usize = 5;

fn open_path(path: &CStr, flags: i32) -> isize {
    let flags = libc::O_RDWR | libc::O_CLOEXEC | flags;
    let path = path.as_ptr() as usize;
    sys::call3(libc::SYS_openat, libc::AT_FDCWD as usize, path, flags as usize)
}

/// Opens the node of descriptor `which`, or node `device` of the mock. Returns a negative number on
/// an error. Half of them are opened with `O_NONBLOCK`.
pub fn open_node(which: usize, device: u64) -> isize {
    let flags = if which % 2 == 0 { libc::O_NONBLOCK } else { 0 };
    let small = which.checked_sub(LARGE).map(|index| open_path(SMALL[index], flags));
    if let Some(node) = small.filter(|node| *node >= 0) {
        return node;
    }
    let mut path = *b"/dev/hmm_dmirror0\0";
    path[16] = b'0' + device as u8;
    CStr::from_bytes_with_nul(&path).map_or(-1, |path| open_path(path, flags))
}

/// Paths of the nodes of the small drivers that exist.
pub fn small_nodes() -> impl Iterator<Item = &'static Path> {
    SMALL.iter().map(|path| small_path(path)).filter(|path| path.exists())
}

fn small_path(path: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(path.to_bytes()))
}

/// Whether the small driver with index `which` is loaded.
pub(super) fn is_loaded(which: usize) -> bool {
    small_path(SMALL[which]).exists()
}

pub(super) fn close(fd: isize) -> isize {
    sys::call3(libc::SYS_close, fd as usize, 0, 0)
}
