// SPDX-License-Identifier: GPL-2.0

//! Files in debugfs whose operations belong to the module.
//!
//! [`kernel::debugfs`] would do, but the file operations that it makes have no owner: the module could be removed
//! while a file is open, and closing that file would look for its operations in memory that is no more
//! (`full_proxy_release()` of the core does so even after the file was removed). With an owner the module stays.
//!
//! C header: [`include/linux/debugfs.h`](srctree/include/linux/debugfs.h)

#![cfg_attr(not(CONFIG_DEBUG_FS), expect(dead_code, reason = "there are no files"))]

use crate::bindings;
use core::ptr;
use kernel::{
    debugfs::{BinaryWriter, Reader, Writer},
    ffi, fmt,
    prelude::*,
    seq_file::SeqFile,
    seq_print,
    sync::SetOnce,
    uaccess::UserSlice,
};

/// Text that can be written, too.
pub(crate) trait Setting: Writer + Reader {}

impl<T: Writer + Reader> Setting for T {}

/// What a file has.
#[derive(Clone, Copy)]
pub(crate) enum Contents {
    Text(&'static (dyn Writer + Sync)),
    Setting(&'static (dyn Setting + Sync)),
    Binary(&'static (dyn BinaryWriter + Sync)),
}

/// A file.
#[derive(Clone, Copy)]
pub(crate) struct File {
    /// Below the directory: null for that itself.
    pub(crate) below: Option<&'static CStr>,
    pub(crate) name: &'static CStr,
    pub(crate) contents: Contents,
}

/// File operations: used until the last file is closed, so in a static of the module that owns them.
struct Table(bindings::file_operations);

// SAFETY: A table is only read.
unsafe impl Send for Table {}
// SAFETY: As above.
unsafe impl Sync for Table {}

static TEXT: SetOnce<Table> = SetOnce::new();
static BINARY: SetOnce<Table> = SetOnce::new();

/// A directory at the root of debugfs, with files. Dropping it waits for reads and writes that run, and removes it.
///
/// # Invariants
///
/// `root` is null, an error or a directory of ours. `_files` does not change, and so what its elements' addresses were
/// given for stays.
pub(crate) struct Directory {
    root: *mut bindings::dentry,
    _files: KVec<File>,
}

// SAFETY: debugfs may be used from all threads, and so may what the files have.
unsafe impl Send for Directory {}
// SAFETY: As above.
unsafe impl Sync for Directory {}

#[cfg(CONFIG_DEBUG_FS)]
impl Directory {
    /// Makes `/sys/kernel/debug/NAME`. As with all of debugfs, files that cannot be made are not there. As long as one
    /// is open `module` stays.
    pub(crate) fn new(name: &CStr, module: &'static ThisModule, files: KVec<File>) -> Self {
        TEXT.populate(Table(bindings::file_operations {
            owner: module.as_ptr(),
            open: Some(open_text),
            read: Some(bindings::seq_read),
            write: Some(write),
            llseek: Some(bindings::seq_lseek),
            release: Some(bindings::single_release),
            ..pin_init::zeroed()
        }));
        BINARY.populate(Table(bindings::file_operations {
            owner: module.as_ptr(),
            open: Some(bindings::simple_open),
            read: Some(read_binary),
            llseek: Some(bindings::default_llseek),
            ..pin_init::zeroed()
        }));
        // SAFETY: A string, and no parent.
        let root = unsafe { bindings::debugfs_create_dir(name.as_char_ptr(), ptr::null_mut()) };
        // INVARIANT: That is ours now, and `files` are moved, but not their elements.
        let this = Self {
            root,
            _files: files,
        };
        let mut last: (Option<&CStr>, *mut bindings::dentry) = (None, root);
        for file in &this._files {
            if let Some(name) = file.below.filter(|name| last.0 != Some(*name)) {
                // SAFETY: A string, and what is null, an error or a directory of ours.
                let directory = unsafe { bindings::debugfs_create_dir(name.as_char_ptr(), root) };
                last = (Some(name), directory);
            }
            let parent = if file.below.is_some() { last.1 } else { root };
            let (mode, table) = match file.contents {
                Contents::Text(_) => (0o400, &TEXT),
                Contents::Setting(_) => (0o600, &TEXT),
                Contents::Binary(_) => (0o400, &BINARY),
            };
            let Some(table) = table.as_ref() else {
                continue;
            };
            // SAFETY: A string; the parent is as above. The element is there until the file is removed, which `drop` does
            // before; the table is for it, and is there until the last file is closed, for its owner stays.
            unsafe {
                bindings::debugfs_create_file_full(
                    file.name.as_char_ptr(),
                    mode,
                    parent,
                    ptr::from_ref(&file.contents).cast_mut().cast(),
                    ptr::null(),
                    &table.0,
                )
            };
        }
        this
    }
}

#[cfg(not(CONFIG_DEBUG_FS))]
impl Directory {
    /// There are none.
    pub(crate) fn new(_name: &CStr, _module: &'static ThisModule, files: KVec<File>) -> Self {
        Self {
            root: ptr::null_mut(),
            _files: files,
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        #[cfg(CONFIG_DEBUG_FS)]
        // SAFETY: Null, an error or ours, by the type invariant.
        unsafe {
            bindings::debugfs_remove(self.root)
        };
    }
}

/// # Safety
///
/// Called by the core for a file of text that is being opened, so that it is not removed before the end.
unsafe extern "C" fn open_text(
    inode: *mut bindings::inode,
    file: *mut bindings::file,
) -> ffi::c_int {
    // SAFETY: By the function's requirements; `show` takes what the inode has.
    unsafe { bindings::single_open(file, Some(show), (*inode).i_private) }
}

/// As [`Writer`] writes it.
struct Shown<'a>(&'a (dyn Writer + Sync));

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f)
    }
}

