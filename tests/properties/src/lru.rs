// SPDX-License-Identifier: GPL-2.0

//! The choice of the block to evict, compared with a history of accesses.

use super::lru::{
    BlockUsage,
    Claim,
    Lru,
    LruStamp,
    NoClaim, //
};
use crate::harness::{
    Property,
    Trial, //
};
use proptest::prelude::*;

pub(crate) const ALL: &[Property] = &[Property {
    name: "lru_coldest_block_is_evicted_first",
    cases: 10000,
    variants: &[("lru", coldest)],
}];

const BLOCKS: usize = 10;

#[derive(Clone, Copy, Debug)]
enum Op {
    Touch(usize),
    PutOff(usize),
    /// From now on, a block that is used later must not be evicted.
    Remember,
    /// Evicts one of the blocks in the first set, of which those in the second are full; whether
    /// any existing one may be chosen.
    Evict(u16, u16, bool),
    Claim(usize),
    Release(usize),
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..BLOCKS + 1).prop_map(Op::Touch),
        1 => (0..BLOCKS + 1).prop_map(Op::PutOff),
        1 => Just(Op::Remember),
        4 => (any::<u16>(), any::<u16>(), any::<bool>())
            .prop_map(|(set, full, all)| Op::Evict(set, full, all)),
        1 => (0..BLOCKS + 1).prop_map(Op::Claim),
        2 => (0usize..4).prop_map(Op::Release),
    ]
}

/// Time of the last use of each block. Time advances when the device accesses another block.
struct Model {
    now: u64,
    last: [u64; BLOCKS],
}

impl Model {
    fn mark_accessed(&mut self, block: usize) {
        if self.last.get(block).is_some_and(|last| *last != self.now) {
            self.put_off(block);
        }
    }

    fn put_off(&mut self, block: usize) {
        if let Some(last) = self.last.get_mut(block) {
            self.now += 1;
            *last = self.now;
        }
    }
}

/// No block is evicted twice concurrently, or if it was used since it was chosen. Partially used
/// blocks that were not used recently are evicted first, then the least recently used block.
fn coldest(trial: &Trial<'_>) {
    trial.run(ops(), 1..60, |ops| {
        let lru = Lru::new(BLOCKS).unwrap();
        lru.prepare(0).unwrap();
        let mut model = Model { now: 1, last: [0; BLOCKS] };
        let mut claims: Vec<Claim<'_>> = Vec::new();
        let mut remembered: (LruStamp, u64) = (lru.now(), model.now);
        for op in ops {
            let before = lru.now();
            match *op {
                Op::Touch(block) => {
                    lru.mark_accessed(block);
                    model.mark_accessed(block);
                }
                Op::PutOff(block) => {
                    lru.put_off(block);
                    model.put_off(block);
                }
                Op::Remember => remembered = (lru.now(), model.now),
                Op::Evict(set, full, all) => {
                    let is_in = |set: u16, block: usize| set >> block & 1 != 0;
                    let blocks: Vec<_> = (0..BLOCKS).filter(|block| is_in(set, *block)).collect();
                    let (turn, time) = if all { (lru.now(), model.now) } else { remembered };
                    for block in &blocks {
                        lru.allocated(*block, is_in(full, *block));
                    }
                    let usage = |block: usize| match (is_in(set, block), is_in(full, block)) {
                        (false, _) => BlockUsage::Empty,
                        (true, false) => BlockUsage::Partial,
                        (true, true) => BlockUsage::Full,
                    };
                    let result = lru.coldest(&usage, blocks.len(), turn);
                    let is_claimed = |block: &usize| claims.iter().any(|it| it.block() == *block);
                    let mut cold = blocks.clone();
                    cold.retain(|block| model.last[*block] <= time);
                    let some = !cold.is_empty();
                    cold.retain(|block| !is_claimed(block));
                    // The first in order: partially used and not recent, then by age.
                    let key = |block: &usize| {
                        let age = model.now - model.last[*block];
                        let lately = age <= blocks.len() as u64 / 2;
                        (is_in(full, *block) || lately, model.last[*block])
                    };
                    match result {
                        Ok(claim) => {
                            assert!(cold.contains(&claim.block()), "block {}", claim.block());
                            let first = cold.iter().map(key).min();
                            assert_eq!(Some(key(&claim.block())), first, "block {}", claim.block());
                            claims.push(claim);
                        }
                        Err(NoClaim::Busy) => assert!(cold.is_empty() && some),
                        Err(NoClaim::Nothing) => assert!(!some),
                    }
                }
                Op::Claim(block) => match lru.claim(block) {
                    Ok(claim) => {
                        assert!(claims.iter().all(|other| other.block() != block));
                        assert_eq!(claim.block(), block);
                        claims.push(claim);
                    }
                    Err(NoClaim::Busy) => {
                        assert!(claims.iter().any(|other| other.block() == block));
                    }
                    Err(NoClaim::Nothing) => assert!(block >= BLOCKS),
                },
                Op::Release(index) if !claims.is_empty() => {
                    let index = index % claims.len();
                    drop(claims.remove(index));
                }
                Op::Release(_) => {}
            }
            let passes = matches!(op, Op::Touch(_) | Op::PutOff(_));
            assert!(lru.now() == before || passes, "time passes without an access");
            assert!(lru.now() >= before);
        }
    });
}
