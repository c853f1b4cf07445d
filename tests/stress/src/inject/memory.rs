// SPDX-License-Identifier: GPL-2.0
//! Cases of device accesses, migrations and CPU faults.

use crate::inject::cases::{
    Case,
    Contents,
    Size,
    World,
    NEW,
    OLD,
    SMALL, //
};
use hmm::{
    engine::Way,
    inject,
    pattern,
    Child,
    Device,
    Errno,
    Gate,
    PAGE_SIZE, //
};

const FAULT: &[Errno] = &[Errno::EBUSY, Errno::EINTR, Errno::ENOMEM];
const MIGRATE: &[Errno] = &[Errno::EBUSY, Errno::EINTR, Errno::ENOMEM];
/// A write to shared pages migrates them back first. A page may be lost then.
const FAULT_BACK: &[Errno] = &[Errno::EBUSY, Errno::EINTR, Errno::ENOMEM, Errno::EFAULT];
/// ENOENT: one page was not migrated, or there was no memory at all.
const TO_DEVICE: &[Errno] = &[Errno::ENOENT, Errno::ENOMEM, Errno::EBUSY, Errno::EINTR];
/// The page is lost. A system call returns EFAULT where the process would get SIGBUS.
const TOUCH: &[Errno] = &[Errno::EFAULT];

/// Migrations to the device and back.
const THERE: Case = Case {
    errors: MIGRATE,
    prepare: mirrored,
    check: all_on_device,
    ..Case::new("to_device", to_device)
};
const BACK: Case = Case {
    errors: MIGRATE,
    prepare: mirrored_on_device,
    check: all_in_ram,
    ..Case::new("to_system", to_system)
};

pub const CASES: &[Case] = &[
    Case { errors: &[Errno::ENOMEM, Errno::EINTR], ..Case::new("open", open) },
    Case { errors: FAULT, ..Case::new("read", read) },
    Case { errors: FAULT, size: Size::Huge, ..Case::new("read_huge", read) },
    Case {
        errors: FAULT,
        prepare: untouched,
        contents: Contents::Zero,
        ..Case::new("read_hole", read_zero)
    },
    Case { errors: FAULT, ..Case::new("read_unlocked", read_unlocked) },
    Case { errors: FAULT, contents: Contents::New, ..Case::new("write", write) },
    Case {
        errors: FAULT,
        contents: Contents::New,
        size: Size::Huge,
        ..Case::new("write_huge", write)
    },
    Case {
        errors: FAULT,
        contents: Contents::New,
        prepare: on_device,
        ..Case::new("write_on_device", write)
    },
    Case {
        errors: FAULT_BACK,
        contents: Contents::New,
        prepare: shared_on_device,
        check: sharer_sees_old,
        ..Case::new("write_after_fork", write)
    },
    Case { errors: TO_DEVICE, ..Case::new("migrate_to_dev", migrate_to_dev) },
    Case {
        errors: TO_DEVICE,
        size: Size::Huge,
        ..Case::new("migrate_to_dev_huge", migrate_to_dev)
    },
    Case {
        errors: MIGRATE,
        prepare: on_device,
        check: all_in_ram,
        ..Case::new("migrate_to_sys", migrate_to_sys)
    },
    THERE,
    Case { name: "to_device_ordinary", operate: to_device_ordinary, ..THERE },
    Case { name: "to_device_hole", prepare: untouched, contents: Contents::Zero, ..THERE },
    Case { name: "to_device_huge", size: Size::Huge, ..THERE },
    BACK,
    Case { name: "to_system_ordinary", operate: to_system_ordinary, ..BACK },
    Case { name: "to_system_huge", size: Size::Huge, ..BACK },
    Case { errors: FAULT, prepare: on_device, ..Case::new("snapshot", snapshot) },
    Case {
        errors: &[Errno::EBUSY, Errno::EINTR, Errno::ENOMEM, Errno::ENOENT],
        ..Case::new("exclusive", exclusive)
    },
    Case {
        errors: &[Errno::EBUSY, Errno::EINTR, Errno::ENOMEM, Errno::ENOENT],
        size: Size::Huge,
        ..Case::new("exclusive_huge", exclusive)
    },
    Case { errors: TOUCH, prepare: mirrored_on_device, ..Case::new("cpu_fault", cpu_fault) },
    Case {
        errors: TOUCH,
        prepare: mirrored_on_device,
        size: Size::Huge,
        ..Case::new("cpu_fault_huge", cpu_fault)
    },
    // A page lost by a copy or an isolation that fails would kill the process, and a lasting lack
    // of memory would repeat the fault for ever. `cpu_fault` covers these sources.
    Case {
        prepare: mirrored_on_device,
        without: &["copy", "isolate", "failslab_lasting", "fail_page_alloc_lasting"],
        ..Case::new("cpu_access", cpu_access)
    },
    Case {
        prepare: mirrored_on_device,
        size: Size::Huge,
        without: &["copy", "isolate", "failslab_lasting", "fail_page_alloc_lasting"],
        ..Case::new("cpu_access_huge", cpu_access)
    },
    Case {
        errors: &[Errno::EBUSY, Errno::ENOMEM],
        prepare: on_device,
        check: all_in_ram,
        ..Case::new("release", release)
    },
    Case {
        errors: &[Errno::EBUSY, Errno::ENOMEM],
        prepare: on_device,
        size: Size::Huge,
        check: all_in_ram,
        ..Case::new("release_huge", release)
    },
    Case {
        errors: &[Errno::ENOMEM],
        prepare: on_device,
        check: all_in_ram,
        ..Case::new("close", close)
    },
    Case { prepare: mirrored, ..Case::new("discard", discard) },
    Case { prepare: mirrored_on_device, size: Size::Huge, ..Case::new("discard_huge", discard) },
];