/// As [`Writer`] writes it.
struct ShownSetting<'a>(&'a (dyn Setting + Sync));

impl fmt::Display for ShownSetting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f)
    }
}

/// # Safety
///
/// Called by the core in a read of a file of text, which is not removed before the end.
unsafe extern "C" fn show(seq: *mut bindings::seq_file, _: *mut ffi::c_void) -> ffi::c_int {
    // SAFETY: By the function's requirements, `open_text` has put there what is shown.
    let (contents, seq) = unsafe {
        let contents: *const Contents = (*seq).private.cast();
        (&*contents, SeqFile::from_raw(seq))
    };
    match contents {
        Contents::Text(text) => seq_print!(seq, "{}", Shown(*text)),
        Contents::Setting(text) => seq_print!(seq, "{}", ShownSetting(*text)),
        Contents::Binary(_) => {}
    }
    0
}

/// # Safety
///
/// Called by the core in a write to a file of text, which is not removed before the end.
unsafe extern "C" fn write(
    file: *mut bindings::file,
    buffer: *const ffi::c_char,
    count: usize,
    _position: *mut bindings::loff_t,
) -> isize {
    // SAFETY: By the function's requirements, `open_text` has put a `seq_file` there.
    let contents = unsafe {
        let seq: *const bindings::seq_file = (*file).private_data.cast();
        &*(*seq).private.cast::<Contents>()
    };
    let Contents::Setting(setting) = contents else {
        return EINVAL.to_errno() as isize;
    };
    let from = UserPtr::from_ptr(buffer.cast_mut().cast());
    let mut from = UserSlice::new(from, count).reader();
    match setting.read_from_slice(&mut from) {
        Ok(()) => isize::try_from(count).unwrap_or(isize::MAX),
        // CAST: An errno fits.
        Err(error) => error.to_errno() as isize,
    }
}

/// # Safety
///
/// Called by the core in a read of a binary file, which is not removed before the end.
unsafe extern "C" fn read_binary(
    file: *mut bindings::file,
    buffer: *mut ffi::c_char,
    count: usize,
    position: *mut bindings::loff_t,
) -> isize {
    // SAFETY: By the function's requirements; `simple_open` has put there what the inode has, and the position is for us.
    let (contents, position) = unsafe {
        let contents: *const Contents = (*file).private_data.cast();
        (&*contents, &mut *position)
    };
    let Contents::Binary(binary) = contents else {
        return EINVAL.to_errno() as isize;
    };
    let mut to = UserSlice::new(UserPtr::from_ptr(buffer.cast()), count).writer();
    match binary.write_to_slice(&mut to, position) {
        Ok(bytes) => isize::try_from(bytes).unwrap_or(isize::MAX),
        // CAST: An errno fits.
        Err(error) => error.to_errno() as isize,
    }
}
