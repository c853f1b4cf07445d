// SPDX-License-Identifier: GPL-2.0

//! Finds a test and runs it.

use kernel::model::{
    break_row,
    explore,
    use_after_free,
    Bounds, //
};

/// A test.
pub(crate) struct Test {
    pub(crate) name: &'static str,
    /// Maximum number of preemptions; `None`: all interleavings.
    pub(crate) preemptions: Option<usize>,
    pub(crate) run: fn(),
}

/// A test that explores all interleavings.
pub(crate) const fn full(name: &'static str, run: fn()) -> Test {
    Test { name, preemptions: None, run }
}

/// A test that explores interleavings with at most `preemptions` preemptions.
pub(crate) const fn bounded(name: &'static str, preemptions: usize, run: fn()) -> Test {
    Test { name, preemptions: Some(preemptions), run }
}

/// Runs the tests named by the arguments.
pub(crate) fn main(all: &[&[Test]]) {
    let mut arguments = std::env::args().skip(1);
    let mut name = None;
    let mut preemptions = None;
    let mut seed = 1;
    let mut random = None;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--list" => {
                for test in all.iter().copied().flatten() {
                    match test.preemptions {
                        None => println!("{} all", test.name),
                        Some(most) => println!("{} {most}", test.name),
                    }
                }
                return;
            }
            "--use-after-free" => use_after_free(),
            "--break" => {
                let row = arguments.next().and_then(|row| row.parse().ok());
                break_row(row.expect("the number of a row"));
            }
            "--preemptions" => {
                let most = arguments.next().expect("a number, or all");
                preemptions = Some(most.parse().ok());
            }
            "--random" => {
                let count = arguments.next().and_then(|count| count.parse().ok());
                random = Some(count.expect("a number"));
            }
            "--seed" => {
                let number = arguments.next().and_then(|number| number.parse().ok());
                seed = number.expect("a number");
            }
            _ => name = Some(argument),
        }
    }
    let name = name.expect("the name of a test");
    let test = all.iter().copied().flatten().find(|test| test.name == name);
    let test = test.expect("no such test");
    let bounds = match random {
        Some(count) => Bounds { preemptions: None, random: Some((seed, count)) },
        None => Bounds { preemptions: preemptions.unwrap_or(test.preemptions), random: None },
    };
    let count = explore(bounds, test.run);
    if count == 1 {
        // With a single interleaving the order of the threads has no effect, so that the test
        // proves nothing.
        eprintln!("{name}: a single interleaving");
        std::process::exit(1);
    }
    println!("{name}: {count}");
}
