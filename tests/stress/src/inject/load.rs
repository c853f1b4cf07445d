// SPDX-License-Identifier: GPL-2.0
//! Failures while the modules are loaded and at the first use of device memory.

use crate::inject::run::{
    following,
    shrink,
    Tap, //
};
use hmm::engine::Way;
use hmm::inject::{
    self,
    Kernel,
    Kind,
    Source,
    Spared, //
};
use hmm::{
    module,
    Device,
    Errno,
    Mapping,
    HUGE_PAGES, //
};
use std::path::Path;

/// Name of the case.
pub const NAME: &str = "load";

/// The modules, in load order.
struct Modules<'a> {
    path: &'a Path,
    /// Names of the library and of a driver.
    names: [&'a str; 2],
}

/// After this many failures only some are tried. It covers loading the driver and binding its first
/// device.
const EACH: u64 = 600;

/// Name of the driver that is bound to PCI devices. It stays loaded even if no probe succeeds.
const BOUND: &str = "qemu_gpu";

impl Modules<'_> {
    fn load(&self, name: &str) -> Result<(), Errno> {
        module::load(&self.path.join(format!("{name}.ko")), &module::boot_parameters(name))
    }

    /// Loads all modules that are not loaded.
    fn load_all(&self) -> Result<(), String> {
        for name in self.names.iter().filter(|name| !module::is_loaded(name)) {
            self.load(name).map_err(|error| format!("load {name}: {error}"))?;
        }
        Ok(())
    }

    fn unload_all(&self) -> Result<(), String> {
        for name in self.names.iter().rev().filter(|name| module::is_loaded(name)) {
            module::unload(name).map_err(|error| format!("unload {name}: {error}"))?;
        }
        Ok(())
    }

    fn is_bound(&self) -> bool {
        self.names.contains(&BOUND)
    }
}

/// Checks that every existing device works, though other devices have failed to probe.
fn those_there_work() -> Result<(), String> {
    let map = Mapping::anon(1).map_err(|error| error.to_string())?;
    map.fill(2);
    let mut bytes = vec![0; map.len()];
    for index in devices() {
        let describe = |error: Errno| format!("device {index}, which is there: {error}");
        let device = Device::open(index).map_err(describe)?;
        device.read(map.addr(), &mut bytes).map_err(describe)?;
        hmm::pattern::check(2, 0, &bytes).map_err(|mismatch| mismatch.to_string())?;
    }
    Ok(())
}

/// Loads the modules with the first, the second, ... failure, until no failure is injected any
/// longer.
fn all_failures(modules: &Modules<'_>, kind: Kind) -> Result<u64, String> {
    modules.load_all()?;
    let area = inject::module_area(&modules.names).map_err(|error| error.to_string())?;
    modules.unload_all()?;
    let mut failures = 0;
    let mut without = 0;
    for name in modules.names {
        // The library is loaded without failures for this driver. Failures of the library itself
        // are tried once, with the other driver.
        if modules.is_bound() && name != BOUND {
            modules.load(name).map_err(|error| format!("{name}: {error}"))?;
            continue;
        }
        let mut n = 1;
        loop {
            let spared = if name == BOUND { Spared::Interrupts } else { Spared::Hotplug };
            let kernel = Kernel::prepare_range(&[kind], 0, area, spared);
            let kernel = kernel.map_err(|error| format!("prepare: {error}"))?;
            let armed = inject::arm(&Source::Kernel(kind), n);
            let armed = armed.map_err(|error| format!("arm: {error}"))?;
            let result = modules.load(name);
            let injected = armed.disarm().map_err(|error| format!("disarm: {error}"))?;
            drop(kernel);
            let at = format!("{name}, failure {n}");
            match (result, injected) {
                (Err(error), false) => return Err(format!("{at}: {error} without it")),
                (Err(Errno::ENOMEM), true) if module::is_loaded(name) => {
                    return Err(format!("{at}: it is loaded all the same"))
                }
                (Err(Errno::ENOMEM), true) => {}
                // The driver core returns EINVAL if it has no memory for the sysfs link between
                // driver and module.
                (Err(Errno::EINVAL), true) if name == BOUND && !module::is_loaded(name) => {}
                (Err(error), true) => return Err(format!("{at}: {error} is not documented")),
                (Ok(()), false) => break,
                // The allocation was optional, or the probe of a device failed.
                (Ok(()), true) => {
                    if name == BOUND {
                        without += usize::from(devices().count() < 2);
                        those_there_work().map_err(|error| format!("{at}: {error}"))?;
                    }
                    module::unload(name).map_err(|error| format!("{at}: unload: {error}"))?
                }
            }
            failures += 1;
            if failures % 25 == 0 {
                println!("# {name}: {kind:?} failure {n}");
            }
            n = following(n, EACH);
        }
    }
    match failures {
        0 => Err("nothing failed".into()),
        _ if modules.is_bound() && without == 0 => {
            Err(format!("{failures} failures, and the devices were there each time"))
        }
        _ => Ok(failures),
    }
}

