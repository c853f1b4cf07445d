// SPDX-License-Identifier: GPL-2.0
//! Output, files and messages of `hmmctl`.

mod map;
mod top;
mod trace;

use super::module_reload::{
    load,
    unload,
    Restore, //
};
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    Test,
    What, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::engine::Way;
use hmm::pty::Terminal;
use hmm::{
    hostile,
    Child,
    Device,
    Mapping,
    PAGE_SIZE, //
};
use serde_json::Value;
use std::io::{
    BufRead,
    BufReader,
    Read, //
};
use std::path::{
    Path,
    PathBuf, //
};
use std::process::{
    Command,
    Stdio, //
};
use std::time::{
    Duration,
    Instant, //
};

const OURS: &str = "hmmctl is for our library";

pub const TESTS: &[Test] = &[
    Test::new("hmmctl", "map_shows_residency", map::map).only_rust(OURS),
    Test::new("hmmctl", "map_of_a_large_table_is_complete", map::large_map).only_rust(OURS),
    Test::new("hmmctl", "map_works_while_mirrors_open_and_close", map::mirrors_open_and_close)
        .only_rust(OURS),
    Test::new("hmmctl", "top_shows_counters", top::top).only_rust(OURS),
    Test::new("hmmctl", "top_on_a_terminal", top::terminal).only_rust(OURS),
    Test::new("hmmctl", "trace_shows_events", trace::trace).only_rust(OURS),
    Test::new("hmmctl", "trace_removes_its_instance", trace::removes_its_instance).only_rust(OURS),
    Test::new("hmmctl", "record_and_report", trace::record).only_rust(OURS),
    Test::new("hmmctl", "errors_suggest_a_remedy", errors).only_rust(OURS),
];

/// Tests in the group that unloads modules.
pub const WITHOUT_MODULES: &[Test] =
    &[Test::new("memory", "hmmctl_fails_without_modules", without_modules).only_rust(OURS)];

/// Directory of the kernel's trace instances.
const INSTANCES: &str = "/sys/kernel/tracing/instances";

/// Time limit of a wait.
const TIMEOUT: Duration = Duration::from_secs(30);

fn hmmctl(args: &[&str]) -> Command {
    let mut command = Command::new("hmmctl");
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs the command and checks its exit status. Returns its output and its error output.
fn says(command: &mut Command, status: i32) -> Result<(String, String), Stop> {
    let output = command.output().what("run hmmctl")?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let out = text(&output.stdout);
    let errors = text(&output.stderr);
    check_eq!(output.status.code(), Some(status), "status of {command:?}: {errors}{out}");
    Ok((out, errors))
}

/// Returns the JSON objects that the command prints.
fn objects(command: &mut Command) -> Result<Vec<Value>, Stop> {
    let (out, _) = says(command, 0)?;
    out.lines().map(|line| serde_json::from_str(line).what(&format!("JSON '{line}'"))).collect()
}

/// Returns the only JSON object that the command prints.
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

/// Returns the number of pages of `map` that `hmmctl map` reports in `place`, and the number of
/// their runs.
fn pages_in(object: &Value, map: &Mapping, place: &str) -> (usize, usize) {
    let start = map.addr();
    let end = map.addr() + map.len();
    let mut pages = 0;
    let mut runs = 0;
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

/// Reads the kernel's file in blocks, as `cat` does.
pub(super) fn map_file() -> Result<String, Stop> {
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

/// Checks that every element has an end tag, except the elements named in `void`.
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

/// A temporary file, which is removed when it is dropped.
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

/// Adds the name of the missing value to an empty `Option`.
trait WhatIs<T> {
    fn what_is(self, missing: &str) -> Result<T, Stop>;
}

impl<T> WhatIs<T> for Option<T> {
    fn what_is(self, missing: &str) -> Result<T, Stop> {
        self.ok_or_else(|| Stop::Fail(missing.to_string()))
    }
}

const PAGES: usize = 64;
const ON_DEVICE: usize = 40;

/// Maps 64 pages: 40 in device memory, 16 in system memory and mapped by the device, and 8 not
/// mapped by it.
fn spread(device: &Device) -> Result<Mapping, Stop> {
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    device.migrate(map.addr(), ON_DEVICE, Way::ToDevice).what("migrate")?;
    device_sees_pages(device, &map, 1, 0, PAGES - 8, "of a part")?;
    Ok(map)
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
    // A process without a device, and a process that does not exist.
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
    // A process that exits while it is watched.
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
    // Another file system is mounted in place of tracefs.
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
