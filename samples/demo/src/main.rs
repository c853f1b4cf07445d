// SPDX-License-Identifier: GPL-2.0
//! Demonstrates step by step that the CPU and a device share one address space.

mod linger;
mod timeline;

use anyhow::{
    ensure,
    Context,
    Result, //
};
use clap::Parser;
use hmm::counters::Counters;
use hmm::engine::Way;
use hmm::mapping::{
    Mapping,
    View, //
};
use hmm::residency::{
    picture,
    places,
    Place, //
};
use hmm::{
    pattern,
    Device,
    HUGE_PAGES,
    HUGE_SIZE,
    PAGE_SIZE, //
};
use serde_json::json;
use std::path::PathBuf;

/// Pages of `malloc`ed memory that the demo uses.
const PAGES: usize = 64;

/// Shows a process and a device using the same pointers.
#[derive(Parser)]
struct Args {
    /// Number of the device; 0 and 1 have private memory.
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// Print the steps as JSON.
    #[arg(long)]
    json: bool,
    /// Write the timeline as a picture to this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print the picture in the end, from a line `<svg ...>` to a line `</svg>`.
    #[arg(long, conflicts_with = "json")]
    svg_to_stdout: bool,
    /// Use memory in all ways for this many seconds, for observation with other tools,
    /// instead of the steps.
    #[arg(long, value_name = "SECONDS")]
    linger: Option<u64>,
}

/// Steps so far, each with the residency of the memory after it.
struct Steps {
    json: bool,
    list: Vec<serde_json::Value>,
}

impl Steps {
    /// Adds a step that has just been performed, and prints it unless the output is JSON.
    fn add(&mut self, device: &Device, map: &Mapping, block: usize, text: &str) -> Result<()> {
        let places = places(device, map).context("query the residency")?;
        let picture = picture(&places, block);
        let number = self.list.len() + 1;
        if !self.json {
            println!("{number:2}. {text}\n    [{picture}]");
        }
        self.list.push(json!({ "step": number, "text": text, "residency": picture }));
        Ok(())
    }
}

/// Steps with small pages on the heap of this process.
fn heap(steps: &mut Steps, device: &Device) -> Result<()> {
    let mut memory: Vec<u8> = vec![0; (PAGES + 16) * PAGE_SIZE];
    let view = View::of(&mut memory).context("whole pages on the heap")?;
    let map: &Mapping = &view;
    let pages = map.pages();
    map.fill(1);
    let text =
        format!("The process mallocs {pages} pages of {} KiB and writes them.", PAGE_SIZE >> 10);
    steps.add(device, map, 1, &text)?;

    let mut seen = vec![0; map.len()];
    let done = device.read(map.addr(), &mut seen).context("device read")?;
    pattern::check(1, 0, &seen)?;
    let text = format!(
        "The device reads them through the same pointers: right, after {} fault round.",
        done.faults
    );
    steps.add(device, map, 1, &text)?;

    device.write(map.addr(), &pattern::buffer(2, 0, pages)).context("device write")?;
    map.check(2)?;
    steps.add(device, map, 1, "The device writes them; the process reads the new words.")?;

    let done = device.migrate_to_device(map.addr(), &mut seen).context("migration")?;
    ensure!(done.cpages == pages as u64, "only {} pages migrated", done.cpages);
    pattern::check(2, 0, &seen)?;
    steps.add(device, map, 1, "They migrate to the device's memory, contents unchanged.")?;

    device.write(map.addr(), &pattern::buffer(3, 0, pages)).context("device write")?;
    steps.add(device, map, 1, "The device writes them in its own memory, without a fault.")?;

    ensure!(map.get(40, 0) == pattern::word(3, 40, 0), "the CPU reads something else");
    let text = "The CPU reads one word: its page comes back, with a window of 64 KiB around it.";
    steps.add(device, map, 1, text)?;

    map.check(3)?;
    steps.add(device, map, 1, "The CPU reads everything: all pages are back in RAM.")
}

/// Steps with a huge page.
fn huge(steps: &mut Steps, device: &Device) -> Result<()> {
    let map = Mapping::anon_huge(1)?;
    map.fill(4);
    // Number of pages that one character of the picture stands for.
    const BLOCK: usize = HUGE_PAGES / 64;
    let text = format!("A huge page of {} MiB, one character for {BLOCK} pages.", HUGE_SIZE >> 20);
    steps.add(device, &map, BLOCK, &text)?;
    let mut seen = vec![0; map.len()];
    device.migrate_to_device(map.addr(), &mut seen).context("migration")?;
    pattern::check(4, 0, &seen)?;
    steps.add(device, &map, BLOCK, "It migrates as a whole and stays huge on the device.")?;
    map.check(4)?;
    steps.add(device, &map, BLOCK, "One CPU touch brings it back as a whole.")
}

