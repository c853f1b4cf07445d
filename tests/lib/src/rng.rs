// SPDX-License-Identifier: GPL-2.0
//! Random numbers that depend on the seed only. A script must mean the same in all versions, so
//! that the algorithm is defined here and not in a library.

/// SplitMix64, by Steele, Lea and Flood (2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Stream `stream` of `seed`.
    pub fn new(seed: u64, stream: u64) -> Rng {
        let mut rng = Rng(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        rng.bits();
        rng
    }

    /// Seeds with several numbers, so that different `parts` give independent streams.
    pub fn of_parts(seed: u64, parts: [u64; 3]) -> Rng {
        parts.into_iter().fold(Rng::new(seed, 0), |mut rng, part| Rng::new(rng.bits(), part))
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// Below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        self.below_u64(end as u64) as usize
    }

    /// Below `end`, which is not 0.
    pub fn below_u64(&mut self, end: u64) -> u64 {
        self.bits() % end
    }

    /// True in one of `n` cases.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of `all`.
    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(mut rng: Rng) -> [u64; 4] {
        [0; 4].map(|_| rng.bits())
    }

    #[test]
    fn seed_has_a_fixed_sequence() {
        let numbers = [
            0xc50f_2c2a_1b32_9d4b,
            0x406b_ef04_305f_5d50,
            0x6050_5756_c223_2162,
            0xe1aa_d2a5_f03d_95ab,
        ];
        assert_eq!(draw(Rng::new(1, 2)), numbers);
    }

    #[test]
    fn streams_differ_and_repeat() {
        assert_eq!(draw(Rng::new(1, 2)), draw(Rng::new(1, 2)));
        assert_ne!(draw(Rng::new(1, 2)), draw(Rng::new(1, 3)));
        assert_ne!(draw(Rng::new(1, 2)), draw(Rng::new(2, 2)));
        let parts = |seed, parts| draw(Rng::of_parts(seed, parts));
        assert_eq!(parts(1, [0, 0, 0]), parts(1, [0, 0, 0]));
        assert_ne!(parts(1, [0, 0, 0]), parts(2, [0, 0, 0]));
        assert_ne!(parts(1, [0, 1, 0]), parts(1, [1, 0, 0]));
        assert_ne!(parts(1, [0, 0, 1]), parts(1, [0, 1, 0]));
    }

    #[test]
    fn numbers_stay_below_the_limit_and_reach_all() {
        let mut rng = Rng::of_parts(7, [1, 2, 3]);
        let mut seen = [0u32; 5];
        for _ in 0..1000 {
            seen[rng.below(5)] += 1;
        }
        assert!(seen.iter().all(|count| (120..280).contains(count)), "{seen:?}");
        assert_eq!(rng.below(1), 0);
    }
}
