// SPDX-License-Identifier: GPL-2.0
//! The smaller sample: a second driver that uses the same library, and fences between the two
//! drivers. The driver in C passes the same test.

use crate::blit::{
    slow_file,
    Locked, //
};
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    Test,
    What, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::pattern::WORDS;
use hmm::{
    module,
    pagemap,
    Errno,
    Mapping,
    MirrorOnly,
    State,
    SyncFile,
    PAGE_SIZE, //
};

const OURS: &str = "needs our library";

pub const TESTS: &[Test] = &[
    Test::new("mirror_only", "reads_wait_for_fences_of_another_driver", |ctx| {
        reads(ctx, "rust_mirror_only", "hmm_mirror_only")
    })
    .only_rust(OURS),
    Test::new("mirror_only", "addresses_of_five_levels_are_read_or_refused", five_levels)
        .only_rust(OURS),
];

/// An address that a table of four levels can map, and one that it cannot.
const LOW: usize = 0x1000_0000_0000;
const HIGH: usize = (1 << 48) | LOW;

/// A module that is unloaded when this is dropped.
pub struct Loaded(&'static str);

impl Loaded {
    /// Loads the module `name`. Skips the test if the module does not exist.
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

fn sum_of(map: &Mapping) -> u64 {
    let words = (0..map.pages()).flat_map(|page| (0..WORDS).map(move |word| (page, word)));
    words.fold(0u64, |sum, (page, word)| sum.wrapping_add(map.get(page, word)))
}

/// A device whose page table has five levels reads addresses beyond 48 bits. A device whose table
/// has four levels returns an error, populates no page, and still serves lower addresses.
fn five_levels(ctx: &Ctx) -> Outcome {
    let high = Mapping::anon_near(HIGH, 600)?;
    if high.addr() < HIGH {
        return Err(Stop::Skip("the processor has addresses of 48 bits".into()));
    }
    let low = Mapping::anon_near(LOW, 600)?;
    check_eq!(high.addr() ^ low.addr(), 1 << 48, "the bits that differ");
    let device = ctx.open()?;
    let mut page = vec![0; PAGE_SIZE];
    fails(device.read(high.addr(), &mut page), Errno::ERANGE, "a read")?;
    fails(device.write(high.addr(), &page), Errno::ERANGE, "a write")?;
    fails(device.migrate_to_device(high.addr(), &mut page), Errno::ERANGE, "a migration")?;
    let entries = pagemap::read(high.addr(), high.pages()).what("read the page table")?;
    check!(entries.iter().all(|entry| !entry.is_present()), "pages were brought in");
    high.fill(5);
    low.fill(6);
    let high_sum = sum_of(&high);
    let low_sum = sum_of(&low);
    check!(high_sum != low_sum, "the sums are the same");
    let _loaded = Loaded::new(ctx, "rust_mirror_only")?;
    let none: Option<&SyncFile> = None;
    let sample = MirrorOnly::open().what("open the sample")?;
    let sum = |map: &Mapping| sample.sum(map.addr(), map.pages(), none).what("sum");
    for _ in 0..2 {
        check_eq!(sum(&high)?, high_sum, "beyond 48 bits");
        check_eq!(sum(&low)?, low_sum, "within 48 bits");
    }
    // The entries of one range are removed, and those of the other range stay valid.
    high.advise(libc::MADV_DONTNEED)?;
    check_eq!(sum(&low)?, low_sum, "within 48 bits, later");
    check_eq!(sum(&high)?, 0, "beyond 48 bits, removed");
    low.advise(libc::MADV_DONTNEED)?;
    high.fill(7);
    check_eq!(sum(&high)?, sum_of(&high), "beyond 48 bits, filled again");
    check_eq!(sum(&low)?, 0, "within 48 bits, removed");
    fails(device.read(high.addr(), &mut page), Errno::ERANGE, "a read of present pages")?;
    low.fill(8);
    migrate(&device, &low, 8)?;
    cpu_sees(&low, 8, "after the errors")
}

/// Test body with the driver `name` and its node `node`.
pub fn reads(ctx: &Ctx, name: &'static str, node: &str) -> Outcome {
    let loaded = Loaded::new(ctx, name)?;
    let map = Mapping::anon(700)?;
    map.fill(3);
    let expected = sum_of(&map);
    let none: Option<&SyncFile> = None;
    let sample = MirrorOnly::open_node(node).what("open the sample")?;
    check_eq!(sample.sum(map.addr(), map.pages(), none).what("sum")?, expected, "the sum");
    // Pages on another device migrate back for it.
    let device = ctx.open()?;
    migrate(&device, &map, 3)?;
    check_eq!(sample.sum(map.addr(), map.pages(), none).what("sum")?, expected, "moved memory");
    // The sum waits for work of the other driver: a copy to the first page.
    let from = Locked::new(ctx, &device, 1, 7)?;
    let first = device.lock(map.addr(), PAGE_SIZE, 1 << ctx.device, true).what("lock")?;
    let of_page =
        |map: &Mapping| (0..WORDS).fold(0u64, |sum, word| sum.wrapping_add(map.get(0, word)));
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
