// SPDX-License-Identifier: GPL-2.0

//! Finds a property, tests it with lists of operations, and prints the shortest list that fails.

use core::{
    cell::RefCell,
    fmt::Debug,
    hash::{
        Hash,
        Hasher, //
    },
    ops::Range, //
};
use kernel::model::{
    break_row,
    use_after_free, //
};
use proptest::{
    collection::vec,
    strategy::{
        BoxedStrategy,
        Strategy, //
    },
    test_runner::{
        Config,
        FileFailurePersistence,
        RngAlgorithm,
        TestCaseError,
        TestError,
        TestRng,
        TestRunner, //
    }, //
};
use std::{
    collections::hash_map::DefaultHasher,
    panic::{
        catch_unwind,
        set_hook,
        AssertUnwindSafe, //
    },
    process::exit, //
};

/// A property.
pub(crate) struct Property {
    pub(crate) name: &'static str,
    /// Number of lists for each variant, unless `--cases` is given.
    pub(crate) cases: u32,
    /// The variants, by name.
    pub(crate) variants: &'static [(&'static str, fn(&Trial<'_>))],
}

/// Parameters of the test of one variant of a property.
pub(crate) struct Trial<'a> {
    name: &'static str,
    variant: &'static str,
    cases: u32,
    options: &'a Options,
}

struct Options {
    cases: Option<u32>,
    /// Divisor of the number of lists of a property.
    share: u32,
    seed: u64,
    persist: Option<String>,
    shrink: bool,
}

thread_local! {
    /// Message of the last failed assertion.
    static FAILED: RefCell<String> = const { RefCell::new(String::new()) };
}

impl Trial<'_> {
    /// A seed that depends on the variant.
    fn seed(&self) -> [u8; 32] {
        let mut seed = [0; 32];
        for (index, part) in seed.chunks_exact_mut(8).enumerate() {
            // Its keys are constant.
            let mut hasher = DefaultHasher::new();
            (self.options.seed, self.name, self.variant, index).hash(&mut hasher);
            part.copy_from_slice(&hasher.finish().to_le_bytes());
        }
        seed
    }

    /// Tests `test` with lists of operations, whose lengths are in `count`, and a value that is
    /// common to all of them.
    pub(crate) fn run_with<G: Debug + 'static, O: Debug + 'static>(
        &self,
        given: impl Strategy<Value = G> + 'static,
        operation: impl Strategy<Value = O> + 'static,
        count: Range<usize>,
        test: impl Fn(&G, &[O]),
    ) {
        self.run_boxed((given, vec(operation, count)).boxed(), &test);
    }

    /// Like [`Self::run_with`], but compiled only once.
    fn run_boxed<G: Debug, O: Debug>(
        &self,
        cases: BoxedStrategy<(G, Vec<O>)>,
        test: &dyn Fn(&G, &[O]),
    ) {
        let persistence = self.options.persist.as_ref().map(|directory| {
            let file = format!("{directory}/{}-{}", self.name, self.variant);
            FileFailurePersistence::Direct(file.leak())
        });
        let config = Config {
            cases: self.cases,
            max_shrink_iters: if self.options.shrink { 100_000 } else { 0 },
            max_shrink_time: 30_000,
            failure_persistence: Some(Box::new(persistence.unwrap_or(FileFailurePersistence::Off))),
            ..Config::default()
        };
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &self.seed());
        let mut runner = TestRunner::new_with_rng(config, rng);
        let result = runner.run(&cases, |(given, operations)| {
            catch_unwind(AssertUnwindSafe(|| test(&given, &operations))).map_err(|_| {
                crate::inject::arm(None);
                TestCaseError::fail(FAILED.with_borrow(String::clone))
            })
        });
        match result {
            Ok(()) => {}
            Err(TestError::Abort(reason)) => {
                eprintln!("{}, {}: given up: {reason}", self.name, self.variant);
                exit(1);
            }
            Err(TestError::Fail(reason, (given, operations))) => {
                eprintln!("{}, {}: {reason}", self.name, self.variant);
                let given = format!("{given:?}");
                if given != "()" {
                    eprintln!("  given {given}");
                }
                for (number, operation) in operations.iter().enumerate() {
                    eprintln!("  {:3}  {operation:?}", number + 1);
                }
                exit(101);
            }
        }
    }

    /// Tests `test` with lists of operations.
    pub(crate) fn run<O: Debug + 'static>(
        &self,
        operation: impl Strategy<Value = O> + 'static,
        count: Range<usize>,
        test: impl Fn(&[O]),
    ) {
        let given = proptest::strategy::Just(());
        self.run_with(given, operation, count, |_, operations| test(operations));
    }
}

/// Tests the properties named by the arguments.
pub(crate) fn main(all: &[&[Property]]) {
    let mut arguments = std::env::args().skip(1);
    let mut name = None;
    let mut options = Options { cases: None, share: 1, seed: 1, persist: None, shrink: true };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().expect("a value");
        match argument.as_str() {
            "--list" => {
                for property in all.iter().copied().flatten() {
                    let of: Vec<_> = property.variants.iter().map(|(of, _)| *of).collect();
                    println!("{} {} {}", property.name, property.cases, of.join(" "));
                }
                return;
            }
            "--cases" => options.cases = Some(value().parse().expect("a number")),
            "--share" => options.share = value().parse().expect("a number"),
            "--seed" => options.seed = value().parse().expect("a number"),
            "--break" => break_row(value().parse().expect("the number of a row")),
            "--persist" => options.persist = Some(value()),
            "--no-shrink" => options.shrink = false,
            "--use-after-free" => use_after_free(),
            _ => name = Some(argument),
        }
    }
    let name = name.expect("the name of a property");
    let property = all.iter().copied().flatten().find(|property| property.name == name);
    let property = property.expect("no such property");
    set_hook(Box::new(|info| {
        let place = info
            .location()
            .map_or(String::new(), |place| format!("{}:{}", place.file(), place.line()));
        let payload = info.payload();
        let message = payload.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("");
        FAILED.with_borrow_mut(|failed| *failed = format!("{place}: {message}"));
    }));
    let cases = options.cases.unwrap_or(property.cases.div_ceil(options.share));
    for (variant, run) in property.variants {
        run(&Trial { name: property.name, variant, cases, options: &options });
    }
    println!("{name}: {}", cases as usize * property.variants.len());
}
