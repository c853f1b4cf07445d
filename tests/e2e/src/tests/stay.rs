// SPDX-License-Identifier: GPL-2.0
//! Memory that cannot migrate or need not. No page is unmapped, copied or evicted for it.

use super::memory::{
    block,
    engine_reads,
    to_device,
    with, //
};
use super::module_reload::unload;
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    Test,
    What, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::engine::{
    checksum,
    Way, //
};
use hmm::files::SmallThp;
use hmm::pattern::WORDS;
use hmm::placement::{
    Placement,
    Policy, //
};
use hmm::{
    files,
    Child,
    Command,
    Counters,
    Device,
    EngineOp,
    Errno,
    Gate,
    Mapping,
    PageOutcome,
    Prot,
    Setting,
    Settings,
    HUGE_PAGES,
    HUGE_SIZE,
    PAGE_SIZE, //
};
use std::fs::File;
use std::time::{
    Duration,
    Instant, //
};

const OURS: &str = "needs counters, engines and outcomes";

pub const TESTS: &[Test] = &[
    Test::new("migrate", "block_migrates_without_its_immovable_page", one_page_of_a_block)
        .only_rust(OURS),
    Test::new("migrate", "migration_of_resident_memory_has_no_effect", resident_memory)
        .only_rust(OURS),
    Test::new("migrate", "migration_of_written_resident_memory_never_faults", resident_and_written)
        .only_rust(OURS),
    Test::new("migrate", "half_resident_block_migrates_the_other_half", half_resident)
        .only_rust(OURS)
        .private(),
    Test::new("migrate", "lost_write_access_is_restored_in_place", write_access)
        .only_rust(OURS)
        .private(),
    Test::new("thp", "split_leaf_is_merged_again", split_leaf).only_rust(OURS).private(),
    Test::new("thp", "rest_of_a_run_stays_accessible", broken_run).only_rust(OURS).private(),
];

/// Tests in the group that unloads modules.
pub const WITH_LITTLE_MEMORY: &[Test] = &[
    Test::new("memory", "immovable_memory_causes_no_eviction", immovable_memory)
        .only_rust(OURS)
        .seconds(180),
    Test::new("memory", "immovable_page_of_a_block_causes_no_eviction", full_memory)
        .only_rust(OURS)
        .seconds(120),
    Test::new("memory", "policy_adds_little_time_on_immovable_memory", time_of_a_pass)
        .only_rust(OURS)
        .timed()
        .seconds(180),
    Test::new("memory", "private_copies_among_file_pages_migrate", private_copies)
        .only_rust(OURS)
        .seconds(180),
];

/// Number of blocks of each kind of memory that cannot migrate.
const BLOCKS: usize = 2;

const PAGES: usize = BLOCKS * HUGE_PAGES;

/// Returns the counters of a file, its device and its policy.
fn all(device: &Device) -> Result<(Counters, Placement), Stop> {
    Ok((device.counters().what("counters")?, device.placement().what("placement")?))
}

/// Checks that there were fewer events than one attempt for each request or fault would cause. The
/// test's own allocator may unmap memory, which causes an event.
fn few_events(before: &Counters, after: &Counters, when: &str) -> Outcome {
    let events = after.invalidations - before.invalidations;
    check!(events < 5, "{events} invalidations {when}");
    Ok(())
}

/// Has an engine read `map` once with the default policy. No page may be moved, copied, unmapped or
/// evicted for it.
fn costs_nothing(device: &Device, map: &Mapping, seed: u64, what: &str) -> Outcome {
    costs_nothing_by(device, map, what, || engine_reads(device, map, seed))
}

