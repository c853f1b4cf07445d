// SPDX-License-Identifier: GPL-2.0

//! Zeroed arrays of words, zeroed by the allocator.

use kernel::{
    alloc::{
        flags::__GFP_ZERO,
        Flags, //
    },
    prelude::*,
    sync::atomic::Atomic, //
};

/// Allocates `count` words, all 0.
///
/// # Errors
///
/// * `ENOMEM`: memory allocation failed.
///
/// # Context
///
/// That of an allocation with `flags`.
pub(crate) fn words(count: usize, flags: Flags) -> Result<KVVec<Atomic<u64>>> {
    let mut words = KVVec::with_capacity(count, flags | __GFP_ZERO)?;
    // SAFETY: The capacity is at least `count`, and the length is 0. The allocator has zeroed the
    // memory, and 0 is a valid `Atomic<u64>`.
    unsafe { words.inc_len(count) };
    Ok(words)
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_zeroed)]
mod tests {
    use super::*;
    use kernel::sync::atomic::ordering::Relaxed;

    #[test]
    fn all_words_are_zero() -> Result {
        for count in [0, 1, 512, 1 << 16] {
            let words = words(count, GFP_KERNEL)?;
            assert_eq!(words.len(), count);
            assert!(words.iter().all(|word| word.load(Relaxed) == 0));
            // Make sure that freed memory is not zero when it is allocated again.
            words.iter().for_each(|word| word.store(u64::MAX, Relaxed));
        }
        assert!(super::words(usize::MAX, GFP_KERNEL).is_err());
        Ok(())
    }
}
