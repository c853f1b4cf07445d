// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: the fields of an entry, and entries of huge pages.

use super::*;
use kernel::prelude::*;

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_pfn)]
mod suite {
    use super::*;

    #[test]
    fn frames_in_a_huge_page_are_corrected() {
        let huge = HmmPfn::VALID | ((PMD_ORDER as usize) << HmmPfn::ORDER_SHIFT);
        // As the core reports pages 160 and 161 of a huge page of device memory at frame 0x1200.
        let first = HmmPfn(huge | 0x1200);
        assert_eq!(first.of_page(0x7a00 + 160).pfn(), 0x1200 + 160);
        let fixed = HmmPfn(first.0 | HmmPfn::WRITE).of_page(0x7a00 + 161);
        assert_eq!(fixed.pfn(), 0x1200 + 161);
        assert!(fixed.is_writable() && fixed.map_order() == PMD_ORDER);
        // A correct frame is not changed, and neither is that of a small page.
        let right = HmmPfn(huge | (0x1200 + 7));
        assert_eq!(right.of_page(0x7a00 + 7).pfn(), 0x1200 + 7);
        let small = HmmPfn(HmmPfn::VALID | 0x1234);
        assert_eq!(small.of_page(0x7a00).pfn(), 0x1234);
    }

    #[test]
    fn arithmetic_matches_the_c_headers() {
        for order in [0usize, 9, 18, 31] {
            let raw = HmmPfn::VALID | HmmPfn::WRITE | (order << HmmPfn::ORDER_SHIFT) | 0x1234;
            let pfn = HmmPfn::from_raw(raw);
            // SAFETY: Arithmetic only.
            let c = unsafe { bindings::rust_hmm_kunit_map_order(raw) };
            assert_eq!(pfn.map_order(), c);
            assert_eq!(pfn.pfn(), 0x1234);
            assert!(pfn.is_valid() && pfn.is_writable() && !pfn.is_error());
        }
        assert!(HmmPfn::from_raw(HmmPfn::ERROR).is_error());
        assert!(!HmmPfn::default().is_valid());
    }
}