/// Prefixes an error with the step that returned it.
pub fn step<E: std::fmt::Display>(name: &str) -> impl FnOnce(E) -> String + '_ {
    move |error| format!("{name}: {error}")
}

/// Fills the memory with the old contents by the CPU.
pub fn filled(world: &mut World) -> Result<(), String> {
    world.map.fill(OLD);
    Ok(())
}

fn untouched(_: &mut World) -> Result<(), String> {
    Ok(())
}

/// Fills the memory and migrates it to the device.
pub fn on_device(world: &mut World) -> Result<(), String> {
    filled(world)?;
    to_device(world).map_err(step("migrate"))?;
    all_on_device(world)
}

/// Fills the memory and reads it by the device, which installs device PTEs.
pub fn mirrored(world: &mut World) -> Result<(), String> {
    filled(world)?;
    read(world).map_err(step("device read"))
}

pub fn mirrored_on_device(world: &mut World) -> Result<(), String> {
    on_device(world)?;
    read(world).map_err(step("device read"))
}

/// Migrates the memory to the device and forks a process that shares it.
fn shared_on_device(world: &mut World) -> Result<(), String> {
    on_device(world)?;
    let gate = Gate::new().map_err(step("gate"))?;
    let map = &world.map;
    let body = || -> Result<(), String> {
        gate.wait().map_err(step("wait"))?;
        map.check(OLD).map_err(step("the other process"))
    };
    let child = Child::spawn(body).map_err(step("fork"))?;
    world.sharer = Some((child, gate));
    Ok(())
}

fn sharer_sees_old(world: &mut World) -> Result<(), String> {
    let (child, gate) = world.sharer.take().ok_or("there is no other process")?;
    gate.open().map_err(step("gate"))?;
    child.join()
}

pub fn all_on_device(world: &mut World) -> Result<(), String> {
    let states = world.device.snapshot(world.map.addr(), world.map.pages());
    let states = states.map_err(step("snapshot"))?;
    match states.iter().position(|state| !state.is_local()) {
        None => Ok(()),
        Some(page) => Err(format!("page {page} is not in device memory: {:?}", states[page])),
    }
}

fn all_in_ram(world: &mut World) -> Result<(), String> {
    let states = world.device.snapshot(world.map.addr(), world.map.pages());
    let states = states.map_err(step("snapshot"))?;
    match states.iter().position(|state| state.is_device()) {
        None => Ok(()),
        Some(page) => Err(format!("page {page} is still in device memory")),
    }
}

fn open(world: &mut World) -> Result<(), Errno> {
    Device::open(world.index)?.close()
}

