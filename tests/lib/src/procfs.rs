// SPDX-License-Identifier: GPL-2.0
//! `/proc/vmstat`, `/proc/meminfo`, `/proc/vmallocinfo`, and files with settings.

use std::collections::BTreeMap;
use std::io;
use std::path::{
    Path,
    PathBuf, //
};
use std::time::{
    Duration,
    Instant, //
};

/// Numbers by name, as in `/proc/vmstat` and `/proc/meminfo`.
pub type Table = BTreeMap<String, u64>;

/// Parses lines of a name, an optional colon and a number.
pub fn parse_table(text: &str) -> Table {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?.trim_end_matches(':').to_string();
        Some((name, words.next()?.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// CPU time of process `pid`, in user space and in the kernel.
pub fn cpu_time(pid: i32) -> io::Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name may hold spaces and parentheses: fields are counted from its end.
    let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = after.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.filter_map(|field| field.parse::<u64>().ok()).sum();
    // SAFETY: plain library call on a number.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64;
    Ok(Duration::from_millis(ticks * 1000 / per_second))
}

/// Bytes of a page of this machine. [`PAGE_SIZE`](crate::PAGE_SIZE) is that of the machines that
/// the program was built for.
pub fn page_size() -> usize {
    // SAFETY: plain library call on a number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Checks that the program was built for machines like this one.
///
/// # Errors
///
/// The message names both page sizes.
pub fn check_page_size() -> Result<(), String> {
    match page_size() {
        crate::PAGE_SIZE => Ok(()),
        other => Err(format!(
            "built for pages of {} KiB, and this machine has pages of {} KiB: see tools/build --arch",
            crate::PAGE_SIZE >> 10,
            other >> 10
        )),
    }
}

/// CPU time of this thread.
pub fn thread_time() -> Duration {
    // SAFETY: plain numbers.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: it may be written.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The id of this thread.
pub fn thread_id() -> i32 {
    // SAFETY: no arguments.
    unsafe { libc::gettid() }
}

/// The number of the system call in a text like `/proc/PID/syscall`, if a thread sleeps in one.
pub fn parse_syscall(text: &str) -> Option<libc::c_long> {
    text.split_whitespace().next()?.parse().ok().filter(|number| *number >= 0)
}

/// Waits until thread `thread` of process `pid` sleeps in the system call `number`. An error after
/// 20 s.
pub fn wait_for_call(pid: i32, thread: i32, number: libc::c_long) -> io::Result<()> {
    let path = format!("/proc/{pid}/task/{thread}/syscall");
    let since = Instant::now();
    while parse_syscall(&std::fs::read_to_string(&path)?) != Some(number) {
        if since.elapsed() > Duration::from_secs(20) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not sleep in that call"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// `/proc/vmstat`.
pub fn vmstat() -> io::Result<Table> {
    Ok(parse_table(&std::fs::read_to_string("/proc/vmstat")?))
}

/// `/proc/meminfo`, in KiB.
pub fn meminfo() -> io::Result<Table> {
    Ok(parse_table(&std::fs::read_to_string("/proc/meminfo")?))
}

/// Number of free pages in the per-CPU lists, from the text of `/proc/zoneinfo`.
pub fn parse_zoneinfo(text: &str) -> u64 {
    let count = |line: &str| line.trim().strip_prefix("count:")?.trim().parse::<u64>().ok();
    text.lines().filter_map(count).sum()
}

/// Number of free pages in the per-CPU lists, which `/proc/meminfo` counts as used.
pub fn pages_in_lists() -> io::Result<u64> {
    Ok(parse_zoneinfo(&std::fs::read_to_string("/proc/zoneinfo")?))
}

/// Pages pinned for device access so far, and those still pinned.
///
/// `None` when this kernel does not count them.
pub fn pins() -> io::Result<Option<(u64, u64)>> {
    // Counters are per CPU and folded lazily. Fold them, which requires root.
    let _told = std::fs::write("/proc/sys/vm/stat_refresh", "1");
    let table = vmstat()?;
    let value = |name: &str| table.get(name).copied();
    Ok(match (value("nr_foll_pin_acquired"), value("nr_foll_pin_released")) {
        (Some(acquired), Some(released)) => Some((acquired, acquired.saturating_sub(released))),
        _ => None,
    })
}

/// Memory of one caller in `/proc/vmallocinfo`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmallocUse {
    /// Number of areas.
    pub areas: u64,
    /// Bytes with the guard pages.
    pub bytes: u64,
}

/// Sums `/proc/vmallocinfo` by caller; addresses differ from boot to boot and
/// from load to load, so they are left out.
pub fn parse_vmallocinfo(text: &str) -> BTreeMap<String, VmallocUse> {
    let mut sums: BTreeMap<String, VmallocUse> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let bytes = words.nth(1).and_then(|word| word.parse().ok());
        let (Some(bytes), Some(caller)) = (bytes, words.next()) else { continue };
        let bytes: u64 = bytes;
        // In the line of an area without a caller, the properties follow directly.
        let caller = if caller.contains('=') { "unnamed" } else { caller };
        // The offsets in "function+0x12/0x345" are of no interest here.
        let name = caller.split('+').next().unwrap_or(caller);
        let sum = sums.entry(name.to_string()).or_default();
        sum.areas += 1;
        sum.bytes += bytes;
    }
    sums
}

/// `/proc/vmallocinfo` by caller.
pub fn vmallocinfo() -> io::Result<BTreeMap<String, VmallocUse>> {
    Ok(parse_vmallocinfo(&std::fs::read_to_string("/proc/vmallocinfo")?))
}

/// Whether the kernel splits underused huge pages when memory is short.
pub const SHRINK_UNDERUSED: &str = "/sys/kernel/mm/transparent_hugepage/shrink_underused";

/// Whether DAMON monitors memory use; enabled in Debian's kernels.
const DAMON_STAT: &str = "/sys/module/damon_stat/parameters/enabled";

/// Files in /proc and /sys whose previous values are restored on drop.
#[derive(Debug, Default)]
pub struct Settings {
    saved: Vec<(PathBuf, String)>,
}

impl Settings {
    /// No settings yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `path` to `value`; `Ok(false)` when this kernel has no such file.
    pub fn set(&mut self, path: impl AsRef<Path>, value: &str) -> io::Result<bool> {
        let path = path.as_ref();
        let old = match std::fs::read_to_string(path) {
            Ok(old) => old,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        std::fs::write(path, value)?;
        self.saved.push((path.to_owned(), selected(&old).to_string()));
        Ok(true)
    }

    /// Disables the kernel's background activity: khugepaged, KSM, NUMA balancing and proactive
    /// compaction invalidate ranges at any time, so that fault counts vary. The scan for underused
    /// huge pages and DAMON take references: these pages cannot migrate, and `fork()` fails for
    /// those with exclusive device access.
    pub fn quiet() -> io::Result<Self> {
        let mut settings = Self::new();
        let khugepaged = "/sys/kernel/mm/transparent_hugepage/khugepaged";
        settings.set(format!("{khugepaged}/scan_sleep_millisecs"), "3600000")?;
        settings.set(format!("{khugepaged}/pages_to_scan"), "1")?;
        settings.set(SHRINK_UNDERUSED, "0")?;
        settings.set(DAMON_STAT, "N")?;
        settings.set("/sys/kernel/mm/ksm/run", "0")?;
        settings.set("/proc/sys/kernel/numa_balancing", "0")?;
        settings.set("/proc/sys/vm/compaction_proactiveness", "0")?;
        Ok(settings)
    }

    /// Keeps the settings when this is dropped.
    pub fn keep(mut self) {
        self.saved.clear();
    }
}

/// The selected word of a file like `always [madvise] never`, or all of its text.
pub fn selected(text: &str) -> &str {
    let text = text.trim();
    match (text.find('['), text.find(']')) {
        (Some(open), Some(close)) if open < close => &text[open + 1..close],
        _ => text,
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        for (path, value) in self.saved.drain(..).rev() {
            // Drop cannot report an error.
            let _ = std::fs::write(path, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocking_syscall_of_a_thread_is_read() {
        assert_eq!(parse_syscall("16 0x3 0x48 0x0 0x0 0x0 0x0 0x7ffc 0x45\n"), Some(16));
        assert_eq!(parse_syscall("running\n"), None);
        assert_eq!(parse_syscall("-1 0x7ffc 0x45\n"), None);
    }

    #[test]
    fn vmstat_and_meminfo_are_parsed() {
        let table = parse_table("nr_free_pages 12\nMemAvailable:  345 kB\nbroken\n");
        assert_eq!(table["nr_free_pages"], 12);
        assert_eq!(table["MemAvailable"], 345);
        assert_eq!(table.len(), 2);
        assert!(vmstat().unwrap().contains_key("nr_free_pages"));
        assert!(meminfo().unwrap().contains_key("MemAvailable"));
    }

    #[test]
    fn lists_of_all_processors_are_summed() {
        let text = "\
Node 0, zone   Normal
  pages free     95612
  pagesets
    cpu: 0
              count:    190
              high:     378
    cpu: 1
              count:    12
  vm stats threshold: 16
";
        assert_eq!(parse_zoneinfo(text), 202);
        assert_eq!(parse_zoneinfo(""), 0);
        assert!(pages_in_lists().is_ok());
    }

    #[test]
    fn vmalloc_areas_are_summed_by_caller() {
        let text = "\
0xffffc90000000000-0xffffc90000005000   20480 dup_task+0x1/0x2 pages=4 vmalloc N0=4
0xffffc90000008000-0xffffc9000000d000   20480 dup_task+0x1/0x2 pages=4 vmalloc N0=4
0xffffc90000010000-0xffffc90000012000    8192 phys=0x00000000fed00000 ioremap
";
        let sums = parse_vmallocinfo(text);
        assert_eq!(sums["dup_task"], VmallocUse { areas: 2, bytes: 40960 });
        assert_eq!(sums["unnamed"], VmallocUse { areas: 1, bytes: 8192 });
    }

    #[test]
    fn selected_word_is_parsed() {
        assert_eq!(selected("always [madvise] never\n"), "madvise");
        assert_eq!(selected("4096\n"), "4096");
    }

    #[test]
    fn settings_are_restored() {
        let path = std::env::temp_dir().join(format!("hmm-settings-{}", std::process::id()));
        std::fs::write(&path, "[old] new").unwrap();
        let mut settings = Settings::new();
        assert!(settings.set(&path, "new").unwrap());
        assert!(!settings.set("/proc/there/is/no/such/file", "1").unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        drop(settings);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        std::fs::remove_file(&path).unwrap();
    }
}
