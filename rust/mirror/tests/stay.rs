// SPDX-License-Identifier: GPL-2.0

//! Memory that cannot move, and memory that is evicted already, in KUnit.

use super::*;
use crate::mm::device_pages::DeviceRange;

#[kunit_tests(rust_hmm_stay)]
mod suite {
    use super::*;

    #[test]
    fn an_eviction_for_room_leaves_claimed_blocks_alone() -> Result {
        let (range, shared, mirror) = attached(8)?;
        store(range.start(), 1)?;
        for withdraw in [false, true] {
            assert_eq!(mirror.migrate(range).to_device()?.moved, 8);
            // The block of these pages is not the one that was used last.
            shared.memory.touch(DeviceRange {
                first: 2 * PMD_PAGES,
                count: 1,
            });
            let before = shared.memory.turn();
            let rounds = Arc::new(Atomic::new(0), GFP_KERNEL)?;
            let (other, seen) = (shared.clone(), rounds.clone());
            let memory = shared.memory.driver();
            *memory.at_copy.lock() = Some(KBox::new(
                move || {
                    if seen.fetch_add(1, Full) == 0 {
                        // There can never be so much: all blocks that can be evicted are.
                        let _ = other.memory.make_room(PMD_PAGES * 8, before);
                    }
                },
                GFP_KERNEL,
            )?);
            let all = DeviceRange {
                first: 0,
                count: PMD_PAGES,
            };
            let stay = match withdraw {
                true => shared.memory.remove(all),
                false => shared.memory.evict_all(),
            };
            *memory.at_copy.lock() = None;
            assert_eq!(stay, Ok(0));
            assert!(rounds.load(Relaxed) != 0);
            // It was not used meanwhile, and so is no warmer.
            assert_eq!(shared.memory.turn(), before);
            assert_eq!(load(range.start())?, 1);
        }
        Ok(())
    }
}