/// The same for pages with other contents: `read` has an engine read `map` once.
fn costs_nothing_by(
    device: &Device,
    map: &Mapping,
    what: &str,
    read: impl Fn() -> Outcome,
) -> Outcome {
    device.set_policy(Policy::None)?;
    let (before, _) = all(device)?;
    read()?;
    let (after, _) = all(device)?;
    let faults = after.engine_faults_read - before.engine_faults_read;
    device.discard(map.addr(), map.pages()).what("discard")?;
    for policy in [Policy::Default, Policy::OnePage] {
        device.set_policy(policy)?;
        for round in 0..2 {
            let (before, placed) = all(device)?;
            read()?;
            let (after, now) = all(device)?;
            let what = format!("of {what}, {policy:?}, round {round}");
            check_eq!(now.moved, placed.moved, "pages moved {what}");
            check_eq!(after.bytes_copied, before.bytes_copied, "bytes copied {what}");
            check_eq!(after.evicted_pages, before.evicted_pages, "pages evicted {what}");
            few_events(&before, &after, &what)?;
            check_eq!(after.device_pages_used, before.device_pages_used, "pages in use {what}");
            let rounds = after.engine_faults_read - before.engine_faults_read;
            check!(rounds <= faults, "faults {what}: {rounds}, without a policy {faults}");
            device.discard(map.addr(), map.pages()).what("discard")?;
        }
    }
    Ok(())
}

/// Pages of zeros that a driver has inserted into a mapping.
fn device_file_costs_nothing(device: &Device, owner: &Device) -> Outcome {
    let map = owner.map_file(16).what("map the device file")?;
    let zeros = checksum(std::iter::repeat_n(0, map.pages() * WORDS));
    let read = Command::new(EngineOp::Checksum, map.addr(), map.len()).verify(zeros);
    costs_nothing_by(device, &map, "a device file", || {
        check_eq!(device.run(read).what("engine")?.error, None, "an engine's read of zeros");
        Ok(())
    })
}

fn immovable_memory(ctx: &Ctx) -> Outcome {
    let mut settings = Settings::new();
    check!(settings.set("/proc/sys/vm/nr_hugepages", "8")?, "no hugetlb pages");
    let _restore = with(ctx, &vram(4))?;
    let device = ctx.open()?;
    // The device memory is full of memory that could be evicted.
    let full = (0..4).map(block).collect::<Result<Vec<_>, _>>()?;
    for map in &full {
        check_eq!(to_device(&device, map)?.moved, BLOCK_PAGES, "pages that moved");
    }

    let map = Mapping::shared(PAGES)?;
    map.fill(1);
    costs_nothing(&device, &map, 1, "shared anonymous memory")?;
    let memfd = files::memfd(2, PAGES)?;
    costs_nothing(&device, &Mapping::file_shared(&memfd, PAGES)?, 2, "a shared memfd")?;
    costs_nothing(&device, &Mapping::file_private(&memfd, PAGES)?, 2, "a private memfd")?;
    let file = files::temp_file("/tmp", 3, PAGES)?;
    costs_nothing(&device, &Mapping::file_shared(&file, PAGES)?, 3, "a shared file")?;
    let private = Mapping::file_private(&file, PAGES + 1);
    costs_nothing(&device, &Mapping::file_private(&file, PAGES)?, 3, "a private file")?;
    drop(private);
    let hugetlb = Mapping::hugetlb(BLOCKS).what("map hugetlb pages")?;
    hugetlb.fill(4);
    costs_nothing(&device, &hugetlb, 4, "hugetlb pages")?;
    let owner = ctx.open()?;
    device_file_costs_nothing(&device, &owner)?;

    // Anonymous memory that is pinned for a device.
    let map = block(5)?;
    let locked = owner.lock(map.addr(), map.len(), 1, false).what("lock")?;
    costs_nothing(&device, &map, 5, "pinned memory")?;
    owner.unlock(locked.device_addr).what("unlock")?;
    // Anonymous memory whose pages pipes hold, too.
    let map = Mapping::anon(128)?;
    map.fill(6);
    let _pins = (0..map.pages())
        .map(|page| files::Pin::of(map.page_addr(page)))
        .collect::<Result<Vec<_>, _>>()
        .what("give pages to pipes")?;
    settle()?;
    costs_nothing(&device, &map, 6, "memory of pipes")?;
    // Memory that may be merged by KSM.
    let map = block(7)?;
    map.advise(hmm::mapping::MADV_MERGEABLE).what("make memory mergeable")?;
    costs_nothing(&device, &map, 7, "memory that may be merged")?;

    check_eq!(device.counters()?.device_pages_used, 4 * BLOCK_PAGES, "pages on the device");
    for (seed, map) in full.iter().enumerate() {
        cpu_sees(map, seed as u64, "after all")?;
    }
    device.close().what("close")?;
    owner.close().what("close")?;
    unload(ctx)
}

