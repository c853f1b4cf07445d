// SPDX-License-Identifier: GPL-2.0
//! Shows the activity of the mirrors, devices and migrations of `rust_hmm`, live or recorded.
//!
//! The data is read from debugfs (`rust_hmm/mirrors`, `devices`, `map`, `phases`), from the
//! tracepoints of the system `rust_hmm`, and from `/proc`.

mod chart;
mod events;
mod instance;
mod map;
mod picture;
mod places;
mod problem;
mod record;
mod report;
mod sample;
mod screen;
mod source;
mod stop;
mod table;
mod top;
mod trace;

use clap::{
    Parser,
    Subcommand, //
};
use problem::Problem;
use std::process::ExitCode;

/// Exit statuses in the help text.
const STATUS: &str = "Exit status:
  0  done
  1  something else went wrong; the message says what
  2  wrong arguments
  3  not allowed: run it as root
  4  rust_hmm is not loaded, or is too old
  5  debugfs or tracefs is not mounted
  6  no such process, or none of its memory is mirrored
  7  no such device or mirror
  8  the command that was recorded has failed";

/// Shows what mirrors, devices and migrations of rust_hmm do.
#[derive(Parser)]
#[command(name = "hmmctl", version, after_help = STATUS, after_long_help = STATUS)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Live table of processes and devices: faults, migrations, bytes moved, waits, residency
    Top(top::Args),
    /// Residency of the pages of a process
    Map(map::Args),
    /// Events as they happen
    Trace(trace::Args),
    /// Records events, for `hmmctl report`
    Record(record::Args),
    /// Creates a page with plots of a record
    Report(report::Args),
}

fn main() -> ExitCode {
    let done = match Args::parse().what {
        What::Top(args) => top::run(&args),
        What::Map(args) => map::run(&args),
        What::Trace(args) => trace::run(&args),
        What::Record(args) => record::run(&args),
        What::Report(args) => report::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output has ended, as in `hmmctl trace | head`.
        Err(Problem::Io { error, .. }) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("hmmctl: {problem}");
            ExitCode::from(problem.status())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn arguments_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn help_has_the_status() {
        let help = Args::command().render_help().to_string();
        for status in 0..=8 {
            assert!(help.contains(&format!("\n  {status}  ")), "{help}");
        }
    }
}
