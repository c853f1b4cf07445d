// SPDX-License-Identifier: GPL-2.0
//! Random numbers, the same for the same seed.

/// A small generator (xorshift64*), good enough to choose calls.
#[derive(Clone, Copy, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Streams of different `parts` have nothing to do with each other.
    pub fn new(seed: u64, parts: [u64; 3]) -> Rng {
        let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
        for part in parts {
            // splitmix64
            state = state.wrapping_add(part.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            state ^= state >> 31;
        }
        Rng(state | 1)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let numbers = |seed, parts| {
            let mut rng = Rng::new(seed, parts);
            [rng.next(), rng.next(), rng.next()]
        };
        assert_eq!(numbers(1, [0, 0, 0]), numbers(1, [0, 0, 0]));
        assert_ne!(numbers(1, [0, 0, 0]), numbers(2, [0, 0, 0]));
        assert_ne!(numbers(1, [0, 1, 0]), numbers(1, [1, 0, 0]));
        assert_ne!(numbers(1, [0, 0, 1]), numbers(1, [0, 1, 0]));
    }

    #[test]
    fn numbers_stay_below_the_limit_and_reach_all() {
        let mut rng = Rng::new(7, [1, 2, 3]);
        let mut seen = [0u32; 5];
        for _ in 0..1000 {
            seen[rng.below(5) as usize] += 1;
        }
        assert!(seen.iter().all(|count| (120..280).contains(count)), "{seen:?}");
        assert_eq!(rng.below(1), 0);
    }
}