/// Pages of the file whose mappings are measured: twice the size of device memory.
const TIMED: usize = 8 * HUGE_PAGES;

/// Kinds of memory that cannot migrate. Of `PrivateFile` a single page can.
#[derive(Clone, Copy, Debug)]
enum Stays {
    Shared,
    Memfd,
    /// A private mapping of a file of which one page was written.
    PrivateFile,
    /// Pinned for a device.
    Pinned,
    /// Pages that pipes hold, too.
    Pipes,
    Mergeable,
    Hugetlb,
}

/// Objects that keep the pages of a mapping in place.
struct Keeper<'d> {
    owner: &'d Device,
    pinned: Option<usize>,
    _pipes: Vec<files::Pin>,
}

impl Drop for Keeper<'_> {
    fn drop(&mut self) {
        if let Some(addr) = self.pinned {
            let _ = self.owner.unlock(addr);
        }
    }
}

impl Stays {
    /// Returns the size of a mapping that is measured. Without a policy each page of some kinds
    /// faults separately.
    fn pages(self) -> usize {
        match self {
            Stays::Pipes | Stays::Mergeable => TIMED / 4,
            _ => TIMED,
        }
    }

    /// Maps memory with the pattern 1, of which no policy has any history. `file` has the same
    /// pattern.
    fn map<'d>(self, owner: &'d Device, file: &File) -> Result<(Keeper<'d>, Mapping), Stop> {
        let pages = self.pages();
        let map = match self {
            Stays::Shared => Mapping::shared(pages)?,
            Stays::Memfd => Mapping::file_shared(file, pages)?,
            Stays::PrivateFile => Mapping::file_private(file, pages)?,
            Stays::Pinned | Stays::Pipes | Stays::Mergeable => {
                Mapping::anon_aligned(pages / HUGE_PAGES)?
            }
            Stays::Hugetlb => Mapping::hugetlb(pages / HUGE_PAGES).what("map hugetlb pages")?,
        };
        let mut keeper = Keeper { owner, pinned: None, _pipes: Vec::new() };
        match self {
            Stays::Memfd => map.check_pages(1, 0, pages).what("CPU read")?,
            Stays::PrivateFile => {
                map.check_pages(1, 0, pages).what("CPU read")?;
                map.fill_pages(1, 77, 1);
            }
            Stays::Shared | Stays::Hugetlb => map.fill(1),
            Stays::Pinned | Stays::Pipes | Stays::Mergeable => {
                map.forbid_huge()?;
                map.fill(1);
            }
        }
        match self {
            Stays::Pinned => {
                let locked = owner.lock(map.addr(), map.len(), 1, false).what("lock")?;
                keeper.pinned = Some(locked.device_addr);
            }
            Stays::Pipes => {
                for page in (0..pages).step_by(files::Pin::MOST) {
                    let pin = files::Pin::of_pages(map.page_addr(page), files::Pin::MOST);
                    keeper._pipes.push(pin.what("give pages to a pipe")?);
                }
                settle()?;
            }
            Stays::Mergeable => {
                map.advise(hmm::mapping::MADV_MERGEABLE).what("make memory mergeable")?;
            }
            _ => {}
        }
        Ok((keeper, map))
    }
}

