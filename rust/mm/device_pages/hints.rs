// SPDX-License-Identifier: GPL-2.0

//! Which pieces of device memory may have what is looked for, so that no search looks at all pieces.
//!
//! For each [`Class`] a bit per piece, and a bit per group of pieces of which one may be set. Bits are
//! hints: one that is set may be stale, and whoever finds it so clears it, and looks once more. One
//! that is clear is not. Bits are atomic and are changed in any context.

use super::super::{
    addr::PMD_ORDER,
    device_alloc::{clear, set},
    word::load_u64, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        SetOnce, //
    },
};

/// Pieces whose bits are allocated at once: 128 GiB of memory.
const GROUP: usize = 512;

const BITS: usize = u64::BITS as usize;
const WORDS: usize = GROUP / BITS;
const CLASSES: usize = PMD_ORDER as usize + 4;

/// What pieces are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Those that have a free folio of this order, 0 to 9.
    Room(u32),
    /// Those without a page in use.
    Idle,
    /// Those without frames.
    Absent,
    /// Those with pages that were taken out of use.
    Withdrawn,
}

impl Class {
    fn index(self) -> usize {
        match self {
            Self::Room(order) => order.min(PMD_ORDER) as usize,
            Self::Idle => PMD_ORDER as usize + 1,
            Self::Absent => PMD_ORDER as usize + 2,
            Self::Withdrawn => PMD_ORDER as usize + 3,
        }
    }
}

type Group = [[Atomic<u64>; WORDS]; CLASSES];

/// The bits of all pieces.
pub(super) struct Hints {
    groups: KVVec<SetOnce<KBox<Group>>>,
    /// Bits of groups.
    summary: KVVec<[Atomic<u64>; CLASSES]>,
}

impl Hints {
    /// For `pieces` pieces; all bits are clear. Context: may sleep. `ENOMEM`.
    pub(super) fn new(pieces: usize) -> Result<Self> {
        let count = pieces.div_ceil(GROUP);
        let mut groups = KVVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            groups.push(SetOnce::new(), GFP_KERNEL)?;
        }
        let count = count.div_ceil(BITS);
        let mut summary = KVVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            summary.push([const { Atomic::new(0) }; CLASSES], GFP_KERNEL)?;
        }
        Ok(Self { groups, summary })
    }

    /// Allocates the bits of `piece`, without which it cannot have any. Context: may sleep. `ENOMEM`.
    pub(super) fn prepare(&self, piece: usize) -> Result {
        let group = self.groups.get(piece / GROUP).ok_or(EINVAL)?;
        if group.as_ref().is_none() {
            let bits = [const { [const { Atomic::new(0) }; WORDS] }; CLASSES];
            group.populate(KBox::new(bits, GFP_KERNEL)?);
        }
        Ok(())
    }

    fn words(&self, class: Class, group: usize) -> Option<&[Atomic<u64>; WORDS]> {
        self.groups.get(group)?.as_ref()?.get(class.index())
    }

    fn summary(&self, class: Class, group: usize) -> Option<&Atomic<u64>> {
        self.summary.get(group / BITS)?.get(class.index())
    }

    /// The piece may have what `class` says. Full barriers lie around the change. Context: any.
    pub(super) fn set(&self, class: Class, piece: usize) {
        let (group, at) = (piece / GROUP, piece % GROUP);
        let words = self.words(class, group);
        if let Some(word) = words.and_then(|words| words.get(at / BITS)) {
            set(word, 1 << (at % BITS));
            self.set_group(class, group);
        }
    }

    fn set_group(&self, class: Class, group: usize) {
        if let Some(word) = self.summary(class, group) {
            if word.load(Relaxed) >> (group % BITS) & 1 == 0 {
                set(word, 1 << (group % BITS));
            }
        }
    }

    /// The piece has not what `class` says. Whoever is not the only one that changes this looks at the
    /// piece again after this, and sets the bit if need be. Full barriers lie around the change.
    /// Context: any.
    pub(super) fn clear(&self, class: Class, piece: usize) {
        let words = self.words(class, piece / GROUP);
        if let Some(word) = words.and_then(|words| words.get(piece % GROUP / BITS)) {
            clear(word, 1 << (piece % BITS));
        }
    }

    /// The first piece from `from` on that may have what `class` says. Context: any.
    pub(super) fn find(&self, class: Class, from: usize) -> Option<usize> {
        let mut group = from / GROUP;
        let mut at = from % GROUP;
        loop {
            let word = load_u64(self.summary(class, group)?) >> (group % BITS);
            if word & 1 == 0 {
                // The next group that has one, or the next word.
                let skip = match word {
                    0 => BITS - group % BITS,
                    word => word.trailing_zeros() as usize,
                };
                (group, at) = (group + skip, 0);
                continue;
            }
            if let Some(found) = self.find_in(class, group, at) {
                return Some(group * GROUP + found);
            }
            if at == 0 {
                self.clear_group(class, group);
            }
            (group, at) = (group + 1, 0);
        }
    }

    fn find_in(&self, class: Class, group: usize, from: usize) -> Option<usize> {
        let words = self.words(class, group)?;
        let first = from / BITS;
        for (index, word) in words.iter().enumerate().skip(first) {
            let mut word = load_u64(word);
            if index == first {
                word &= u64::MAX << (from % BITS);
            }
            if word != 0 {
                return Some(index * BITS + word.trailing_zeros() as usize);
            }
        }
        None
    }

    fn clear_group(&self, class: Class, group: usize) {
        if let Some(word) = self.summary(class, group) {
            clear(word, 1 << (group % BITS));
            // One that was set meanwhile may have found the group's bit set.
            if self.find_in(class, group, 0).is_some() {
                self.set_group(class, group);
            }
        }
    }
}