/// Returns the indices of existing devices.
fn devices() -> impl Iterator<Item = u32> {
    (0..4).filter(|index| Device::path(*index).exists())
}

/// A device with private memory and one with coherent memory.
const DEVICES: [u32; 2] = [0, 2];

/// An operation that creates device memory, and a function that removes all device memory first.
/// Without the latter, an operation that works around a failed allocation would create the memory
/// only once.
struct Use {
    name: &'static str,
    none: fn(&Modules<'_>, u32) -> Result<(), String>,
    /// Runs the operation. Returns whether it did all of its work.
    run: fn(&Device, &Mapping) -> Result<bool, Errno>,
}

const USES: [Use; 3] = [
    Use { name: "first use", none: loaded_again, run: migrated },
    Use { name: "first resize", none: loaded_again, run: resized },
    Use { name: "resize of returned pages", none: given_back, run: resized },
];

fn loaded_again(modules: &Modules<'_>, _: u32) -> Result<(), String> {
    let [_, driver] = modules.names;
    if module::is_loaded(driver) {
        module::unload(driver).map_err(|error| format!("unload {driver}: {error}"))?;
    }
    modules.load_all()
}

fn given_back(_: &Modules<'_>, index: u32) -> Result<(), String> {
    shrink(&Device::open(index).map_err(|error| error.to_string())?)
}

fn migrated(device: &Device, map: &Mapping) -> Result<bool, Errno> {
    Ok(device.migrate(map.addr(), map.pages(), Way::ToDevice)?.moved == map.pages() as u64)
}

fn resized(device: &Device, _: &Mapping) -> Result<bool, Errno> {
    let left = device.resize(0, HUGE_PAGES, false)?;
    device.resize(0, HUGE_PAGES, true)?;
    Ok(left == 0)
}

/// Makes the first, the second, ... allocation fail in `what`, on a device without memory.
fn uses(modules: &Modules<'_>, what: &Use, kind: Kind) -> Result<u64, String> {
    let error = |error: Errno| error.to_string();
    let mut failures = 0;
    for index in DEVICES {
        let map = Mapping::anon(4).map_err(error)?;
        map.fill(1);
        let mut n = 1;
        loop {
            (what.none)(modules, index)?;
            let device = Device::open(index).map_err(error)?;
            let kernel = Kernel::prepare(&[kind], 0).map_err(|e| format!("prepare: {e}"))?;
            let armed = inject::arm(&Source::Kernel(kind), n).map_err(|e| format!("arm: {e}"))?;
            let result = (what.run)(&device, &map);
            let injected = armed.disarm().map_err(|e| format!("disarm: {e}"))?;
            drop(kernel);
            let at = format!("device {index}, failure {n}");
            match result {
                Ok(_) | Err(Errno::ENOMEM) if injected => failures += 1,
                Ok(true) => break,
                other => return Err(format!("{at}: {other:?} without it")),
            }
            // Pages that are on the device already would not count as moved.
            device
                .migrate(map.addr(), map.pages(), Way::ToSystem)
                .map_err(|e| format!("{at}: back: {e}"))?;
            match (what.run)(&device, &map) {
                Ok(true) => {}
                other => return Err(format!("{at}: {other:?} after it")),
            }
            map.check(1).map_err(|mismatch| format!("{at}: {mismatch}"))?;
            n = following(n, EACH);
        }
        map.check(1).map_err(|mismatch| format!("device {index}: {mismatch}"))?;
    }
    match (failures, kind) {
        (0, Kind::Slab) => Err("nothing failed".into()),
        // Page allocations occur only for new slabs. If existing slabs have free objects, there are
        // none.
        _ => Ok(failures),
    }
}

/// The failure in `close()` prevents the eviction, so the unload must evict. The unload meets a
/// failure, too.
fn last_use(modules: &Modules<'_>) -> Result<u64, String> {
    let error = |error: Errno| error.to_string();
    let slab = Source::Kernel(Kind::Slab);
    let arm = |n| inject::arm(&slab, n).map_err(|e| format!("arm: {e}"));
    let mut n = 1;
    loop {
        modules.load_all()?;
        let map = Mapping::anon(8).map_err(error)?;
        map.fill(1);
        let device = Device::open(0).map_err(error)?;
        device.migrate(map.addr(), map.pages(), Way::ToDevice).map_err(error)?;
        let kernel = Kernel::prepare(&[Kind::Slab], 0).map_err(|e| format!("prepare: {e}"))?;
        let armed = arm(1)?;
        device.close().map_err(error)?;
        let kept = armed.disarm().map_err(|e| format!("disarm: {e}"))?;
        let armed = arm(n)?;
        let result = module::unload(modules.names[1]);
        let injected = armed.disarm().map_err(|e| format!("disarm: {e}"))?;
        drop(kernel);
        result.map_err(|e| format!("unload, failure {n}: {e}"))?;
        map.check(1).map_err(|mismatch| format!("unload, failure {n}: {mismatch}"))?;
        if !injected {
            return if kept { Ok(n - 1) } else { Err("closing needed no memory".to_string()) };
        }
        n += 1;
    }
}

fn works() -> Result<(), String> {
    let error = |error: Errno| format!("after it: {error}");
    let map = Mapping::anon(4).map_err(error)?;
    map.fill(1);
    let device = Device::open(0).map_err(error)?;
    let mut bytes = vec![0; map.len()];
    device.migrate_to_device(map.addr(), &mut bytes).map_err(error)?;
    hmm::pattern::check(1, 0, &bytes).map_err(|mismatch| mismatch.to_string())?;
    map.check(1).map_err(|mismatch| mismatch.to_string())
}

/// Loads the library and `driver` with each failure, and tests the first uses of device memory.
pub fn run(tap: &mut Tap, path: &Path, driver: &str, sources: &[Source]) {
    let modules = &Modules { path, names: ["rust_hmm", driver] };
    for source in sources {
        // No memory is copied from user space at load, and the injection points exist only in a
        // loaded library.
        let Source::Kernel(kind @ (Kind::Slab | Kind::Pages)) = source else { continue };
        let result = all_failures(modules, *kind);
        if result.is_err() {
            println!("# loaded again: {:?}", modules.load_all());
        }
        let result = result.and_then(|failures| works().map(|()| failures));
        let describe = |result: Result<u64, String>| result.map(|n| format!("{n} failures"));
        tap.result(&format!("{NAME} {source}"), describe(result));
        // The remaining cases test only the library, so they run with one driver.
        if modules.is_bound() {
            continue;
        }
        for what in &USES {
            let result = modules.load_all().and_then(|()| uses(modules, what, *kind));
            tap.result(&format!("{NAME}, {}, {source}", what.name), describe(result));
        }
        if *kind == Kind::Slab {
            let result = last_use(modules);
            let again = modules.load_all();
            let result = result.and_then(|n| again.map(|()| n));
            tap.result(&format!("{NAME}, last use, {source}"), describe(result));
        }
    }
}
