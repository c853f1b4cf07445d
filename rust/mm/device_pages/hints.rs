// SPDX-License-Identifier: GPL-2.0

//! Bitmaps of the chunks of device memory that are candidates for a search, so that a search does
//! not visit all chunks.
//!
//! There is one bit per chunk for each [`HintClass`], and three summary levels above. A summary bit
//! says that a bit of one word of the level below may be set. Without stale bits, a search reads
//! one word of each level, whatever the size of the memory.
//!
//! Bits are hints. A set bit may be stale: the caller that finds it stale clears it and checks the
//! chunk once more. A clear bit is not stale, except while a concurrent search clears a summary bit
//! whose word is being set; that search then sets the summary bit again. All accesses are atomic,
//! and bits are changed in any context.

use super::super::{
    addr::PMD_ORDER,
    device_alloc::{
        clear,
        set, //
    }, //
};
use crate::kernel::{
    once_box::OnceBox,
    word::load_u64, //
};
use kernel::{
    prelude::*,
    sync::atomic::Atomic, //
};

const WORD_BITS: usize = u64::BITS as usize;

/// Levels of bits. The last one has a single word.
const HINT_LEVELS: usize = 4;

/// Maximum number of chunks for which there are bits.
pub(super) const MAX_CHUNKS: usize = 1 << (WORD_BITS.trailing_zeros() as usize * HINT_LEVELS);

/// Number of chunks whose bits are allocated together (1 TiB of memory).
const GROUP_CHUNKS: usize = WORD_BITS * WORD_BITS;

const CLASS_COUNT: usize = PMD_ORDER as usize + 4;

/// Property of the chunks that a search looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HintClass {
    /// Has a free folio of this order, 0 to [`PMD_ORDER`].
    Room(u32),
    /// Has no page in use.
    Idle,
    /// Has no page frames.
    Absent,
    /// Has pages that were withdrawn (taken out of use).
    Withdrawn,
}

impl HintClass {
    fn index(self) -> usize {
        match self {
            Self::Room(order) => order.min(PMD_ORDER) as usize,
            Self::Idle => PMD_ORDER as usize + 1,
            Self::Absent => PMD_ORDER as usize + 2,
            Self::Withdrawn => PMD_ORDER as usize + 3,
        }
    }
}

/// One word for each class.
type Words = [Atomic<u64>; CLASS_COUNT];

fn empty() -> Words {
    [const { Atomic::new(0) }; CLASS_COUNT]
}

/// Allocates `count` groups of words, all zero.
fn words(count: usize) -> Result<KVVec<Words>> {
    let mut words = KVVec::with_capacity(count, GFP_KERNEL)?;
    for _ in 0..count {
        words.push(empty(), GFP_KERNEL)?;
    }
    Ok(words)
}

/// The bits of [`GROUP_CHUNKS`] chunks: the two lowest levels.
struct HintGroup {
    chunks: KVVec<Words>,
    summary: Words,
}

/// The bits of all chunks.
pub(super) struct Hints {
    groups: KVVec<OnceBox<HintGroup>>,
    /// The third level: a bit for each group.
    upper: KVVec<Words>,
    root: Words,
}

