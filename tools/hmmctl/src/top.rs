// SPDX-License-Identifier: GPL-2.0
//! `hmmctl top`: activity of processes and devices, periodically.

use crate::problem::{
    Problem,
    Result, //
};
use crate::sample::{
    page_bytes,
    Between,
    Device,
    Mirror,
    Sample, //
};
use crate::stop::Stop;
use crate::{
    screen,
    table, //
};
use serde_json::{
    json,
    Value, //
};
use std::io::{
    IsTerminal,
    Write, //
};
use std::path::PathBuf;
use std::time::{
    Duration,
    Instant, //
};

/// Arguments of `hmmctl top`.
#[derive(clap::Args)]
pub struct Args {
    /// Interval in seconds
    #[arg(long, short, default_value_t = 1.0, value_name = "SECONDS")]
    interval: f64,
    /// Print one table and exit
    #[arg(long, conflicts_with = "batch")]
    once: bool,
    /// Print N tables and exit; without this, print until interrupted if the output is no terminal
    #[arg(long, short, value_name = "N")]
    batch: Option<u64>,
    /// Print one JSON object for each interval
    #[arg(long)]
    json: bool,
    /// Only this process
    #[arg(long, short, value_name = "PID")]
    pid: Option<u32>,
    /// Only this device and its mirrors
    #[arg(long, short, value_name = "NUMBER")]
    device: Option<u32>,
    /// Write the screen after one interval to this file as SVG, and exit
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "batch"])]
    svg: Option<PathBuf>,
}

/// Values shown for a mirror.
pub struct MirrorRow<'a> {
    /// The mirror.
    pub mirror: &'a Mirror,
    /// Device faults per second.
    pub faults: f64,
    /// Migrations per second.
    pub migrations: f64,
    /// Bytes migrated per second.
    pub bytes: f64,
    /// Share of the time in which the device waited for its faults, in per cent.
    pub stalled: f64,
}

/// Values shown for a device.
pub struct DeviceRow<'a> {
    /// The device.
    pub device: &'a Device,
    /// CPU faults per second.
    pub faults: f64,
    /// Bytes migrated back per second.
    pub bytes: f64,
    /// Pages evicted per second.
    pub evicted: f64,
}

/// Returns the rows of both tables, the busiest mirrors first.
pub fn rows(between: &Between) -> (Vec<MirrorRow<'_>>, Vec<DeviceRow<'_>>) {
    let mirror = |mirror| MirrorRow {
        mirror,
        faults: between.rate(between.mirror(mirror, |mirror| mirror.get("faults"))),
        migrations: between.rate(between.mirror(mirror, |mirror| mirror.get("migrations"))),
        bytes: between.rate(between.mirror(mirror, Mirror::moved)) * page_bytes(),
        stalled: between.rate(between.mirror(mirror, |mirror| mirror.get("fault_ns"))) / 1e7,
    };
    let device = |device| DeviceRow {
        device,
        faults: between.rate(between.device(device, |device| device.get("cpu_faults"))),
        bytes: between.rate(between.device(device, Device::returned)) * page_bytes(),
        evicted: between.rate(between.device(device, |device| device.get("evicted"))),
    };
    let mut mirrors: Vec<_> = between.now.mirrors.iter().map(mirror).collect();
    let busy = |row: &MirrorRow| row.faults + row.bytes / page_bytes();
    mirrors.sort_by(|a, b| busy(b).total_cmp(&busy(a)));
    (mirrors, between.now.devices.iter().map(device).collect())
}

/// Returns a bar of `width` characters that shows `parts` of `whole`, each by its character.
pub fn bar(parts: &[(u64, char)], whole: u64, width: usize) -> String {
    let mut text = String::new();
    let mut sum = 0u64;
    let mut drawn = 0;
    for (part, char) in parts {
        sum += part;
        // Draw at least one character for each non-zero part, if there is space.
        let least = usize::from(*part != 0);
        let end = (sum as f64 / whole.max(1) as f64 * width as f64).round() as usize;
        let end = end.max(drawn + least).min(width);
        text.extend(std::iter::repeat_n(*char, end - drawn));
        drawn = end;
    }
    text.extend(std::iter::repeat_n('.', width - drawn));
    text
}

