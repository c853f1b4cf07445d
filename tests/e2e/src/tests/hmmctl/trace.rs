// SPDX-License-Identifier: GPL-2.0
//! `hmmctl trace`, `record` and `report`.

use super::*;

/// A running `hmmctl` that is ready to trace.
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

    /// Waits for the end of the command and returns its output.
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

pub(super) fn trace(ctx: &Ctx) -> Outcome {
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

    // An invalidation has the name of its tracepoint, and the type of the notifier event in another
    // field. Only changes near memory that the device has used are reported, and the last page may
    // be in another block.
    device_sees_pages(&device, &map, 1, PAGES - 1, 1, "of the last page")?;
    let tracer = Tracer::start(&[
        "trace",
        "--json",
        "--pid",
        &own(),
        "--event",
        "invalidate",
        "--count",
        "1",
        "--duration",
        "60",
    ])?;
    map.protect_pages(hmm::Prot::Read, PAGES - 1, 1).what("mprotect")?;
    let out = tracer.end()?;
    let event: Value = serde_json::from_str(out.trim()).what("JSON")?;
    check_eq!(event["event"], "invalidate", "the event of {out}");
    check_eq!(event["reason"], "protection-vma", "the reason of {out}");

    // Filters leave out other events, and the text format is meant for people.
    let part = format!("{:#x}+{PAGE_SIZE}", map.page_addr(ON_DEVICE + 1));
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

/// No trace instance is left, also when a signal ends the command. A later command removes the
/// instance that a killed one has left.
pub(super) fn removes_its_instance(ctx: &Ctx) -> Outcome {
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
    check!(left.is_dir(), "a killed process cannot clean up");
    Tracer::start(&["trace", "--duration", "0.1"])?.end()?;
    check!(!left.exists(), "{} is left", left.display());
    // The kernel's own trace buffer was not changed.
    let on = std::fs::read_to_string("/sys/kernel/tracing/events/rust_hmm/enable").what("read")?;
    check_eq!(on.trim(), "0", "events of the kernel's own buffer");
    Ok(())
}

pub(super) fn record(ctx: &Ctx) -> Outcome {
    let file = Temp::new("a.rec");
    let page = Temp::new("a.html");
    let device = ctx.open()?;
    let recorder =
        hmmctl(&["record", "-o", file.name(), "--duration", "6", "--interval", "50", "--json"])
            .stdout(Stdio::piped())
            .spawn();
    let mut recorder = recorder.what("run hmmctl record")?;
    let end = Instant::now() + TIMEOUT;
    // The first sample is written when the command is ready.
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
    check!(number(&shown["events"], "invalidate")? >= 1, "events: {}", shown["events"]);
    let names = ["unmap", "clear", "migrate", "protection-vma"];
    check!(names.iter().all(|name| shown["events"][name].is_null()), "{}", shown["events"]);
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
    check!(html.contains("<td>invalidate</td>"), "no row of invalidations in the page");
    check!(!html.contains("<script") && !html.contains("src="), "the page needs other files");

    // The recording lasts as long as a command runs.
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
