// SPDX-License-Identifier: GPL-2.0

//! Decoders of entries, one for each format. They follow the manuals and share nothing with the
//! encoders.

use super::*;
use crate::hardware::walk;

/// An entry, as the device sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Decoded {
    Empty,
    /// A table, by its address.
    Table(u64),
    Leaf(Leaf),
}

/// A page as the device sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Leaf {
    /// Its address in pages.
    pub(super) number: usize,
    pub(super) writable: bool,
    /// Whether it is in the device's memory, if the entry says so.
    pub(super) device: Option<bool>,
    /// Log2 of the pages that the device may keep as one.
    pub(super) order: u32,
}

pub(super) trait Decode: Format {
    /// The walker that the mock GPU has for it.
    const HARDWARE: Option<walk::Format> = None;

    /// Takes an entry of `level` apart.
    fn decode(level: u32, word: u64) -> Decoded;
}

fn bit(word: u64, bit: u32) -> bool {
    word >> bit & 1 != 0
}

/// The number in bits 12 to 47.
fn number(word: u64) -> usize {
    (word >> 12 & 0xf_ffff_ffff) as usize
}

impl Decode for Lpae {
    const HARDWARE: Option<walk::Format> = Some(walk::Format::Lpae);

    fn decode(level: u32, word: u64) -> Decoded {
        match (word & 3, level) {
            (0 | 2, _) => Decoded::Empty,
            (3, 1..) => Decoded::Table(word & 0xffff_ffff_f000),
            (1, 1) | (3, 0) => {
                // AF, AP[1], nG, PXN and UXN; reserved bits.
                assert!(bit(word, 10) && bit(word, 6) && bit(word, 11));
                // AttrIndx and SH, which require break-before-make to change.
                assert!(word >> 2 & 7 == 1 && word >> 8 & 3 == 3);
                assert!(bit(word, 53) && bit(word, 54) && word >> 55 == 0 && !bit(word, 51));
                Decoded::Leaf(Leaf {
                    number: number(word),
                    writable: !bit(word, 7),
                    device: None,
                    order: if bit(word, 52) { 4 } else { 9 * level },
                })
            }
            _ => panic!("{word:#x} at level {level} is reserved"),
        }
    }
}

/// Arm ARM, D8.3, with a granule of 16 KiB.
impl Decode for Lpae16k {
    const HARDWARE: Option<walk::Format> = Some(walk::Format::Lpae16k);

    fn decode(level: u32, word: u64) -> Decoded {
        match (word & 3, level) {
            (0 | 2, _) => Decoded::Empty,
            (3, 1..) => {
                assert_eq!(word & 0xffff_0000_0000_3ffc, 0, "bits of a table descriptor");
                Decoded::Table(word & 0xffff_ffff_c000)
            }
            (1, 1) | (3, 0) => {
                // AF, AP[1], nG, PXN and UXN; reserved bits.
                assert!(bit(word, 10) && bit(word, 6) && bit(word, 11));
                // AttrIndx and SH, which require break-before-make to change.
                assert!(word >> 2 & 7 == 1 && word >> 8 & 3 == 3);
                assert!(bit(word, 53) && bit(word, 54) && word >> 55 == 0 && word >> 48 & 15 == 0);
                assert_eq!(word >> 12 & 3, 0, "bits of a page of 4 KiB");
                // 128 pages, or 32 blocks.
                let contiguous = if level == 0 { 7 } else { 5 };
                Decoded::Leaf(Leaf {
                    number: (word >> 14 & 0x3_ffff_ffff) as usize,
                    writable: !bit(word, 7),
                    device: None,
                    order: 11 * level + if bit(word, 52) { contiguous } else { 0 },
                })
            }
            _ => panic!("{word:#x} at level {level} is reserved"),
        }
    }
}

impl Decode for Gfx9 {
    const HARDWARE: Option<walk::Format> = Some(walk::Format::Gfx9);

    fn decode(level: u32, word: u64) -> Decoded {
        if !bit(word, 0) {
            assert_eq!(word, 0);
            return Decoded::Empty;
        }
        if level > 0 && !bit(word, 54) {
            assert_eq!(word & 0xffff_0000_0000_0ff8, 0, "bits of a PDE");
            return Decoded::Table(word & 0xffff_ffff_f000);
        }
        assert!(level < 2 && bit(word, 5), "{word:#x} at level {level}");
        let order = (word >> 7 & 31) as u32;
        assert!(if level == 1 { order == 9 } else { order == 0 || order == 4 });
        assert_eq!(bit(word, 1), bit(word, 2), "system memory is snooped");
        Decoded::Leaf(Leaf {
            number: number(word),
            writable: bit(word, 6),
            device: Some(!bit(word, 1)),
            order,
        })
    }
}

impl<const LEVELS: u32> Decode for Radix<LEVELS> {
    const HARDWARE: Option<walk::Format> = match LEVELS {
        4 => Some(walk::Format::Radix4),
        5 => Some(walk::Format::Radix5),
        _ => None,
    };

    fn decode(level: u32, word: u64) -> Decoded {
        match word {
            0 => Decoded::Empty,
            _ if level > 0 && !bit(word, 7) => Decoded::Table(word & !0xfff),
            _ => {
                assert!(bit(word, 0) && bit(word, 2));
                Decoded::Leaf(Leaf {
                    number: (word >> 12) as usize,
                    writable: bit(word, 1),
                    device: Some(bit(word, 9)),
                    order: 9 * level,
                })
            }
        }
    }
}

impl Decode for Runs {
    fn decode(_level: u32, word: u64) -> Decoded {
        match word & 3 {
            0 => Decoded::Empty,
            1 => Decoded::Table(word & !0xfff),
            _ => Decoded::Leaf(Leaf {
                number: (word >> 12) as usize,
                writable: bit(word, 2),
                device: Some(bit(word, 3)),
                order: (word >> Self::ORDER & 15) as u32,
            }),
        }
    }
}

impl Decode for Narrow {
    fn decode(level: u32, word: u64) -> Decoded {
        let number = word & 0x7ff_ffff;
        match word {
            0 => Decoded::Empty,
            _ if bit(word, 27) => Decoded::Table(number << 12),
            _ => {
                assert!(bit(word, 31));
                Decoded::Leaf(Leaf {
                    number: number as usize,
                    writable: bit(word, 30) || bit(word, 28),
                    device: Some(bit(word, 29)),
                    order: 6 * level,
                })
            }
        }
    }
}

impl<F: Decode, const SHIFT: u32> Decode for Smaller<F, SHIFT> {
    fn decode(level: u32, word: u64) -> Decoded {
        F::decode(level, word)
    }
}

impl<F: Decode> Decode for BreakBeforeMake<F> {
    const HARDWARE: Option<walk::Format> = F::HARDWARE;

    fn decode(level: u32, word: u64) -> Decoded {
        F::decode(level, word)
    }
}

impl<F: Decode> Decode for DmaFormat<F> {
    const HARDWARE: Option<walk::Format> = F::HARDWARE;

    fn decode(level: u32, word: u64) -> Decoded {
        F::decode(level, word)
    }
}
