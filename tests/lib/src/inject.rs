// SPDX-License-Identifier: GPL-2.0
//! Fault injection: points of the library, and the kernel's failing allocations and user copies,
//! limited to calls of our modules.

use crate::procfs::Settings;
use addresses::joint_span;
use std::fs;
use std::io;
use std::path::{
    Path,
    PathBuf, //
};
use std::sync::OnceLock;

mod addresses;
mod copies;

pub use addresses::{
    module_area,
    module_span, //
};
pub use copies::{
    kernel_reads,
    kernel_reads_managed,
    kernel_writes,
    kernel_writes_managed, //
};

const POINTS: &str = "/sys/kernel/debug/rust_hmm/inject";
const DEBUGFS: &str = "/sys/kernel/debug";

/// A kind of fault injection of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Allocations of small objects.
    Slab,
    /// Allocations of pages.
    Pages,
    /// Reading and writing user memory.
    Usercopy,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Slab, Kind::Pages, Kind::Usercopy];

    /// The name of its directory in debugfs.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Slab => "failslab",
            Kind::Pages => "fail_page_alloc",
            Kind::Usercopy => "fail_usercopy",
        }
    }

    fn file(self, name: &str) -> PathBuf {
        Path::new(DEBUGFS).join(self.name()).join(name)
    }

    /// Whether this kernel has it, with a filter for callers.
    pub fn is_there(self) -> bool {
        self.file("require-start").exists()
    }
}

/// Source of an injected failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// An injection point of the library.
    Point(String),
    /// The kernel, one failure in this task.
    Kernel(Kind),
    /// The kernel, one failure in any task, including threads that work for a call.
    AnyTask(Kind),
    /// The kernel: all allocations fail from a certain one on.
    Lasting(Kind),
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Point(name) => f.write_str(name),
            Source::Kernel(kind) => f.write_str(kind.name()),
            Source::AnyTask(kind) => write!(f, "{}_any_task", kind.name()),
            Source::Lasting(kind) => write!(f, "{}_lasting", kind.name()),
        }
    }
}

/// Names of the library's injection points.
pub fn points() -> io::Result<Vec<String>> {
    let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().into_string().ok());
    let all: io::Result<Vec<Option<String>>> = fs::read_dir(POINTS)?.map(name).collect();
    let mut all: Vec<String> = all?.into_iter().flatten().collect();
    all.sort();
    Ok(all)
}

/// State of an injection point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PointState {
    /// Uses until the next failure; 0: none will follow.
    pub left: u64,
    /// Number of uses between two failures.
    pub period: u64,
    /// Failures so far.
    pub failures: u64,
}

fn parse_state(text: &str) -> Option<PointState> {
    let mut words = text.split_whitespace().map(|word| word.parse().ok());
    let mut next = || words.next().flatten();
    Some(PointState { left: next()?, period: next()?, failures: next()? })
}

/// Reads the state of a point.
pub fn point_state(name: &str) -> io::Result<PointState> {
    let text = fs::read_to_string(Path::new(POINTS).join(name))?;
    parse_state(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, text))
}

/// Sets a point: `7`, `7 every`, or `0`.
pub fn set_point(name: &str, setting: &str) -> io::Result<()> {
    fs::write(Path::new(POINTS).join(name), setting)
}

/// Disarms all points.
pub fn clear_points() -> io::Result<()> {
    points()?.iter().try_for_each(|point| set_point(point, "0"))
}

/// The kernel's fault injection, prepared for our modules. Dropping it restores the previous
/// settings.
#[derive(Debug)]
pub struct Kernel {
    _saved: Settings,
}

/// An address outside of all callers.
const NOWHERE: &str = "1";

/// Functions of the kernel that do not handle a failure. Failures in them are excluded, for which
/// the kernel has one address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spared {
    /// Creation of entries in `/proc/irq`. Their absence is not checked, and leads to a warning on
    /// removal.
    Interrupts,
    /// Adding memory. On a failure the kernel warns and does not undo completed parts. On x86 it
    /// also does not check whether a page was allocated for the page table of its linear mapping.
    Hotplug,
}

impl Spared {
    /// Adjacent functions.
    fn names(self) -> &'static [&'static str] {
        match self {
            Spared::Interrupts => &["register_irq_proc"],
            Spared::Hotplug if cfg!(target_arch = "aarch64") => &["__add_pages"],
            Spared::Hotplug => &["add_pages", "arch_add_memory"],
        }
    }

    /// Their address range.
    fn span(self) -> io::Result<(u64, u64)> {
        static SPANS: [OnceLock<Option<(u64, u64)>>; 2] = [const { OnceLock::new() }; 2];
        let span = SPANS[self as usize].get_or_init(|| {
            let text = fs::read_to_string("/proc/kallsyms").ok()?;
            joint_span(&text, self.names())
        });
        let missing = || format!("this kernel does not have {} in a row", self.names().join(", "));
        span.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, missing()))
    }
}

impl Kernel {
    /// Limits all kinds to calls of our modules, and enables `wanted`.
    ///
    /// With `percent`, that share of the calls fails in each task. Otherwise only the call
    /// requested by [`arm`] fails.
    pub fn prepare(wanted: &[Kind], percent: u32) -> io::Result<Kernel> {
        let modules = fs::read_to_string("/proc/modules")?;
        let missing = || io::Error::new(io::ErrorKind::NotFound, "the modules are not loaded");
        let span = module_span(&modules, &["rust_hmm", "rust_dmirror", "qemu_gpu", "rust_lpae"]);
        let span = span.ok_or_else(missing)?;
        Self::prepare_range(wanted, percent, span, Spared::Hotplug)
    }

