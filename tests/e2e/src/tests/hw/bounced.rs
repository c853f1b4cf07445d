// SPDX-License-Identifier: GPL-2.0
//! A machine whose kernel bounces all DMA that no IOMMU translates (`swiotlb=force`).

use super::{
    load_driver,
    log_since,
    slot,
    PAGES, //
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
    module,
    Device,
    Errno,
    Mapping, //
};
use std::fs;
use std::path::{
    Path,
    PathBuf, //
};
use std::time::Instant;

fn is_forced() -> Outcome {
    let line = fs::read_to_string("/proc/cmdline").what("read the command line")?;
    check!(line.contains("swiotlb=force"), "the kernel does not bounce: {line}");
    Ok(())
}

/// Behind an IOMMU no DMA is bounced.
pub fn translated(ctx: &Ctx) -> Outcome {
    is_forced()?;
    let device = ctx.open()?;
    let map = Mapping::anon(2)?;
    map.fill(31);
    device_sees(&device, &map, 31, "behind the IOMMU")?;
    map.fill(32);
    device_sees(&device, &map, 32, "of words that the CPU wrote then")?;
    let locked = device.lock(map.addr(), map.len(), 1, true).what("lock fine-grained")?;
    check!(locked.fine, "the lock is coarse");
    device.unlock(locked.device_addr).what("unlock")
}

/// Returns the file that selects how the IOMMU translates DMA of a GPU.
fn translation(engine: &str) -> Result<PathBuf, Stop> {
    let group = fs::canonicalize(format!("/sys/bus/pci/devices/{engine}/iommu_group"));
    Ok(group.what("find the IOMMU group")?.join("type"))
}

/// Without translation DMA would be bounced. The probe of the GPU fails, and the log has the
/// reason.
pub fn direct(ctx: &Ctx) -> Outcome {
    is_forced()?;
    let kind = translation(&slot(ctx.device)?)?;
    let mark = format!("swiotlb.direct {:?}", Instant::now());
    module::unload("qemu_gpu").what("unload qemu_gpu")?;
    fs::write("/dev/kmsg", format!("{mark}\n")).what("mark the log")?;
    fs::write(&kind, "identity").what("have DMA not translated")?;
    load_driver(ctx, "")?;
    let there = [0, 1].map(|index| Device::path(index).exists());
    let log = log_since(&mark)?;
    module::unload("qemu_gpu").what("unload it again")?;
    fs::write(&kind, "DMA").what("have DMA translated again")?;
    load_driver(ctx, "")?;
    check_eq!(there, [true, false], "GPUs that are there");
    check!(
        log.contains("refused: the kernel bounces its DMA")
            && log.contains("failed with error -95"),
        "no word in the log: {log}"
    );
    check!(Path::new(&Device::path(1)).exists(), "with translation it is not there");
    Ok(())
}

/// Memory that is locked for a device whose DMA is bounced is not fine-grained. Concurrent writes
/// of the process are kept.
pub fn locked(ctx: &Ctx) -> Outcome {
    is_forced()?;
    module::unload("qemu_gpu").what("unload qemu_gpu")?;
    module::load(&ctx.modules.join("rust_dmirror.ko"), "").what("load the mock")?;
    let locks = || -> Outcome {
        let device = Device::open(0).what("open the mock")?;
        let map = Mapping::anon(PAGES)?;
        map.fill(33);
        let fine = device.lock(map.addr(), map.len(), 1, true);
        check_eq!(fine.map(|_| ()), Err(Errno::EOPNOTSUPP), "a fine-grained lock");
        let locked = device.lock(map.addr(), map.len(), 1, false).what("lock coarse-grained")?;
        check!(!locked.fine, "the lock is fine-grained");
        map.fill(34);
        device.unlock(locked.device_addr).what("unlock")?;
        cpu_sees(&map, 34, "of words written while the memory was locked")?;
        device.close()?;
        Ok(())
    };
    let outcome = locks();
    module::unload("rust_dmirror").what("unload the mock")?;
    load_driver(ctx, "")?;
    outcome
}
