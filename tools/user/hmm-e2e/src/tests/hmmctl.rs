// SPDX-License-Identifier: GPL-2.0
//! `hmmctl` shows what there is: its numbers, files and messages.

use super::reload::{load, unload, Restore};
use crate::harness::{Ctx, Outcome, Stop, Test, What};
use crate::support::*;
use crate::{check, check_eq};
use hmm::engine::Way;
use hmm::pty::Terminal;
use hmm::{hostile, Child, Device, Mapping, PAGE_SIZE};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const OURS: &str = "hmmctl is for our library";

pub const TESTS: &[Test] = &[
    Test::new("hmmctl", "map_shows_where_pages_are", map).only_rust(OURS),
    Test::new("hmmctl", "map_of_a_large_table", large_map).only_rust(OURS),
    Test::new("hmmctl", "map_while_mirrors_come_and_go", come_and_go).only_rust(OURS),
    Test::new("hmmctl", "top_has_the_counters", top).only_rust(OURS),
    Test::new("hmmctl", "top_on_a_terminal", terminal).only_rust(OURS),
    Test::new("hmmctl", "trace_shows_events", trace).only_rust(OURS),
    Test::new("hmmctl", "trace_leaves_nothing", trace_leaves_nothing).only_rust(OURS),
    Test::new("hmmctl", "record_and_report", record).only_rust(OURS),
    Test::new("hmmctl", "errors_say_what_to_do", errors).only_rust(OURS),
];

/// In the group that unloads modules.
pub const WITHOUT_MODULES: &[Test] =
    &[Test::new("memory", "hmmctl_without_modules", without_modules).only_rust(OURS)];

/// Where the kernel's own events are.
const INSTANCES: &str = "/sys/kernel/tracing/instances";

/// How long something may take.
const PATIENCE: Duration = Duration::from_secs(30);

fn hmmctl(args: &[&str]) -> Command {
    let mut command = Command::new("hmmctl");
    command.args(args).stdin(Stdio::null());
    command
}

/// What it prints, and what it says, if it ends with `status`.
fn says(command: &mut Command, status: i32) -> Result<(String, String), Stop> {
    let output = command.output().what("run hmmctl")?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    check_eq!(output.status.code(), Some(status), "status of {command:?}: {errors}{out}");
    Ok((out, errors))
}

/// The objects that it prints.
fn objects(command: &mut Command) -> Result<Vec<Value>, Stop> {
    let (out, _) = says(command, 0)?;
    out.lines().map(|line| serde_json::from_str(line).what(&format!("JSON '{line}'"))).collect()
}

/// The only object that it prints.
fn object(command: &mut Command) -> Result<Value, Stop> {
    let mut all = objects(command)?;
    check_eq!(all.len(), 1, "objects of {command:?}");
    Ok(all.remove(0))
}

fn number(value: &Value, name: &str) -> Result<u64, Stop> {
    let found = value[name].as_u64();
    found.ok_or_else(|| Stop::Fail(format!("{name} is {} in {value}", value[name])))
}

fn own() -> String {
    std::process::id().to_string()
}

fn hex(value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default().trim_start_matches("0x");
    usize::from_str_radix(text, 16).unwrap_or(0)
}

/// Pages of `map` that are in `place`, and the runs of them, as `hmmctl map` says.
fn pages_in(object: &Value, map: &Mapping, place: &str) -> (usize, usize) {
    let (start, end) = (map.addr(), map.addr() + map.len());
    let (mut pages, mut runs) = (0, 0);
    for region in object["regions"].as_array().into_iter().flatten() {
        for run in region["runs"].as_array().into_iter().flatten() {
            let first = hex(&run["start"]);
            let last = first + run["pages"].as_u64().unwrap_or(0) as usize * PAGE_SIZE;
            let part = last.min(end).saturating_sub(first.max(start)) / PAGE_SIZE;
            if part != 0 && run["place"] == place {
                pages += part;
                runs += 1;
            }
        }
    }
    (pages, runs)
}

/// The text of the kernel's file, as `cat` reads it: in blocks.
fn map_file() -> Result<String, Stop> {
    let mut file = std::fs::File::open("/sys/kernel/debug/rust_hmm/map").what("open map")?;
    let mut text = String::new();
    let mut buffer = vec![0; 4096];
    loop {
        match file.read(&mut buffer).what("read map")? {
            0 => return Ok(text),
            read => text.push_str(&String::from_utf8_lossy(&buffer[..read])),
        }
    }
}

