// SPDX-License-Identifier: GPL-2.0
//! Child processes that run a closure and report its failure.

use crate::errno::Errno;
use std::fs::File;
use std::io::{
    self,
    Read,
    Write, //
};
use std::os::fd::{
    AsRawFd,
    RawFd, //
};
use std::os::fd::{
    FromRawFd,
    OwnedFd, //
};
use std::sync::atomic::{
    AtomicU32,
    Ordering::Relaxed, //
};
use std::time::{
    Duration,
    Instant, //
};

/// The signal that cannot be caught.
pub const SIGKILL: i32 = libc::SIGKILL;

/// End of a child process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// `_exit()` with this status.
    Exit(i32),
    /// Killed by this signal.
    Signal(i32),
}

/// Creates a pipe. Returns the read end and the write end.
pub(crate) fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    let mut fds: [RawFd; 2] = [-1; 2];
    // SAFETY: the array has the two elements that pipe2() writes.
    Errno::check(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) }.into())?;
    // SAFETY: pipe2() returned two new descriptors, which are owned here.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Waits up to `timeout` until `fd` can be read. Returns whether it can.
fn readable(fd: RawFd, timeout: Duration) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let millis = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: `poll` is one valid structure, as the count says.
    unsafe { libc::poll(&mut poll, 1, millis) > 0 }
}

/// Lets one process wait for another. Created before the fork, used by both.
#[derive(Debug)]
pub struct Gate {
    read: File,
    write: File,
}

/// Timeout of a gate. A process that does not open it in time has failed.
const GATE_TIMEOUT: Duration = Duration::from_secs(120);

/// Factor of this timeout.
static TIMEOUT_SCALE: AtomicU32 = AtomicU32::new(1);

/// Multiplies the timeouts of gates and of [`Child::join`], for devices that take long for each
/// page.
pub fn set_timeout_scale(scale: u32) {
    TIMEOUT_SCALE.store(scale.max(1), Relaxed);
}

fn timeout_scale() -> u32 {
    TIMEOUT_SCALE.load(Relaxed)
}

fn gate_timeout() -> Duration {
    GATE_TIMEOUT * timeout_scale()
}

/// Interval for polling a child. Longer on slow devices, where each poll would cost more than the
/// device's own work.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

impl Gate {
    /// Creates a closed gate.
    pub fn new() -> Result<Gate, Errno> {
        let (read, write) = pipe()?;
        Ok(Gate { read: read.into(), write: write.into() })
    }

    /// Opens the gate for one call of [`Gate::wait`], which may begin later.
    pub fn open(&self) -> io::Result<()> {
        self.send(1)
    }

    /// Waits for one call of [`Gate::open`].
    pub fn wait(&self) -> io::Result<()> {
        self.receive().map(|_| ())
    }

    /// Sends a number through the gate.
    pub fn send(&self, value: u64) -> io::Result<()> {
        (&self.write).write_all(&value.to_ne_bytes())
    }

    /// Receives a number. Fails with `TimedOut` after the timeout of gates.
    pub fn receive(&self) -> io::Result<u64> {
        if !readable(self.read.as_raw_fd(), gate_timeout()) {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the other process did not open the gate",
            ));
        }
        let mut raw = [0; 8];
        (&self.read).read_exact(&mut raw)?;
        Ok(u64::from_ne_bytes(raw))
    }
}

/// Interrupts the system call of this process after `time` by a signal that has no other effect.
pub fn interrupt_after(time: Duration) -> Result<(), Errno> {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: zero is a valid value of all fields: no flags, so that calls are not restarted.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: a valid structure; the handler does nothing.
    let ret = unsafe { libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()) };
    Errno::check(ret.into())?;
    let value = libc::timeval {
        tv_sec: time.as_secs() as libc::time_t,
        tv_usec: time.subsec_micros().into(),
    };
    let zero = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let timer = libc::itimerval { it_interval: zero, it_value: value };
    // SAFETY: a valid structure.
    let ret = unsafe { libc::syscall(libc::SYS_setitimer, libc::ITIMER_REAL, &timer, 0) };
    Errno::check(ret).map(|_| ())
}

/// Forks the process, which has one thread. fork() fails with EBUSY if a page with exclusive device
/// access has a temporary reference, for instance from DAMON. It is repeated for up to a second.
pub(crate) fn fork() -> Result<libc::pid_t, Errno> {
    for _ in 0..100 {
        // SAFETY: the process has one thread, so the child may do anything.
        match Errno::check(unsafe { libc::fork() }.into()) {
            Err(Errno(libc::EBUSY)) => std::thread::sleep(Duration::from_millis(10)),
            result => return result.map(|pid| pid as libc::pid_t),
        }
    }
    Err(Errno(libc::EBUSY))
}

/// A running child process; killed and reaped when dropped.
#[derive(Debug)]
pub struct Child {
    pid: libc::pid_t,
    report: File,
    ended: Option<Ended>,
}

