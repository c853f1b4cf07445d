// SPDX-License-Identifier: GPL-2.0
//! The smaller sample: a second driver on the same library, and fences between the two. The driver in C passes the
//! same.

use crate::harness::{Ctx, Outcome, Stop, Test, What};
use crate::support::*;
use crate::{check, check_eq};
use hmm::{module, Mapping, MirrorOnly, QueueOp, SyncFile};
use std::time::Duration;

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
    // After the other driver's work, which waits for the host.
    let queue = device.queue().what("make a queue")?;
    let gate = device.host_fence().what("make a fence")?;
    let fill = QueueOp::engine(hmm::EngineOp::Fill, map.addr(), 4096).value(0);
    let filled = queue.submit(fill, &[&gate]).what("submit")?;
    let after = filled.export(Duration::from_secs(60)).what("export")?;
    let before: u64 = (0..512).fold(0, |sum, word| sum.wrapping_add(map.get(0, word)));
    std::thread::scope(|scope| -> Outcome {
        let reader = scope.spawn(|| sample.sum(map.addr(), map.pages(), Some(&after)));
        std::thread::sleep(Duration::from_millis(100));
        check!(!reader.is_finished(), "it did not wait for the fence");
        gate.signal(Ok(())).what("signal")?;
        match reader.join() {
            Ok(found) => {
                check_eq!(found.what("sum")?, expected.wrapping_sub(before), "after the fence");
            }
            Err(_) => return Err(Stop::Fail("the reader panicked".into())),
        }
        Ok(())
    })?;
    drop(sample);
    drop(loaded);
    check!(!module::is_loaded(name), "the sample cannot be unloaded");
    Ok(())
}
