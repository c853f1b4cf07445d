// SPDX-License-Identifier: GPL-2.0

//! Files in debugfs whose file operations have an owner.
//!
//! The file operations of [`kernel::debugfs`] have no owner. With them, a module could be unloaded
//! while a file is open. Closing that file would then use file operations in freed memory:
//! `full_proxy_release()` does so even after the file was removed. An open file with an owner holds
//! a reference to the module.
//!
//! C header: [`include/linux/debugfs.h`](srctree/include/linux/debugfs.h)

#![cfg_attr(not(CONFIG_DEBUG_FS), expect(dead_code, reason = "there are no files"))]

use crate::bindings;
use core::ptr;
use kernel::{
    debugfs::{
        BinaryWriter,
        Reader,
        Writer, //
    },
    ffi,
    fmt,
    prelude::*,
    seq_file::SeqFile,
    seq_print,
    sync::SetOnce,
    uaccess::UserSlice, //
};

/// Text that can be read and written.
pub(crate) trait WritableText: Writer + Reader {}

impl<T: Writer + Reader> WritableText for T {}

/// Contents of a file.
#[derive(Clone, Copy)]
pub(crate) enum FileContents {
    Text(&'static (dyn Writer + Sync)),
    WritableText(&'static (dyn WritableText + Sync)),
    Binary(&'static (dyn BinaryWriter + Sync)),
}

/// A file of a [`DebugDirectory`].
#[derive(Clone, Copy)]
pub(crate) struct DebugFile {
    /// Name of the subdirectory; `None` for the directory itself.
    pub(crate) below: Option<&'static CStr>,
    pub(crate) name: &'static CStr,
    pub(crate) contents: FileContents,
}

/// File operations. They are in a static of the module that owns them, because they are used until
/// the last file is closed.
struct DebugFileOps(bindings::file_operations);

// SAFETY: A table is never modified.
unsafe impl Send for DebugFileOps {}
// SAFETY: A table is never modified, so that concurrent reads are no data race.
unsafe impl Sync for DebugFileOps {}

static TEXT_FILE_OPS: SetOnce<DebugFileOps> = SetOnce::new();
static BINARY_FILE_OPS: SetOnce<DebugFileOps> = SetOnce::new();

/// A directory at the root of debugfs, with files. Dropping it waits for concurrent reads and
/// writes, and removes the directory.
///
/// # Invariants
///
/// `root` is null, an error or a directory of ours. `_files` does not change, so that the addresses
/// of its elements, which the inodes have, stay valid.
pub(crate) struct DebugDirectory {
    root: *mut bindings::dentry,
    _files: KVec<DebugFile>,
}

// SAFETY: `debugfs_remove()` may be called by any thread, and the contents of files are `Sync`.
unsafe impl Send for DebugDirectory {}
// SAFETY: A shared reference gives no access to `root`, and the contents of files are `Sync`.
unsafe impl Sync for DebugDirectory {}

#[cfg(CONFIG_DEBUG_FS)]
impl DebugDirectory {
    /// Creates `/sys/kernel/debug/NAME` with `files`. As always in debugfs, failures are ignored:
    /// files that cannot be created are missing. An open file holds a reference to `module`.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new(name: &CStr, module: &'static ThisModule, files: KVec<DebugFile>) -> Self {
        TEXT_FILE_OPS.populate(DebugFileOps(bindings::file_operations {
            owner: module.as_ptr(),
            open: Some(open_text),
            read: Some(bindings::seq_read),
            write: Some(write),
            llseek: Some(bindings::seq_lseek),
            release: Some(bindings::single_release),
            ..pin_init::zeroed()
        }));
        BINARY_FILE_OPS.populate(DebugFileOps(bindings::file_operations {
            owner: module.as_ptr(),
            open: Some(bindings::simple_open),
            read: Some(read_binary),
            llseek: Some(bindings::default_llseek),
            ..pin_init::zeroed()
        }));
        // SAFETY: The name is a valid string; a null parent stands for the root of debugfs.
        let root = unsafe { bindings::debugfs_create_dir(name.as_char_ptr(), ptr::null_mut()) };
        // INVARIANT: The directory is ours. Moving `files` does not move its elements.
        let this = Self {
            root,
            _files: files,
        };
        let mut last: (Option<&CStr>, *mut bindings::dentry) = (None, root);
        for file in &this._files {
            if let Some(name) = file.below.filter(|name| last.0 != Some(*name)) {
                // SAFETY: The name is a valid string; `root` is null, an error or a directory of
                // ours.
                let directory = unsafe { bindings::debugfs_create_dir(name.as_char_ptr(), root) };
                last = (Some(name), directory);
            }
            let parent = if file.below.is_some() { last.1 } else { root };
            let (mode, table) = match file.contents {
                FileContents::Text(_) => (0o400, &TEXT_FILE_OPS),
                FileContents::WritableText(_) => (0o600, &TEXT_FILE_OPS),
                FileContents::Binary(_) => (0o400, &BINARY_FILE_OPS),
            };
            let Some(table) = table.as_ref() else {
                continue;
            };
            // SAFETY: The name is a valid string; `parent` is null, an error or a directory of
            // ours. `drop` removes the file before `_files` frees its contents. The operations are
            // in a static of their owner, which cannot be unloaded while a file is open.
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
impl DebugDirectory {
    /// Creates no files, because the kernel has no debugfs.
    pub(crate) fn new(_name: &CStr, _module: &'static ThisModule, files: KVec<DebugFile>) -> Self {
        Self {
            root: ptr::null_mut(),
            _files: files,
        }
    }
}

impl Drop for DebugDirectory {
    fn drop(&mut self) {
        #[cfg(CONFIG_DEBUG_FS)]
        // SAFETY: By the type invariant, `root` is null, an error or a directory of ours.
        unsafe {
            bindings::debugfs_remove(self.root)
        };
    }
}

/// # Safety
///
/// Called by the core for a text file that is being opened. The file is not removed before this
/// returns.
unsafe extern "C" fn open_text(
    inode: *mut bindings::inode,
    file: *mut bindings::file,
) -> ffi::c_int {
    // SAFETY: By the function's requirements; `i_private` is the address of the file's
    // `FileContents`, as `show` requires.
    unsafe { bindings::single_open(file, Some(show), (*inode).i_private) }
}

/// Displays the text of a [`Writer`].
struct ShownText<'a>(&'a (dyn Writer + Sync));

impl fmt::Display for ShownText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f)
    }
}

/// Displays the text of a [`WritableText`].
struct ShownWritableText<'a>(&'a (dyn WritableText + Sync));