impl Child {
    /// Runs `body` in a child. Its error is the report of [`Child::join`].
    ///
    /// Only for single-threaded processes: locks of other threads would stay taken in the child.
    pub fn spawn<E: std::fmt::Display>(
        body: impl FnOnce() -> Result<(), E>,
    ) -> Result<Child, Errno> {
        let (read, write) = pipe()?;
        // Otherwise both processes would write the buffered output.
        let _ = io::stdout().flush();
        let pid = fork()?;
        if pid != 0 {
            return Ok(Child { pid, report: read.into(), ended: None });
        }
        drop(read);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        let text = match outcome {
            Ok(Ok(())) => String::new(),
            Ok(Err(error)) => error.to_string(),
            Err(panic) => format!("panic: {}", panic_text(panic.as_ref())),
        };
        let _ = File::from(write).write_all(text.as_bytes());
        // SAFETY: has no preconditions. Ends the child without running the parent's destructors.
        unsafe { libc::_exit(if text.is_empty() { 0 } else { 1 }) }
    }

    /// Returns the process id.
    pub fn pid(&self) -> libc::pid_t {
        self.pid
    }

    /// Sends a signal, unless the child has ended.
    pub fn signal(&self, signal: i32) {
        if self.ended.is_none() {
            // SAFETY: the child is not reaped yet, so that its PID is not reused.
            unsafe { libc::kill(self.pid, signal) };
        }
    }

    /// Returns how the child ended, or `None` if it still runs.
    pub fn try_wait(&mut self) -> Option<Ended> {
        if self.ended.is_none() {
            let mut status = 0;
            // SAFETY: `status` is valid for writes. The child is not reaped yet.
            let pid = unsafe { libc::waitpid(self.pid, &mut status, libc::WNOHANG) };
            if pid == self.pid {
                self.ended = Some(if libc::WIFSIGNALED(status) {
                    Ended::Signal(libc::WTERMSIG(status))
                } else {
                    Ended::Exit(libc::WEXITSTATUS(status))
                });
            }
        }
        self.ended
    }

    /// Waits up to `timeout` for the end of the child.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Ended> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(ended) = self.try_wait() {
                return Some(ended);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            // The report reaches end of file when the child ends, unless a grandchild holds the
            // pipe open. Hence the short interval.
            if readable(self.report.as_raw_fd(), left.min(POLL_INTERVAL * timeout_scale().min(50)))
            {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Waits for the child. Its report, a signal or a hang is an error.
    pub fn join(mut self) -> Result<(), String> {
        self.wait_timeout(gate_timeout());
        self.outcome()
    }

    /// Returns the result of the child, which must have ended.
    pub fn outcome(&mut self) -> Result<(), String> {
        match self.ended {
            None => Err("the child does not end".to_string()),
            Some(Ended::Exit(0)) => Ok(()),
            Some(Ended::Signal(signal)) => Err(format!("killed by signal {signal}")),
            Some(Ended::Exit(status)) => {
                let mut text = String::new();
                let _ = self.report.read_to_string(&mut text);
                Err(if text.is_empty() { format!("exit status {status}") } else { text })
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.try_wait().is_none() {
            self.signal(libc::SIGKILL);
            // Stop waiting for a child that cannot exit in the kernel.
            self.wait_timeout(Duration::from_secs(5));
        }
    }
}

/// Puts the calling process into a process group of its own.
pub fn own_group() {
    // SAFETY: plain system call on numbers.
    unsafe { libc::setpgid(0, 0) };
}

/// Kills the remaining processes of the group that `pid` created with [`own_group`].
pub fn kill_group(pid: libc::pid_t) {
    assert!(pid > 1, "kill() of 0 or -1 would signal other groups");
    // SAFETY: plain system call on numbers.
    unsafe { libc::kill(-pid, libc::SIGKILL) };
}

/// Returns the message of a panic.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "?".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_errors_signals_and_success() {
        let ok = Child::spawn(|| Ok::<(), String>(())).unwrap();
        assert_eq!(ok.join(), Ok(()));
        let bad = Child::spawn(|| Err("it is wrong")).unwrap();
        assert_eq!(bad.join(), Err("it is wrong".to_string()));
        let killed = Child::spawn(|| {
            std::thread::sleep(Duration::from_secs(60));
            Ok::<(), String>(())
        });
        let killed = killed.unwrap();
        killed.signal(libc::SIGKILL);
        assert_eq!(killed.join(), Err("killed by signal 9".to_string()));
    }

    #[test]
    fn gates_carry_numbers_both_ways() {
        let there = Gate::new().unwrap();
        let back = Gate::new().unwrap();
        let child = Child::spawn(|| back.send(there.receive()? + 1));
        let child = child.unwrap();
        there.send(41).unwrap();
        assert_eq!(back.receive().unwrap(), 42);
        assert_eq!(child.join(), Ok(()));
    }

    #[test]
    fn timeout_is_reported() {
        let mut child = Child::spawn(|| {
            std::thread::sleep(Duration::from_secs(60));
            Ok::<(), String>(())
        })
        .unwrap();
        assert_eq!(child.wait_timeout(Duration::from_millis(30)), None);
    }
}
