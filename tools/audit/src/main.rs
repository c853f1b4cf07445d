// SPDX-License-Identifier: GPL-2.0
//! Audits the sources of the modules. Lists each use of `unsafe` with its safety comment, and each
//! public safe function with whether the table of attacks names it.

use anyhow::{
    ensure,
    Context,
    Result, //
};
use clap::{
    Parser,
    Subcommand, //
};
use std::{
    fs,
    path::{
        Path,
        PathBuf, //
    }, //
};

mod api;
mod comment;
mod sites;

/// Audits the sources below TOP.
#[derive(Parser)]
struct Args {
    /// The checkout.
    #[arg(long, default_value = ".")]
    top: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Lists `unsafe` code; fails if one use has no safety comment, or a sample has any.
    Unsafe,
    /// Lists public safe functions; fails if one is missing in the table of attacks.
    Api {
        /// The document with the table.
        #[arg(long, default_value = "Documentation/soundness.rst")]
        table: PathBuf,
    },
}

/// A source file, named by its path below the top directory.
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) text: String,
}

/// Returns all Rust files below `dir`, sorted.
fn sources(top: &Path, dir: &str) -> Result<Vec<Source>> {
    let mut found = Vec::new();
    let mut todo = vec![top.join(dir)];
    while let Some(dir) = todo.pop() {
        let entries = fs::read_dir(&dir).with_context(|| format!("cannot read {dir:?}"))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                todo.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let text =
                    fs::read_to_string(&path).with_context(|| format!("cannot read {path:?}"))?;
                let name = path.strip_prefix(top)?.display().to_string();
                found.push(Source { name, text });
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    ensure!(!found.is_empty(), "no sources below {dir}");
    Ok(found)
}

fn main() -> Result<()> {
    let args = Args::parse();
    let library = sources(&args.top, "rust")?;
    match args.what {
        What::Unsafe => {
            let samples = sources(&args.top, "samples")?;
            sites::report(&library, &samples, args.json)
        }
        What::Api { table } => {
            let path = args.top.join(table);
            let text =
                fs::read_to_string(&path).with_context(|| format!("cannot read {path:?}"))?;
            api::report(&library, &text, args.json)
        }
    }
}
