// SPDX-License-Identifier: GPL-2.0

//! The page table walker. Walks a table from the bus address of its root.
//!
//! Entries are decoded according to the hardware manuals, independently of the encoders in the
//! library, so that errors in those are found.

/// Read access to memory by bus address.
pub(crate) trait Bus {
    /// Reads the 64-bit word at `address`, a multiple of 8.
    ///
    /// # Errors
    ///
    /// - [`Miss::Bus`]: there is no memory at that address.
    /// - [`Miss::Superseded`]: the table was replaced.
    fn read(&self, address: u64) -> Result<u64, Miss>;
}

/// Result of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Translation {
    /// Bus address of the part of 4 KiB.
    pub(crate) address: u64,
    /// Log2 of the parts of 4 KiB of the block that a TLB may cache as one entry.
    pub(crate) order: u32,
    pub(crate) writable: bool,
}

/// Reason for a failed walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Miss {
    /// An entry is not valid.
    NotPresent,
    /// The address of a table is not that of memory.
    Bus(u64),
    /// The table was replaced, and the flush of that change has not ended.
    Superseded,
    /// The format does not permit this entry.
    Malformed(u64),
    /// The TLB caches a part of the translation in another size.
    TwoSizes,
}

/// Page table format, selected by a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// As on x86-64, with four levels.
    Radix4,
    /// As on x86-64, with five levels.
    Radix5,
    /// Stage 1 of 64-bit Arm, with a granule of 4 KiB and levels 0 to 3.
    Lpae,
    /// Stage 1 of 64-bit Arm, with a granule of 16 KiB and levels 1 to 3.
    Lpae16k,
    /// Generation 9 of AMD: PDB2, PDB1, PDB0 and PTB.
    Gfx9,
}

/// A decoded entry.
enum Decoded {
    /// Bus address of the next table.
    Table(u64),
    /// A leaf at this bus address.
    Leaf {
        address: u64,
        writable: bool,
        /// Log2 of the number of contiguous entries that form one block.
        run: u32,
    },
}

/// Log2 of the size of the parts in which translations are counted: the smallest device page of all
/// formats, which does not depend on the page of the CPU.
pub(crate) const DEVICE_PAGE_SHIFT: u32 = 12;

/// Bits 47 to 12.
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;

const fn bit(word: u64, number: u32) -> bool {
    word >> number & 1 != 0
}

impl Format {
    /// Number of levels.
    const fn levels(self) -> u32 {
        match self {
            Self::Radix4 | Self::Lpae | Self::Gfx9 => 4,
            Self::Radix5 => 5,
            Self::Lpae16k => 3,
        }
    }

    /// Log2 of the size of a table, and of a page that the last level maps.
    pub(crate) const fn table_bits(self) -> u32 {
        match self {
            Self::Lpae16k => 14,
            _ => 12,
        }
    }

    /// Bits of an index in a table, whose entries have 64 bits.
    pub(crate) const fn index_bits(self) -> u32 {
        self.table_bits() - 3
    }

    /// Bits of an address that a root translates.
    pub(crate) const fn root_bits(self) -> u32 {
        self.table_bits() + self.levels() * self.index_bits()
    }

    /// Decodes `word`, an entry of a table of `level`, 0 at the leaves.
    fn decode(self, level: u32, word: u64) -> Result<Decoded, Miss> {
        match self {
            Self::Radix4 | Self::Radix5 => Self::radix(level, word),
            Self::Lpae => Self::lpae(level, word, [4, 4]),
            Self::Lpae16k => Self::lpae(level, word, [7, 5]),
            Self::Gfx9 => Self::gfx9(level, word),
        }
    }

    fn radix(level: u32, word: u64) -> Result<Decoded, Miss> {
        if !bit(word, 0) {
            return Err(Miss::NotPresent);
        }
        // Without bits 63 to 52, which are ignored or forbid execution.
        let address = word & 0x000f_ffff_ffff_f000;
        if level == 0 || bit(word, 7) {
            if level > 1 {
                return Err(Miss::Malformed(word));
            }
            return Ok(Decoded::Leaf {
                address,
                writable: bit(word, 1),
                run: 0,
            });
        }
        Ok(Decoded::Table(address))
    }

    /// Arm ARM, D8.2.7 and D8.3. `contiguous` is log2 of the pages and of the blocks that the
    /// Contiguous bit joins.
    fn lpae(level: u32, word: u64, contiguous: [u32; 2]) -> Result<Decoded, Miss> {
        let [pages, blocks] = contiguous;
        let run = if level == 0 { pages } else { blocks };
        let address = word & ADDRESS;
        match (word & 0b11, level) {
            (0b00 | 0b10, _) => Err(Miss::NotPresent),
            (0b11, 1..) => Ok(Decoded::Table(address)),
            // Requires the access flag and AP[1]; without them an access faults.
            (0b01, 1) | (0b11, 0) if bit(word, 10) && bit(word, 6) => Ok(Decoded::Leaf {
                address,
                writable: !bit(word, 7),
                run: if bit(word, 52) { run } else { 0 },
            }),
            _ => Err(Miss::Malformed(word)),
        }
    }

    /// `drivers/gpu/drm/amd/amdgpu/amdgpu_vm.h`.
    fn gfx9(level: u32, word: u64) -> Result<Decoded, Miss> {
        if !bit(word, 0) {
            return Err(Miss::NotPresent);
        }
        let address = word & ADDRESS;
        if level > 0 && !bit(word, 54) {
            return Ok(Decoded::Table(address));
        }
        let fragment = (word >> 7 & 0x1f) as u32;
        // Among the directories only PDB0 may contain PTEs, which then cover the whole entry.
        match (level, fragment) {
            _ if !bit(word, 5) => Err(Miss::Malformed(word)),
            (1, 9) => Ok(Decoded::Leaf {
                address,
                writable: bit(word, 6),
                run: 0,
            }),
            (0, 0..=9) => Ok(Decoded::Leaf {
                address,
                writable: bit(word, 6),
                run: fragment,
            }),
            _ => Err(Miss::Malformed(word)),
        }
    }

    /// Walks the table at `root` to `addr`, with at most a read for each level.
    pub(crate) fn walk(self, bus: &impl Bus, root: u64, addr: u64) -> Result<Translation, Miss> {
        if addr >> self.root_bits() != 0 {
            return Err(Miss::NotPresent);
        }
        let mut table = root;
        for level in (0..self.levels()).rev() {
            let low = self.table_bits() + level * self.index_bits();
            let at = table + ((addr >> low & ((1 << self.index_bits()) - 1)) << 3);
            let word = bus.read(at)?;
            match self.decode(level, word)? {
                Decoded::Table(next) => table = next,
                Decoded::Leaf {
                    address,
                    writable,
                    run,
                } => {
                    let within = (1 << low) - 1;
                    if address & within != 0 {
                        return Err(Miss::Malformed(word));
                    }
                    return Ok(Translation {
                        address: address | (addr & within & !0xfff),
                        order: low - DEVICE_PAGE_SHIFT + run,
                        writable,
                    });
                }
            }
        }
        // Not reached: each word of the last level decodes to a leaf or a miss.
        Err(Miss::NotPresent)
    }
}
