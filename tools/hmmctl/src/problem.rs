// SPDX-License-Identifier: GPL-2.0
//! Errors, with advice on how to resolve them.

use std::fmt::{
    self,
    Display, //
};
use std::io;
use std::path::Path;

/// Reason for which `hmmctl` failed.
#[derive(Debug)]
pub enum Problem {
    /// The user may not access a file.
    NotAllowed(String),
    /// The library is not loaded.
    NoModule,
    /// The loaded library does not have this file.
    OldModule(String),
    /// A kernel file system is not mounted.
    NotMounted(&'static str),
    /// No process has this id.
    NoProcess(u32),
    /// The process has no mirror; the list has the processes that have one.
    NoMirrorOf(u32, Vec<u32>),
    /// No device has this number; the list has the existing ones.
    NoDevice(u32, Vec<u32>),
    /// No mirror has this number.
    NoMirror(u32),
    /// The recorded command has failed.
    Command(String),
    /// A file has an unexpected format.
    Format(String),
    /// Input or output.
    Io {
        /// The attempted operation.
        what: String,
        /// The error.
        error: io::Error,
    },
}

/// Result of an operation that can fail with a [`Problem`].
pub type Result<T, E = Problem> = std::result::Result<T, E>;

impl Problem {
    /// The exit status.
    pub fn status(&self) -> u8 {
        match self {
            Problem::Format(_) | Problem::Io { .. } => 1,
            Problem::NotAllowed(_) => 3,
            Problem::NoModule | Problem::OldModule(_) => 4,
            Problem::NotMounted(_) => 5,
            Problem::NoProcess(_) | Problem::NoMirrorOf(..) => 6,
            Problem::NoDevice(..) | Problem::NoMirror(_) => 7,
            Problem::Command(_) => 8,
        }
    }

    /// An I/O error of operation `what` on `path`.
    pub fn io(what: &str, path: &Path, error: io::Error) -> Problem {
        let what = format!("{what} {}", path.display());
        match error.kind() {
            io::ErrorKind::PermissionDenied => Problem::NotAllowed(what),
            _ => Problem::Io { what, error },
        }
    }

    /// Standard output cannot be written.
    pub fn output(error: io::Error) -> Problem {
        Problem::Io { what: "write the output".to_string(), error }
    }
}

fn list(numbers: &[u32]) -> String {
    match numbers {
        [] => "none".to_string(),
        _ => numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
    }
}

impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::NotAllowed(what) => {
                write!(f, "cannot {what}: permission denied\nRun it as root: sudo hmmctl ...")
            }
            Problem::NoModule => write!(
                f,
                "rust_hmm is not loaded\nLoad it with a driver that uses it: modprobe rust_dmirror"
            ),
            Problem::OldModule(file) => write!(
                f,
                "the rust_hmm that is loaded has no {file}: it is older than this hmmctl\n\
                 Load the modules that were built together with it"
            ),
            Problem::NotMounted("debugfs") => write!(
                f,
                "debugfs is not mounted on /sys/kernel/debug\n\
                 Mount it: mount -t debugfs none /sys/kernel/debug"
            ),
            Problem::NotMounted(what) => write!(
                f,
                "{what} is not mounted on /sys/kernel/tracing\n\
                 Mount it: mount -t {what} none /sys/kernel/tracing"
            ),
            Problem::NoProcess(pid) => write!(
                f,
                "there is no process {pid}: it has ended\n\
                 `hmmctl top --once` shows the processes whose memory is mirrored"
            ),
            Problem::NoMirrorOf(pid, others) => write!(
                f,
                "no device mirrors the memory of process {pid}: it has no device open\n\
                 Processes whose memory is mirrored: {}",
                list(others)
            ),
            Problem::NoDevice(number, others) => {
                write!(f, "there is no device {number}\nDevices that there are: {}", list(others))
            }
            Problem::NoMirror(number) => write!(
                f,
                "there is no mirror {number}\n`hmmctl top --once` shows the mirrors that there are"
            ),
            Problem::Command(how) => {
                write!(f, "the recorded command {how}; its events were recorded")
            }
            Problem::Format(what) => f.write_str(what),
            Problem::Io { what, error } => write!(f, "cannot {what}: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_suggest_a_remedy() {
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let problem = Problem::io("read", Path::new("/x"), denied);
        assert_eq!(problem.status(), 3);
        assert!(problem.to_string().contains("sudo"), "{problem}");
        assert!(Problem::NoModule.to_string().contains("modprobe"));
        assert!(Problem::NotMounted("debugfs")
            .to_string()
            .contains("mount -t debugfs none /sys/kernel/debug"));
        assert!(Problem::NotMounted("tracefs").to_string().contains("/sys/kernel/tracing"));
        assert!(Problem::NoMirrorOf(7, vec![3, 4]).to_string().ends_with("mirrored: 3, 4"));
        assert!(Problem::NoDevice(9, vec![]).to_string().ends_with("none"));
    }
}
