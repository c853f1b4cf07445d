// SPDX-License-Identifier: GPL-2.0
//! Random operations of several processes on memory that they share with devices. Each result is
//! compared with a model.
//!
//! The seed and the numbers on the command line determine a run. A failing run prints its last
//! operations and a script for `--replay`.

mod bus;
mod draw;
mod env;
mod hang;
#[cfg(test)]
mod ioctls;
mod lane;
mod op;
mod region;
mod run;
mod script;
mod shrink;
mod surroundings;

use anyhow::{
    bail,
    Context,
    Error,
    Result, //
};
use hmm::{
    Device,
    Setting, //
};
use script::{
    Script,
    Shape, //
};
use std::path::PathBuf;
use std::time::Duration;

/// Random operations on shared address spaces, compared with a model.
#[derive(clap::Args)]
pub struct Args {
    /// Seed of all operations.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Operations, of all lanes together.
    #[arg(long, default_value_t = 20_000)]
    ops: u64,
    /// Devices to use, from 0 on.
    #[arg(long, default_value_t = 2)]
    devices: usize,
    /// Processes.
    #[arg(long, default_value_t = 2)]
    procs: usize,
    /// Threads of each process.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Seconds without progress of a lane after which it hangs.
    #[arg(long, default_value_t = 120)]
    patience: u64,
    /// Seconds after which a run without failures ends early.
    #[arg(long)]
    seconds: Option<u64>,
    /// The devices are qemu_gpu: only operations that they support, and no visitors.
    #[arg(long)]
    hardware: bool,
    /// No process that is killed again and again, and none that merges pages.
    #[arg(long)]
    quiet: bool,
    /// Do without this, which is else required (repeatable).
    #[arg(long)]
    without: Vec<surroundings::Part>,
    /// Seconds that making a failing script shorter may take; 0 does not.
    #[arg(long, default_value_t = 120)]
    shrink: u64,
    /// Run this script instead.
    #[arg(long)]
    replay: Option<PathBuf>,
    /// Print the operations instead of doing them.
    #[arg(long)]
    list: bool,
    /// Break the device on purpose, to see that it is noticed.
    #[arg(long)]
    broken: Option<Broken>,
    /// Machine-readable result.
    #[arg(long)]
    json: bool,
    /// Used by the program itself, after exec: tests a device and exits.
    #[arg(long, hide = true)]
    self_test: Option<u32>,
}

/// Ways in which a device can be broken.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Broken {
    /// Writes go on while pages are copied.
    KeepWrite,
    /// TLBs are not flushed.
    SkipFlush,
}

/// Breaks all devices until the result is dropped.
fn break_devices(args: &Args) -> Result<Vec<Device>> {
    let Some(broken) = args.broken else { return Ok(Vec::new()) };
    let (what, value) = match broken {
        Broken::KeepWrite => (Setting::KeepWrite, 1),
        Broken::SkipFlush => (Setting::SkipFlush, 1_000_000),
    };
    let open = |dev| -> Result<Device> {
        let device = Device::open(dev as u32)?;
        device.set(what, value)?;
        Ok(device)
    };
    (0..args.devices).map(open).collect()
}

fn script(args: &Args) -> Result<Script> {
    if let Some(path) = &args.replay {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        return Script::parse(&text).with_context(|| path.display().to_string());
    }
    let Args { seed, devices, procs, threads, hardware, .. } = *args;
    // Devices 2 and 3 are coherent and are not unplugged.
    let unplug = (!hardware && devices > 0).then(|| seed as usize % devices.min(2));
    let shape = Shape { seed, devices, procs, threads, hardware, unplug };
    if shape.lanes() == 0 || shape.devices == 0 {
        bail!("at least one process, thread and device are needed");
    }
    Ok(Script::draw(shape, args.ops))
}

/// Runs the script of `args`, and returns whether model and devices agree.
pub fn main(args: &Args) -> Result<bool> {
    if let Some(dev) = args.self_test {
        return lane::self_test(dev).map(|()| true).map_err(Error::msg);
    }
    let script = script(args)?;
    if args.list {
        print!("{}", script.text());
        return Ok(true);
    }
    let _broken = break_devices(args)?;
    let quiet = args.quiet || script.shape.hardware;
    let _surroundings = surroundings::prepare(script.shape.lanes(), quiet, &args.without)?;
    let options = run::Options {
        patience: Duration::from_secs(args.patience),
        most: args.seconds.map(Duration::from_secs),
        visitors: !quiet && args.replay.is_none(),
        progress: !args.json,
    };
    let outcome = run::run(&script, &options)?;
    if args.json {
        println!("{}", serde_json::to_string(&outcome)?);
    } else {
        print!("{}", outcome.text());
    }
    let Some(failure) = &outcome.failure else { return Ok(true) };
    eprintln!("seed {}: {}", script.shape.seed, failure.text);
    eprintln!("last operations of each lane:");
    eprint!("{}", failure.tail(&script, 12));
    // A hanging machine cannot run another attempt.
    if args.shrink > 0 && !failure.hang {
        let short = shrink::shrink(&script, failure, Duration::from_secs(args.shrink));
        println!("--- script\n{}--- end of the script", short.text());
    }
    Ok(false)
}