impl fmt::Display for ShownWritableText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f)
    }
}

/// # Safety
///
/// Called by the core for a read of a text file. The file is not removed before this returns.
unsafe extern "C" fn show(seq: *mut bindings::seq_file, _: *mut ffi::c_void) -> ffi::c_int {
    // SAFETY: `open_text` has set `private` to the address of the file's `FileContents`, which is
    // valid until the file is removed; `seq` is valid by the function's requirements.
    let (contents, seq) = unsafe {
        let contents: *const FileContents = (*seq).private.cast();
        (&*contents, SeqFile::from_raw(seq))
    };
    match contents {
        FileContents::Text(text) => seq_print!(seq, "{}", ShownText(*text)),
        FileContents::WritableText(text) => seq_print!(seq, "{}", ShownWritableText(*text)),
        FileContents::Binary(_) => {}
    }
    0
}

/// # Safety
///
/// Called by the core for a write to a text file. The file is not removed before this returns.
unsafe extern "C" fn write(
    file: *mut bindings::file,
    buffer: *const ffi::c_char,
    count: usize,
    _position: *mut bindings::loff_t,
) -> isize {
    // SAFETY: `open_text` has set `private_data` to a `seq_file`, whose `private` is the address of
    // the file's `FileContents`. These are valid until the file is removed.
    let contents = unsafe {
        let seq: *const bindings::seq_file = (*file).private_data.cast();
        &*(*seq).private.cast::<FileContents>()
    };
    let FileContents::WritableText(setting) = contents else {
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
/// Called by the core for a read of a binary file. The file is not removed before this returns.
unsafe extern "C" fn read_binary(
    file: *mut bindings::file,
    buffer: *mut ffi::c_char,
    count: usize,
    position: *mut bindings::loff_t,
) -> isize {
    // SAFETY: `simple_open` has set `private_data` to the inode's `i_private`, the address of the
    // file's `FileContents`, which are valid until the file is removed. `position` is valid and
    // exclusive for this call.
    let (contents, position) = unsafe {
        let contents: *const FileContents = (*file).private_data.cast();
        (&*contents, &mut *position)
    };
    let FileContents::Binary(binary) = contents else {
        return EINVAL.to_errno() as isize;
    };
    let mut to = UserSlice::new(UserPtr::from_ptr(buffer.cast()), count).writer();
    match binary.write_to_slice(&mut to, position) {
        Ok(bytes) => isize::try_from(bytes).unwrap_or(isize::MAX),
        // CAST: An errno fits.
        Err(error) => error.to_errno() as isize,
    }
}