/// A policy adds at most a tenth to the time of a first pass over memory that cannot migrate, for
/// each kind. The shorter of two passes counts, because the kernel's own work may disturb one of
/// them.
fn time_of_a_pass(ctx: &Ctx) -> Outcome {
    let mut settings = Settings::new();
    check!(settings.set("/proc/sys/vm/nr_hugepages", "8")?, "no hugetlb pages");
    let _restore = with(ctx, &vram(4))?;
    let device = ctx.open()?;
    let owner = ctx.open()?;
    let file = files::memfd(1, TIMED)?;
    let mut slow = Vec::new();
    for kind in [
        Stays::Shared,
        Stays::Memfd,
        Stays::PrivateFile,
        Stays::Pinned,
        Stays::Pipes,
        Stays::Mergeable,
        Stays::Hugetlb,
    ] {
        // Returns the time of a pass.
        let pass = |policy: Policy| -> Result<Duration, Stop> {
            let (keeper, map) = kind.map(&owner, &file)?;
            device.set_policy(policy)?;
            let read = Command::new(EngineOp::Checksum, map.addr(), map.len());
            let begin = Instant::now();
            let end = device.run(read).what("engine")?;
            let took = begin.elapsed();
            check_eq!(end.error, None, "an engine's read");
            engine_reads(&device, &map, 1)?;
            drop(keeper);
            Ok(took)
        };
        let mut without = Duration::MAX;
        let mut by_default = Duration::MAX;
        for _ in 0..2 {
            without = without.min(pass(Policy::None)?);
            by_default = by_default.min(pass(Policy::Default)?);
        }
        let text = format!("{kind:?}: {by_default:?} with the default policy, {without:?} without");
        println!("# {text}");
        if by_default * 10 > without * 11 {
            slow.push(text);
        }
    }
    check!(slow.is_empty(), "a policy costs more than a tenth: {}", slow.join("; "));
    device.close().what("close")?;
    owner.close().what("close")?;
    unload(ctx)
}

/// Pages of the policy's smallest and largest windows, of 64 KiB and 2 MiB.
const LEAF: usize = (64 << 10) / PAGE_SIZE;
const WINDOW: usize = (2 << 20) / PAGE_SIZE;

/// A private mapping of a file has file pages and anonymous copies, alternating by 64 KiB and page
/// by page. The copies must migrate wherever the boundaries of the policy's windows of 64 KiB and 2
/// MiB are.
fn private_copies(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &vram(4))?;
    let file = files::temp_file("/tmp", 1, PAGES)?;
    // Offsets at the boundaries of a window, beside them and between them, and the same elsewhere
    // in a block.
    let small = [0, 1, LEAF / 2 - 1, LEAF - 1, LEAF, LEAF + 1, LEAF * 3 / 2, 2 * LEAF - 1];
    let large = [WINDOW / 2 - 1, WINDOW / 2, WINDOW / 2 + 1, WINDOW - 31, WINDOW - 1];
    let mut offsets: Vec<usize> = small.into_iter().chain(large).chain([HUGE_PAGES - 1]).collect();
    offsets.dedup();
    for offset in offsets {
        private_copies_at(ctx, &file, offset)?;
    }
    unload(ctx)
}

fn private_copies_at(ctx: &Ctx, file: &File, offset: usize) -> Outcome {
    let device = ctx.open()?;
    device.set_policy(Policy::Default)?;
    let map = Mapping::file_private_at(file, PAGES, offset)?;
    let mut copies = 0;
    for part in 0..PAGES / (2 * LEAF) {
        map.fill_pages(1, part * 2 * LEAF, LEAF);
        copies += LEAF as u64;
    }
    for page in (LEAF + 1..2 * LEAF).step_by(2) {
        map.fill_pages(1, page, 1);
        copies += 1;
    }
    for round in 0..3 {
        let (before, _) = all(&device)?;
        engine_reads(&device, &map, 1)?;
        let (after, _) = all(&device)?;
        let bytes = after.bytes_copied - before.bytes_copied;
        let expected = if round == 0 { copies * PAGE_SIZE as u64 } else { 0 };
        check_eq!(bytes, expected, "bytes copied in round {round}, {offset} pages behind a block");
        check_eq!(resident(&device, &map, 0, PAGES)? as u64, copies, "pages on the device");
    }
    cpu_sees(&map, 1, "after all")?;
    device.close().what("close")
}

