// SPDX-License-Identifier: GPL-2.0
//! `hmmctl top`.

use super::*;

pub(super) fn top(ctx: &Ctx) -> Outcome {
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
    // Rates times intervals must add up to the counters.
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
    for pages in [16, ON_DEVICE] {
        let size = format!("{}.0KiB", pages * PAGE_SIZE / 1024);
        check!(row.contains(&size), "no {size} in '{row}'");
    }
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

pub(super) fn terminal(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let _map = spread(&device)?;
    // Pseudo-terminals need a devpts mount.
    std::fs::create_dir_all("/dev/pts").what("make /dev/pts")?;
    if !Path::new("/dev/pts/ptmx").exists() {
        let done = Command::new("mount").args(["-t", "devpts", "devpts", "/dev/pts"]).status();
        check!(done.what("mount")?.success(), "devpts cannot be mounted");
    }
    let start = || {
        let mut command = hmmctl(&["top", "--interval", "0.2"]);
        command.env("TERM", "xterm-256color");
        match Terminal::run(command, 120, 30) {
            // Rust's standard library passes the prepared process over a socket.
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                Err(Stop::Skip("this kernel has no sockets".into()))
            }
            terminal => terminal.what("open a terminal"),
        }
    };
    let mut terminal = start()?;
    check!(terminal.wait_for("quit", TIMEOUT), "no screen: {:?}", terminal.text());
    let text = terminal.text().to_string();
    let size = format!("{}.0", ON_DEVICE * PAGE_SIZE / 1024);
    for word in ["hmmctl top:", "hmm-e2e", "RESIDENCY", "CPU FAULT/s", &size, "\x1b[?1049h"] {
        check!(text.contains(word), "no {word:?} on the screen: {text:?}");
    }
    terminal.type_text("q").what("type")?;
    gives_back(&mut terminal)?;
    // The same when a signal ends it.
    let mut terminal = start()?;
    check!(terminal.wait_for("quit", TIMEOUT), "no screen: {:?}", terminal.text());
    let pid = terminal.pid().to_string();
    let done = Command::new("kill").args(["-s", "TERM", &pid]).status().what("kill")?;
    check!(done.success(), "kill has failed");
    gives_back(&mut terminal)
}

/// Checks that `hmmctl` ends and restores the screen.
fn gives_back(terminal: &mut Terminal) -> Outcome {
    let status = terminal.ended(TIMEOUT).what("wait")?.what_is("it does not end")?;
    let text = terminal.text();
    let last = text.rfind("hmmctl: ").unwrap_or(text.len());
    check!(status.success(), "it ends with {status}: {:?}", &text[last..]);
    check!(text.contains("\x1b[?1049l"), "the screen is not given back");
    Ok(())
}