/// The last step. Returns memory with pages in device memory, pages in system memory and
/// unpopulated pages.
fn at_the_end(steps: &mut Steps, device: &Device) -> Result<Mapping> {
    let map = Mapping::anon(PAGES)?;
    map.fill_pages(5, 0, PAGES - 8);
    for first in [8, 24, 40] {
        device.migrate(map.page_addr(first), 8, Way::ToDevice).context("migration")?;
    }
    println!();
    let text = "At the end: some of these pages are on the device, some in RAM, some unpopulated.";
    steps.add(device, &map, 1, text)?;
    Ok(map)
}

/// Returns the counters of the device as text with units. They count from the opening of the
/// device's file.
fn summary(counters: &Counters, first_touches: u64) -> String {
    let mib = |count: u64| count as f64 * PAGE_SIZE as f64 / f64::from(1 << 20);
    let pages = |count: u64| format!("{count} pages ({:.1} MiB)", mib(count));
    let line = |name: &str, value: String, why: &str| format!("  {name:<28} {value:<24} {why}\n");
    let ms = counters.stall_ns_read as f64 / 1e6;
    let mut text = String::from("\nWhat this process and its device did, in all steps together:\n");
    text += &line(
        "moved to the device",
        pages(counters.migrated_to_device),
        "by request: the process asked for it",
    );
    text += &line("moved back, by request", pages(counters.migrated_to_system), "");
    text += &line(
        "moved back, by a touch",
        pages(counters.cpu_fault_pages),
        &format!("in {} faults of the CPU", counters.cpu_faults),
    );
    text += &line(
        "moved while in use",
        pages(counters.switched_pages),
        "the device could read them all the time",
    );
    text += &line(
        "read faults of the engine",
        counters.engine_faults_read.to_string(),
        &format!("{first_touches} of them first touches, the others by the ordinary way"),
    );
    text += &line("the engine waited", format!("{ms:.1} ms"), "for these faults, in sum");
    text += &line(
        "in device memory now",
        pages(counters.device_pages_used),
        "the d of the last picture",
    );
    text +=
        &line("stale translations", counters.stale_hits.to_string(), "more than 0 would be a bug");
    text + "All counters: hmm-demo --json, and /sys/kernel/debug/rust_hmm (Documentation/observing.rst).\n"
}

fn main() -> Result<()> {
    let args = Args::parse();
    let device = Device::open(args.device)
        .with_context(|| format!("cannot open {}", Device::path(args.device).display()))?;
    if let Some(seconds) = args.linger {
        return linger::linger(&device, seconds);
    }
    let mut steps = Steps { json: args.json, list: Vec::new() };
    if !args.json {
        println!("One address space for CPU and device: where the pages are after each step.");
        let legend: Vec<String> =
            Place::LEGEND.iter().map(|(_, char, what)| format!("{char} {what}")).collect();
        println!("Legend: {}, * mixed.\n", legend.join(", "));
    }
    heap(&mut steps, &device)?;
    huge(&mut steps, &device)?;

    let lines = [timeline::measure(&device, true)?, timeline::measure(&device, false)?];
    if let Some(path) = &args.svg {
        std::fs::write(path, timeline::svg(&lines))
            .with_context(|| format!("write {}", path.display()))?;
    }

    if args.json {
        let counters = device.counters().context("counters")?;
        let counters: serde_json::Map<_, _> = counters
            .fields()
            .iter()
            .map(|(name, value)| (name.to_string(), json!(value)))
            .collect();
        let timeline: Vec<_> = lines
            .iter()
            .map(|line| {
                let times: Vec<f64> = line.samples.iter().map(|sample| sample.at).collect();
                let rates: Vec<f64> = line.samples.iter().map(|sample| sample.rate).collect();
                let moves: Vec<_> = line
                    .moves
                    .iter()
                    .map(|one| json!({ "s": [one.begin, one.end], "to_device": one.to_device }))
                    .collect();
                json!({
                    "way": line.name, "s": times, "mib_s": rates, "moves": moves,
                    "faults": line.faults, "stall_ms": line.stall_ms
                })
            })
            .collect();
        let all = json!({ "steps": steps.list, "timeline": timeline, "counters": counters });
        println!("{all}");
        return Ok(());
    }
    println!();
    print!("{}", timeline::text(&lines));
    // The picture and the counters show the same moment, because the mapping lives until both are
    // printed.
    let _map = at_the_end(&mut steps, &device)?;
    let counters = device.counters().context("counters")?;
    let ordinary: u64 = lines.iter().map(|line| line.faults).sum();
    print!("{}", summary(&counters, counters.engine_faults_read.saturating_sub(ordinary)));
    println!("\nEvery step was checked: contents right throughout.");
    if args.svg_to_stdout {
        print!("{}", timeline::svg(&lines));
    }
    Ok(())
}
