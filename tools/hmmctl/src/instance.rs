// SPDX-License-Identifier: GPL-2.0
//! A tracefs instance of our own, so that other users of tracing are not disturbed.

use crate::problem::{
    Problem,
    Result, //
};
use crate::source;
use std::fs::{
    File,
    OpenOptions, //
};
use std::io::{
    ErrorKind,
    Read, //
};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{
    Path,
    PathBuf, //
};

/// Prefix of our instances; the process id follows.
const NAME: &str = "hmmctl-";

/// Size of a read, in bytes.
const READ: usize = 65536;

/// A tracefs instance, removed on drop.
pub struct Instance {
    dir: PathBuf,
    pipe: Option<File>,
    /// Incomplete last line.
    rest: Vec<u8>,
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|error| Problem::io("write", path, error))
}

/// Removes instances of `hmmctl` processes that were killed.
fn remove_old(instances: &Path) {
    for entry in std::fs::read_dir(instances).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(NAME).and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = std::fs::write(entry.path().join("events/rust_hmm/enable"), "0");
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

impl Instance {
    /// Starts to trace these events, or all if there are none.
    pub fn new(events: &[String], buffer_kib: u32) -> Result<Instance> {
        let root = source::tracefs()?;
        let instances = root.join("instances");
        remove_old(&instances);
        let dir = instances.join(format!("{NAME}{}", std::process::id()));
        std::fs::create_dir(&dir).map_err(|error| Problem::io("make", &dir, error))?;
        // From here on drop removes the instance on each error.
        let mut instance = Instance { dir, pipe: None, rest: Vec::new() };
        write(&instance.dir.join("buffer_size_kb"), &buffer_kib.to_string())?;
        // The clock of /proc/uptime.
        write(&instance.dir.join("trace_clock"), "boot")?;
        let system = instance.dir.join("events/rust_hmm");
        if events.is_empty() {
            write(&system.join("enable"), "1")?;
        }
        for event in events {
            write(&system.join(format!("hmm_{event}")).join("enable"), "1")?;
        }
        let pipe = instance.dir.join("trace_pipe");
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe);
        instance.pipe = Some(file.map_err(|error| Problem::io("open", &pipe, error))?);
        Ok(instance)
    }

    /// Disables the events.
    pub fn stop(&self) {
        let _ = std::fs::write(self.dir.join("events/rust_hmm/enable"), "0");
    }

    /// Calls `line` for each available line. Returns whether there was any.
    pub fn read(&mut self, mut line: impl FnMut(&str) -> Result<()>) -> Result<bool> {
        let Some(pipe) = &mut self.pipe else {
            return Ok(false);
        };
        let mut buffer = vec![0; READ];
        let read = match pipe.read(&mut buffer) {
            Ok(read) => read,
            Err(error)
                if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()) =>
            {
                0
            }
            Err(error) => return Err(Problem::io("read", &self.dir.join("trace_pipe"), error)),
        };
        self.rest.extend_from_slice(&buffer[..read]);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            return Ok(false);
        };
        let text: Vec<u8> = self.rest.drain(..=end).collect();
        String::from_utf8_lossy(&text).lines().try_for_each(&mut line)?;
        Ok(true)
    }

    /// Number of events lost because the buffer was full.
    pub fn lost(&self) -> u64 {
        let mut lost = 0;
        for entry in std::fs::read_dir(self.dir.join("per_cpu")).into_iter().flatten().flatten() {
            let stats = std::fs::read_to_string(entry.path().join("stats")).unwrap_or_default();
            lost += lost_of(&stats);
        }
        lost
    }
}

/// Number of events lost on a CPU, from its `stats`.
fn lost_of(stats: &str) -> u64 {
    let number = |name: &str| {
        let value = stats.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| value.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    number("overrun:") + number("dropped events:")
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.stop();
        // An instance cannot be removed while its pipe is open.
        self.pipe = None;
        if let Err(error) = std::fs::remove_dir(&self.dir) {
            eprintln!("hmmctl: cannot remove {}: {error}", self.dir.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_events_are_summed() {
        let stats = "entries: 5\noverrun: 7\ncommit overrun: 3\nbytes: 100\ndropped events: 2\nread events: 9\n";
        assert_eq!(lost_of(stats), 9);
        assert_eq!(lost_of(""), 0);
    }
}
