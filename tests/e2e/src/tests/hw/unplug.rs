// SPDX-License-Identifier: GPL-2.0
//! A GPU is unplugged by QEMU while pages migrate.

use super::{
    live,
    slot, //
};
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::{
    Device,
    Errno,
    Mapping,
    PAGE_SIZE, //
};
use std::fs::{
    self,
    OpenOptions, //
};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{
    AtomicBool,
    Ordering::Relaxed, //
};
use std::thread;
use std::time::{
    Duration,
    Instant, //
};

/// I/O port of QEMU's monitor on x86, see tools/vm/run.
const MONITOR_PORT: u64 = 0xea;

/// Name of the port of virtio-serial elsewhere.
const MONITOR_NAME: &str = "line";

/// Sends `command` to QEMU's monitor.
fn monitor(command: &str) -> Outcome {
    if cfg!(target_arch = "x86_64") {
        let port = OpenOptions::new().write(true).open("/dev/port").what("open the ports")?;
        for byte in command.bytes() {
            port.write_all_at(&[byte], MONITOR_PORT).what("write to QEMU's monitor")?;
        }
        return Ok(());
    }
    for port in fs::read_dir("/sys/class/virtio-ports").what("list the ports")? {
        let port = port.what("list the ports")?;
        let name = fs::read_to_string(port.path().join("name")).unwrap_or_default();
        if name.trim() == MONITOR_NAME {
            let node = Path::new("/dev").join(port.file_name());
            return fs::write(node, command).what("write to QEMU's monitor");
        }
    }
    check!(false, "there is no port named {MONITOR_NAME}");
    Ok(())
}

/// Has QEMU unplug the device with the id `id`.
fn device_del(id: &str) -> Outcome {
    let command = format!(
        "{{\"execute\":\"qmp_capabilities\"}}\n\
         {{\"execute\":\"device_del\",\"arguments\":{{\"id\":\"{id}\"}}}}\n"
    );
    monitor(&command)
}

/// The second GPU is unplugged while pages migrate. No contents are lost, no page stays mapped, and
/// open files return `ENODEV`.
pub(super) fn unplug(ctx: &Ctx) -> Outcome {
    // The way back takes 12 s of the guest. The kernel waits 5 s between the request and the
    // removal.
    const MANY: usize = 64;
    let before = live()?;
    let device = Device::open(ctx.second).what("open the second GPU")?;
    let place = slot(ctx.second)?;
    let node = Device::path(ctx.second);
    let map = Mapping::anon(MANY)?;
    map.fill(11);
    migrate(&device, &map, 11)?;
    let going = AtomicBool::new(false);
    let back = || -> Result<bool, Stop> {
        let there = node.exists();
        going.store(true, Relaxed);
        let done = device.migrate_to_system(map.addr(), MANY);
        // The node is removed first. From then on a migration returns an error.
        let gone = !node.exists();
        match done {
            Err(error) if !gone => Err(Stop::Fail(format!("a migration back: {error}"))),
            _ => Ok(there && gone),
        }
    };
    let during = thread::scope(|scope| {
        let mover = scope.spawn(|| -> Result<usize, Stop> {
            let mut during = 0;
            loop {
                during += usize::from(back()?);
                match try_migrate(&device, &map) {
                    Err(Errno::ENODEV) => return Ok(during),
                    Err(error) if node.exists() => {
                        return Err(Stop::Fail(format!("a migration there: {error}")));
                    }
                    _ => {}
                }
            }
        });
        while !going.load(Relaxed) {
            thread::yield_now();
        }
        device_del(&format!("engine{}", ctx.second))?;
        mover.join().map_err(|_| Stop::Fail("the mover panicked".into()))?
    })?;
    check_eq!(during, 1, "migrations in flight when the device was removed");
    cpu_sees(&map, 11, "after the device was unplugged while pages moved")?;
    let mut data = vec![0; PAGE_SIZE];
    let gone = device.read(map.addr(), &mut data);
    check_eq!(gone.map(|_| ()), Err(Errno::ENODEV), "a read by a removed device");
    let path = format!("/sys/bus/pci/devices/{place}");
    let since = Instant::now();
    while Path::new(&path).exists() {
        check!(since.elapsed() < Duration::from_secs(120), "{place} is still there");
        thread::sleep(Duration::from_millis(100));
    }
    check!(!node.exists(), "its node is still there");
    check_eq!(live()?, before, "pages mapped after the device was removed");
    device.close()?;
    let first = ctx.open()?;
    device_sees(&first, &map, 11, "of the GPU that is left")?;
    Ok(())
}