    /// Like [`Kernel::prepare`], for calls from a range of addresses.
    pub fn prepare_range(
        wanted: &[Kind],
        percent: u32,
        (start, end): (u64, u64),
        spared: Spared,
    ) -> io::Result<Kernel> {
        let mut saved = Settings::default();
        let spared = spared.span()?;
        for kind in Kind::ALL {
            let on = wanted.contains(&kind);
            let (start, end) = if on {
                (start.to_string(), end.to_string())
            } else {
                (NOWHERE.to_string(), NOWHERE.to_string())
            };
            let percent = if on { percent.to_string() } else { "0".to_string() };
            let common = [
                ("stacktrace-depth", "32"),
                ("require-start", &start),
                ("require-end", &end),
                ("reject-start", &spared.0.to_string()),
                ("reject-end", &spared.1.to_string()),
                ("verbose", "0"),
                ("interval", "1"),
                ("times", "-1"),
                ("space", "0"),
                ("task-filter", "N"),
            ];
            for (name, value) in common {
                saved.set(kind.file(name), value)?;
            }
            let own: &[(&str, &str)] = match kind {
                Kind::Slab => &[("ignore-gfp-wait", "N"), ("cache-filter", "N")],
                Kind::Pages => {
                    &[("ignore-gfp-wait", "N"), ("ignore-gfp-highmem", "N"), ("min-order", "0")]
                }
                Kind::Usercopy => &[],
            };
            for (name, value) in own {
                saved.set(kind.file(name), value)?;
            }
            // Last, because this enables it.
            saved.set(kind.file("probability"), &percent)?;
        }
        Ok(Kernel { _saved: saved })
    }
}

/// Sets the share of failing calls of `kind`, after [`Kernel::prepare`].
pub fn set_percent(kind: Kind, percent: u32) -> io::Result<()> {
    fs::write(kind.file("probability"), percent.to_string())
}

/// A failure that was armed.
#[derive(Debug)]
pub enum Armed {
    /// Failure of a point, with its number of failures before.
    Point(String, u64),
    /// One failure of this task.
    Nth(PathBuf),
    /// Failures of any task.
    AnyTask(Kind),
    /// Failures of this task, until they are disarmed.
    Lasting(Kind),
}

fn task_file(name: &str) -> PathBuf {
    // SAFETY: no preconditions.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) };
    PathBuf::from(format!("/proc/self/task/{tid}/{name}"))
}

/// Maximum number of failures of a lasting shortage.
const MANY: u64 = 1_000_000;
/// Memory granted before the `n`-th lasting shortage begins: `n - 1` times this number of bytes or
/// pages.
const STEP: u64 = 192;
/// The same for the `n`-th failure in any task. Smaller than most objects.
const FINE_STEP: u64 = 64;

/// Makes the `n`-th use of `source` from now on fail, once. For the kernel's sources,
/// [`Kernel::prepare`] must have been called, and only uses by this thread count.
/// [`Source::AnyTask`] does not count uses: it fails the first one after a certain number of bytes
/// or pages.
pub fn arm(source: &Source, n: u64) -> io::Result<Armed> {
    match source {
        Source::Point(name) => {
            let before = point_state(name)?.failures;
            set_point(name, &n.to_string())?;
            Ok(Armed::Point(name.clone(), before))
        }
        Source::Kernel(_) => {
            let file = task_file("fail-nth");
            fs::write(&file, n.to_string())?;
            Ok(Armed::Nth(file))
        }
        Source::AnyTask(kind) => {
            let step = if *kind == Kind::Pages { 1 } else { FINE_STEP };
            fs::write(kind.file("task-filter"), "N")?;
            fs::write(kind.file("times"), "1")?;
            fs::write(kind.file("space"), ((n - 1) * step).to_string())?;
            fs::write(kind.file("probability"), "100")?;
            Ok(Armed::AnyTask(*kind))
        }
        Source::Lasting(kind) => {
            let step = if *kind == Kind::Pages { 1 } else { STEP };
            fs::write(task_file("make-it-fail"), "1")?;
            fs::write(kind.file("task-filter"), "Y")?;
            fs::write(kind.file("times"), MANY.to_string())?;
            fs::write(kind.file("space"), ((n - 1) * step).to_string())?;
            fs::write(kind.file("probability"), "100")?;
            Ok(Armed::Lasting(*kind))
        }
    }
}

impl Armed {
    /// Disarms the failure. Returns whether it has occurred.
    pub fn disarm(self) -> io::Result<bool> {
        match self {
            Armed::Point(name, before) => {
                set_point(&name, "0")?;
                Ok(point_state(&name)?.failures != before)
            }
            Armed::Nth(file) => {
                let text = fs::read_to_string(&file)?;
                fs::write(&file, "0")?;
                Ok(text.trim() == "0")
            }
            Armed::AnyTask(kind) => {
                fs::write(kind.file("probability"), "0")?;
                let left = fs::read_to_string(kind.file("times"))?;
                Ok(left.trim() == "0")
            }
            Armed::Lasting(kind) => {
                fs::write(kind.file("probability"), "0")?;
                let left = fs::read_to_string(kind.file("times"))?;
                Ok(left.trim() != MANY.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read() {
        let state = PointState { left: 3, period: 7, failures: 12 };
        assert_eq!(parse_state("3 7 12\n"), Some(state));
        assert_eq!(parse_state("3 7"), None);
        assert_eq!(parse_state("3 x 7"), None);
    }
}
