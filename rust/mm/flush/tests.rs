// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: proofs of flushes.

use super::*;
use core::cell::Cell;
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_flush_proof)]
mod suite {
    use super::*;

    /// A device without a TLB, with the number of times that its translations were removed.
    struct Idle(Cell<usize>);

    impl Flusher for Idle {
        type Pending = ();

        fn start(&self, _range: PageRange) {}

        fn wait(&self, (): ()) {}
    }

    fn proof(flusher: &Idle, range: PageRange) -> Flushed<'_> {
        Flushed::by(flusher, Some(range), Some(()))
    }

    #[test]
    fn proof_names_flusher_and_range() -> Result {
        let one = Idle(Cell::new(0));
        let two = Idle(Cell::new(0));
        let range = PageRange::from_pages(4 * PAGE_SIZE, 4)?;
        let part = PageRange::from_pages(5 * PAGE_SIZE, 2)?;
        let flushed = proof(&one, range);
        assert!(flushed.covers(&one, range) && flushed.covers(&one, part));
        assert!(!flushed.covers(&two, range));
        let flushed = proof(&one, part);
        assert!(!flushed.covers(&one, range) && flushed.of_all(range).covers(&one, range));
        assert!(!Flushed::by(&one, None, None).covers(&one, part));
        Ok(())
    }

    #[test]
    fn proof_of_another_flusher_does_not_count() -> Result {
        let all = [Idle(Cell::new(0)), Idle(Cell::new(0)), Idle(Cell::new(0))];
        let [first, ..] = &all;
        let range = PageRange::from_pages(4 * PAGE_SIZE, 4)?;
        let part = PageRange::from_pages(5 * PAGE_SIZE, 2)?;
        let removed = || -> [usize; 3] { all.each_ref().map(|one| one.0.take()) };
        fn again(flusher: &Idle, range: PageRange) -> Flushed<'_> {
            flusher.0.set(flusher.0.get() + 1);
            proof(flusher, range)
        }
        let again = |flusher| again(flusher, range);
        let _all = FlushedAll::of(all.iter(), range, |flusher| proof(flusher, range), again);
        assert_eq!(removed(), [0, 0, 0]);
        // The first flusher's proof stands for all.
        let _all = FlushedAll::of(all.iter(), range, |_| proof(first, range), again);
        assert_eq!(removed(), [0, 1, 1]);
        let _all = FlushedAll::of(all.iter(), range, |flusher| proof(flusher, part), again);
        assert_eq!(removed(), [1, 1, 1]);
        Ok(())
    }
}
