// SPDX-License-Identifier: GPL-2.0
//! The kernel's shrinker of underused huge pages holds a page that is to migrate.

use crate::check;
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::support::*;
use hmm::procfs::SHRINK_UNDERUSED;
use hmm::{
    Device,
    Errno,
    Mapping,
    Settings, //
};
use std::sync::atomic::{
    AtomicBool,
    Ordering::Relaxed, //
};
use std::time::{
    Duration,
    Instant, //
};

/// A thread that calls the shrinker of underused huge pages continuously, or rests.
struct Shrinker {
    end: AtomicBool,
    rest: AtomicBool,
    /// The thread rests, and no call is in progress.
    rests: AtomicBool,
}

impl Shrinker {
    fn run(&self) -> std::io::Result<()> {
        while !self.end.load(Relaxed) {
            let rest = self.rest.load(Relaxed);
            self.rests.store(rest, Relaxed);
            if rest {
                std::thread::sleep(Duration::from_millis(1));
            } else {
                std::fs::write("/proc/sys/vm/drop_caches", "2")?;
            }
        }
        Ok(())
    }
}

/// Under memory pressure the kernel searches for underused huge pages. It holds a reference on a
/// page while it scans it, so the page does not migrate. No contents are lost, and the page
/// migrates afterwards.
pub(super) fn page_held_by_the_shrinker_migrates_later(ctx: &Ctx) -> Outcome {
    let mut settings = Settings::new();
    if !settings.set(SHRINK_UNDERUSED, "1")? {
        return Err(Stop::Skip("this kernel does not look for such pages".to_string()));
    }
    let device = ctx.open()?;
    let off = || AtomicBool::new(false);
    let shrinker = Shrinker { end: off(), rest: off(), rests: off() };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| shrinker.run());
        let result =
            (1..=8).try_for_each(|round| migrates_when_released(&device, round, &shrinker));
        shrinker.end.store(true, Relaxed);
        thread.join().expect("it does not panic")?;
        result
    })
}

/// Time in which the page must migrate while the shrinker rests. Others may hold it for a moment:
/// the queue of scanned pages is freed a little later, and khugepaged isolates small pages that it
/// collapses.
const TIME_AT_REST: Duration = Duration::from_secs(10);

/// Time between two attempts while the shrinker rests.
const PAUSE_AT_REST: Duration = Duration::from_millis(1);

/// Numbers of attempts and time after which the shrinker rests. On a slow kernel it may hold the
/// page at each attempt and delay the attempts.
const ATTEMPTS: u32 = 100;
const TIME: Duration = Duration::from_secs(15);

/// Migrates a huge page, at the end without the shrinker.
fn migrates_when_released(device: &Device, round: u64, shrinker: &Shrinker) -> Outcome {
    shrinker.rest.store(false, Relaxed);
    let map = Mapping::anon_huge(1)?;
    map.fill(round);
    // This fails if the shrinker holds the page.
    let _ = map.collapse();
    let begin = Instant::now();
    let mut attempts = 0;
    let mut at_rest = 0;
    let mut rests_since = None;
    loop {
        let rests = shrinker.rest.load(Relaxed) && shrinker.rests.load(Relaxed);
        match try_migrate(device, &map) {
            Ok(_) => break,
            Err(Errno::ENOENT) => map.check(round)?,
            Err(error) => return Err(error).what("migrate to the device"),
        }
        attempts += 1;
        if rests {
            at_rest += 1;
            let rested = rests_since.get_or_insert_with(Instant::now).elapsed();
            check!(
                rested < TIME_AT_REST,
                "not migrated in {at_rest} attempts without the shrinker"
            );
            std::thread::sleep(PAUSE_AT_REST);
        }
        let enough = attempts >= ATTEMPTS || begin.elapsed() >= TIME;
        shrinker.rest.fetch_or(enough, Relaxed);
    }
    let took = begin.elapsed().as_millis();
    println!("# round {round}: {attempts} attempts failed in {took} ms, {at_rest} of them at rest");
    device_sees(device, &map, round, "of migrated pages")?;
    cpu_sees(&map, round, "of migrated pages")
}
