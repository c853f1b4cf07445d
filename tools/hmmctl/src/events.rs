// SPDX-License-Identifier: GPL-2.0
//! Events of the library's tracepoints: filters and output formats.

use crate::places::page_size;
use crate::problem::{
    Problem,
    Result, //
};
use crate::sample::Sample;
use hmm::tracing::Event;
use serde_json::{
    json,
    Value, //
};
use std::collections::BTreeMap;

/// Names of the events, without `hmm_`.
pub const NAMES: [&str; 8] = [
    "device_fault",
    "cpu_fault",
    "migrate_begin",
    "migrate_end",
    "evict",
    "thrash",
    "invalidate",
    "retry",
];

/// Which events are meant.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Filter {
    /// Only these events (several: repeat it, or with commas)
    #[arg(long, short, value_name = "EVENT", value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(NAMES))]
    pub event: Vec<String>,
    /// Only events of the memory of this process
    #[arg(long, short, value_name = "PID")]
    pub pid: Option<u32>,
    /// Only this device and its mirrors
    #[arg(long, short, value_name = "NUMBER")]
    pub device: Option<u32>,
    /// Only this mirror
    #[arg(long, short, value_name = "NUMBER")]
    pub mirror: Option<u32>,
    /// Only what touches these addresses: START-END, or START+BYTES
    #[arg(long, value_name = "RANGE", value_parser = parse_range)]
    pub range: Option<(u64, u64)>,
}

fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn parse_range(text: &str) -> std::result::Result<(u64, u64), String> {
    let range = match (text.split_once('-'), text.split_once('+')) {
        (Some((start, end)), None) => parse_number(start).zip(parse_number(end)),
        (None, Some((start, bytes))) => {
            let start = parse_number(start);
            start.zip(
                start.zip(parse_number(bytes)).and_then(|(start, bytes)| start.checked_add(bytes)),
            )
        }
        _ => None,
    };
    range.filter(|(start, end)| start < end).ok_or_else(|| {
        format!("'{text}' is no range: START-END, or START+BYTES, with 0x for hexadecimal")
    })
}

/// Caches the device of each mirror and the name of each process.
#[derive(Default)]
pub struct Known {
    devices: BTreeMap<u32, Option<u32>>,
    names: BTreeMap<u32, String>,
}

impl Known {
    /// Reads all current mirrors and processes.
    pub fn now() -> Result<Known> {
        let mut known = Known::default();
        known.learn(&Sample::take()?);
        Ok(known)
    }

    fn learn(&mut self, sample: &Sample) {
        for mirror in &sample.mirrors {
            self.devices.insert(mirror.mirror, mirror.device);
            self.names.insert(mirror.pid, mirror.comm.clone());
        }
    }

    /// The device of a mirror. A new mirror is looked up; one that was removed in the meantime is
    /// unknown.
    fn device(&mut self, mirror: u32) -> Option<u32> {
        if !self.devices.contains_key(&mirror) {
            if let Ok(sample) = Sample::take() {
                self.learn(&sample);
            }
            self.devices.entry(mirror).or_insert(None);
        }
        self.devices.get(&mirror).copied().flatten()
    }

    fn name(&mut self, pid: u32) -> &str {
        self.names.entry(pid).or_insert_with(|| crate::source::name_of(pid))
    }
}

fn number(event: &Event, name: &str) -> Option<u32> {
    event.number(name).and_then(|number| u32::try_from(number).ok())
}

/// The device to which an event belongs.
pub fn device_of(event: &Event, known: &mut Known) -> Option<u32> {
    number(event, "device")
        .or_else(|| number(event, "mirror").and_then(|mirror| known.device(mirror)))
}

/// The address range of an event.
fn range_of(event: &Event) -> Option<(u64, u64)> {
    if let Some(address) = event.number("address") {
        return Some((address as u64, address as u64 + 1));
    }
    let start = event.number("start")? as u64;
    let pages = event.number("pages")? as u64;
    Some((start, start.saturating_add(pages.saturating_mul(page_size()))))
}

impl Filter {
    /// Checks that the device, mirror and process of the filter exist.
    pub fn check(&self) -> Result<()> {
        let sample = Sample::take()?;
        if let Some(device) = self.device {
            sample.has_device(device)?;
        }
        if let Some(pid) = self.pid {
            sample.has_process(pid)?;
        }
        match self.mirror {
            Some(mirror) if sample.mirror(mirror).is_none() => Err(Problem::NoMirror(mirror)),
            _ => Ok(()),
        }
    }