fn one_page_of_a_block(ctx: &Ctx) -> Outcome {
    const PAGE: usize = 77;
    const OTHERS: u64 = BLOCK_PAGES - 1;
    let owner = ctx.open()?;
    for pinned in [true, false] {
        let device = ctx.open()?;
        let map = block(1)?;
        let locked = if pinned {
            Some(owner.lock(map.page_addr(PAGE), PAGE_SIZE, 1, false).what("lock")?)
        } else {
            None
        };
        let _pipe = files::Pin::of(map.page_addr(PAGE)).what("give the page to a pipe")?;
        let before = device.counters()?;
        let (done, outcomes) =
            device.migrate_pages(map.addr(), HUGE_PAGES, Way::ToDevice).what("migrate")?;
        check_eq!((done.moved, done.skipped), (OTHERS, 1), "moved and skipped (pinned: {pinned})");
        check_eq!(outcomes[PAGE], PageOutcome::Skipped, "outcome of the page");
        let first = device.counters()?;
        let copied = first.bytes_copied - before.bytes_copied;
        check_eq!(copied, OTHERS * PAGE_SIZE as u64, "bytes copied (pinned: {pinned})");
        // From now on there is no work to do.
        for _ in 0..10 {
            let done =
                device.migrate(map.addr(), HUGE_PAGES, Way::ToDevice).what("migrate again")?;
            check_eq!((done.moved, done.skipped), (0, 1), "moved and skipped again");
        }
        device.set_policy(Policy::Default)?;
        engine_reads(&device, &map, 1)?;
        let last = device.counters()?;
        check_eq!(last.bytes_copied, first.bytes_copied, "bytes copied again");
        few_events(&first, &last, "of tries for one page")?;
        check_eq!(resident(&device, &map, 0, HUGE_PAGES)? as u64, OTHERS, "pages on the device");
        if let Some(locked) = locked {
            owner.unlock(locked.device_addr).what("unlock")?;
        }
        drop(_pipe);
        check_eq!(to_device(&device, &map)?.moved, 1, "pages that moved when it was let go");
        cpu_sees(&map, 1, "after all")?;
    }
    Ok(())
}

/// All pages of a block but one are on the device, whose memory is full. Requests for the block,
/// and an engine that reads it with a policy, evict nothing for the page that cannot migrate.
fn full_memory(ctx: &Ctx) -> Outcome {
    const PAGE: usize = 77;
    let _restore = with(ctx, &vram(1))?;
    let owner = ctx.open()?;
    let device = ctx.open()?;
    let map = block(1)?;
    let locked = owner.lock(map.page_addr(PAGE), PAGE_SIZE, 1, false).what("lock")?;
    let done = device.migrate(map.addr(), HUGE_PAGES, Way::ToDevice).what("migrate")?;
    check_eq!((done.moved, done.skipped), (BLOCK_PAGES - 1, 1), "pages moved and skipped");
    let last = Mapping::anon(1)?;
    last.fill(2);
    check_eq!(to_device(&device, &last)?.moved, 1, "pages that fill the memory");
    check_eq!(device.counters()?.device_pages_used, BLOCK_PAGES, "pages on the device");

    let before = device.counters()?;
    for _ in 0..10 {
        let done = device.migrate(map.addr(), HUGE_PAGES, Way::ToDevice).what("migrate again")?;
        check_eq!((done.moved, done.skipped), (0, 1), "pages moved and skipped again");
    }
    for policy in [Policy::Default, Policy::OnePage] {
        device.set_policy(policy)?;
        engine_reads(&device, &map, 1)?;
    }
    let after = device.counters()?;
    check_eq!(after.evicted_pages, before.evicted_pages, "pages evicted");
    check_eq!(after.bytes_copied, before.bytes_copied, "bytes copied");
    few_events(&before, &after, "of tries for one page")?;
    check_eq!(after.device_pages_used, BLOCK_PAGES, "pages on the device after all");
    owner.unlock(locked.device_addr).what("unlock")?;
    cpu_sees(&map, 1, "after all")?;
    cpu_sees(&last, 2, "after all")?;
    device.close().what("close")?;
    owner.close().what("close")?;
    unload(ctx)
}

