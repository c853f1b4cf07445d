// SPDX-License-Identifier: GPL-2.0

//! The hardware of the mock GPU: walkers according to the manuals, the TLB, and accesses during
//! changes of the table.

use super::{
    monitor::{
        Monitor,
        Seen, //
    },
    tlb::Tlb,
    walk::{
        Bus,
        Format,
        Miss,
        Translation, //
    }, //
};
use crate::{
    harness::{
        Property,
        Trial, //
    },
    mm::addr::PageRange, //
};
use core::cell::Cell;
use decode::{
    five_levels,
    tables,
    tables_of_16k,
    Memory,
    ADDR,
    ADDR_OF_16K,
    ADDR_OF_5, //
};
use kernel::prelude::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[path = "hardware/accesses.rs"]
mod accesses;
#[path = "hardware/decode.rs"]
mod decode;

pub(crate) const ALL: &[Property] = &[
    Property {
        name: "hardware_decodes_as_the_manuals_specify",
        cases: 1,
        variants: &[
            ("radix4", decode::radix4),
            ("radix5", decode::radix5),
            ("lpae", decode::lpae),
            ("lpae16k", decode::lpae16k),
            ("gfx9", decode::gfx9),
        ],
    },
    Property { name: "hardware_tlb_drops_flushed_entries", cases: 2000, variants: &[("tlb", tlb)] },
    Property {
        name: "hardware_monitor_finds_translated_pages",
        cases: 200,
        variants: &[("monitor", monitor), ("walks", walks)],
    },
    Property {
        name: "hardware_accesses_stable_pages_without_a_fault",
        cases: 4000,
        variants: &[("mmu", accesses::accesses)],
    },
];

#[derive(Clone, Copy, Debug)]
enum Kept {
    Fill { tag: u64, page: usize, order: u32, number: u64 },
    Forget { tag: u64, page: usize },
    Flush { tag: u64, first: usize, count: usize },
}

fn kept() -> impl Strategy<Value = Kept> {
    let page = || prop_oneof![0usize..40, 480usize..1100];
    prop_oneof![
        4 => (1u64..3, page(), prop_oneof![Just(0), Just(2), Just(4), Just(9)], 0u64..1 << 20)
            .prop_map(|(tag, page, order, number)| Kept::Fill { tag, page, order, number }),
        1 => (1u64..3, page()).prop_map(|(tag, page)| Kept::Forget { tag, page }),
        2 => (1u64..3, page(), prop_oneof![1usize..4, 1usize..700])
            .prop_map(|(tag, first, count)| Kept::Flush { tag, first, count }),
    ]
}

/// A TLB may lose translations. A translation that it returns was filled for this address space and
/// page, and was not flushed since.
fn tlb(trial: &Trial<'_>) {
    trial.run(kept(), 1..60, |ops| {
        let mut tlb = Tlb::new(16).unwrap();
        // The possible translations of each page.
        let mut model: BTreeMap<(u64, usize), Vec<u64>> = BTreeMap::new();
        for op in ops {
            match *op {
                Kept::Fill { tag, page, order, number } => {
                    let first = page >> order << order;
                    let address = number << 12;
                    tlb.fill(tag, page << 12, Translation { address, order, writable: true });
                    for other in first..first + (1 << order) {
                        let at = address.wrapping_add((other as u64) << 12);
                        let at = at.wrapping_sub((page as u64) << 12);
                        model.entry((tag, other)).or_default().push(at);
                    }
                    let kept = tlb.lookup(tag, page << 12).map(|kept| kept.address);
                    assert!(model[&(tag, page)].contains(&kept.expect("filled")));
                }
                Kept::Forget { tag, page } => {
                    tlb.forget(tag, page << 12);
                    model.remove(&(tag, page));
                }
                Kept::Flush { tag, first, count } => {
                    tlb.flush(tag, PageRange::from_pages(first << 12, count).unwrap());
                    model.retain(|(of, page), _| {
                        *of != tag || !(first..first + count).contains(page)
                    });
                }
            }
            for page in (0..60).chain(470..1800) {
                for tag in 1..3 {
                    let Some(kept) = tlb.lookup(tag, page << 12) else { continue };
                    let may = model.get(&(tag, page));
                    let right = may.is_some_and(|all| all.contains(&kept.address));
                    assert!(right, "page {page} of {tag} is at {:#x}", kept.address);
                }
            }
        }
    });
}

