// SPDX-License-Identifier: GPL-2.0
//! Reloads the driver so that an unplugged device returns, for another run on the same machine.

use anyhow::{
    anyhow,
    bail,
    Result, //
};
use hmm::{
    module,
    Device,
    Errno, //
};
use std::path::Path;
use std::time::Duration;

const DRIVER: &str = "rust_dmirror";
/// Attempts to unload the driver: a process that had a device open may still be exiting.
const TRIES: usize = 100;

fn is_gone(dev: usize) -> Result<bool> {
    // This query returns ENOENT on a device without locks, and ENODEV on an unplugged one.
    match Device::open(dev as u32).and_then(|device| device.locked(0, 1)) {
        Ok(_) | Err(Errno::ENOENT) => Ok(false),
        Err(Errno::ENODEV) => Ok(true),
        Err(error) => bail!("device {dev}: {error}"),
    }
}

/// Reloads the driver if one of the devices is unplugged. No process may have a device open.
pub fn bring_back(devices: usize) -> Result<()> {
    let mut gone = false;
    for dev in 0..devices {
        gone |= is_gone(dev)?;
    }
    if !gone {
        return Ok(());
    }
    for _ in 0..TRIES {
        match module::unload(DRIVER) {
            Ok(()) => break,
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
    if module::is_loaded(DRIVER) {
        bail!("{DRIVER} cannot be unloaded: a device is still in use");
    }
    let path = format!("/lib/modules-hmm/{DRIVER}.ko");
    module::load(Path::new(&path), &module::boot_parameters(DRIVER))
        .map_err(|error| anyhow!("{path}: {error}"))?;
    // The device nodes are created asynchronously.
    std::thread::sleep(Duration::from_millis(200));
    Ok(())
}
