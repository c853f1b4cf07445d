// SPDX-License-Identifier: GPL-2.0
//! A sample of all files in debugfs, and the difference of two samples.

use crate::problem::{
    Problem,
    Result, //
};
use crate::{
    source,
    table, //
};
use serde::{
    Deserialize,
    Serialize, //
};
use std::collections::BTreeMap;

/// Returns the page size of this machine in bytes.
pub fn page_bytes() -> f64 {
    crate::places::page_size() as f64
}

/// One mirror: the address space of a process on one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mirror {
    /// Number of the mirror.
    pub mirror: u32,
    /// PID of the process.
    pub pid: u32,
    /// Name of the process.
    pub comm: String,
    /// Number of the device, if it has memory.
    pub device: Option<u32>,
    /// Whether the process still exists.
    pub alive: bool,
    /// Pages of system memory that the device maps.
    pub system_pages: u64,
    /// Pages of its own memory that the device maps.
    pub device_pages: u64,
    /// Pages with exclusive device access.
    pub exclusive_pages: u64,
    /// Counters since the mirror was created.
    pub counters: BTreeMap<String, u64>,
}

/// The memory of a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Number of the device.
    pub device: u32,
    /// `private` or `coherent`.
    pub kind: String,
    /// Pages in use.
    pub used: u64,
    /// Pages that exist.
    pub total: u64,
    /// Maximum number of pages.
    pub limit: u64,
    /// Counters since the device was created.
    pub counters: BTreeMap<String, u64>,
}

/// Count and duration of a phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Number of executions.
    pub count: u64,
    /// Total time in ns.
    pub ns: u64,
}

/// Contents of all files at one time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since boot.
    pub time: f64,
    /// All mirrors.
    pub mirrors: Vec<Mirror>,
    /// All devices.
    pub devices: Vec<Device>,
    /// Phases by name.
    pub phases: BTreeMap<String, Phase>,
}

/// Columns that are not counters.
const MIRROR: [&str; 7] =
    ["mirror", "pid", "device", "alive", "system_pages", "device_pages", "exclusive_pages"];
const DEVICE: [&str; 5] = ["device", "kind", "used", "total", "limit"];

fn counters(file: &str, row: &table::Row, others: &[&str]) -> Result<BTreeMap<String, u64>> {
    let names = row.keys().filter(|name| !others.contains(&name.as_str()));
    names.map(|name| Ok((name.clone(), table::number(file, row, name)?))).collect()
}

fn mirrors(text: &str) -> Result<Vec<Mirror>> {
    let rows = table::parse("mirrors", text)?;
    let mirror = |row: &table::Row| {
        let number = |name| table::number::<u64>("mirrors", row, name);
        let device = match row.get("device").map(String::as_str) {
            Some("-") => None,
            _ => Some(table::number("mirrors", row, "device")?),
        };
        Ok(Mirror {
            mirror: table::number("mirrors", row, "mirror")?,
            pid: table::number("mirrors", row, "pid")?,
            comm: String::new(),
            device,
            alive: number("alive")? != 0,
            system_pages: number("system_pages")?,
            device_pages: number("device_pages")?,
            exclusive_pages: number("exclusive_pages")?,
            counters: counters("mirrors", row, &MIRROR)?,
        })
    };
    rows.iter().map(mirror).collect()
}

fn devices(text: &str) -> Result<Vec<Device>> {
    let rows = table::parse("devices", text)?;
    let device = |row: &table::Row| {
        let number = |name| table::number::<u64>("devices", row, name);
        Ok(Device {
            device: table::number("devices", row, "device")?,
            kind: row.get("kind").cloned().unwrap_or_default(),
            used: number("used")?,
            total: number("total")?,
            limit: number("limit")?,
            counters: counters("devices", row, &DEVICE)?,
        })
    };
    rows.iter().map(device).collect()
}