/// A request to migrate memory that is resident has no effect, also for other mirrors of the
/// process.
fn resident_memory(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let other = ctx.open()?;
    for map in [block(1)?, huge(1, 1)?] {
        to_device(&device, &map)?;
        check_eq!(resident(&device, &map, 0, HUGE_PAGES)?, HUGE_PAGES, "pages on the device");
        device_fills(&device, &map, 2, "of device memory")?;
        device_sees(&other, &map, 2, "of the same memory")?;
        let before = device.counters()?;
        let theirs = other.counters()?;
        for _ in 0..20 {
            let done = to_device(&device, &map)?;
            check_eq!((done.moved, done.skipped), (0, 0), "pages moved, and skipped");
        }
        let after = device.counters()?;
        few_events(&before, &after, "of requests for resident memory")?;
        check_eq!(after.invalidated_pages, before.invalidated_pages, "entries lost");
        few_events(&theirs, &other.counters()?, "of the other mirror")?;
        let lost = other.counters()?.invalidated_pages - theirs.invalidated_pages;
        check_eq!(lost, 0, "entries that the other mirror lost");
        check_eq!(after.bytes_copied, before.bytes_copied, "bytes copied");
        // A request to migrate back does not affect pages in system memory either.
        cpu_sees(&map, 2, "on its way back")?;
        device.migrate(map.addr(), HUGE_PAGES, Way::ToSystem).what("migrate back")?;
        device_fills(&device, &map, 3, "of system memory")?;
        let before = device.counters()?;
        for _ in 0..20 {
            let done =
                device.migrate(map.addr(), HUGE_PAGES, Way::ToSystem).what("migrate back")?;
            check_eq!((done.moved, done.skipped), (0, 0), "pages moved back, and skipped");
        }
        let after = device.counters()?;
        few_events(&before, &after, "of requests for the way back")?;
        check_eq!(after.invalidated_pages, before.invalidated_pages, "entries lost by it");
    }
    Ok(())
}

/// An engine writes device memory while the process requests its migration repeatedly, as programs
/// do before each launch.
fn resident_and_written(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon_aligned(2)?;
    map.forbid_huge()?;
    map.fill(1);
    to_device(&device, &map)?;
    let fill = Command::new(EngineOp::Fill, map.addr(), map.len()).rounds(1);
    check_eq!(device.run(fill).what("fill")?.error, None, "end of the first round");
    let job = device.submit(fill.rounds(0)).what("submit")?;
    let before = device.counters()?;
    for _ in 0..200 {
        let done = to_device(&device, &map)?;
        check_eq!(done.moved, 0, "pages moved");
    }
    let after = device.counters()?;
    job.stop().what("stop")?;
    check_eq!(job.wait().what("wait")?.error, None, "end of the engine");
    let faults = after.engine_faults_write - before.engine_faults_write;
    check_eq!(faults, 0, "write faults in 200 requests for resident memory");
    check_eq!(after.invalidated_pages, before.invalidated_pages, "entries that lost a right");
    Ok(())
}

