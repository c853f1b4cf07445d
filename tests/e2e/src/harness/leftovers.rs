// SPDX-License-Identifier: GPL-2.0
//! Checks after a test: no device memory is in use, and no stale translation was used.

use super::test::Test;
use hmm::{
    Device,
    Errno, //
};
use std::time::{
    Duration,
    Instant, //
};

/// Number of device nodes that can exist: two of private and two of coherent memory.
const DEVICES: u32 = 4;

/// Time within which killed processes must free their device memory.
const RELEASE_TIME: Duration = Duration::from_secs(20);

/// Counters of one device that outlive the files of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trace {
    index: u32,
    pages_used: u64,
    /// Sum of all engines since the module was loaded.
    stale_hits: u64,
}

/// Reads the counters of every device that exists.
pub(super) fn traces() -> Result<Vec<Trace>, String> {
    let mut traces = Vec::new();
    for index in 0..DEVICES {
        let device = match Device::open(index) {
            Ok(device) => device,
            Err(Errno::ENOENT) => continue,
            Err(error) => return Err(format!("open device {index}: {error}")),
        };
        let trace = || -> Result<Trace, Errno> {
            let engines = 0..device.info()?.engines;
            let stale = engines.map(|engine| Ok(device.engine_counters(engine)?.stale_hits));
            let stale_hits = stale.sum::<Result<u64, Errno>>()?;
            Ok(Trace { index, pages_used: device.counters()?.device_pages_used, stale_hits })
        };
        traces.push(trace().map_err(|error| format!("counters of device {index}: {error}"))?);
    }
    Ok(traces)
}

/// Returns the rule that the counters of a device violate after a test, if any. Stale hits are
/// allowed only if the test `skips_flushes`.
fn broken(before: &[Trace], after: &[Trace], skips_flushes: bool) -> Option<String> {
    let indices = |traces: &[Trace]| traces.iter().map(|trace| trace.index).collect::<Vec<_>>();
    let had = indices(before);
    let has = indices(after);
    if had != has {
        return Some(format!("devices {had:?} existed before the test, {has:?} after it"));
    }
    for (before, after) in before.iter().zip(after) {
        // If a counter has decreased, the module was reloaded and the counter began at zero.
        let stale = match after.stale_hits.checked_sub(before.stale_hits) {
            Some(grown) => grown,
            None => after.stale_hits,
        };
        if stale > 0 && !skips_flushes {
            return Some(format!("device {} used {stale} stale translations", after.index));
        }
    }
    let used = after.iter().find(|trace| trace.pages_used > 0)?;
    Some(format!("{} pages of device {} are still in use", used.pages_used, used.index))
}

/// Checks that no device memory stays in use after the processes of a test have exited, and that no
/// device has used a stale translation.
pub(super) fn leftover(before: &[Trace], test: &Test) -> Result<(), String> {
    let deadline = Instant::now() + RELEASE_TIME;
    loop {
        match broken(before, &traces()?, test.skips_flushes) {
            None => return Ok(()),
            Some(why) if Instant::now() > deadline => return Err(why),
            Some(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_is_checked() {
        let trace = |index, pages_used, stale_hits| Trace { index, pages_used, stale_hits };
        let before = [trace(0, 0, 5), trace(1, 0, 0)];
        let verdict = |after: [Trace; 2], skips| broken(&before, &after, skips);
        assert_eq!(verdict(before, false), None);
        let stale = [trace(0, 0, 5), trace(1, 0, 1)];
        assert!(verdict(stale, false).is_some_and(|why| why.contains("device 1 used 1 stale")));
        assert_eq!(verdict(stale, true), None);
        // After a reload the counter begins at zero.
        assert!(verdict([trace(0, 0, 2), trace(1, 0, 0)], false).is_some());
        assert_eq!(verdict([trace(0, 0, 0), trace(1, 0, 0)], false), None);
        let used = [trace(0, 0, 5), trace(1, 7, 0)];
        assert!(verdict(used, false).is_some_and(|why| why.contains("7 pages of device 1")));
        assert!(broken(&before, &before[..1], false).is_some_and(|why| why.contains("existed")));
    }
}
