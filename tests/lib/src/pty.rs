// SPDX-License-Identifier: GPL-2.0
//! A program on a pseudo terminal.

use crate::errno::Errno;
use std::fs::File;
use std::io::{
    self,
    Read,
    Write, //
};
use std::os::fd::{
    AsRawFd,
    FromRawFd,
    OwnedFd, //
};
use std::os::unix::process::CommandExt;
use std::process::{
    Child,
    Command,
    ExitStatus, //
};
use std::time::{
    Duration,
    Instant, //
};

/// The program, and its output.
#[derive(Debug)]
pub struct Terminal {
    child: Child,
    master: File,
    text: String,
}

impl Terminal {
    /// Runs `command` on a terminal of this size.
    pub fn run(mut command: Command, columns: u16, rows: u16) -> io::Result<Terminal> {
        let mut master = -1;
        let mut slave = -1;
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the descriptors and the size are valid; a name and settings are not asked for.
        let opened = unsafe {
            libc::openpty(&mut master, &mut slave, std::ptr::null_mut(), std::ptr::null(), &size)
        };
        Errno::check(opened.into())?;
        // SAFETY: openpty() returned two new descriptors, which are owned here.
        let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        let fd = master.as_raw_fd();
        // SAFETY: the descriptor is open, and the flag is all that is set.
        let set = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
        Errno::check(set.into())?;
        command.stdin(slave.try_clone()?).stdout(slave.try_clone()?).stderr(slave);
        // As terminals do: programs open /dev/tty to get its size.
        // SAFETY: both calls are async-signal-safe, and standard input is the terminal by then.
        unsafe {
            command.pre_exec(|| {
                Errno::check(libc::setsid().into())?;
                Errno::check(libc::ioctl(0, libc::TIOCSCTTY, 0).into())?;
                Ok(())
            })
        };
        let child = command.spawn()?;
        Ok(Terminal { child, master, text: String::new() })
    }

    /// Returns the PID of the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Types `text`.
    pub fn type_text(&mut self, text: &str) -> io::Result<()> {
        self.master.write_all(text.as_bytes())
    }

    /// Returns the output so far, including escape sequences.
    pub fn text(&mut self) -> &str {
        let mut buffer = [0; 4096];
        while let Ok(read) = self.master.read(&mut buffer) {
            if read == 0 {
                break;
            }
            self.text.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
        &self.text
    }

    /// Waits until the output contains `word`.
    pub fn wait_for(&mut self, word: &str, time: Duration) -> bool {
        let end = Instant::now() + time;
        while !self.text().contains(word) {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// Waits until the program has ended.
    pub fn ended(&mut self, time: Duration) -> io::Result<Option<ExitStatus>> {
        let end = Instant::now() + time;
        loop {
            // Keep reading: the program blocks when the terminal's buffer is full.
            self.text();
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= end {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
