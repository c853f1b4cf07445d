// SPDX-License-Identifier: GPL-2.0
//! What only `rust_dmirror` has: policies, attributes, eviction.

use crate::{on_device, timed, Bench};
use anyhow::{ensure, Result};
use hmm::placement::{Attributes, Policy, Preferred};
use hmm::{Command, Device, EngineOp};

/// Adds the rows.
pub fn rows(bench: &mut Bench, buffer: &mut [u8]) -> Result<()> {
    let pages = bench.pages();
    for (name, policy) in [
        ("engine in order, mapped in place", Policy::None),
        ("engine in order, default policy", Policy::Default),
        ("engine in order, one page per fault", Policy::OnePage),
    ] {
        bench.row(name, pages, |bench| {
            let (device, map) = (Device::open(0)?, bench.small()?);
            map.fill(1);
            device.set_policy(policy)?;
            let read = Command::new(EngineOp::Read, map.addr(), map.len());
            let cost = timed(|| {
                ensure!(device.run(read)?.error.is_none(), "an engine failed");
                Ok(())
            })?;
            map.check(1)?;
            Ok(cost)
        })?;
    }
    bench.row("eviction", pages, |bench| {
        let map = bench.small()?;
        let device = on_device(&map, buffer)?;
        let cost = timed(|| Ok(device.release()?))?;
        map.check(1)?;
        Ok(cost)
    })?;
    bench.row("attributes set and asked for, per call", 200, |bench| {
        let (device, map) = (Device::open(0)?, bench.small()?);
        map.fill(1);
        timed(|| {
            for call in 0..100 {
                let prefer = if call % 2 == 0 { Preferred::Device } else { Preferred::System };
                let new = Attributes::NONE.prefer(prefer);
                device.set_attributes(map.page_addr(call * 7), 16, new)?;
                let found = device.attributes(map.page_addr(call * 7), 7)?;
                ensure!(found.preferred == prefer as u32, "wrong attributes");
            }
            Ok(())
        })
    })
}
