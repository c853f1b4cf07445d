// SPDX-License-Identifier: GPL-2.0
//! The smaller sample: a second driver on the same library, and fences between the two. The driver in C passes the
//! same.

use crate::blit::{slow_file, Locked};
use crate::harness::{Ctx, Outcome, Stop, Test, What};
use crate::support::*;
use crate::{check, check_eq};
use hmm::{module, Mapping, MirrorOnly, State, SyncFile, PAGE_SIZE};

const OURS: &str = "needs our library";

pub const TESTS: &[Test] =
    &[Test::new("mirror_only", "reads_memory_after_fences_of_another_driver", |ctx| {
        reads(ctx, "rust_mirror_only", "hmm_mirror_only")
    })
    .only_rust(OURS)];

/// A module, which is unloaded at the end.
pub struct Loaded(&'static str);

impl Loaded {
    /// Loads the module `name`; skips the test if there is none.
    pub fn new(ctx: &Ctx, name: &'static str) -> Result<Loaded, Stop> {
        let file = ctx.modules.join(format!("{name}.ko"));
        if !file.exists() {
            return Err(Stop::Skip(format!("there is no {}", file.display())));
        }
        module::load(&file, "").what("load the sample")?;
        Ok(Loaded(name))
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let _ = module::unload(self.0);
    }
}

/// The test, of the driver `name` with the node `node`.
pub fn reads(ctx: &Ctx, name: &'static str, node: &str) -> Outcome {
    let loaded = Loaded::new(ctx, name)?;
    let map = Mapping::anon(700)?;
    map.fill(3);
    let sum = || {
        let words = (0..map.pages()).flat_map(|page| (0..512).map(move |word| (page, word)));
        words.fold(0u64, |sum, (page, word)| sum.wrapping_add(map.get(page, word)))
    };
    let expected = sum();
    let none: Option<&SyncFile> = None;
    let sample = MirrorOnly::open_node(node).what("open the sample")?;
    check_eq!(sample.sum(map.addr(), map.pages(), none).what("sum")?, expected, "the sum");
    // What another device has comes back for it.
    let device = ctx.open()?;
    migrate(&device, &map, 3)?;
    check_eq!(sample.sum(map.addr(), map.pages(), none).what("sum")?, expected, "moved memory");
    // After the other driver's work: a copy to the first page.
    let from = Locked::new(ctx, &device, 1, 7)?;
    let first = device.lock(map.addr(), PAGE_SIZE, 1 << ctx.device, true).what("lock")?;
    let of_page =
        |map: &Mapping| (0..512).fold(0u64, |sum, word| sum.wrapping_add(map.get(0, word)));
    let before = of_page(&map);
    let after = slow_file(&from, first.device_addr, false)?;
    let found = sample.sum(map.addr(), map.pages(), Some(&after)).what("sum")?;
    check_eq!(after.state()?, State::Done, "the fence when the sum is there");
    let new = expected.wrapping_sub(before).wrapping_add(of_page(&from.map));
    check_eq!(found, new, "after the fence");
    drop(sample);
    drop(loaded);
    check!(!module::is_loaded(name), "the sample cannot be unloaded");
    Ok(())
}