/// A monitor may forget translations. A page that it returns was translated to this address, and
/// was not flushed since.
fn monitor(trial: &Trial<'_>) {
    trial.run(kept(), 1..60, |ops| {
        let mut monitor = Monitor::new(16).unwrap();
        let mut tlb = Tlb::new(16).unwrap();
        let mut given: Vec<(u64, usize, Translation)> = Vec::new();
        for op in ops {
            match *op {
                Kept::Fill { tag, page, order, number } => {
                    // Few addresses, so that pages share them. Both are aligned.
                    let page = page >> order << order;
                    let address = (number % 64) << order << 12;
                    let found = Translation { address, order, writable: number & 1 == 1 };
                    monitor.record(tag, page << 12, found);
                    let size = [9, 4, 0].into_iter().find(|size| *size <= order).unwrap();
                    for at in 0..1usize << size {
                        let address = address + ((at as u64) << 12);
                        let found = Translation { address, order: size, ..found };
                        given.push((tag, page + at, found));
                    }
                    // As the TLB has it, unless a line of another size is found first.
                    tlb.fill(tag, page << 12, found);
                    let kept = tlb.lookup(tag, page << 12).unwrap();
                    if kept == (Translation { order: size, ..found }) {
                        let kept = Translation { address: address + 0x123, ..kept };
                        assert_eq!(monitor.find(tag, kept), Some((page << 12) + 0x123));
                    }
                }
                Kept::Flush { tag, first, count } => {
                    let range = PageRange::from_pages(first << 12, count).unwrap();
                    monitor.flush(tag, range);
                    tlb.flush(tag, range);
                    given.retain(|(of, page, _)| {
                        *of != tag || !(first..first + count).contains(page)
                    });
                }
                Kept::Forget { .. } => {}
            }
            for (tag, _, found) in &given {
                if let Some(addr) = monitor.find(*tag, *found) {
                    assert!(given.contains(&(*tag, addr >> 12, *found)), "{addr:#x}: {found:x?}");
                }
            }
        }
    });
}

/// The monitor knows the virtual address of an access after a walk of any format.
fn walks(trial: &Trial<'_>) {
    struct Watched<'m> {
        memory: &'m Memory,
        format: Format,
        root: u64,
        addr: u64,
        seen: Cell<Seen>,
    }
    impl Bus for Watched<'_> {
        fn read(&self, address: u64) -> Result<u64, Miss> {
            let mut seen = self.seen.get();
            let first = seen.read(self.format, self.root, address).expect("a walk from the root");
            self.seen.set(seen);
            assert_eq!(first & !(self.addr as usize), 0, "{first:#x}");
            self.memory.read(address)
        }
    }
    trial.run(Just(()), 1..2, |_| {
        let page = 1 << 10 | 1 << 6;
        let of_16k = tables_of_16k(None, 0x2_0003 | page);
        for (format, root, addr, memory) in [
            (Format::Radix4, 0x1000, ADDR, tables(3, None, 0x9003)),
            (Format::Radix4, 0x1000, ADDR, tables(3, Some(0x60_0081), 0)),
            (Format::Radix5, 0x5000, ADDR_OF_5, five_levels(0x9003)),
            (Format::Lpae, 0x1000, ADDR, tables(3, None, 0x9003 | page | 1 << 52)),
            (Format::Lpae16k, 0x4000, ADDR_OF_16K, of_16k),
            (Format::Gfx9, 0x1000, ADDR, tables(1, Some(0x60_0061 | 9 << 7 | 1 << 54), 0)),
        ] {
            let seen = Cell::new(Seen::NOTHING);
            let bus = Watched { memory: &memory, format, root, addr, seen };
            assert_eq!(bus.seen.get().address_of(0x9000), None);
            let found = format.walk(&bus, root, addr).unwrap();
            let access = bus.seen.get().address_of(found.address | 0x18);
            assert_eq!(access, Some(addr as usize | 0x18));
            // A read that no walk makes, and a walk that begins elsewhere.
            assert_eq!(Seen::NOTHING.read(format, root, root + 0x4000), None);
        }
    });
}