/// One half of a block migrates to the device while engines write and read the resident half, and a
/// CPU faults some of its pages back.
fn half_resident(ctx: &Ctx) -> Outcome {
    const COPY: u64 = 2_000_000;
    let device = ctx.open()?;
    let map = block(1)?;
    let half = HUGE_PAGES / 2;
    let moved = device.migrate(map.addr(), half, Way::ToDevice).what("migrate")?.moved;
    check_eq!(moved, half as u64, "pages that moved");
    device_fills_pages(&device, &map, 1, 0, half, "of the first half")?;
    device_sees_pages(&device, &map, 1, half, half, "of the second half")?;
    let bytes = half / 2 * PAGE_SIZE;
    let write = Command::new(EngineOp::Fill, map.addr(), bytes).engine(0).rounds(0);
    let read = Command::new(EngineOp::Read, map.page_addr(half / 2), bytes).engine(1).rounds(0);
    let writer = device.submit(write)?;
    let reader = device.submit(read)?;
    for job in [&writer, &reader] {
        until("an engine's first round", || Ok(job.poll(Duration::ZERO)?.1.rounds > 0))?;
    }
    device.set(Setting::CopyDelay, COPY).what("slow copies")?;
    let before = device.counters()?;
    let result = std::thread::scope(|scope| {
        let mover = scope.spawn(|| device.migrate(map.addr(), HUGE_PAGES, Way::ToDevice));
        // Wait until copies are in flight.
        let start = Instant::now();
        while device.counters()?.bytes_copied == before.bytes_copied {
            check!(start.elapsed() < Duration::from_secs(20), "no copy begins");
            std::thread::sleep(Duration::from_millis(1));
        }
        check!(!mover.is_finished(), "the half has moved before the CPU touched the other");
        let touched = map.get(half - 40, 0);
        check_eq!(touched, hmm::pattern::word(1, half - 40, 0), "CPU read meanwhile");
        let during = device.counters()?;
        let done = mover.join().map_err(|_| Stop::Fail("a thread panicked".into()))?;
        Ok((during, done.what("migrate")?))
    });
    device.set(Setting::CopyDelay, 0).what("fast copies")?;
    let after = device.counters()?;
    for job in [&writer, &reader] {
        job.stop().what("stop")?;
        check_eq!(job.wait().what("wait")?.error, None, "end of an engine");
    }
    let (during, done) = result?;
    check!(during.cpu_faults > before.cpu_faults, "the CPU did not fault");
    check_eq!(done.moved, half as u64, "pages of the other half that moved");
    check_eq!(done.switched, half as u64, "pages of the other half that were switched");
    let writes = after.engine_faults_write - before.engine_faults_write;
    check_eq!(writes, 0, "write faults of memory that was there");
    let reads = after.engine_faults_read - before.engine_faults_read;
    check_eq!(reads, 0, "read faults of memory that a CPU took back meanwhile");
    Ok(())
}

/// If only a change of protection has removed write access, for example by NUMA balancing, pages
/// are written in place.
fn write_access(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    for is_huge in [false, true] {
        // New memory for each kind, because memory that was shared with a child may still not be
        // exclusive.
        let map = if is_huge { huge(1, 1)? } else { block(1)? };
        to_device(&device, &map)?;
        device_fills(&device, &map, 2, "of device memory")?;
        let before = device.counters()?;
        for seed in 3..6 {
            map.protect(Prot::Read)?;
            map.protect(Prot::ReadWrite)?;
            device_fills(&device, &map, seed, "after a change of protection")?;
            let after = device.counters()?;
            check_eq!(after.cpu_faults, before.cpu_faults, "pages that came back for a write");
            check_eq!(after.bytes_copied, before.bytes_copied, "bytes copied for a write");
            check_eq!(resident(&device, &map, 0, HUGE_PAGES)?, HUGE_PAGES, "pages on the device");
        }
        // A write must not succeed where the process may not write, nor change pages that a child
        // shares.
        map.protect(Prot::Read)?;
        let data = vec![0; PAGE_SIZE];
        fails(device.write(map.addr(), &data), Errno::EPERM, "a write of read-only memory")?;
        map.protect(Prot::ReadWrite)?;
        let gate = Gate::new()?;
        let mut child = Child::spawn(|| {
            gate.wait()?;
            cpu_sees(&map, 5, "in a child, after the parent's device has written")
        })?;
        device_fills(&device, &map, 7, "of memory shared with a child")?;
        gate.open()?;
        let ended = child.wait_timeout(Duration::from_secs(30));
        check!(ended.is_some(), "the child does not end");
        child.outcome().map_err(Stop::Fail)?;
        cpu_sees(&map, 7, "after all")?;
    }
    Ok(())
}

