// SPDX-License-Identifier: GPL-2.0
//! The part of ptrace that tests need: makes a signal pending when a child begins an ioctl.

use crate::child::Child;
use crate::errno::Errno;
use std::io;
use std::mem::MaybeUninit;

/// `ptrace()` with numbers only.
fn call(request: libc::c_uint, pid: libc::pid_t, data: usize) -> Result<(), Errno> {
    // SAFETY: none of the requests used here writes to this process's memory.
    let ret = unsafe { libc::ptrace(request as _, pid, 0usize, data) };
    Errno::check(ret).map(|_| ())
}

/// Waits for the next stop of `pid` and returns its status. Fails if the process ends.
fn next_stop(pid: libc::pid_t) -> io::Result<libc::c_int> {
    let mut status = 0;
    // SAFETY: the status is a valid place.
    Errno::check(unsafe { libc::waitpid(pid, &mut status, libc::__WALL) }.into())?;
    if !libc::WIFSTOPPED(status) {
        return Err(io::Error::other(format!("the traced process ended with status {status:#x}")));
    }
    Ok(status)
}

/// Whether the stopped process `pid` is about to begin an ioctl of type `kind` and number `number`.
fn begins_ioctl(pid: libc::pid_t, kind: u8, number: u8) -> Result<bool, Errno> {
    let mut info = MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
    // SAFETY: the kernel writes at most as many bytes as the structure has.
    let ret = unsafe {
        libc::ptrace(
            libc::PTRACE_GET_SYSCALL_INFO,
            pid,
            size_of::<libc::ptrace_syscall_info>(),
            info.as_mut_ptr(),
        )
    };
    Errno::check(ret)?;
    // SAFETY: all fields are numbers, for which zeros are valid.
    let info = unsafe { info.assume_init() };
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return Ok(false);
    }
    // SAFETY: `op` says that this field is valid.
    let entry = unsafe { info.u.entry };
    let wanted = (u64::from(kind) << 8) | u64::from(number);
    Ok(entry.nr == libc::SYS_ioctl as u64 && entry.args[1] & 0xffff == wanted)
}

/// Installs a handler that does nothing, so that `signal` is neither fatal nor ignored.
pub fn handle(signal: i32) -> Result<(), Errno> {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: zero is a valid value of all fields.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: a valid structure; the handler does nothing.
    let ret = unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    Errno::check(ret.into()).map(|_| ())
}

/// Runs `child` until it begins an ioctl of type `kind` and number `number`, and lets it begin with
/// `signal` pending. `begin` triggers the ioctl; it is called while the child is traced.
pub fn signal_at_ioctl(
    child: &Child,
    (kind, number): (u8, u8),
    signal: i32,
    begin: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let pid = child.pid();
    call(libc::PTRACE_SEIZE, pid, libc::PTRACE_O_TRACESYSGOOD as usize)?;
    call(libc::PTRACE_INTERRUPT, pid, 0)?;
    next_stop(pid)?;
    begin()?;
    loop {
        call(libc::PTRACE_SYSCALL, pid, 0)?;
        let status = next_stop(pid)?;
        let syscall = libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80;
        if syscall && begins_ioctl(pid, kind, number)? {
            break;
        }
    }
    // Sent in the syscall-entry stop: the system call begins with the signal pending.
    child.signal(signal);
    call(libc::PTRACE_DETACH, pid, 0)?;
    Ok(())
}
