// SPDX-License-Identifier: GPL-2.0
//! System calls without the C library.
//!
//! The thread of this library has no thread-local storage: its `%fs` is that of the thread that
//! started it. A function of the C library would write that thread's `errno`, and `malloc` could
//! find a lock that was held when the process forked.

use core::arch::asm;

/// Error number of a failed system call, positive.
pub type Errno = i32;

/// Issues the system call `nr`.
///
/// # Safety
///
/// The arguments must be valid for this system call, as for `syscall(2)`.
pub unsafe fn call(nr: libc::c_long, args: [usize; 6]) -> Result<usize, Errno> {
    let ret: isize;
    // SAFETY: the caller vouches for the arguments. `syscall` changes no register but these, and
    // uses no stack of this process.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") nr as isize => ret,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        )
    };
    if (-4095..0).contains(&ret) {
        Err(-ret as Errno)
    } else {
        Ok(ret as usize)
    }
}

/// Open file of this library's thread, never closed: the end of the thread closes it.
#[derive(Clone, Copy)]
pub struct Fd(usize);

impl Fd {
    /// Opens `path`.
    pub fn open(path: &core::ffi::CStr, flags: i32) -> Result<Fd, Errno> {
        let args = [
            libc::AT_FDCWD as usize,
            path.as_ptr() as usize,
            (flags | libc::O_CLOEXEC) as usize,
            0,
            0,
            0,
        ];
        // SAFETY: `path` is a C string that outlives the call.
        unsafe { call(libc::SYS_openat, args) }.map(Fd)
    }

    /// Reads at `offset` into `buf`.
    pub fn read_at(self, buf: &mut [u8], offset: usize) -> Result<usize, Errno> {
        let args = [self.0, buf.as_mut_ptr() as usize, buf.len(), offset, 0, 0];
        // SAFETY: the kernel writes at most `buf.len()` bytes to `buf`.
        unsafe { call(libc::SYS_pread64, args) }
    }

    /// Issues an ioctl with `arg`.
    ///
    /// # Safety
    ///
    /// `arg` must be the argument type of the driver for `request`. Memory to which it points must
    /// be valid for writes by the driver.
    pub unsafe fn ioctl<T>(self, request: u64, arg: &mut T) -> Result<usize, Errno> {
        let args = [self.0, request as usize, arg as *mut T as usize, 0, 0, 0];
        // SAFETY: the caller vouches for `arg`.
        unsafe { call(libc::SYS_ioctl, args) }
    }

    /// Maps the first `bytes` of the file, shared.
    pub fn map(self, bytes: usize) -> Result<*mut u8, Errno> {
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let args = [0, bytes, prot, libc::MAP_SHARED as usize, self.0, 0];
        // SAFETY: without an address the kernel chooses one that nothing uses.
        unsafe { call(libc::SYS_mmap, args) }.map(|addr| addr as *mut u8)
    }

    /// Closes the file.
    pub fn close(self) {
        // SAFETY: the descriptor was opened by `open()`, and its owner gives it up here.
        let _ = unsafe { call(libc::SYS_close, [self.0, 0, 0, 0, 0, 0]) };
    }
}

/// Advises the kernel about memory. `advice` must be one that keeps the contents of the memory.
pub fn madvise(addr: usize, bytes: usize, advice: i32) -> Result<usize, Errno> {
    debug_assert!(matches!(advice, libc::MADV_PAGEOUT | libc::MADV_POPULATE_READ));
    // SAFETY: neither advice changes the contents or the mapping of memory.
    unsafe { call(libc::SYS_madvise, [addr, bytes, advice as usize, 0, 0, 0]) }
}

/// Monotonic time in nanoseconds.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let args = [libc::CLOCK_MONOTONIC as usize, &raw mut time as usize, 0, 0, 0, 0];
    // SAFETY: `time` is a `timespec` that the kernel may write to.
    let _ = unsafe { call(libc::SYS_clock_gettime, args) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps for `ns` nanoseconds.
pub fn sleep(ns: u64) {
    let mut time = libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: `time` is a `timespec` that the kernel may read.
    let _ = unsafe { call(libc::SYS_nanosleep, [&raw mut time as usize, 0, 0, 0, 0, 0]) };
}

/// Number of the calling process.
pub fn pid() -> u64 {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_getpid, [0; 6]) }.unwrap_or(0) as u64
}

/// Gives the calling thread an empty file table of its own.
///
/// The kernel creates the new table without the files of the old one. Therefore no pipe is kept
/// open by it, no file is flushed, and no POSIX lock of the process is lost.
pub fn empty_file_table() -> Result<(), Errno> {
    let args = [0, u32::MAX as usize, libc::CLOSE_RANGE_UNSHARE as usize, 0, 0, 0];
    // SAFETY: the calling thread owns no descriptor yet.
    unsafe { call(libc::SYS_close_range, args) }.map(|_| ())
}

/// Blocks all signals for the calling thread and returns those that were blocked before.
pub fn block_signals() -> u64 {
    set_signals(u64::MAX)
}

/// Sets the signals that are blocked for the calling thread; returns those that were before.
pub fn set_signals(mask: u64) -> u64 {
    let mut old = 0u64;
    let args = [
        libc::SIG_SETMASK as usize,
        &raw const mask as usize,
        &raw mut old as usize,
        size_of::<u64>(),
        0,
        0,
    ];
    // SAFETY: both are sets of 64 signals, as their size says.
    let _ = unsafe { call(libc::SYS_rt_sigprocmask, args) };
    old
}

/// Ends the calling thread. If it is the last one, `status` is the status of the process.
pub fn exit_thread(status: usize) -> ! {
    loop {
        // SAFETY: the caller's stack is static and has no destructors to run.
        let _ = unsafe { call(libc::SYS_exit, [status, 0, 0, 0, 0, 0]) };
    }
}

/// Starts a thread that runs `main` on the stack that ends at `stack_end`.
///
/// The thread is one for the kernel only: the C library does not count it, so that a program with
/// one thread stays one, and `pthread_exit()` of the last thread of the program still ends the
/// process.
///
/// # Safety
///
/// The memory below `stack_end`, which must be a multiple of 16, must be enough for `main` and be
/// used by nothing else while the thread runs. All signals must be blocked, because a handler
/// would run with the thread-local storage of the caller. `main` must not use thread-local
/// storage.
pub unsafe fn spawn(main: extern "C" fn() -> !, stack_end: usize) -> Result<usize, Errno> {
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM;
    let ret: isize;
    // SAFETY: in the caller, `syscall` changes only the registers that are listed. The new thread
    // has the stack that the caller of this function vouches for and never leaves the block:
    // `main` does not return.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "call r9",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => ret,
            in("rdi") flags as usize,
            in("rsi") stack_end,
            in("rdx") 0usize,
            in("r10") 0usize,
            in("r8") 0usize,
            in("r9") main,
            lateout("rcx") _,
            lateout("r11") _,
        )
    };
    if ret < 0 {
        Err(-ret as Errno)
    } else {
        Ok(ret as usize)
    }
}