/// Returns the number of huge leaves that the devices of this process have of `map`, from the
/// library's debugfs file.
fn huge_leaves(map: &Mapping) -> Result<usize, Stop> {
    let all = super::hmmctl::map_file()?;
    let pid = std::process::id().to_string();
    let start = format!("{:#x}", map.addr());
    let of_map = all.lines().filter(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.get(1) == Some(&pid.as_str())
            && words.get(2) == Some(&start.as_str())
            && words.last() == Some(&"huge")
    });
    Ok(of_map.count())
}

/// A run of 64 KiB loses a page. The others have at most one fault.
fn broken_run(ctx: &Ctx) -> Outcome {
    let small = SmallThp::start().what("have folios of 64 KiB")?;
    let device = ctx.open()?;
    let map = Mapping::anon_huge(1)?;
    map.fill(1);
    check!(
        small.made()? >= (HUGE_SIZE >> 16) as u64,
        "{} folios of 64 KiB were made",
        small.made()?
    );
    engine_reads(&device, &map, 1)?;
    let before = device.counters()?.engine_faults_read;
    engine_reads(&device, &map, 1)?;
    check_eq!(device.counters()?.engine_faults_read, before, "read faults of mapped pages");
    map.advise_pages(libc::MADV_DONTNEED, 5, 1)?;
    map.fill(2);
    engine_reads(&device, &map, 2)?;
    let faults = device.counters()?.engine_faults_read - before;
    check!((1..=2).contains(&faults), "{faults} read faults after one page was discarded");
    // All of it is mapped now.
    engine_reads(&device, &map, 2)?;
    check_eq!(device.counters()?.engine_faults_read - before, faults, "read faults at the end");
    Ok(())
}

/// A write to a read-only huge leaf makes all of it writable, if the CPU's mapping is writable.
fn split_leaf(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = huge(1, 1)?;
    for round in 1..4 {
        to_device(&device, &map)?;
        engine_reads(&device, &map, round)?;
        check_eq!(map.get(100, 0), hmm::pattern::word(round, 100, 0), "CPU read");
        check_eq!(resident(&device, &map, 0, HUGE_PAGES)?, 0, "pages on the device");
        make_huge(&map)?;
        // The device may only read.
        map.protect(Prot::Read)?;
        map.protect(Prot::ReadWrite)?;
        let before = device.counters()?;
        let write = Command::new(EngineOp::AtomicAdd, map.page_addr(300), 8).stride(8).value(0);
        check_eq!(device.run(write).what("write")?.error, None, "end of a write");
        let first = device.counters()?;
        let faults = first.engine_faults_write - before.engine_faults_write;
        check_eq!(faults, 1, "write faults of one page");
        check_eq!(huge_leaves(&map)?, 1, "huge leaves of the device");
        let write = Command::new(EngineOp::AtomicAdd, map.addr(), map.len()).stride(PAGE_SIZE);
        check_eq!(device.run(write.value(0)).what("write")?.error, None, "end of writes");
        let faults = device.counters()?.engine_faults_write - first.engine_faults_write;
        check_eq!(faults, 0, "write faults of the others");
        map.fill(round + 1);
    }
    Ok(())
}
