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

/// Loads the driver again, so that its devices exist.
fn load(modules: &Path) -> Result<(), String> {
    if module::is_loaded(DRIVER) {
        module::unload(DRIVER).map_err(context("unload"))?;
    }
    let path = modules.join(format!("{DRIVER}.ko"));
    module::load(&path, &module::boot_parameters(DRIVER)).map_err(context("load"))
}

/// Reads all pages by the CPU, and checks that they have their old contents, but `lost` ones that
/// cannot be read.
fn check_contents(map: &Mapping, lost: usize) -> Result<(), String> {
    let mut missing = 0;
    for page in 0..map.pages() {
        match inject::kernel_reads(map, page) {
            Ok(bytes) => pattern::check(OLD, page, &bytes).map_err(context("contents"))?,
            Err(Errno::EFAULT) => missing += 1,
            Err(error) => return Err(format!("page {page}: {error}")),
        }
    }
    if missing == lost {
        Ok(())
    } else {
        Err(format!("{missing} pages cannot be read; {lost} were lost"))
    }
}

/// Checks that `device` counts as unplugged.
fn check_gone(device: &Device, map: &Mapping) -> Result<(), String> {
    match device.read(map.addr(), &mut vec![0; map.len()]) {
        Err(Errno::ENODEV) => Ok(()),
        other => Err(format!("a removed device reads: {other:?}")),
    }
}

/// Unplugs a device while the `n`-th use of `source` fails. If that leaves the pages on the device,
/// unplugs it again, for even `n` after the CPU has accessed all pages. Returns whether the failure
/// was injected and whether the call returned an error.
fn one_failure(device: u32, source: &Source, n: u64) -> Result<(bool, bool), String> {
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
        // No page was saved during the call.
        Err(Errno::ENOMEM) => 0,
        // The user copy failed before the unplug, or after it.
        Err(Errno::EFAULT) if usercopy => 0,
        Err(error) => return Err(format!("{error} is not documented")),
    };
    if result == Err(Errno::ENOMEM) {
        check_gone(&device, &map)?;
        let on_device = if n % 2 == 0 {
            check_contents(&map, 0)?;
            0
        } else {
            moved.moved
        };
        match device.unplug(0, 0) {
            Ok((saved, 0)) if saved == on_device => {}
            other => return Err(format!("unplug of {on_device} left pages: {other:?}")),
        }
    }
    // The device is unplugged, unless the arguments of the call could not be read.
    match device.unplug(0, 0) {
        Err(Errno::ENODEV) => {}
        Ok((_, 0)) if result == Err(Errno::EFAULT) => {}
        again => return Err(format!("unplugged again: {again:?} after {result:?}")),
    }
    check_gone(&device, &map)?;
    check_contents(&map, lost)?;
    drop(map);
    device.close().map_err(context("close"))?;
    Ok((injected, result.is_err()))
}

fn all_failures(modules: &Path, device: u32, source: &Source) -> Result<Count, String> {
    let mut count = Count::default();
    let mut n = 1;
    loop {
        load(modules)?;
        let (injected, error) =
            one_failure(device, source, n).map_err(|error| format!("failure {n}: {error}"))?;
        count.injected += u64::from(injected);
        count.errors += u64::from(error);
        if !injected {
            return Ok(count);
        }
        n = following(n, EACH);
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
