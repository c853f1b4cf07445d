// SPDX-License-Identifier: GPL-2.0
//! Random numbers (xorshift64*).

/// Generator.
pub struct Random(u64);

impl Random {
    /// Starts with `seed`.
    pub const fn new(seed: u64) -> Random {
        // The state must not be 0.
        Random(seed | 1)
    }

    /// Next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Number below `limit`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 16) as usize % limit.max(1)
    }
}