/// Well-formed, as far as elements are concerned; they have ends of their own.
fn well_formed(text: &str, void: &[&str]) -> Outcome {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        let tag = &rest[at + 1..];
        let end = tag
            .find('>')
            .ok_or_else(|| Stop::Fail(format!("no end of '{}'", &tag[..20.min(tag.len())])))?;
        let body = &tag[..end];
        check!(!body.contains('<'), "a tag within '{body}'");
        let name = body.trim_start_matches('/').split([' ', '\n', '/']).next().unwrap_or_default();
        if let Some(name) = body.strip_prefix('/') {
            check_eq!(open.pop(), Some(name), "what ends with </{name}>");
        } else if !body.ends_with('/') && !body.starts_with('!') && !void.contains(&name) {
            open.push(name);
        }
        rest = &tag[end + 1..];
    }
    check!(open.is_empty(), "elements without an end: {open:?}");
    Ok(())
}

/// A file of a test, which goes with it.
struct Temp(PathBuf);

impl Temp {
    fn new(name: &str) -> Temp {
        Temp(PathBuf::from(format!("/tmp/hmmctl-{}-{name}", std::process::id())))
    }

    fn name(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    fn text(&self) -> Result<String, Stop> {
        std::fs::read_to_string(&self.0).what(&format!("read {}", self.0.display()))
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const PAGES: usize = 64;
const ON_DEVICE: usize = 40;

/// 40 pages in the device's memory, 16 in system memory that the device has mapped, 8 that it has not.
fn spread(device: &Device) -> Result<Mapping, Stop> {
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    device.migrate(map.addr(), ON_DEVICE, Way::ToDevice).what("migrate")?;
    device_sees_pages(device, &map, 1, 0, PAGES - 8, "of a part")?;
    Ok(map)
}

fn map(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = spread(&device)?;
    let picture = Temp::new("map.svg");
    let shown = object(&mut hmmctl(&["map", &own(), "--json", "--svg", picture.name()]))?;
    for (place, pages) in [("device", ON_DEVICE), ("system", 16), ("cpu", 8)] {
        check_eq!(pages_in(&shown, &map, place), (pages, 1), "pages and runs in {place}");
    }
    check_eq!(number(&shown, "pid")?, u64::from(std::process::id()), "pid");
    check_eq!(number(&shown["counts"], "device")?, ON_DEVICE as u64, "pages of the device in sum");
    check_eq!(
        number(&shown["mirrors"][0], "device_pages")?,
        ON_DEVICE as u64,
        "pages of the mirror"
    );
    check_eq!(number(&shown["mirrors"][0], "system_pages")?, 16, "system pages of the mirror");
    check_eq!(
        number(&shown["mirrors"][0]["counters"], "to_device")?,
        ON_DEVICE as u64,
        "to_device"
    );

    let svg = picture.text()?;
    well_formed(&svg, &[])?;
    let counted = format!("data-place=\"device\" data-pages=\"{ON_DEVICE}\"");
    check!(svg.contains(&counted), "no {counted} in {svg}");

    let (text, _) = says(&mut hmmctl(&["map", &own(), "--block", "1"]), 0)?;
    check!(text.contains(&format!("process {}", own())), "no process in {text}");
    let drawn = text.lines().filter(|line| line.starts_with("  ") && !line.contains(" memory"));
    let blocks: usize = drawn.map(|line| line.matches('d').count()).sum();
    check_eq!(blocks, ON_DEVICE, "blocks of the device in {text}");
    // What comes back is seen.
    device.migrate(map.addr(), 10, Way::ToSystem).what("migrate back")?;
    let shown = object(&mut hmmctl(&["map", &own(), "--json"]))?;
    check_eq!(pages_in(&shown, &map, "device").0, ON_DEVICE - 10, "pages after some went back");
    Ok(())
}

/// More runs than one read of the kernel's file can tell, huge pages among them.
fn large_map(ctx: &Ctx) -> Outcome {
    const EACH: usize = 2048;
    let device = ctx.open()?;
    let map = Mapping::anon(EACH * 2)?;
    let big = huge(1, 1)?;
    map.fill(1);
    migrate(&device, &big, 1)?;
    for page in (0..EACH * 2).step_by(2) {
        device_sees_pages(&device, &map, 1, page, 1, "of each second page")?;
    }
    let shown = object(&mut hmmctl(&["map", &own(), "--json"]))?;
    check_eq!(pages_in(&shown, &map, "system"), (EACH, EACH), "each second page");
    check_eq!(pages_in(&shown, &big, "device"), (big.pages(), 1), "the huge page");
    let lines = map_file()?;
    let own = format!(" {} ", std::process::id());
    let lines = lines.lines().filter(|line| line.contains(&own));
    // Parts of the table end at 2 MiB.
    let count = lines.clone().count();
    check!((EACH + 1..EACH + 32).contains(&count), "{count} lines for {EACH} runs and a huge page");
    check_eq!(lines.filter(|line| line.ends_with("huge")).count(), 1, "huge lines");
    Ok(())
}

/// Who reads finds a consistent file, whatever is opened and closed meanwhile.
fn come_and_go(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = spread(&device)?;
    let end = Instant::now() + Duration::from_secs(3);
    let index = ctx.device;
    let others: Vec<_> = (0..2u64)
        .map(|seed| {
            std::thread::spawn(move || -> Result<usize, String> {
                let mut rounds = 0;
                while Instant::now() < end {
                    let device = Device::open(index).map_err(|error| error.to_string())?;
                    let map = Mapping::anon(32).map_err(|error| error.to_string())?;
                    map.fill(seed);
                    let mut data = vec![0; map.len()];
                    device.read(map.addr(), &mut data).map_err(|error| error.to_string())?;
                    rounds += 1;
                }
                Ok(rounds)
            })
        })
        .collect();
    let mut reads = 0;
    while Instant::now() < end {
        let text =
            std::fs::read_to_string("/sys/kernel/debug/rust_hmm/mirrors").what("read mirrors")?;
        let columns = text.lines().next().unwrap_or_default().split_whitespace().count();
        check!(columns > 10, "columns: {text}");
        for line in text.lines() {
            check_eq!(line.split_whitespace().count(), columns, "columns of '{line}'");
        }
        let text = map_file()?;
        let first = format!("{:#x} {ON_DEVICE} device", map.addr());
        check!(text.contains(&first), "no '{first}' in {text}");
        reads += 1;
    }
    for other in others {
        let rounds = other.join().map_err(|_| Stop::Fail("a thread has panicked".to_string()))?;
        check!(rounds.what("open and close")? > 0, "nothing was opened");
    }
    check!(reads > 0, "nothing was read");
    Ok(())
}

fn top(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let running = hmmctl(&["top", "--json", "--batch", "3", "--interval", "1", "--pid", &own()])
        .stdout(Stdio::piped())
        .spawn();
    let mut running = running.what("run hmmctl top")?;
    let mut lines = BufReader::new(running.stdout.take().what_is("no output")?).lines();
    let mut next = || -> Result<Value, Stop> {
        let line = lines.next().what_is("no more objects")?.what("read")?;
        serde_json::from_str(&line).what("JSON")
    };
    let first = next()?;
    check_eq!(first["mirrors"].as_array().map(Vec::len), Some(1), "mirrors: {first}");
    let map = spread(&device)?;
    let sums = [next()?, next()?];
    let mirror = |object: &Value| object["mirrors"][0].clone();
    let last = mirror(&sums[1]);
    check_eq!(number(&last, "pid")?, u64::from(std::process::id()), "pid of {last}");
    check_eq!(last["comm"], "hmm-e2e", "name of {last}");
    check_eq!(number(&last, "device_pages")?, ON_DEVICE as u64, "device pages");
    check_eq!(number(&last, "system_pages")?, 16, "system pages");
    check_eq!(number(&last["counters"], "to_device")?, ON_DEVICE as u64, "to_device");
    check_eq!(number(&last["counters"], "migrations")?, 1, "migrations");
    let faults = number(&last["counters"], "faults")?;
    check!(faults >= 1, "no device faults in {last}");
    check!(number(&last["counters"], "fault_ns")? > 0, "device faults take no time");
    // Rates are what came in the intervals.
    let sum = |name: &str| -> f64 {
        let value = |object: &Value| {
            mirror(object)[name].as_f64().unwrap_or(0.0)
                * object["interval_s"].as_f64().unwrap_or(0.0)
        };
        sums.iter().map(value).sum()
    };
    let close = |found: f64, expected: f64| (found - expected).abs() < 0.5;
    check!(
        close(sum("faults_per_s"), faults as f64),
        "{} faults by rates, {faults}",
        sum("faults_per_s")
    );
    let bytes = (ON_DEVICE * PAGE_SIZE) as f64;
    check!(
        close(sum("moved_bytes_per_s"), bytes),
        "{} bytes by rates, {bytes}",
        sum("moved_bytes_per_s")
    );
    let stalled = sum("stalled_percent");
    check_eq!(stalled > 0.0, true, "whether the device has waited: {stalled}");
    let number_of = number(&last, "device")?;
    let devices = sums[1]["devices"].as_array().cloned().unwrap_or_default();
    let own_device = devices.iter().find(|device| device["device"].as_u64() == Some(number_of));
    let own_device = own_device.cloned().what_is("no such device")?;
    check_eq!(number(&own_device, "used")?, ON_DEVICE as u64, "pages in use of {own_device}");
    check_eq!(own_device["kind"], if ctx.coherent() { "coherent" } else { "private" }, "kind");
    check!(running.wait().what("wait")?.success(), "hmmctl has failed");

    let (text, _) = says(&mut hmmctl(&["top", "--once", "--interval", "0.1", "--pid", &own()]), 0)?;
    let row = text.lines().nth(1).unwrap_or_default();
    check!(row.starts_with(&own()) && row.contains("hmm-e2e") && row.contains("[#"), "row '{row}'");
    check!(row.contains("64.0KiB") && row.contains("160.0KiB"), "sizes in '{row}'");
    if !ctx.coherent() {
        map.check_pages(1, 0, 1).what("CPU read")?;
        let shown = object(&mut hmmctl(&[
            "top",
            "--once",
            "--json",
            "--interval",
            "0.1",
            "--device",
            &number_of.to_string(),
        ]))?;
        let counters = &shown["devices"][0]["counters"];
        check!(
            number(counters, "cpu_faults")? > number(&own_device["counters"], "cpu_faults")?,
            "no CPU fault"
        );
    }
    Ok(())
}

/// For options.
trait WhatIs<T> {
    fn what_is(self, missing: &str) -> Result<T, Stop>;
}

impl<T> WhatIs<T> for Option<T> {
    fn what_is(self, missing: &str) -> Result<T, Stop> {
        self.ok_or_else(|| Stop::Fail(missing.to_string()))
    }
}

fn terminal(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let _map = spread(&device)?;
    // Terminals live there.
    std::fs::create_dir_all("/dev/pts").what("make /dev/pts")?;
    if !Path::new("/dev/pts/ptmx").exists() {
        let done = Command::new("mount").args(["-t", "devpts", "devpts", "/dev/pts"]).status();
        check!(done.what("mount")?.success(), "devpts cannot be mounted");
    }
    let start = || {
        let mut command = hmmctl(&["top", "--interval", "0.2"]);
        command.env("TERM", "xterm-256color");
        Terminal::run(command, 120, 30).what("open a terminal")
    };
    let mut terminal = start()?;
    check!(terminal.wait_for("quit", PATIENCE), "no screen: {:?}", terminal.text());
    let text = terminal.text().to_string();
    for word in ["hmmctl top:", "hmm-e2e", "RESIDENCY", "CPU FAULT/s", "160.0", "\x1b[?1049h"] {
        check!(text.contains(word), "no {word:?} on the screen: {text:?}");
    }
    terminal.type_text("q").what("type")?;
    gives_back(&mut terminal)?;
    // A signal, too.
    let mut terminal = start()?;
    check!(terminal.wait_for("quit", PATIENCE), "no screen: {:?}", terminal.text());
    let pid = terminal.pid().to_string();
    let done = Command::new("kill").args(["-s", "TERM", &pid]).status().what("kill")?;
    check!(done.success(), "kill has failed");
    gives_back(&mut terminal)
}

/// It ends, and the screen is as it was.
fn gives_back(terminal: &mut Terminal) -> Outcome {
    let status = terminal.ended(PATIENCE).what("wait")?.what_is("it does not end")?;
    let text = terminal.text();
    let last = text.rfind("hmmctl: ").unwrap_or(text.len());
    check!(status.success(), "it ends with {status}: {:?}", &text[last..]);
    check!(text.contains("\x1b[?1049l"), "the screen is not given back");
    Ok(())
}

/// A tracing `hmmctl`, ready.
struct Tracer {
    child: std::process::Child,
    stderr: BufReader<std::process::ChildStderr>,
}

impl Tracer {
    fn start(args: &[&str]) -> Result<Tracer, Stop> {
        let child = hmmctl(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.what("run hmmctl")?;
        let mut stderr = BufReader::new(child.stderr.take().what_is("no messages")?);
        let mut line = String::new();
        stderr.read_line(&mut line).what("read")?;
        check!(line.contains("tracing"), "it says '{line}'");
        Ok(Tracer { child, stderr })
    }

    fn instance(&self) -> PathBuf {
        PathBuf::from(format!("{INSTANCES}/hmmctl-{}", self.child.id()))
    }

    /// What it has printed when it ends by itself.
    fn end(mut self) -> Result<String, Stop> {
        let mut out = String::new();
        self.child.stdout.take().what_is("no output")?.read_to_string(&mut out).what("read")?;
        let status = self.child.wait().what("wait")?;
        let mut errors = String::new();
        self.stderr.read_to_string(&mut errors).what("read")?;
        check!(status.success(), "hmmctl ends with {status}: {errors}");
        check!(errors.is_empty(), "it says '{errors}'");
        check!(!self.instance().exists(), "its instance is left");
        Ok(out)
    }
}

fn signal(child: &std::process::Child, name: &str) -> Outcome {
    let done = Command::new("kill").args(["-s", name, &child.id().to_string()]).status();
    check!(done.what("kill")?.success(), "kill has failed");
    Ok(())
}

fn trace(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    let events = "migrate_begin,migrate_end,device_fault";
    let tracer = Tracer::start(&[
        "trace",
        "--json",
        "--pid",
        &own(),
        "--event",
        events,
        "--count",
        "3",
        "--duration",
        "60",
    ])?;
    device_sees_pages(&device, &map, 1, 0, 1, "of a page")?;
    device.migrate(map.addr(), ON_DEVICE, Way::ToDevice).what("migrate")?;
    let out = tracer.end()?;
    let shown: Vec<Value> =
        out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let names: Vec<&str> = shown.iter().filter_map(|event| event["event"].as_str()).collect();
    check_eq!(names, ["device_fault", "migrate_begin", "migrate_end"], "events");
    check_eq!(hex(&shown[0]["start"]), map.addr(), "start of {}", shown[0]);
    check_eq!(shown[0]["access"], "read", "access");
    check_eq!(number(&shown[1], "pages")?, ON_DEVICE as u64, "pages of {}", shown[1]);
    check_eq!(shown[1]["direction"], "to-device", "direction");
    check_eq!(shown[1]["trigger"], "request", "trigger");
    check_eq!(number(&shown[2], "moved")?, ON_DEVICE as u64, "moved of {}", shown[2]);
    check!(shown[2]["device"].is_u64(), "no device in {}", shown[2]);
    check_eq!(shown[0]["device"], shown[2]["device"], "device");

    // Filters leave out the rest, and the text is for people.
    let part = format!("{:#x}+4096", map.page_addr(ON_DEVICE + 1));
    let tracer = Tracer::start(&[
        "trace",
        "--event",
        "device_fault",
        "--range",
        &part,
        "--pid",
        &own(),
        "--duration",
        "2",
    ])?;
    for page in ON_DEVICE..ON_DEVICE + 3 {
        device_sees_pages(&device, &map, 1, page, 1, "of a page")?;
    }
    let out = tracer.end()?;
    check_eq!(out.lines().count(), 1, "lines in '{out}'");
    let expected = format!("device fault   read {:#x} 1 page", map.page_addr(ON_DEVICE + 1));
    check!(out.contains(&expected) && out.contains("hmm-e2e:"), "no '{expected}' in '{out}'");
    Ok(())
}

/// Also when it is ended by a signal; and what one has left that was killed is removed by the next.
fn trace_leaves_nothing(ctx: &Ctx) -> Outcome {
    let _device = ctx.open()?;
    for name in ["INT", "TERM", "HUP"] {
        let tracer = Tracer::start(&["trace"])?;
        check!(tracer.instance().is_dir(), "no instance of its own");
        signal(&tracer.child, name)?;
        tracer.end().map_err(|stop| Stop::Fail(format!("after SIG{name}: {stop}")))?;
    }
    let mut tracer = Tracer::start(&["trace"])?;
    let left = tracer.instance();
    signal(&tracer.child, "KILL")?;
    tracer.child.wait().what("wait")?;
    check!(left.is_dir(), "who is killed cannot clean up");
    Tracer::start(&["trace", "--duration", "0.1"])?.end()?;
    check!(!left.exists(), "{} is left", left.display());
    // Nobody else's tracing was touched.
    let on = std::fs::read_to_string("/sys/kernel/tracing/events/rust_hmm/enable").what("read")?;
    check_eq!(on.trim(), "0", "events of the kernel's own buffer");
    Ok(())
}

fn record(ctx: &Ctx) -> Outcome {
    let (file, page) = (Temp::new("a.rec"), Temp::new("a.html"));
    let device = ctx.open()?;
    let recorder =
        hmmctl(&["record", "-o", file.name(), "--duration", "6", "--interval", "50", "--json"])
            .stdout(Stdio::piped())
            .spawn();
    let mut recorder = recorder.what("run hmmctl record")?;
    let end = Instant::now() + PATIENCE;
    // Its first sample is written when it is ready.
    while !std::fs::read_to_string(&file.0).is_ok_and(|text| text.contains("\"sample\"")) {
        check!(Instant::now() < end, "it does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    let map = spread(&device)?;
    std::thread::sleep(Duration::from_millis(300));
    device.migrate(map.addr(), 10, Way::ToSystem).what("migrate back")?;
    let mut out = String::new();
    recorder.stdout.take().what_is("no output")?.read_to_string(&mut out).what("read")?;
    check!(recorder.wait().what("wait")?.success(), "hmmctl record has failed");
    let head: Value = serde_json::from_str(&out).what("JSON")?;
    check!(number(&head, "samples")? >= 5, "samples: {head}");
    check_eq!(number(&head, "lost")?, 0, "lost events");

    let shown = object(&mut hmmctl(&["report", file.name(), "-o", page.name(), "--json"]))?;
    let totals = &shown["totals"];
    check_eq!(number(totals, "pages to devices")?, ON_DEVICE as u64, "pages to devices");
    check_eq!(number(totals, "pages to the system")?, 10, "pages to the system");
    check_eq!(number(totals, "migrations")?, 2, "migrations");
    check_eq!(number(&shown["events"], "migrate_end")?, 2, "events");
    let values = |series: &Value| -> Vec<f64> {
        series["values"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|value| value.as_f64().unwrap_or(0.0))
            .collect()
    };
    let own_name = format!("hmm-e2e {} on", own());
    let residency = shown["series"]["residency"].as_array().cloned().unwrap_or_default();
    let on_device = residency.iter().find(|series| {
        let name = series["name"].as_str().unwrap_or_default();
        name.starts_with(&own_name) && name.ends_with("device memory")
    });
    let on_device = values(on_device.what_is("no residency of ours")?);
    check_eq!(on_device.len(), shown["times"].as_array().map_or(0, Vec::len), "values and times");
    let most = on_device.iter().fold(0.0, |most: f64, value| most.max(*value));
    check_eq!(on_device.first(), Some(&0.0), "at first");
    check_eq!(most, (ON_DEVICE * PAGE_SIZE) as f64, "the most");
    check_eq!(on_device.last(), Some(&(((ON_DEVICE - 10) * PAGE_SIZE) as f64)), "at last");
    let faults = values(&shown["series"]["faults"][0]);
    check!(faults.iter().any(|rate| *rate > 0.0), "no fault rate");
    let times: Vec<_> =
        shown["series"]["phases"].as_array().into_iter().flatten().flat_map(&values).collect();
    check!(times.iter().any(|ms| *ms > 0.0), "no time in any phase");

    let html = page.text()?;
    well_formed(&html, &["meta"])?;
    check_eq!(html.matches("<svg ").count(), 6, "plots");
    check!(html.contains(&own_name), "no '{own_name}' in the page");
    check!(html.contains("<td>pages to devices</td><td>40</td>"), "no sum in the page");
    check!(!html.contains("<script") && !html.contains("src="), "the page needs other files");

    // As long as a command runs.
    let node = format!("exec 3<>/dev/hmm_dmirror{}; sleep 1", ctx.device);
    says(&mut hmmctl(&["record", "-o", file.name(), "--", "sh", "-c", &node]), 0)?;
    let shown = object(&mut hmmctl(&["report", file.name(), "--json"]))?;
    check_eq!(shown["command"][0], "sh", "command");
    let names = shown["series"]["residency"].to_string();
    check!(names.contains("sh ") || names.contains("sleep "), "no mirror of the command: {names}");
    let (_, errors) = says(&mut hmmctl(&["record", "-o", file.name(), "--", "false"]), 8)?;
    check!(errors.contains("has failed"), "it says '{errors}'");
    std::fs::write(&file.0, "something else\n").what("write")?;
    let (_, errors) = says(&mut hmmctl(&["report", file.name(), "--json"]), 1)?;
    check!(errors.contains("no record of hmmctl"), "it says '{errors}'");
    Ok(())
}

fn shell(script: &str) -> Outcome {
    let done = Command::new("sh").args(["-c", script]).status().what("run sh")?;
    check!(done.success(), "'{script}' ends with {done}");
    Ok(())
}

fn errors(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let own = own();
    let expect = |command: &mut Command, status: i32, words: &[&str]| -> Outcome {
        let (out, errors) = says(command, status)?;
        check!(out.is_empty(), "it prints '{out}'");
        for word in words {
            check!(errors.contains(word), "no '{word}' in '{errors}'");
        }
        Ok(())
    };
    // A process without a device, and one that is gone.
    expect(&mut hmmctl(&["map", "1"]), 6, &["no device mirrors", &own])?;
    expect(&mut hmmctl(&["map", "999999999"]), 6, &["no process 999999999", "hmmctl top"])?;
    expect(&mut hmmctl(&["top", "--once", "--pid", "999999999"]), 6, &["no process"])?;
    expect(
        &mut hmmctl(&["top", "--once", "--device", "4000000000"]),
        7,
        &["no device 4000000000", "Devices that there are: "],
    )?;
    expect(&mut hmmctl(&["trace", "--mirror", "4000000000"]), 7, &["no mirror"])?;
    expect(&mut hmmctl(&["trace", "--event", "nothing"]), 2, &["device_fault"])?;
    // A process that ends while it is watched.
    drop(device);
    expect(&mut hmmctl(&["map", &own]), 6, &["no device mirrors"])?;
    let calls = [&["top", "--once"][..], &["map", "1"], &["trace"], &["record", "-o", "/dev/null"]];
    let child = Child::spawn(|| -> Result<(), String> {
        hostile::become_user(65534).map_err(|error| error.to_string())?;
        for args in calls {
            let done = expect(&mut hmmctl(args), 3, &["permission denied", "sudo"]);
            done.map_err(|stop| stop.to_string())?;
        }
        Ok(())
    });
    child.what("fork")?.join().map_err(Stop::Fail)?;
    shell("umount -l /sys/kernel/debug")?;
    let words = ["debugfs is not mounted", "mount -t debugfs none /sys/kernel/debug"];
    let said = expect(&mut hmmctl(&["top", "--once"]), 5, &words);
    shell("mount -t debugfs debugfs /sys/kernel/debug")?;
    said?;
    // Something else is there.
    let other =
        "[ ! -d /sys/kernel/debug/tracing ] || mount -t tmpfs none /sys/kernel/debug/tracing";
    shell(&format!("mount -t tmpfs none /sys/kernel/tracing; {other}"))?;
    let words = ["tracefs is not mounted", "mount -t tracefs"];
    let said = expect(&mut hmmctl(&["trace"]), 5, &words);
    let other = "[ ! -d /sys/kernel/debug/tracing ] || umount /sys/kernel/debug/tracing";
    shell(&format!("umount /sys/kernel/tracing; {other}"))?;
    said?;
    let (help, _) = says(&mut hmmctl(&["--help"]), 0)?;
    check!(
        help.contains("Exit status:") && help.contains("debugfs or tracefs is not mounted"),
        "help: {help}"
    );
    Ok(())
}

fn without_modules(ctx: &Ctx) -> Outcome {
    let _restore = Restore(ctx);
    load(ctx, "")?;
    unload(ctx)?;
    for args in [&["top", "--once"][..], &["map", "1"], &["trace"], &["record", "-o", "/dev/null"]]
    {
        let (out, errors) = says(&mut hmmctl(args), 4)?;
        check!(out.is_empty(), "it prints '{out}'");
        check!(
            errors.contains("not loaded") && errors.contains("modprobe rust_dmirror"),
            "{errors}"
        );
    }
    Ok(())
}