#[kunit_tests(rust_hmm_hints)]
mod tests {
    use super::*;

    #[test]
    fn random_bits_agree_with_an_array() -> Result {
        const PIECES: usize = 70 * GROUP;
        let hints = Hints::new(PIECES)?;
        let mut model = KVVec::from_elem(false, PIECES, GFP_KERNEL)?;
        let mut random = 99u64;
        for _ in 0..2000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            let piece = match random >> 62 {
                0 => (random >> 20) as usize % 3 * (BITS * GROUP) + (random >> 33) as usize % 3,
                _ => (random >> 33) as usize,
            } % PIECES;
            let class = Class::Room((random >> 10) as u32 % 2 * 9);
            hints.prepare(piece)?;
            let slot = model.get_mut(piece).ok_or(EINVAL)?;
            if random >> 60 & 1 == 0 {
                hints.set(Class::Idle, piece);
                *slot = true;
            } else {
                hints.clear(Class::Idle, piece);
                *slot = false;
            }
            // Other classes have other bits.
            assert_eq!(hints.find(class, 0), None);
            let expected = model.iter().skip(piece).position(|bit| *bit);
            let expected = expected.map(|at| piece + at);
            assert_eq!(hints.find(Class::Idle, piece), expected);
            let first = model.iter().position(|bit| *bit);
            assert_eq!(hints.find(Class::Idle, 0), first);
        }
        Ok(())
    }

    #[test]
    fn pieces_beyond_the_last_have_no_bits() -> Result {
        let hints = Hints::new(3)?;
        hints.prepare(2)?;
        assert!(hints.prepare(GROUP).is_err());
        hints.set(Class::Absent, GROUP);
        hints.clear(Class::Absent, usize::MAX);
        assert_eq!(hints.find(Class::Absent, 0), None);
        hints.set(Class::Absent, 2);
        assert_eq!(hints.find(Class::Absent, 0), Some(2));
        assert_eq!(hints.find(Class::Absent, 3), None);
        assert_eq!(hints.find(Class::Absent, usize::MAX), None);
        Ok(())
    }
}