/// Formats a rate.
pub fn rate(value: f64) -> String {
    match value {
        value if value < 100.0 => format!("{value:.1}"),
        value if value < 1e5 => format!("{value:.0}"),
        value if value < 1e8 => format!("{:.0}k", value / 1e3),
        value => format!("{:.0}M", value / 1e6),
    }
}

/// Returns the number of the device, or `-`.
pub fn device_name(device: Option<u32>) -> String {
    device.map_or("-".to_string(), |number| number.to_string())
}

/// Formats both tables as text.
fn plain(between: &Between) -> String {
    const WIDTH: usize = 20;
    let (mirrors, devices) = rows(between);
    let words = |text: &str| text.split(' ').map(str::to_string).collect::<Vec<_>>();
    let mut lines = vec![words(
        "PID NAME MIRROR DEVICE FAULTS/s STALLED MIGRATIONS/s MOVED/s SYSTEM DEVMEM RESIDENCY",
    )];
    for row in &mirrors {
        let Mirror {
            pid, comm, mirror, device, system_pages, device_pages, exclusive_pages, ..
        } = row.mirror;
        let system = system_pages + exclusive_pages;
        let own = *device_pages;
        lines.push(vec![
            pid.to_string(),
            if row.mirror.alive { comm.replace(' ', "_") } else { "(gone)".to_string() },
            mirror.to_string(),
            device_name(*device),
            rate(row.faults),
            format!("{:.1}%", row.stalled),
            rate(row.migrations),
            table::bytes(row.bytes).replace(' ', ""),
            table::bytes(system as f64 * page_bytes()).replace(' ', ""),
            table::bytes(own as f64 * page_bytes()).replace(' ', ""),
            format!("[{}]", bar(&[(own, '#'), (system, '-')], own + system, WIDTH)),
        ]);
    }
    let mut text = table::aligned(&lines, 2);
    let mut lines = vec![words("DEVICE KIND CPU-FAULTS/s BACK/s EVICTED/s USED LIMIT MEMORY")];
    for row in &devices {
        let Device { device, kind, used, limit, .. } = row.device;
        lines.push(vec![
            device.to_string(),
            kind.clone(),
            rate(row.faults),
            table::bytes(row.bytes).replace(' ', ""),
            rate(row.evicted),
            table::bytes(*used as f64 * page_bytes()).replace(' ', ""),
            table::bytes(*limit as f64 * page_bytes()).replace(' ', ""),
            format!("[{}]", bar(&[(*used, '#')], *limit, WIDTH)),
        ]);
    }
    text.push('\n');
    text.push_str(&table::aligned(&lines, 2));
    text
}

/// Returns both tables as a JSON object.
fn object(between: &Between) -> Value {
    let (mirrors, devices) = rows(between);
    let mirror = |row: &MirrorRow| {
        let mut object = json!(row.mirror);
        object["faults_per_s"] = json!(row.faults);
        object["migrations_per_s"] = json!(row.migrations);
        object["moved_bytes_per_s"] = json!(row.bytes);
        object["stalled_percent"] = json!(row.stalled);
        object
    };
    let device = |row: &DeviceRow| {
        let mut object = json!(row.device);
        object["cpu_faults_per_s"] = json!(row.faults);
        object["returned_bytes_per_s"] = json!(row.bytes);
        object["evicted_per_s"] = json!(row.evicted);
        object
    };
    json!({
        "time": between.now.time,
        "interval_s": between.seconds(),
        "mirrors": mirrors.iter().map(mirror).collect::<Vec<_>>(),
        "devices": devices.iter().map(device).collect::<Vec<_>>(),
        "phases": between.now.phases.keys().map(|name| {
            let phase = between.phase(name);
            (name.clone(), json!({ "count": phase.count, "ns": phase.ns }))
        }).collect::<serde_json::Map<_, _>>(),
    })
}

/// Takes samples with the filters of the arguments.
struct Source<'a> {
    args: &'a Args,
    before: Sample,
}