    /// Whether `event` passes the filter.
    pub fn takes(&self, event: &Event, known: &mut Known) -> bool {
        let same = |wanted: Option<u32>, found: Option<u32>| {
            wanted.is_none_or(|wanted| found == Some(wanted))
        };
        let touches = |(start, end): (u64, u64)| {
            range_of(event).is_some_and(|(first, last)| first < end && start < last)
        };
        (self.event.is_empty() || self.event.contains(&event.name))
            && same(self.pid, number(event, "pid"))
            && same(self.mirror, number(event, "mirror"))
            && (self.device.is_none() || same(self.device, device_of(event, known)))
            && self.range.is_none_or(touches)
    }
}

fn span(event: &Event) -> String {
    let start = event.number("start").unwrap_or(0);
    let pages = event.number("pages").unwrap_or(0);
    let plural = if pages == 1 { "" } else { "s" };
    match pages {
        // The whole address space.
        pages if pages as u64 >= 1 << 40 => "everything".to_string(),
        pages => format!("{start:#x} {pages} page{plural}"),
    }
}

fn result(event: &Event) -> String {
    match event.number("result") {
        Some(0) | None => String::new(),
        Some(error) => format!(", failed: {}", std::io::Error::from_raw_os_error(-error as i32)),
    }
}

/// Describes the event in words.
fn words(event: &Event) -> String {
    let text = |name: &str| event.text(name).to_string();
    let direction = event.words.first().map_or("", String::as_str).replace('-', " ");
    match event.name.as_str() {
        "device_fault" => {
            format!("device fault   {} {}{}", text("access"), span(event), result(event))
        }
        "cpu_fault" => format!(
            "CPU fault      {} brought back {}{}",
            text("address"),
            text("moved"),
            result(event)
        ),
        "migrate_begin" => {
            format!("migrate begin  {direction} {} ({})", span(event), text("trigger"))
        }
        "migrate_end" => format!(
            "migrate end    {direction} moved {}, switched {}, stayed {} ({}){}",
            text("moved"),
            text("switched"),
            text("stayed"),
            text("trigger"),
            result(event)
        ),
        "evict" => format!(
            "evict          moved {}, left {} ({})",
            text("moved"),
            text("left"),
            text("need")
        ),
        "thrash" if text("verdict") == "waits" => {
            format!("thrash         {} waits {} ms", span(event), text("ms"))
        }
        "thrash" => format!("thrash         {} {}", span(event), text("verdict")),
        "invalidate" => {
            format!("invalidate     {} {} changed {}", text("event"), span(event), text("changed"))
        }
        "retry" => format!("retry          {} ({})", span(event), text("reason")),
        other => format!("{other} {:?} {:?}", event.fields, event.words),
    }
}

/// Formats the event as a line of text.
pub fn line(event: &Event, known: &mut Known) -> String {
    let device = device_of(event, known).map_or("-".to_string(), |device| device.to_string());
    let mirror = number(event, "mirror").map_or("-".to_string(), |mirror| mirror.to_string());
    let who = match number(event, "pid") {
        Some(pid) => format!("{}:{pid}", known.name(pid)),
        None => "-".to_string(),
    };
    format!("{:>14.6}  {who:<22} dev {device:<3} mir {mirror:<5} {}", event.time, words(event))
}

/// The key of a tracepoint's field in the JSON object. `event` is the key of the tracepoint's name.
/// The field of that name, the type of notifier event of an invalidation, therefore has the key
/// `reason` as in `retry`.
fn key(field: &str) -> &str {
    match field {
        "event" => "reason",
        other => other,
    }
}

