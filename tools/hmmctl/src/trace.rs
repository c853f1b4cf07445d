// SPDX-License-Identifier: GPL-2.0
//! `hmmctl trace`: prints events as they occur.

use crate::{
    events::{
        self,
        Filter,
        Known, //
    },
    instance::Instance,
    problem::{
        Problem,
        Result, //
    },
    stop::Stop, //
};
use hmm::tracing::Event;
use std::io::Write;

/// Arguments of `hmmctl trace`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    filter: Filter,
    /// One JSON object for each event
    #[arg(long)]
    json: bool,
    /// End after so many seconds
    #[arg(long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// End after so many events
    #[arg(long, short = 'n', value_name = "N")]
    count: Option<u64>,
    /// KiB for each processor's events that were not read yet
    #[arg(long, default_value_t = 4096, value_name = "KIB")]
    buffer: u32,
}

/// Runs `hmmctl trace`.
pub fn run(args: &Args) -> Result<()> {
    args.filter.check()?;
    let mut known = Known::now()?;
    let mut stop = Stop::new()?;
    let mut instance = Instance::new(&args.filter.event, args.buffer)?;
    stop.after(args.duration);
    eprintln!("hmmctl: tracing");
    let mut shown = 0;
    let enough = |shown: u64| args.count.is_some_and(|count| shown >= count);
    // Events that are buffered at the end are read, too.
    let mut ended = false;
    while !enough(shown) {
        let mut out = std::io::stdout().lock();
        let any = instance.read(|line| {
            let Some(event) =
                Event::parse(line).filter(|event| args.filter.takes(event, &mut known))
            else {
                return Ok(());
            };
            if enough(shown) {
                return Ok(());
            }
            shown += 1;
            let text = if args.json {
                events::object(&event, &mut known).to_string()
            } else {
                events::line(&event, &mut known)
            };
            writeln!(out, "{text}").map_err(Problem::output)
        })?;
        out.flush().map_err(Problem::output)?;
        drop(out);
        if ended && !any {
            break;
        }
        if stop.now() && !ended {
            ended = true;
            instance.stop();
        } else if !any {
            stop.pause();
        }
    }
    match instance.lost() {
        0 => {}
        lost => eprintln!("hmmctl: {lost} events were lost; --buffer makes room for more"),
    }
    Ok(())
}
