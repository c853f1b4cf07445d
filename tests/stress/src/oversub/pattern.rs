// SPDX-License-Identifier: GPL-2.0
//! Access patterns of engines, and the memory contents that check them.

use hmm::{
    Command,
    EngineOp,
    Mapping,
    PAGE_SIZE, //
};

/// Words in a page.
const WORDS: usize = PAGE_SIZE / 8;

/// Distance in bytes between two accesses of the strided engine.
const STRIDE: usize = 3 * PAGE_SIZE;

/// An access pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Reads every word, in ascending order.
    Sequential,
    /// Follows a chain of pointers, one in each page, in a random order of all pages.
    Random,
    /// Reads one word of every third page, in three commands that together use all pages.
    Strided,
    /// Follows a chain of pointers, one in each page, that visits all pages of a group of 64 before
    /// the next group.
    Chase,
}

/// Returns a permutation of `0..count`, the same in each call.
fn shuffled(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for at in (1..count).rev() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        order.swap(at, (random % (at as u64 + 1)) as usize);
    }
    order
}

impl Pattern {
    /// All patterns.
    pub const ALL: [Pattern; 4] =
        [Pattern::Sequential, Pattern::Random, Pattern::Strided, Pattern::Chase];

    /// Name of the pattern in the table.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Sequential => "sequential",
            Pattern::Random => "random",
            Pattern::Strided => "strided",
            Pattern::Chase => "chase",
        }
    }

    /// Writes the contents that the pattern needs. The last word of each page is left to CPU
    /// threads.
    pub fn prepare(self, map: &Mapping) {
        let pages = map.pages();
        match self {
            Pattern::Sequential | Pattern::Strided => {
                for page in 0..pages {
                    map.set(page, 0, value(page));
                    map.set(page, WORDS - 2, value(page) + 1);
                }
            }
            Pattern::Random | Pattern::Chase => {
                let order = match self {
                    Pattern::Random => shuffled(pages),
                    // Neighbouring pages, but never in ascending order: a permutation of each group
                    // of 64.
                    _ => (0..pages).map(|at| at / 64 * 64 + (at % 64) * 37 % 64).collect(),
                };
                for (at, page) in order.iter().enumerate() {
                    let next = order[(at + 1) % pages];
                    map.set(*page, 0, map.page_addr(next) as u64);
                }
            }
        }
    }

    /// Returns the commands of one pass by `engine`, each with the bytes that it uses. A page
    /// counts as a whole as soon as one of its words is used.
    pub fn pass(self, map: &Mapping, engine: u32) -> Vec<(Command, u64)> {
        let pages = map.pages();
        let used = map.len() as u64;
        match self {
            Pattern::Sequential => {
                // The sum of all words but those that CPU threads increment. [`Pattern::result`]
                // accepts any sum if such threads run.
                let sum: u64 = (0..pages)
                    .map(|page| value(page).wrapping_mul(2).wrapping_add(1))
                    .fold(0, u64::wrapping_add);
                let read = Command::new(EngineOp::Read, map.addr(), map.len()).engine(engine);
                vec![(read.value(sum), used)]
            }
            Pattern::Strided => (0..STRIDE / PAGE_SIZE)
                .map(|first| {
                    let addr = map.page_addr(first);
                    let bytes = map.len() - first * PAGE_SIZE;
                    let sum: u64 = (first..pages)
                        .step_by(STRIDE / PAGE_SIZE)
                        .map(value)
                        .fold(0, u64::wrapping_add);
                    let read = Command::new(EngineOp::Strided, addr, bytes).stride(STRIDE);
                    let count = (pages - first).div_ceil(STRIDE / PAGE_SIZE) * PAGE_SIZE;
                    (read.engine(engine).verify(sum), count as u64)
                })
                .collect(),
            Pattern::Random | Pattern::Chase => {
                // A hop is a page. After as many hops as pages the chain is back at its start.
                let start = self.first(map);
                let chase = Command::new(EngineOp::Chase, start, pages * 8).engine(engine);
                vec![(chase.value(0), used)]
            }
        }
    }

    /// Returns the address of the first link of the chain.
    fn first(self, map: &Mapping) -> usize {
        let page = match self {
            Pattern::Random => shuffled(map.pages()).first().copied().unwrap_or(0),
            _ => 0,
        };
        map.page_addr(page)
    }

    /// Returns the expected result of a command of [`Pattern::pass`]. `None` if the engine compares
    /// the result itself or if CPU threads change the memory (`counted`).
    pub fn result(self, map: &Mapping, command: &Command, counted: bool) -> Option<u64> {
        match self {
            // CPU threads change the sum while the engine reads.
            Pattern::Sequential => (!counted).then_some(command.value),
            Pattern::Strided => None,
            Pattern::Random | Pattern::Chase => Some(self.first(map) as u64),
        }
    }
}

/// Word that is written to page `page`.
pub fn value(page: usize) -> u64 {
    (page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8
}

/// Index of the word that CPU threads increment.
pub const COUNTED: usize = WORDS - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_visit_all_pages() {
        for pattern in [Pattern::Random, Pattern::Chase] {
            let map = Mapping::anon(1024).expect("memory");
            pattern.prepare(&map);
            let mut at = pattern.first(&map);
            for hop in 0..1024 {
                assert!(hop == 0 || at != pattern.first(&map), "{} is shorter", pattern.name());
                at = map.get((at - map.addr()) / PAGE_SIZE, 0) as usize;
            }
            assert_eq!(at, pattern.first(&map));
        }
    }
}