fn phases(text: &str) -> Result<BTreeMap<String, Phase>> {
    let phase = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?.to_string();
        let count = words.next()?.parse().ok()?;
        Some((name, Phase { count, ns: words.next()?.parse().ok()? }))
    };
    let bad = |line: &str| Problem::Format(format!("phases: '{line}'"));
    text.lines().map(|line| phase(line).ok_or_else(|| bad(line))).collect()
}

impl Mirror {
    /// Returns the counter `name`, 0 if it does not exist.
    pub fn get(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// Returns the number of pages migrated in both directions.
    pub fn moved(&self) -> u64 {
        self.get("to_device") + self.get("to_system")
    }
}

impl Device {
    /// Returns the counter `name`, 0 if it does not exist.
    pub fn get(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// Returns the number of pages migrated back by CPU faults and evictions.
    pub fn returned(&self) -> u64 {
        self.get("cpu_fault_pages") + self.get("evicted")
    }
}

impl Sample {
    /// Reads all files. They are read one after the other, so that their values may differ by
    /// events in between.
    pub fn take() -> Result<Sample> {
        let mut mirrors = mirrors(&source::text("mirrors")?)?;
        for mirror in &mut mirrors {
            mirror.comm = source::name_of(mirror.pid);
        }
        Ok(Sample {
            time: source::uptime()?,
            mirrors,
            devices: devices(&source::text("devices")?)?,
            phases: phases(&source::text("phases")?)?,
        })
    }

    /// Returns the mirror with this number.
    pub fn mirror(&self, number: u32) -> Option<&Mirror> {
        self.mirrors.iter().find(|mirror| mirror.mirror == number)
    }

    /// Returns the device with this number.
    pub fn device(&self, number: u32) -> Option<&Device> {
        self.devices.iter().find(|device| device.device == number)
    }

    /// Checks that the device exists.
    pub fn has_device(&self, number: u32) -> Result<()> {
        match self.device(number) {
            Some(_) => Ok(()),
            None => {
                let all = self.devices.iter().map(|device| device.device).collect();
                Err(Problem::NoDevice(number, all))
            }
        }
    }

    /// Checks that the process has a mirror.
    pub fn has_process(&self, pid: u32) -> Result<()> {
        if self.mirrors.iter().any(|mirror| mirror.pid == pid) {
            return Ok(());
        }
        if !std::path::Path::new(&format!("/proc/{pid}")).is_dir() {
            return Err(Problem::NoProcess(pid));
        }
        let mut all: Vec<u32> = self.mirrors.iter().map(|mirror| mirror.pid).collect();
        all.sort_unstable();
        all.dedup();
        Err(Problem::NoMirrorOf(pid, all))
    }

    /// Restricts the sample to this process and this device.
    pub fn only(mut self, pid: Option<u32>, device: Option<u32>) -> Sample {
        self.mirrors.retain(|mirror| pid.is_none_or(|pid| mirror.pid == pid));
        if let Some(device) = device {
            self.mirrors.retain(|mirror| mirror.device == Some(device));
            self.devices.retain(|other| other.device == device);
        }
        self
    }
}

/// Two samples, for differences between them.
#[derive(Clone, Debug)]
pub struct Between {
    /// Earlier sample.
    pub before: Sample,
    /// Later sample.
    pub now: Sample,
}

impl Between {
    /// Returns the time between the samples in seconds.
    pub fn seconds(&self) -> f64 {
        (self.now.time - self.before.time).max(0.001)
    }

    /// Returns the increase of `value` of this mirror. A mirror that is not in the earlier sample
    /// began with 0.
    pub fn mirror(&self, mirror: &Mirror, value: impl Fn(&Mirror) -> u64) -> u64 {
        let before = self.before.mirror(mirror.mirror).map_or(0, &value);
        value(mirror).saturating_sub(before)
    }

