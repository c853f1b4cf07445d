// SPDX-License-Identifier: GPL-2.0
//! Failures while the modules are loaded.

use crate::run::{following, shrink, Tap};
use hmm::engine::Way;
use hmm::inject::{self, Kernel, Kind, Source, Spared};
use hmm::{module, Device, Errno, Mapping};
use std::path::Path;

/// The name of the case.
pub const NAME: &str = "load";

/// Where modules are on x86-64: their own range is not known before.
const MODULES: (u64, u64) = (0xffff_ffff_a000_0000, 0xffff_ffff_ff00_0000);

/// The modules, in the order in which they are loaded.
struct Modules<'a> {
    path: &'a Path,
    /// The library, and a driver.
    names: [&'a str; 2],
}

/// As many are tried one by one: loading the driver, and binding its first device.
const EACH: u64 = 600;

/// The driver that is bound to devices: when it gets none, it is loaded all the same.
const BOUND: &str = "qemu_gpu";

/// The parameters with which the test machine loads a module.
pub fn parameters(name: &str) -> String {
    let text = std::fs::read_to_string("/hmm/modules").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default().trim().to_string()
}

impl Modules<'_> {
    fn load(&self, name: &str) -> Result<(), Errno> {
        module::load(&self.path.join(format!("{name}.ko")), &parameters(name))
    }

    /// Loads those that are not.
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

/// A device that is there can be used, though others have failed.
fn those_there_work() -> Result<(), String> {
    let map = Mapping::anon(1).map_err(|error| error.to_string())?;
    map.fill(2);
    let mut bytes = vec![0; map.len()];
    for index in devices() {
        let told = |error: Errno| format!("device {index}, which is there: {error}");
        let device = Device::open(index).map_err(told)?;
        device.read(map.addr(), &mut bytes).map_err(told)?;
        hmm::pattern::check(2, 0, &bytes).map_err(|mismatch| mismatch.to_string())?;
    }
    Ok(())
}

/// The first, the second, ... failure, until the modules are loaded without one.
fn all_failures(modules: &Modules<'_>, kind: Kind) -> Result<u64, String> {
    modules.unload_all()?;
    let (mut failures, mut without) = (0, 0);
    for name in modules.names {
        // Once for all drivers.
        if modules.is_bound() && name != BOUND {
            modules.load(name).map_err(|error| format!("{name}: {error}"))?;
            continue;
        }
        let mut n = 1;
        loop {
            let spared = if name == BOUND { Spared::Interrupts } else { Spared::Hotplug };
            let kernel = Kernel::prepare_range(&[kind], 0, MODULES, spared);
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
                // From the kernel, when it has no memory for the link between driver and module.
                (Err(Errno::EINVAL), true) if name == BOUND && !module::is_loaded(name) => {}
                (Err(error), true) => return Err(format!("{at}: {error} is not documented")),
                (Ok(()), false) => break,
                // It could do without, or a device is not there.
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
    match modules.is_bound() && without == 0 {
        true => Err(format!("{failures} failures, and the devices were there each time")),
        false => Ok(failures),
    }
}

/// The devices that there are.
fn devices() -> impl Iterator<Item = u32> {
    (0..4).filter(|index| Device::path(*index).exists())
}

/// Private memory, and coherent memory.
const DEVICES: [u32; 2] = [0, 2];

/// What makes a device's memory, and how it is seen to that there is none: one that can do without an allocation makes it.
struct Use {
    name: &'static str,
    none: fn(&Modules<'_>, u32) -> Result<(), String>,
    /// Tells whether all was done.
    run: fn(&Device, &Mapping) -> Result<bool, Errno>,
}

const USES: [Use; 3] = [
    Use { name: "first use", none: loaded_again, run: migrated },
    Use { name: "first resize", none: loaded_again, run: resized },
    Use { name: "resize of what was given back", none: given_back, run: resized },
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
    let left = device.resize(0, 512, false)?;
    device.resize(0, 512, true)?;
    Ok(left == 0)
}

/// The first, the second, ... failure of `what` on a device without memory.
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
            // What has moved already would not be counted.
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
        // Pages are for new slabs, where those that there are have no room.
        _ => Ok(failures),
    }
}

/// The close cannot evict, so that unloading must, which fails at first, too.
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
            return match kept {
                true => Ok(n - 1),
                false => Err("closing needed no memory".to_string()),
            };
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

/// Loads the library and `driver` with each failure.
pub fn run(tap: &mut Tap, path: &Path, driver: &str, sources: &[Source]) {
    let modules = &Modules { path, names: ["rust_hmm", driver] };
    for source in sources {
        // Nothing is copied from user memory, and the points are of a loaded library.
        let Source::Kernel(kind @ (Kind::Slab | Kind::Pages)) = source else { continue };
        let result = all_failures(modules, *kind);
        if result.is_err() {
            println!("# loaded again: {:?}", modules.load_all());
        }
        let result = result.and_then(|failures| works().map(|()| failures));
        let told = |result: Result<u64, String>| result.map(|n| format!("{n} failures"));
        tap.result(&format!("{NAME} {source}"), told(result));
        // What follows is the library's, whatever the driver.
        if modules.is_bound() {
            continue;
        }
        for what in &USES {
            let result = modules.load_all().and_then(|()| uses(modules, what, *kind));
            tap.result(&format!("{NAME}, {}, {source}", what.name), told(result));
        }
        if *kind == Kind::Slab {
            let result = last_use(modules);
            let again = modules.load_all();
            let result = result.and_then(|n| again.map(|()| n));
            tap.result(&format!("{NAME}, last use, {source}"), told(result));
        }
    }
}
