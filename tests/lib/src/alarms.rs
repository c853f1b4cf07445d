// SPDX-License-Identifier: GPL-2.0
//! Alarms of the library: reports of violated invariants, which fail every run.

use std::collections::BTreeMap;
use std::fs::{
    read_to_string,
    OpenOptions, //
};
use std::io::Write;

const FILE: &str = "/sys/kernel/debug/rust_hmm/alarms";

/// Counts by name.  Empty while the library is not loaded.
fn counts() -> BTreeMap<String, u64> {
    parse(&read_to_string(FILE).unwrap_or_default())
}

fn parse(text: &str) -> BTreeMap<String, u64> {
    let line = |line: &str| {
        let (name, count) = line.split_once(' ')?;
        Some((name.to_string(), count.trim().parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// The part of a run for whose alarms a test is responsible.
#[must_use = "alarms are looked at in the end"]
pub struct Alarms {
    before: BTreeMap<String, u64>,
    expected: Option<&'static str>,
}

impl Alarms {
    /// Begins such a part. Exactly the alarm `expected`, if any, must be raised in it.
    pub fn begin(expected: Option<&'static str>) -> Alarms {
        if let Some(name) = expected {
            mark("begin", name);
        }
        Alarms { before: counts(), expected }
    }

    /// Ends it. Fails if an unexpected alarm was raised, or if the expected one was not.
    pub fn end(&self) -> Result<(), String> {
        if let Some(name) = self.expected {
            mark("end", name);
        }
        judge(&self.before, &counts(), self.expected)
    }
}

/// Writes a mark to the kernel log, which the runner of the virtual machine evaluates.
fn mark(what: &str, name: &str) {
    let log = OpenOptions::new().write(true).open("/dev/kmsg");
    // If the mark cannot be written, the runner fails the run because of the alarm, which is
    // correct.
    let _ =
        log.and_then(|mut log| log.write_all(format!("ALARM-EXPECTED {what} {name}\n").as_bytes()));
}

fn judge(
    before: &BTreeMap<String, u64>,
    after: &BTreeMap<String, u64>,
    expected: Option<&str>,
) -> Result<(), String> {
    // The counts restart at 0 when the library is loaded again.
    let raised = |name: &str| {
        let old = before.get(name);
        let new = after.get(name).copied().unwrap_or(0);
        new.checked_sub(old.copied().unwrap_or(0)).unwrap_or(new)
    };
    let others = after.keys().filter(|name| expected != Some(name.as_str()) && raised(name) != 0);
    let others: Vec<String> = others.map(|name| format!("{name} ({})", raised(name))).collect();
    if !others.is_empty() {
        return Err(format!("alarms of the library: {}", others.join(", ")));
    }
    match expected {
        Some(name) if raised(name) == 0 => Err(format!("the alarm {name} was not raised")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_expected_alarms_are_accepted() {
        let before = parse("flush-lost 1\nstale-translation 0\n");
        let after = parse("flush-lost 1\nstale-translation 2\n");
        assert_eq!(judge(&before, &before, None), Ok(()));
        assert_eq!(judge(&before, &after, Some("stale-translation")), Ok(()));
        let other = judge(&before, &after, None);
        assert_eq!(other, Err("alarms of the library: stale-translation (2)".to_string()));
        assert!(judge(&before, &after, Some("flush-lost")).is_err());
        assert!(judge(&before, &before, Some("flush-lost")).is_err());
        // The library was loaded again in the meantime, or unloaded.
        assert!(judge(&after, &parse("stale-translation 1"), None).is_err());
        assert_eq!(judge(&after, &parse("stale-translation 0"), None), Ok(()));
        assert_eq!(judge(&after, &parse(""), None), Ok(()));
    }
}