impl Hints {
    /// Creates the bits of `chunks` chunks, all clear.
    ///
    /// # Errors
    ///
    /// * `ENOMEM`: memory allocation failed.
    /// * `EINVAL`: `chunks` is larger than [`MAX_CHUNKS`].
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn new(chunks: usize) -> Result<Self> {
        if chunks > MAX_CHUNKS {
            return Err(EINVAL);
        }
        let count = chunks.div_ceil(GROUP_CHUNKS);
        let mut groups = KVVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            groups.push(OnceBox::empty(), GFP_KERNEL)?;
        }
        Ok(Self {
            groups,
            upper: words(count.div_ceil(WORD_BITS))?,
            root: empty(),
        })
    }

    /// Allocates the bits of `chunk`. Must be called before any of its bits is set; `set` has no
    /// effect on a chunk without bits.
    ///
    /// # Errors
    ///
    /// * `ENOMEM`: memory allocation failed.
    /// * `EINVAL`: `chunk` is beyond the last one.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn prepare(&self, chunk: usize) -> Result {
        let place = self.groups.get(chunk / GROUP_CHUNKS).ok_or(EINVAL)?;
        if place.get().is_none() {
            let group = HintGroup {
                chunks: words(WORD_BITS)?,
                summary: empty(),
            };
            place.put(KBox::pin(group, GFP_KERNEL)?);
        }
        Ok(())
    }

    /// Returns word `index` of `level`, if it was allocated.
    #[inline]
    fn word(&self, class: HintClass, level: usize, index: usize) -> Option<&Atomic<u64>> {
        let words = match level {
            0 => {
                let group = self.groups.get(index / WORD_BITS)?.get()?;
                group.chunks.get(index % WORD_BITS)?
            }
            1 => &self.groups.get(index)?.get()?.summary,
            2 => self.upper.get(index)?,
            _ => (index == 0).then_some(&self.root)?,
        };
        words.get(class.index())
    }

    /// Sets the bit of `chunk` for `class`, with a full barrier before and after. Callable from any
    /// context.
    pub(super) fn set(&self, class: HintClass, chunk: usize) {
        if let Some(word) = self.word(class, 0, chunk / WORD_BITS) {
            set(word, 1 << (chunk % WORD_BITS));
            self.set_above(class, 0, chunk / WORD_BITS);
        }
    }

    /// Sets those summary bits for word `index` of `level` that are clear.
    fn set_above(&self, class: HintClass, mut level: usize, mut index: usize) {
        while level + 1 < HINT_LEVELS {
            let bit = 1 << (index % WORD_BITS);
            (level, index) = (level + 1, index / WORD_BITS);
            if let Some(word) = self.word(class, level, index) {
                if load_u64(word) & bit == 0 {
                    set(word, bit);
                }
            }
        }
    }

    /// Clears the bit of `chunk` for `class`, with a full barrier before and after. Callable from
    /// any context.
    ///
    /// If the property may change concurrently, the caller checks the chunk again afterwards, and
    /// sets the bit if the chunk has the property after all.
    pub(super) fn clear(&self, class: HintClass, chunk: usize) {
        if let Some(word) = self.word(class, 0, chunk / WORD_BITS) {
            clear(word, 1 << (chunk % WORD_BITS));
        }
    }

    /// Clears the summary bits for word `index` of `level`, which was found to be 0.
    fn clear_above(&self, class: HintClass, mut level: usize, mut index: usize) {
        while level + 1 < HINT_LEVELS {
            let bit = 1 << (index % WORD_BITS);
            let Some(above) = self.word(class, level + 1, index / WORD_BITS) else {
                return;
            };
            if load_u64(above) & bit == 0 {
                return;
            }
            clear(above, bit);
            // Recheck: a concurrent `set()` may have set a bit of the word while it found the
            // summary bit still set, so that it did not set the summary bit itself.
            let word = self.word(class, level, index);
            if word.is_some_and(|word| load_u64(word) != 0) {
                self.set_above(class, level, index);
                return;
            }
            if load_u64(above) != 0 {
                return;
            }
            (level, index) = (level + 1, index / WORD_BITS);
        }
    }

    /// Returns the first chunk at or after `from` whose bit for `class` is set. Callable from any
    /// context.
    pub(super) fn find(&self, class: HintClass, from: usize) -> Option<usize> {
        // `at` is the first bit of `level` that is not yet searched. A search of all chunks begins
        // at the top level, so that its cost does not depend on the position of the chunk.
        let (mut level, mut at) = match from {
            0 => (HINT_LEVELS - 1, 0),
            _ => (0, from),
        };
        loop {
            let index = at / WORD_BITS;
            let bit = at % WORD_BITS;
            let word = self.word(class, level, index).map_or(0, load_u64);
            let left = word & (u64::MAX << bit);
            if left != 0 {
                at = index * WORD_BITS + left.trailing_zeros() as usize;
                if level == 0 {
                    return Some(at);
                }
                (level, at) = (level - 1, at * WORD_BITS);
                continue;
            }
            if word == 0 {
                self.clear_above(class, level, index);
            }
            (level, at) = (level + 1, index + 1);
            if level == HINT_LEVELS {
                return None;
            }
        }
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_hints)]
mod tests {
    use super::*;

    #[test]
    fn random_bits_agree_with_an_array() -> Result {
        const SITES: usize = 200;
        // Chunks in four words of the third level, some of them adjacent.
        let chunk = |site: usize| site / 4 * (4 * WORD_BITS * GROUP_CHUNKS / 50) + site % 4 * 21;
        let hints = Hints::new(4 * WORD_BITS * GROUP_CHUNKS)?;
        for site in 0..SITES {
            hints.prepare(chunk(site))?;
        }
        let mut model = [false; SITES];
        let mut random = 99u64;
        for _ in 0..3000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            let site = (random >> 33) as usize % SITES;
            let is_set = random >> 61 == 0;
            if is_set {
                hints.set(HintClass::Idle, chunk(site))
            } else {
                hints.clear(HintClass::Idle, chunk(site))
            }
            *model.get_mut(site).ok_or(EINVAL)? = is_set;
            // Other classes are not affected.
            let class = HintClass::Room((random >> 10) as u32 % 2 * 9);
            assert_eq!(hints.find(class, 0), None);
            for from in [site, 0] {
                let expected = model.iter().skip(from).position(|bit| *bit);
                let expected = expected.map(|at| chunk(from + at));
                assert_eq!(hints.find(HintClass::Idle, chunk(from)), expected);
            }
        }
        Ok(())
    }

    #[test]
    fn search_clears_stale_summary_bits() -> Result {
        let hints = Hints::new(MAX_CHUNKS)?;
        hints.prepare(MAX_CHUNKS - 1)?;
        hints.set(HintClass::Idle, MAX_CHUNKS - 1);
        assert_eq!(hints.find(HintClass::Idle, 0), Some(MAX_CHUNKS - 1));
        hints.clear(HintClass::Idle, MAX_CHUNKS - 1);
        let root = || {
            hints
                .word(HintClass::Idle, HINT_LEVELS - 1, 0)
                .map(load_u64)
        };
        assert_eq!(root(), Some(1 << (WORD_BITS - 1)));
        assert_eq!(hints.find(HintClass::Idle, 0), None);
        assert_eq!(root(), Some(0));
        Ok(())
    }

    #[test]
    fn chunks_beyond_the_last_have_no_bits() -> Result {
        assert!(Hints::new(MAX_CHUNKS + 1).is_err());
        let hints = Hints::new(3)?;
        hints.prepare(2)?;
        assert!(hints.prepare(GROUP_CHUNKS).is_err());
        hints.set(HintClass::Absent, GROUP_CHUNKS);
        hints.clear(HintClass::Absent, usize::MAX);
        assert_eq!(hints.find(HintClass::Absent, 0), None);
        hints.set(HintClass::Absent, 2);
        assert_eq!(hints.find(HintClass::Absent, 0), Some(2));
        assert_eq!(hints.find(HintClass::Absent, 3), None);
        assert_eq!(hints.find(HintClass::Absent, usize::MAX), None);
        Ok(())
    }
}
