// SPDX-License-Identifier: GPL-2.0
//! Many child processes, which all execute the same function and keep its result.

use crate::child;
use crate::errno::Errno;
use std::ffi::CStr;
use std::fs::File;
use std::io::{
    self,
    Read,
    Write, //
};

/// Child processes. They end, and are reaped, when it is dropped.
#[derive(Debug)]
pub struct Crowd {
    pids: Vec<libc::pid_t>,
    ready: File,
    /// Dropped by [`Crowd::start`], which lets the children run.
    start: Option<File>,
    /// Dropped with the crowd, which lets the children exit.
    end: Option<File>,
}

impl Crowd {
    /// Forks `count` children, each of which will call `body` and keep its result. Only for
    /// processes with one thread.
    pub fn new<T>(count: usize, body: impl Fn() -> Result<T, Errno>) -> io::Result<Crowd> {
        let (ready, report) = child::pipe()?;
        let (starting, start) = child::pipe()?;
        let (ending, end) = child::pipe()?;
        let (mut report, mut starting, mut ending) =
            (File::from(report), File::from(starting), File::from(ending));
        let mut crowd = Crowd {
            pids: Vec::with_capacity(count),
            ready: ready.into(),
            start: Some(start.into()),
            end: Some(end.into()),
        };
        for _ in 0..count {
            let pid = child::fork()?;
            if pid != 0 {
                crowd.pids.push(pid);
                continue;
            }
            // No child holds the write ends that the parent closes, so that a read in each of them
            // returns at end of file.
            crowd.pids.clear();
            drop((crowd.start.take(), crowd.end.take()));
            let mut byte = [0];
            let _ = starting.read(&mut byte);
            let kept = body();
            let _ = report.write_all(&[kept.is_ok().into()]);
            let _ = ending.read(&mut byte);
            // SAFETY: ends the child without running the parent's destructors.
            unsafe { libc::_exit(0) }
        }
        Ok(crowd)
    }

    /// Lets all children call their body, and waits until all have returned from it.
    pub fn start(&mut self) -> io::Result<()> {
        self.start = None;
        let mut done = vec![0; self.pids.len()];
        self.ready.read_exact(&mut done)?;
        match done.iter().filter(|one| **one == 0).count() {
            0 => Ok(()),
            failed => Err(io::Error::other(format!("{failed} of {} children fail", done.len()))),
        }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.start = None;
        self.end = None;
        for pid in &self.pids {
            // SAFETY: a child that is not reaped yet.
            unsafe { libc::waitpid(*pid, std::ptr::null_mut(), 0) };
        }
    }
}

/// Forks a child that runs `program`, or nothing, and waits for its end. Only for processes with
/// one thread.
///
/// # Errors
///
/// - `EIO`: the child did not exit with status 0.
pub fn fork_and_wait(program: Option<&CStr>) -> Result<(), Errno> {
    let pid = child::fork()?;
    if pid == 0 {
        if let Some(program) = program {
            let arguments = [program.as_ptr(), std::ptr::null()];
            // SAFETY: a string, and an array that ends with a null pointer.
            unsafe { libc::execv(program.as_ptr(), arguments.as_ptr()) };
        }
        // SAFETY: ends the child without running the parent's destructors.
        unsafe { libc::_exit(program.is_some().into()) }
    }
    let mut status = 0;
    // SAFETY: the status may be written; the child is not reaped yet.
    Errno::check(unsafe { libc::waitpid(pid, &mut status, 0) }.into())?;
    if status == 0 {
        Ok(())
    } else {
        Err(Errno(libc::EIO))
    }
}

/// Gives this thread precedence over all threads of the default scheduling policy.
pub fn run_first() -> Result<(), Errno> {
    let parameter = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameter is valid.
    let ret = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameter) };
    Errno::check(ret.into()).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_waits_for_all_children() {
        let (marks, mark) = child::pipe().unwrap();
        let mut marks = File::from(marks);
        let mark = File::from(mark);
        let mut crowd = Crowd::new(3, || Ok((&mark).write_all(b"x")?)).unwrap();
        crowd.start().unwrap();
        drop(mark);
        drop(crowd);
        let mut text = String::new();
        marks.read_to_string(&mut text).unwrap();
        assert_eq!(text, "xxx");
    }

    #[test]
    fn start_reports_children_that_fail() {
        let mut crowd = Crowd::new(2, || Err::<(), _>(Errno(libc::EPERM))).unwrap();
        assert!(crowd.start().is_err());
    }

    #[test]
    fn programs_that_fail_are_reported() {
        assert_eq!(fork_and_wait(None), Ok(()));
        assert_eq!(fork_and_wait(Some(c"/bin/true")), Ok(()));
        assert_eq!(fork_and_wait(Some(c"/bin/false")), Err(Errno(libc::EIO)));
        assert_eq!(fork_and_wait(Some(c"/nowhere")), Err(Errno(libc::EIO)));
    }
}
