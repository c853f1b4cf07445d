// SPDX-License-Identifier: GPL-2.0
//! The library's phase accounting, read from debugfs.

use serde_json::{
    json,
    Map,
    Value, //
};
use std::collections::BTreeMap;
use std::sync::Mutex;

const FILE: &str = "/sys/kernel/debug/rust_hmm/phases";

/// Nanoseconds spent in each phase.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Phases(BTreeMap<String, f64>);

static SPENT: Mutex<Phases> = Mutex::new(Phases(BTreeMap::new()));

fn parse(text: &str) -> Phases {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let _count = words.next()?;
        let ns = words.next()?;
        Some((name.to_string(), ns.parse().ok()?))
    };
    Phases(text.lines().filter_map(line).collect())
}

/// Returns the time spent in each phase since the driver was loaded. Empty if the driver has no
/// accounting.
pub fn now() -> Phases {
    parse(&std::fs::read_to_string(FILE).unwrap_or_default())
}

/// An interval of which the time is added to [`spent`].
pub struct Account(Phases);

impl Account {
    /// Starts the interval.
    pub fn open() -> Account {
        Account(now())
    }

    /// Ends the interval.
    pub fn close(self) {
        let now = now();
        let mut spent = SPENT.lock().unwrap_or_else(|error| error.into_inner());
        for (name, ns) in now.0 {
            let before = self.0 .0.get(&name).copied().unwrap_or(0.0);
            *spent.0.entry(name).or_insert(0.0) += ns - before;
        }
    }
}

/// Returns the time of all intervals since the last call.
pub fn spent() -> Phases {
    std::mem::take(&mut *SPENT.lock().unwrap_or_else(|error| error.into_inner()))
}

impl Phases {
    /// Divides all times by `units`.
    pub fn per(mut self, units: usize) -> Phases {
        self.0.values_mut().for_each(|ns| *ns /= units as f64);
        self
    }

    /// Returns the time spent in `phases` since `before`.
    pub fn since(&self, before: &Phases, phases: &[&str]) -> f64 {
        let of = |account: &Phases, name: &str| account.0.get(name).copied().unwrap_or(0.0);
        phases.iter().map(|name| of(self, name) - of(before, name)).sum()
    }

    /// Returns the times for the report.
    pub fn json(&self) -> Value {
        Value::Object(
            self.0.iter().map(|(name, ns)| (name.clone(), json!(ns))).collect::<Map<_, _>>(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_name_count_time() {
        let phases = parse("collect 2 300\ncopy 1 50\nrubbish\n").per(10);
        assert_eq!(phases.json(), json!({ "collect": 30.0, "copy": 5.0 }));
    }
}
