// SPDX-License-Identifier: GPL-2.0
//! Values that are likely to reveal missing checks.

use crate::arena;
use hmm::rng::Rng;

/// Boundary values.
const BORDERS: [u64; 26] = [
    0,
    1,
    2,
    7,
    8,
    15,
    16,
    17,
    511,
    512,
    513,
    4095,
    4096,
    4097,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    1 << 40,
    (1 << 51) - 1,
    1 << 52,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 4095,
    u64::MAX - 7,
    u64::MAX,
];

/// A boundary value.
pub fn border(rng: &mut Rng) -> u64 {
    rng.pick(&BORDERS)
}

/// A modified word.
pub fn word(rng: &mut Rng, old: u64) -> u64 {
    match rng.below(8) {
        0 | 1 => border(rng),
        2 => arena::any_page(rng) as u64,
        3 => arena::any_page(rng) as u64 + rng.below_u64(4096),
        // Flip a bit such that an address stays in the arena, or is non-canonical.
        4 => old ^ (1 << rng.below(28)),
        5 => old ^ (1 << (47 + rng.below(17))),
        6 => old.wrapping_add(rng.pick(&[1, 8, 4096, u64::MAX, u64::MAX - 7, u64::MAX - 4095])),
        _ => rng.bits() & (arena::LIMIT as u64 - 1),
    }
}

/// Half a modified word: small numbers and boundary values, which cannot turn an address of the
/// arena into one of the program's memory.
pub fn half(rng: &mut Rng) -> u32 {
    match rng.below(4) {
        0 => rng.below(256) as u32,
        1 => u32::MAX - rng.below(16) as u32,
        2 => 1 << 31,
        _ => 1 << rng.below(8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether an address derived from one of the arena cannot point into the program's memory.
    fn harmless(addr: u64) -> bool {
        let addr = addr as usize;
        !(arena::LIMIT + (1 << 30)..0x7fff_ffff_f000).contains(&addr)
    }

    #[test]
    fn mutations_do_not_reach_the_program() {
        let mut rng = Rng::new(3, 0);
        for _ in 0..200_000 {
            let old = arena::page(&mut rng) as u64;
            let new = word(&mut rng, old);
            assert!(harmless(new), "{old:#x} became {new:#x}");
            let mixed = (u64::from(half(&mut rng)) << 32) | (old & 0xffff_ffff);
            let high = mixed >> 32;
            assert!(harmless(mixed) || high >= 1 << 31, "{mixed:#x}");
        }
    }
}