/// Returns `EILSEQ`, which no case allows, if bytes that the device has read do not match the
/// pattern.
pub fn sees(bytes: &[u8], seed: u64) -> Result<(), Errno> {
    pattern::check(seed, 0, bytes).map_err(|mismatch| {
        println!("# the device reads: {mismatch}");
        Errno::EILSEQ
    })
}

fn buffer(world: &World) -> Vec<u8> {
    vec![0xaa; world.map.len()]
}

fn read(world: &mut World) -> Result<(), Errno> {
    let mut bytes = buffer(world);
    world.device.read(world.map.addr(), &mut bytes)?;
    sees(&bytes, OLD)
}

fn read_zero(world: &mut World) -> Result<(), Errno> {
    let mut bytes = buffer(world);
    world.device.read(world.map.addr(), &mut bytes)?;
    pattern::check_zero(&bytes).map_err(|_| Errno::EILSEQ)
}

fn read_unlocked(world: &mut World) -> Result<(), Errno> {
    let mut bytes = buffer(world);
    world.device.read_unlocked(world.map.addr(), &mut bytes)?;
    sees(&bytes, OLD)
}

fn write(world: &mut World) -> Result<(), Errno> {
    let bytes = pattern::buffer(NEW, 0, world.map.pages());
    world.device.write(world.map.addr(), &bytes).map(|_| ())
}

fn migrate_to_dev(world: &mut World) -> Result<(), Errno> {
    let mut bytes = buffer(world);
    world.device.migrate_to_device(world.map.addr(), &mut bytes)?;
    sees(&bytes, OLD)
}

fn migrate_to_sys(world: &mut World) -> Result<(), Errno> {
    world.device.migrate_to_system(world.map.addr(), world.map.pages()).map(|_| ())
}

fn migrate(world: &mut World, way: Way) -> Result<(), Errno> {
    world.device.migrate(world.map.addr(), world.map.pages(), way).map(|_| ())
}

fn to_device(world: &mut World) -> Result<(), Errno> {
    migrate(world, Way::ToDevice)
}

fn to_device_ordinary(world: &mut World) -> Result<(), Errno> {
    migrate(world, Way::ToDeviceOrdinary)
}

fn to_system(world: &mut World) -> Result<(), Errno> {
    migrate(world, Way::ToSystem)
}

fn to_system_ordinary(world: &mut World) -> Result<(), Errno> {
    migrate(world, Way::ToSystemOrdinary)
}

fn snapshot(world: &mut World) -> Result<(), Errno> {
    let states = world.device.snapshot(world.map.addr(), world.map.pages())?;
    // After a failure the CPU may have read the pages, which migrates them back.
    if states.iter().all(|state| state.is_local() || state.is_ram()) {
        Ok(())
    } else {
        Err(Errno::EILSEQ)
    }
}

/// Only four pages, because each page is a step of its own.
fn exclusive(world: &mut World) -> Result<(), Errno> {
    let mut bytes = vec![0; 4 * PAGE_SIZE];
    world.device.exclusive(world.map.addr(), &mut bytes)?;
    sees(&bytes, OLD)
}

fn cpu_fault(world: &mut World) -> Result<(), Errno> {
    sees(&inject::kernel_reads(&world.map, 0)?, OLD)
}

fn cpu_access(world: &mut World) -> Result<(), Errno> {
    if world.map.get(0, 3) == pattern::word(OLD, 0, 3) {
        Ok(())
    } else {
        Err(Errno::EILSEQ)
    }
}

fn release(world: &mut World) -> Result<(), Errno> {
    world.device.release().map(|_| ())
}

/// Closes the last open file of the device, which evicts its memory, and opens it again.
fn close(world: &mut World) -> Result<(), Errno> {
    if world.device.counters().is_err() {
        // The previous call could not open the device again for lack of memory.
        world.device = Device::open(world.index)?;
    }
    world.device.detach()?;
    // The failure is meant for the close. If the open fails instead, it is repeated.
    world.device = Device::open(world.index).or_else(|_| Device::open(world.index))?;
    Ok(())
}

fn discard(world: &mut World) -> Result<(), Errno> {
    world.device.discard(world.map.page_addr(3), SMALL - 4)
}
