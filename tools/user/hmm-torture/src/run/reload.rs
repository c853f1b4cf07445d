// SPDX-License-Identifier: GPL-2.0
//! A device that was unplugged comes back when the driver is loaded anew: for another run in the same machine.

use anyhow::{anyhow, bail, Result};
use hmm::{module, Device, Errno};
use std::path::Path;
use std::time::Duration;

const DRIVER: &str = "rust_dmirror";
/// Tries to unload the driver: the last process that had a device open may still be ending.
const TRIES: usize = 100;

/// The driver's parameters when the machine was started.
fn parameters(modules: &str) -> &str {
    let line = modules.lines().find_map(|line| line.strip_prefix(DRIVER));
    line.unwrap_or_default().trim()
}

fn is_gone(dev: usize) -> Result<bool> {
    // Nothing is locked there.
    match Device::open(dev as u32).and_then(|device| device.locked(0, 1)) {
        Ok(_) | Err(Errno::ENOENT) => Ok(false),
        Err(Errno::ENODEV) => Ok(true),
        Err(error) => bail!("device {dev}: {error}"),
    }
}

/// Loads the driver anew if one of the devices was unplugged. Nobody may use one.
pub fn bring_back(devices: usize) -> Result<()> {
    let mut gone = false;
    for dev in 0..devices {
        gone |= is_gone(dev)?;
    }
    if !gone {
        return Ok(());
    }
    let modules = std::fs::read_to_string("/hmm/modules").unwrap_or_default();
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
    module::load(Path::new(&path), parameters(&modules))
        .map_err(|error| anyhow!("{path}: {error}"))?;
    // The device nodes are made meanwhile.
    std::thread::sleep(Duration::from_millis(200));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_those_of_the_driver() {
        assert_eq!(
            parameters("rust_hmm\nrust_dmirror vram_mib=16 policy=1\n"),
            "vram_mib=16 policy=1"
        );
        assert_eq!(parameters("rust_hmm\nrust_dmirror\n"), "");
        assert_eq!(parameters(""), "");
    }
}
