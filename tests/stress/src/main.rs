// SPDX-License-Identifier: GPL-2.0
//! Long tests of devices under load, under pressure and with failures. Each is a command with
//! options of its own.
//!
//! The exit status is 0 if the test has passed, 1 if it has failed, and 2 if it could not run.

mod faultless;
mod inject;
mod oversub;
mod table;
mod torture;

use clap::Parser;
use std::process::ExitCode;

/// Long tests of rust_hmm under load, under pressure and with failures
#[derive(Parser)]
#[command(name = "hmm-stress")]
enum Command {
    Torture(torture::Args),
    Faultless(faultless::Args),
    Oversub(oversub::Args),
    Inject(inject::Args),
}

fn main() -> ExitCode {
    if let Err(why) = hmm::procfs::check_page_size() {
        eprintln!("hmm-stress: {why}");
        return ExitCode::from(2);
    }
    let (name, result) = match Command::parse() {
        Command::Torture(args) => ("torture", torture::main(&args)),
        Command::Faultless(args) => ("faultless", faultless::main(&args)),
        Command::Oversub(args) => ("oversub", oversub::main(&args)),
        Command::Inject(args) => ("inject", inject::main(&args)),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("hmm-stress {name}: {error:#}");
            ExitCode::from(2)
        }
    }
}