impl<'a> Source<'a> {
    fn new(args: &'a Args) -> Result<Self> {
        let all = Sample::take()?;
        if let Some(device) = args.device {
            all.has_device(device)?;
        }
        if let Some(pid) = args.pid {
            all.has_process(pid)?;
        }
        Ok(Self { args, before: all.only(args.pid, args.device) })
    }

    /// Takes a sample and returns it with the previous one.
    fn next(&mut self) -> Result<Between> {
        let all = Sample::take()?;
        if let Some(pid) = self.args.pid {
            all.has_process(pid)?;
        }
        let now = all.only(self.args.pid, self.args.device);
        let before = std::mem::replace(&mut self.before, now.clone());
        Ok(Between { before, now })
    }
}

/// Runs `hmmctl top`.
pub fn run(args: &Args) -> Result<()> {
    let interval = Duration::try_from_secs_f64(args.interval).unwrap_or_default();
    let interval = interval.clamp(Duration::from_millis(50), Duration::from_secs(3600));
    let mut source = Source::new(args)?;
    let tables = if args.once || args.svg.is_some() { Some(1) } else { args.batch };
    if tables.is_none() && !args.json && std::io::stdout().is_terminal() {
        return screen::live(interval, || source.next());
    }
    let stop = Stop::new()?;
    let mut next = Instant::now();
    let mut shown = 0;
    while tables.is_none_or(|tables| shown < tables) {
        next += interval;
        stop.wait_until(next);
        if stop.now() {
            break;
        }
        let between = source.next()?;
        if let Some(file) = &args.svg {
            let picture = screen::picture(&between).map_err(Problem::output)?;
            return std::fs::write(file, picture)
                .map_err(|error| Problem::io("write", file, error));
        }
        let mut out = std::io::stdout().lock();
        let text = if args.json {
            format!("{}\n", object(&between))
        } else if shown > 0 {
            format!("\n{}", plain(&between))
        } else {
            plain(&between)
        };
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Problem::output)?;
        shown += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::tests::example;

    #[test]
    fn bars_span_the_whole_width() {
        assert_eq!(bar(&[(3, '#'), (1, '-')], 4, 8), "######--");
        assert_eq!(bar(&[(1, '#'), (1000, '-')], 1001, 8), "#-------");
        assert_eq!(bar(&[(1000, '#'), (1, '-')], 1001, 8), "########");
        assert_eq!(bar(&[(0, '#'), (0, '-')], 0, 4), "....");
        assert_eq!(bar(&[(1, '#')], 2, 4), "##..");
    }

    #[test]
    fn table_shows_the_rates() {
        let text = plain(&example());
        let line = text.lines().nth(1).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        // 20 faults, 0.5 s of stalls and 512 pages in 2 s.
        assert_eq!(words[..7], ["812", "gpu-app", "3", "0", "10.0", "25.0%", "0.0"]);
        assert_eq!(words[7..10], ["1.0MiB", "400.0KiB", "1.2MiB"]);
        assert_eq!(words[10], "[###############-----]");
        assert!(text.contains("(gone)") && text.contains("coherent"), "{text}");
    }

    #[test]
    fn objects_have_rates_and_totals() {
        let object = object(&example());
        assert_eq!(object["interval_s"], 2.0);
        assert_eq!(object["mirrors"][0]["pid"], 812);
        assert_eq!(object["mirrors"][0]["faults_per_s"], 10.0);
        assert_eq!(object["mirrors"][0]["counters"]["faults"], 30);
        assert_eq!(object["mirrors"][0]["moved_bytes_per_s"], 1048576.0);
        assert_eq!(object["devices"][0]["cpu_faults_per_s"], 10.0);
        assert_eq!(object["phases"]["copy"]["ns"], 500_000_000);
        assert_eq!(object["mirrors"][1]["device"], Value::Null);
    }

    #[test]
    fn rates_are_short() {
        assert_eq!(
            [rate(0.0), rate(1234.4), rate(5e6), rate(3e9)],
            ["0.0", "1234", "5000k", "3000M"]
        );
    }
}
