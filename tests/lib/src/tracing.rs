// SPDX-License-Identifier: GPL-2.0
//! The library's tracepoints, read from an instance of tracefs.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

/// Mount points of tracefs.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// The library's events.
const SYSTEM: &str = "rust_hmm";

/// One event: its name without `hmm_`, its time, and its fields. Words without `=` are in `words`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Event {
    /// For example `device_fault`.
    pub name: String,
    /// Seconds since boot.
    pub time: f64,
    /// Fields by name.
    pub fields: BTreeMap<String, String>,
    /// Other words, for example `to-device`.
    pub words: Vec<String>,
}

impl Event {
    /// Parses a line of `trace` or `trace_pipe`; `None` if it is no event of the library.
    pub fn parse(line: &str) -> Option<Event> {
        let at = line.find(": hmm_")?;
        let time = line[..at].split_whitespace().last()?.parse().ok()?;
        let (name, rest) = line[at + 6..].split_once(": ")?;
        let mut event = Event { name: name.to_string(), time, ..Event::default() };
        for word in rest.split_whitespace() {
            match word.split_once('=') {
                Some((key, value)) => {
                    event.fields.insert(key.to_string(), value.to_string());
                }
                None => event.words.push(word.to_string()),
            }
        }
        Some(event)
    }

    /// The field `name` as text, or nothing.
    pub fn text(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    /// The field `name` as a number, decimal or with `0x`.
    pub fn number(&self, name: &str) -> Option<i64> {
        let text = self.fields.get(name)?;
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok().map(|value| value as i64),
            None => text.parse().ok(),
        }
    }
}

/// A tracefs instance, which is removed on drop.
#[derive(Debug)]
pub struct Tracing {
    instance: PathBuf,
}

impl Tracing {
    /// Starts to record all events of the library, of all processes.
    pub fn start(name: &str) -> io::Result<Tracing> {
        let root = TRACEFS.iter().map(PathBuf::from).find(|dir| dir.join("instances").is_dir());
        let root = root.ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "tracefs is not mounted on /sys/kernel/tracing")
        })?;
        let events = root.join("events").join(SYSTEM);
        if !events.is_dir() {
            let text = format!("no {}: is rust_hmm loaded?", events.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        let instance = root.join("instances").join(name);
        match std::fs::create_dir(&instance) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let tracing = Tracing { instance };
        std::fs::write(tracing.instance.join("trace"), "")?;
        std::fs::write(tracing.instance.join("events").join(SYSTEM).join("enable"), "1")?;
        Ok(tracing)
    }

    /// The recorded events, oldest first.
    pub fn events(&self) -> io::Result<Vec<Event>> {
        Ok(self.text()?.lines().filter_map(Event::parse).collect())
    }

    /// The recorded events as text, in the format of tracefs.
    pub fn text(&self) -> io::Result<String> {
        std::fs::read_to_string(self.instance.join("trace"))
    }

    /// The events as lines of `trace_pipe`: a read waits for the next one.
    pub fn pipe(&self) -> io::Result<std::fs::File> {
        std::fs::File::open(self.instance.join("trace_pipe"))
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        let enable = self.instance.join("events").join(SYSTEM).join("enable");
        let _ = std::fs::write(enable, "0");
        let _ = std::fs::remove_dir(&self.instance);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracefs_lines_are_parsed() {
        let line = "  hmm-e2e-77      [001] ..... 12.345678: hmm_migrate_begin: pid=77 mirror=3 \
                    start=0x7f00 pages=16 to-device trigger=request";
        let event = Event::parse(line).unwrap();
        assert_eq!(event.name, "migrate_begin");
        assert_eq!(event.time, 12.345678);
        assert_eq!(event.number("pid"), Some(77));
        assert_eq!(event.number("start"), Some(0x7f00));
        assert_eq!(event.text("trigger"), "request");
        assert_eq!(event.words, ["to-device"]);
        assert_eq!(event.number("moved"), None);
        assert_eq!(Event::parse("# tracer: nop"), None);
        assert_eq!(Event::parse("a-1 [0] ..... 1.0: sched_switch: hmm=1"), None);
    }
}
