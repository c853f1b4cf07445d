// SPDX-License-Identifier: GPL-2.0
//! System calls with plain numbers as arguments.
//!
//! The address map of the fuzzer makes this sound. Each address that is passed to the kernel is
//! below [`crate::arena::LIMIT`] or invalid. So is each address that the kernel, a device or
//! another thread could derive from it by changing some bits. The program's own memory is above, as
//! [`crate::arena::check_own_memory`] checks. Memory below is accessed only with [`peek`] and
//! [`poke`].

/// A system call. Returns `-errno` on an error. Does not allocate.
pub fn call(number: libc::c_long, a: [usize; 6]) -> isize {
    // SAFETY: no argument refers to memory of the program, see the head of this file.
    let ret = unsafe { libc::syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]) };
    if ret != -1 {
        return ret as isize;
    }
    // SAFETY: always valid; the variable of this thread.
    -(unsafe { *libc::__errno_location() } as isize)
}

/// `ioctl`.
pub fn ioctl(fd: i32, request: u64, argument: usize) -> isize {
    call(libc::SYS_ioctl, [fd as usize, request as usize, argument, 0, 0, 0])
}

/// `mmap`.
pub fn mmap(addr: usize, len: usize, prot: i32, flags: i32, fd: i32, offset: usize) -> isize {
    call(libc::SYS_mmap, [addr, len, prot as usize, flags as usize, fd as usize, offset])
}

/// Any system call with up to three arguments.
pub fn call3(number: libc::c_long, a: usize, b: usize, c: usize) -> isize {
    call(number, [a, b, c, 0, 0, 0])
}

/// Reads a word that other threads may change.
pub fn peek(addr: usize) -> u64 {
    assert!(crate::arena::is_kept(addr));
    // SAFETY: mapped for the life of the process, aligned, without references to it.
    unsafe { (addr as *const u64).read_volatile() }
}

/// Writes a word that other threads may access.
pub fn poke(addr: usize, value: u64) {
    assert!(crate::arena::is_kept(addr));
    // SAFETY: see `peek`.
    unsafe { (addr as *mut u64).write_volatile(value) }
}

/// Writes half a word.
pub fn poke32(addr: usize, value: u32) {
    assert!(crate::arena::is_kept(addr & !7));
    // SAFETY: see `peek`.
    unsafe { (addr as *mut u32).write_volatile(value) }
}

/// Reads the counter of the CPU that programs may read.
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: each x86-64 CPU has this instruction.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: Linux lets programs read this register, which has no side effects.
        unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
        ticks
    }
}

/// CPU time of this thread, in ns.
pub fn thread_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps.
pub fn sleep_us(us: u64) {
    std::thread::sleep(std::time::Duration::from_micros(us));
}

/// Sends a signal to one thread of this process.
pub fn signal_thread(tid: u32, signal: i32) {
    call3(libc::SYS_tgkill, std::process::id() as usize, tid as usize, signal as usize);
}

/// Installs an empty handler, so that the signal only interrupts system calls.
pub fn interrupt_on(signal: i32) {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: zero is a valid value of all fields.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: a valid structure; the handler does nothing.
    unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
}

/// Sets both limits of a resource.
pub fn limit(resource: u32, value: u64) {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: a valid structure.
    unsafe { libc::setrlimit(resource as _, &limit) };
}

/// Drops all privileges permanently, and becomes user 65534.
pub fn drop_privileges() -> Result<(), hmm::Errno> {
    for (number, count) in
        [(libc::SYS_setgroups, 0), (libc::SYS_setgid, 65534), (libc::SYS_setuid, 65534)]
    {
        let ret = call3(number, count, 0, 0);
        if ret < 0 {
            return Err(hmm::Errno(-ret as i32));
        }
    }
    Ok(())
}

/// Forks. The child must only make system calls, because locks of other threads stay taken: it must
/// neither allocate nor print.
pub fn fork() -> isize {
    // SAFETY: children of multi-threaded processes only make system calls.
    unsafe { libc::fork() as isize }
}

/// Ends the process at once.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: always allowed.
    unsafe { libc::_exit(status) }
}