    /// Returns the increase of `value` of this device.
    pub fn device(&self, device: &Device, value: impl Fn(&Device) -> u64) -> u64 {
        let before = self.before.device(device.device).map_or(0, &value);
        value(device).saturating_sub(before)
    }

    /// Returns the increase of a phase.
    pub fn phase(&self, name: &str) -> Phase {
        let of = |sample: &Sample| sample.phases.get(name).copied().unwrap_or_default();
        let before = of(&self.before);
        let now = of(&self.now);
        Phase {
            count: now.count.saturating_sub(before.count),
            ns: now.ns.saturating_sub(before.ns),
        }
    }

    /// Converts a count to a rate per second.
    pub fn rate(&self, count: u64) -> f64 {
        count as f64 / self.seconds()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns example data for tests.
    pub fn example() -> Between {
        let text = |faults: u64, ns: u64, moved: u64| {
            format!(
                "mirror pid system_pages device_pages exclusive_pages device alive faults fault_ns migrations to_device to_system\n\
                 3 812 100 300 0 0 1 {faults} {ns} 2 {moved} 7\n4 900 5 0 1 - 0 1 2 3 4 5\n"
            )
        };
        let device = |faults: u64| {
            format!(
                "device kind used total limit cpu_faults cpu_fault_pages evicted evicted_for_room\n\
                 0 private 300 65536 2097152 {faults} 16 8 0\n1 coherent 0 65536 65536 0 0 0 0\n"
            )
        };
        let sample = |time, faults, ns, moved| Sample {
            time,
            mirrors: mirrors(&text(faults, ns, moved)).unwrap(),
            devices: devices(&device(faults)).unwrap(),
            phases: phases(&format!("copy {faults} {ns}\nwait 0 0\n")).unwrap(),
        };
        let (mut before, mut now) =
            (sample(10.0, 10, 1000, 100), sample(12.0, 30, 500_001_000, 612));
        before.mirrors[0].comm = "gpu-app".to_string();
        now.mirrors[0].comm = "gpu-app".to_string();
        Between { before, now }
    }

    #[test]
    fn files_are_parsed() {
        let sample = example().now;
        let mirror = &sample.mirrors[0];
        assert_eq!((mirror.mirror, mirror.pid, mirror.device), (3, 812, Some(0)));
        assert_eq!((mirror.system_pages, mirror.device_pages), (100, 300));
        assert_eq!(mirror.get("faults"), 30);
        assert!(!mirror.counters.contains_key("pid"));
        assert_eq!((sample.mirrors[1].device, sample.mirrors[1].alive), (None, false));
        assert_eq!(sample.device(1).unwrap().kind, "coherent");
        assert_eq!(sample.phases["copy"].count, 30);
        assert!(phases("copy x y\n").is_err());
    }

    #[test]
    fn differences_are_of_the_same_mirror() {
        let mut between = example();
        let mirror = between.now.mirrors[0].clone();
        assert_eq!(between.mirror(&mirror, |mirror| mirror.get("faults")), 20);
        assert_eq!(between.rate(20), 10.0);
        assert_eq!(between.mirror(&mirror, Mirror::moved), 512);
        assert_eq!(between.phase("copy"), Phase { count: 20, ns: 500_000_000 });
        between.before.mirrors.clear();
        assert_eq!(between.mirror(&mirror, |mirror| mirror.get("faults")), 30);
    }

    #[test]
    fn missing_files_are_named() {
        let sample = example().now;
        assert_eq!(sample.has_device(5).unwrap_err().status(), 7);
        assert!(sample.has_process(812).is_ok());
        assert_eq!(sample.has_process(1 << 30).unwrap_err().status(), 6);
        let own = sample.has_process(std::process::id()).unwrap_err();
        assert!(own.to_string().ends_with("812, 900"), "{own}");
        assert_eq!(sample.clone().only(None, Some(0)).mirrors.len(), 1);
        assert_eq!(sample.only(Some(900), None).mirrors[0].mirror, 4);
    }
}
