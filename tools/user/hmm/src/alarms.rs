// SPDX-License-Identifier: GPL-2.0
//! Alarms of the library: reports of broken rules, which fail every run.

use std::collections::BTreeMap;
use std::fs::{read_to_string, OpenOptions};
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

/// The part of a run that a test is responsible for.
#[must_use = "alarms are looked at in the end"]
pub struct Alarms {
    before: BTreeMap<String, u64>,
    expected: Option<&'static str>,
}

impl Alarms {
    /// Begins it.  `expected` must be raised in it, and no other alarm may be.
    pub fn begin(expected: Option<&'static str>) -> Alarms {
        if let Some(name) = expected {
            mark("begin", name);
        }
        Alarms { before: counts(), expected }
    }

    /// Ends it, and tells of alarms that were not expected, or of one that was and did not come.
    pub fn end(&self) -> Result<(), String> {
        if let Some(name) = self.expected {
            mark("end", name);
        }
        judge(&self.before, &counts(), self.expected)
    }
}

/// Tells the runner of the machine, which reads the kernel's log.
fn mark(what: &str, name: &str) {
    let log = OpenOptions::new().write(true).open("/dev/kmsg");
    // Without it the run fails, which is right.
    let _ =
        log.and_then(|mut log| log.write_all(format!("ALARM-EXPECTED {what} {name}\n").as_bytes()));
}

fn judge(
    before: &BTreeMap<String, u64>,
    after: &BTreeMap<String, u64>,
    expected: Option<&str>,
) -> Result<(), String> {
    // A library that was loaded again counts from 0.
    let raised = |name: &str| {
        let (old, new) = (before.get(name), after.get(name).copied().unwrap_or(0));
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
    fn only_what_is_expected_may_come_and_must() {
        let before = parse("flush-lost 1\nstale-translation 0\n");
        let after = parse("flush-lost 1\nstale-translation 2\n");
        assert_eq!(judge(&before, &before, None), Ok(()));
        assert_eq!(judge(&before, &after, Some("stale-translation")), Ok(()));
        let other = judge(&before, &after, None);
        assert_eq!(other, Err("alarms of the library: stale-translation (2)".to_string()));
        assert!(judge(&before, &after, Some("flush-lost")).is_err());
        assert!(judge(&before, &before, Some("flush-lost")).is_err());
        // Loaded again meanwhile, or gone.
        assert!(judge(&after, &parse("stale-translation 1"), None).is_err());
        assert_eq!(judge(&after, &parse("stale-translation 0"), None), Ok(()));
        assert_eq!(judge(&after, &parse(""), None), Ok(()));
    }
}
