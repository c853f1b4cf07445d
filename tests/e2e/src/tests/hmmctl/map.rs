// SPDX-License-Identifier: GPL-2.0
//! `hmmctl map`.

use super::*;

pub(super) fn map(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = spread(&device)?;
    let picture = Temp::new("map.svg");
    let shown = object(&mut hmmctl(&["map", &own(), "--json", "--svg", picture.name()]))?;
    for (place, pages) in [("device", ON_DEVICE), ("system", 16), ("cpu", 8)] {
        check_eq!(pages_in(&shown, &map, place), (pages, 1), "pages and runs in {place}");
    }
    check_eq!(number(&shown, "pid")?, u64::from(std::process::id()), "pid");
    check_eq!(number(&shown["counts"], "device")?, ON_DEVICE as u64, "pages of the device in sum");
    check_eq!(
        number(&shown["mirrors"][0], "device_pages")?,
        ON_DEVICE as u64,
        "pages of the mirror"
    );
    check_eq!(number(&shown["mirrors"][0], "system_pages")?, 16, "system pages of the mirror");
    check_eq!(
        number(&shown["mirrors"][0]["counters"], "to_device")?,
        ON_DEVICE as u64,
        "to_device"
    );

    let svg = picture.text()?;
    well_formed(&svg, &[])?;
    let counted = format!("data-place=\"device\" data-pages=\"{ON_DEVICE}\"");
    check!(svg.contains(&counted), "no {counted} in {svg}");

    let (text, _) = says(&mut hmmctl(&["map", &own(), "--block", "1"]), 0)?;
    check!(text.contains(&format!("process {}", own())), "no process in {text}");
    let drawn = text.lines().filter(|line| line.starts_with("  ") && !line.contains(" memory"));
    let blocks: usize = drawn.map(|line| line.matches('d').count()).sum();
    check_eq!(blocks, ON_DEVICE, "blocks of the device in {text}");
    // Pages that have migrated back are shown as system memory.
    device.migrate(map.addr(), 10, Way::ToSystem).what("migrate back")?;
    let shown = object(&mut hmmctl(&["map", &own(), "--json"]))?;
    check_eq!(pages_in(&shown, &map, "device").0, ON_DEVICE - 10, "pages after some migrated back");
    // Exclusive access to pages in system memory that the device has mapped.
    let mut bytes = vec![0; 2 * PAGE_SIZE];
    device.exclusive(map.page_addr(ON_DEVICE), &mut bytes).what("exclusive access")?;
    hmm::pattern::check(1, ON_DEVICE, &bytes).what("pages that the device reads exclusively")?;
    let shown = object(&mut hmmctl(&["map", &own(), "--json"]))?;
    check_eq!(pages_in(&shown, &map, "exclusive"), (2, 1), "pages and runs that are exclusive");
    check_eq!(number(&shown["mirrors"][0], "exclusive_pages")?, 2, "exclusive pages of the mirror");
    cpu_sees(&map, 1, "afterwards")
}

/// More runs than a single read of the kernel's file returns, with a huge page among them.
pub(super) fn large_map(ctx: &Ctx) -> Outcome {
    const EACH: usize = 2048;
    let device = ctx.open()?;
    let map = Mapping::anon(EACH * 2)?;
    let big = huge(1, 1)?;
    map.fill(1);
    migrate(&device, &big, 1)?;
    for page in (0..EACH * 2).step_by(2) {
        device_sees_pages(&device, &map, 1, page, 1, "of each second page")?;
    }
    let shown = object(&mut hmmctl(&["map", &own(), "--json"]))?;
    check_eq!(pages_in(&shown, &map, "system"), (EACH, EACH), "each second page");
    check_eq!(pages_in(&shown, &big, "device"), (big.pages(), 1), "the huge page");
    let lines = map_file()?;
    let own = format!(" {} ", std::process::id());
    let lines = lines.lines().filter(|line| line.contains(&own));
    // Parts of the table end at multiples of a huge page.
    let count = lines.clone().count();
    check!((EACH + 1..EACH + 32).contains(&count), "{count} lines for {EACH} runs and a huge page");
    check_eq!(lines.filter(|line| line.ends_with("huge")).count(), 1, "huge lines");
    Ok(())
}

/// A reader gets a consistent file while devices are opened and closed concurrently.
pub(super) fn mirrors_open_and_close(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = spread(&device)?;
    let end = Instant::now() + Duration::from_secs(3);
    let index = ctx.device;
    let others: Vec<_> = (0..2u64)
        .map(|seed| {
            std::thread::spawn(move || -> Result<usize, String> {
                let mut rounds = 0;
                while Instant::now() < end {
                    let device = Device::open(index).map_err(|error| error.to_string())?;
                    let map = Mapping::anon(32).map_err(|error| error.to_string())?;
                    map.fill(seed);
                    let mut data = vec![0; map.len()];
                    device.read(map.addr(), &mut data).map_err(|error| error.to_string())?;
                    rounds += 1;
                }
                Ok(rounds)
            })
        })
        .collect();
    let mut reads = 0;
    while Instant::now() < end {
        let text =
            std::fs::read_to_string("/sys/kernel/debug/rust_hmm/mirrors").what("read mirrors")?;
        let columns = text.lines().next().unwrap_or_default().split_whitespace().count();
        check!(columns > 10, "columns: {text}");
        for line in text.lines() {
            check_eq!(line.split_whitespace().count(), columns, "columns of '{line}'");
        }
        let text = map_file()?;
        let first = format!("{:#x} {ON_DEVICE} device", map.addr());
        check!(text.contains(&first), "no '{first}' in {text}");
        reads += 1;
    }
    for other in others {
        let rounds = other.join().map_err(|_| Stop::Fail("a thread has panicked".to_string()))?;
        check!(rounds.what("open and close")? > 0, "nothing was opened");
    }
    check!(reads > 0, "nothing was read");
    Ok(())
}