/// The event as JSON. Numbers are numbers; addresses are strings.
pub fn object(event: &Event, known: &mut Known) -> Value {
    let mut object = json!({});
    for (name, text) in &event.fields {
        object[key(name)] = match text.parse::<i64>() {
            Ok(number) => json!(number),
            Err(_) => json!(text),
        };
    }
    if let Some(direction) = event.words.first() {
        object["direction"] = json!(direction);
    }
    // After the fields, so that no field replaces the name or the time.
    object["event"] = json!(event.name);
    object["time"] = json!(event.time);
    if object.get("device").is_none() {
        object["device"] = json!(device_of(event, known));
    }
    object
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// An event of a line.
    pub fn event(rest: &str) -> Event {
        Event::parse(&format!("  a-77  [001] ..... 12.345678: hmm_{rest}")).unwrap()
    }

    /// Mirror 3 is one of device 1, of process 812.
    pub fn known() -> Known {
        let mut known = Known::default();
        known.devices.insert(3, Some(1));
        known.devices.insert(4, None);
        known.names.insert(812, "gpu-app".to_string());
        known
    }

    #[test]
    fn filters_match_their_objects_only() {
        let fault =
            event("device_fault: pid=812 mirror=3 start=0x10000 pages=4 access=read result=0");
        let evict = event("evict: device=1 need=room moved=512 left=0");
        let takes = |filter: Filter, event: &Event| filter.takes(event, &mut known());
        let all = Filter::default();
        assert!(takes(all.clone(), &fault) && takes(all.clone(), &evict));
        assert!(takes(Filter { event: vec!["evict".into()], ..all.clone() }, &evict));
        assert!(!takes(Filter { event: vec!["evict".into()], ..all.clone() }, &fault));
        assert!(takes(Filter { device: Some(1), ..all.clone() }, &fault));
        assert!(takes(Filter { device: Some(1), ..all.clone() }, &evict));
        assert!(!takes(Filter { device: Some(0), ..all.clone() }, &fault));
        assert!(takes(Filter { pid: Some(812), mirror: Some(3), ..all.clone() }, &fault));
        assert!(!takes(Filter { pid: Some(812), ..all.clone() }, &evict));
        for (range, takes_it) in [
            ("0x13000-0x14000", true),
            ("0x14000+4096", false),
            ("0-0x10000", false),
            ("0x10000+1", true),
        ] {
            let range = Some(parse_range(range).unwrap());
            assert_eq!(takes(Filter { range, ..all.clone() }, &fault), takes_it, "{range:?}");
        }
    }

    #[test]
    fn ranges_are_checked() {
        assert_eq!(parse_range("0x1000-0x2000"), Ok((4096, 8192)));
        assert_eq!(parse_range("4096+10"), Ok((4096, 4106)));
        for bad in ["", "1", "2-1", "1-", "x-y", "1+0", "0xffffffffffffffff+2"] {
            assert!(parse_range(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lines_describe_their_event() {
        let line = |rest: &str| line(&event(rest), &mut known());
        let fault =
            line("device_fault: pid=812 mirror=3 start=0x10000 pages=1 access=write result=-14");
        assert!(fault.contains("gpu-app:812") && fault.contains("dev 1 "), "{fault}");
        assert!(
            fault.ends_with("write 0x10000 1 page, failed: Bad address (os error 14)"),
            "{fault}"
        );
        let end = line("migrate_end: pid=812 mirror=3 to-device trigger=request moved=16 switched=8 stayed=0 result=0");
        assert!(
            end.ends_with("migrate end    to device moved 16, switched 8, stayed 0 (request)"),
            "{end}"
        );
        let all = line("migrate_begin: pid=812 mirror=3 start=0x0 pages=4503599627370495 to-system trigger=close");
        assert!(all.ends_with("to system everything (close)"), "{all}");
        assert!(line("thrash: pid=1 mirror=4 start=0x1000 pages=1 verdict=waits ms=3")
            .ends_with("waits 3 ms"));
    }

    /// One event of each kind, as the kernel writes it.
    pub fn one_of_each() -> Vec<Event> {
        let rest = [
            "device_fault: pid=812 mirror=3 start=0x10000 pages=1 access=write result=0",
            "cpu_fault: pid=812 device=1 address=0x10000 moved=16 result=0",
            "migrate_begin: pid=812 mirror=3 start=0x10000 pages=4 to-device trigger=request",
            "migrate_end: pid=812 mirror=3 to-device trigger=request moved=4 switched=3 stayed=0 result=0",
            "evict: device=1 need=room moved=512 left=0",
            "thrash: pid=812 mirror=3 start=0x10000 pages=1 verdict=stays ms=0",
            "invalidate: pid=812 mirror=3 start=0x10000 pages=4 event=migrate changed=4",
            "retry: pid=812 mirror=3 start=0x10000 pages=2 reason=busy",
        ];
        rest.into_iter().map(event).collect()
    }

    #[test]
    fn objects_have_the_tracepoint_name() {
        let events = one_of_each();
        let names: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
        assert_eq!(names, NAMES);
        for event in &events {
            let object = object(event, &mut known());
            assert_eq!(object["event"], *event.name, "{object}");
            assert_eq!(object["time"], 12.345678, "{object}");
            assert_eq!(object["device"], 1, "{object}");
            for name in event.fields.keys() {
                assert!(object.get(key(name)).is_some(), "no {name} in {object}");
            }
        }
        assert_eq!(object(&events[6], &mut known())["reason"], "migrate");
        let clash = event("retry: pid=812 event=unmap time=0 reason=busy");
        let clash = object(&clash, &mut known());
        assert_eq!((&clash["event"], &clash["time"]), (&json!("retry"), &json!(12.345678)));
    }

    #[test]
    fn objects_have_numbers() {
        let object = object(
            &event("retry: pid=812 mirror=3 start=0x10000 pages=2 reason=busy"),
            &mut known(),
        );
        assert_eq!(object["pid"], 812);
        assert_eq!(object["start"], "0x10000");
        assert_eq!(object["device"], 1);
        assert_eq!(object["reason"], "busy");
        assert_eq!(object["time"], 12.345678);
    }
}
