// SPDX-License-Identifier: GPL-2.0
//! Failures during the unplug of a device that holds pages of a process. The driver is reloaded for
//! each failure.

use crate::inject::cases::{
    OLD,
    SMALL, //
};
use crate::inject::run::{
    context,
    following,
    in_child,
    Count,
    Tap, //
};
use hmm::engine::Way;
use hmm::inject::{
    self,
    Kernel,
    Kind,
    Source, //
};
use hmm::{
    module,
    pattern,
    Device,
    Errno,
    Mapping, //
};
use std::path::Path;

/// Name of the case.
pub const NAME: &str = "unplug";

const DRIVER: &str = "rust_dmirror";
/// After this many failures only some are tried, see [`following`].
const EACH: u64 = 40;

/// What happens to the pages that are left by an unplug without memory.
#[derive(Clone, Copy, PartialEq)]
enum Rest {
    /// Another unplug saves them.
    Saved,
    /// The CPU accesses them all, then another unplug finds none.
    Read,
}

/// Result of an unplug during which a failure was requested.
struct Outcome {
    injected: bool,
    error: Option<Errno>,
}

/// Loads the driver again, so that its devices exist.
fn load(modules: &Path) -> Result<(), String> {
    if module::is_loaded(DRIVER) {
        module::unload(DRIVER).map_err(context("unload"))?;
    }
    let path = modules.join(format!("{DRIVER}.ko"));
    module::load(&path, &module::boot_parameters(DRIVER)).map_err(context("load"))
}

/// Reads all pages by the CPU. Returns the number of pages with their old contents and the number
/// of pages that cannot be read.
fn found(map: &Mapping) -> Result<(usize, usize), String> {
    let mut lost = 0;
    for page in 0..map.pages() {
        match inject::kernel_reads(map, page) {
            Ok(bytes) => pattern::check(OLD, page, &bytes).map_err(context("contents"))?,
            Err(Errno::EFAULT) => lost += 1,
            Err(error) => return Err(format!("page {page}: {error}")),
        }
    }
    Ok((map.pages() - lost, lost))
}

/// Checks that no page is lost but `lost` ones.
fn check_found(map: &Mapping, lost: usize) -> Result<(), String> {
    match found(map)? {
        (_, missing) if missing == lost => Ok(()),
        (there, missing) => {
            Err(format!("{there} pages are there, {missing} not; {lost} were lost"))
        }
    }
}

/// Unplugs a device while the `n`-th use of `source` fails.
fn one_failure(device: u32, source: &Source, n: u64, rest: Rest) -> Result<Outcome, String> {
    let device = Device::open(device).map_err(context("open"))?;
    let map = Mapping::anon(SMALL).map_err(context("map"))?;
    map.fill(OLD);
    let moved =
        device.migrate(map.addr(), map.pages(), Way::ToDevice).map_err(context("migrate"))?;
    if moved.moved != SMALL as u64 {
        return Err(format!("{} pages moved to the device", moved.moved));
    }
    let kernel = match source {
        Source::Kernel(kind) | Source::AnyTask(kind) | Source::Lasting(kind) => {
            Some(Kernel::prepare(&[*kind], 0).map_err(context("prepare"))?)
        }
        Source::Point(_) => None,
    };
    let armed = inject::arm(source, n).map_err(context("arm"))?;
    let result = device.unplug(0, 0);
    let injected = armed.disarm().map_err(context("disarm"))?;
    drop(kernel);
    let usercopy = *source == Source::Kernel(Kind::Usercopy);
    let lost = match result {
        Ok((saved, lost)) if saved + lost != moved.moved && injected => {
            return Err(format!("{saved} pages saved, {lost} lost"))
        }
        Ok((_, lost)) if lost != 0 && !injected => return Err(format!("{lost} pages lost")),
        Ok((_, lost)) => lost as usize,
        Err(error) if !injected => return Err(format!("without a failure: {error}")),
        // No page was saved during the call: see `Rest`.
        Err(Errno::ENOMEM) => 0,
        // The user copy failed before the unplug, or after it.
        Err(Errno::EFAULT) if usercopy => 0,
        Err(error) => return Err(format!("{error} is not documented")),
    };
    if result == Err(Errno::ENOMEM) {
        let expected = match rest {
            Rest::Saved => SMALL as u64,
            Rest::Read => {
                check_found(&map, 0)?;
                0
            }
        };
        match device.unplug(0, 0) {
            Ok((saved, 0)) if saved == expected => {}
            other => return Err(format!("the second unplug, of {expected} pages: {other:?}")),
        }
    }
    // The device is unplugged, unless the arguments of the call could not be read.
    match device.unplug(0, 0) {
        Err(Errno::ENODEV) => {}
        Ok((_, 0)) if result == Err(Errno::EFAULT) => {}
        again => return Err(format!("unplugged again: {again:?} after {result:?}")),
    }
    let mut bytes = vec![0; map.len()];
    match device.read(map.addr(), &mut bytes) {
        Err(Errno::ENODEV) => {}
        other => return Err(format!("a removed device reads: {other:?}")),
    }
    check_found(&map, lost)?;
    drop(map);
    device.close().map_err(context("close"))?;
    Ok(Outcome { injected, error: result.err() })
}

fn all_failures(modules: &Path, device: u32, source: &Source) -> Result<Count, String> {
    let mut count = Count::default();
    let mut n = 1;
    let mut rest = Rest::Saved;
    loop {
        load(modules)?;
        let Outcome { injected, error } = one_failure(device, source, n, rest)
            .map_err(|error| format!("failure {n}: {error}"))?;
        count.injected += u64::from(injected);
        count.errors += u64::from(error.is_some());
        if !injected {
            return Ok(count);
        }
        if error == Some(Errno::ENOMEM) && rest == Rest::Saved {
            rest = Rest::Read;
        } else {
            (n, rest) = (following(n, EACH), Rest::Saved);
        }
    }
}

/// Unplugs `device` once for each failure of each source.
pub fn run(tap: &mut Tap, modules: &Path, device: u32, sources: &[Source]) {
    let mut total = Count::default();
    let mut why = Vec::new();
    for source in sources.iter().filter(|source| !matches!(source, Source::Lasting(_))) {
        let result = in_child(|| all_failures(modules, device, source));
        // A child that was killed may have left a point set.
        let _ = inject::clear_points();
        match result {
            Ok(count) => {
                total.injected += count.injected;
                total.errors += count.errors;
            }
            Err(error) => why.push(format!("{source}: {error}")),
        }
    }
    let Count { injected, errors } = total;
    why.extend(load(modules).err());
    let outcome = match (why.as_slice(), injected) {
        ([], 1..) => Ok(format!("{injected} failures, {errors} reported as errors")),
        ([], 0) => Err("nothing failed".into()),
        (why, _) => Err(why.join("; ")),
    };
    tap.result(NAME, outcome);
}
