// SPDX-License-Identifier: GPL-2.0

//! The library's representation of a device PTE, independent of the device's format.

/// A device PTE: the page that the device accesses, and the access rights.
///
/// # Examples
///
/// ```
/// use rust_hmm::pgtable::DevicePte;
///
/// let entry = DevicePte::system(0x1234, true);
/// assert_eq!(entry.plus(1).number(), 0x1235);
/// // A TLB entry that allows writes is stale once the page is write-protected.
/// assert!(entry.is_outdated_by(entry.write_protected()));
/// assert!(!entry.write_protected().is_outdated_by(entry));
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct DevicePte(u64);

impl DevicePte {
    const VALID: u64 = 1 << 0;
    const WRITE: u64 = 1 << 1;
    const DEVICE: u64 = 1 << 2;
    const EXCLUSIVE: u64 = 1 << 3;
    /// Position in the word, which leaves 12 bits for flags. Not a size of pages.
    const NUMBER_SHIFT: u32 = 12;

    /// The empty entry.
    pub const NONE: Self = Self(0);

    /// Creates the entry of a page of system memory, given by its frame number.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub const fn system(pfn: usize, writable: bool) -> Self {
        let write = if writable { Self::WRITE } else { 0 };
        Self(((pfn as u64) << Self::NUMBER_SHIFT) | Self::VALID | write)
    }

    /// Creates the entry of a page of this device's memory, given by its device page number.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub const fn device(number: usize, writable: bool) -> Self {
        Self(Self::system(number, writable).0 | Self::DEVICE)
    }

    /// Creates the entry of a page of system memory to which the device has exclusive access.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub const fn exclusive(pfn: usize) -> Self {
        Self(Self::system(pfn, false).0 | Self::EXCLUSIVE)
    }

    /// Returns whether the entry has a page.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub const fn is_valid(self) -> bool {
        self.0 & Self::VALID != 0
    }

    /// Returns whether the device may write the page.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub const fn is_writable(self) -> bool {
        self.0 & Self::WRITE != 0
    }

    /// Returns whether the page is in this device's memory.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub const fn is_device(self) -> bool {
        self.0 & Self::DEVICE != 0
    }

    /// Returns whether the device has exclusive access to the page.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub const fn is_exclusive(self) -> bool {
        self.0 & Self::EXCLUSIVE != 0
    }

    /// Returns whether the device may have written the page through this entry.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub const fn may_be_dirty(self) -> bool {
        self.0 & (Self::WRITE | Self::EXCLUSIVE) != 0
    }

    /// Returns the frame number, or the device page number if [`Self::is_device`].
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub const fn number(self) -> usize {
        (self.0 >> Self::NUMBER_SHIFT) as usize
    }

    /// Returns the entry of page `number` with the same rights.
    #[inline]
    pub(crate) const fn with_number(self, number: usize) -> Self {
        let rights = self.0 & ((1 << Self::NUMBER_SHIFT) - 1);
        Self(rights | (number as u64) << Self::NUMBER_SHIFT)
    }

    /// Returns whether the page is in system memory and the device may have written it.
    #[inline]
    pub(crate) const fn may_have_dirtied(self) -> bool {
        // A single comparison, because entries are removed in bulk.
        const KINDS: u32 = 1 << DevicePte::WRITE
            | 1 << DevicePte::EXCLUSIVE
            | 1 << (DevicePte::WRITE | DevicePte::EXCLUSIVE);
        let kind = self.0 & (Self::WRITE | Self::DEVICE | Self::EXCLUSIVE);
        KINDS >> kind & 1 != 0
    }

    /// Returns the entry without write access.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub const fn write_protected(self) -> Self {
        Self(self.0 & !Self::WRITE)
    }

    /// Returns the entry with write access.
    #[inline]
    pub(crate) const fn writable(self) -> Self {
        Self(self.0 | Self::WRITE)
    }

    /// Returns the entry of the page `pages` after this one, with the same rights; [`Self::NONE`]
    /// for [`Self::NONE`].
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub const fn plus(self, pages: usize) -> Self {
        if !self.is_valid() {
            return self;
        }
        Self(self.0.wrapping_add((pages as u64) << Self::NUMBER_SHIFT))
    }

    /// Returns the entry of the page `pages` before this one; see [`Self::plus`].
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub const fn minus(self, pages: usize) -> Self {
        self.plus(pages.wrapping_neg())
    }

    /// Returns whether a cached translation `self` is stale if the table has the entry `now`.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub const fn is_outdated_by(self, now: Self) -> bool {
        // Any change but the gain of the right to write.
        self.is_valid() && (self.0 ^ now.0) & !(now.0 & Self::WRITE) != 0
    }

    /// Returns the raw bits, for a format that stores them unchanged.
    #[inline]
    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    /// Creates an entry from its raw bits.
    #[inline]
    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// A translation, the result of a walk.
///
/// # Examples
///
/// ```
/// use rust_hmm::pgtable::Leaf;
///
/// /// A TLB of one entry: the address of a page, and its translation.
/// struct Tlb(Option<(usize, Leaf)>);
///
/// impl Tlb {
///     fn lookup(&self, page: usize) -> Option<Leaf> {
///         let (addr, leaf) = self.0?;
///         (addr == page).then_some(leaf)
///     }
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// PTE of the requested page (not of the first page of a huge leaf).
    pub entry: DevicePte,
    /// Log2 of the number of pages that the leaf maps; the leaf is aligned to its size.
    pub order: u32,
}
