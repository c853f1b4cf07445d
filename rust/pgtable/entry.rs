// SPDX-License-Identifier: GPL-2.0

//! What the engine says of a page, whatever the device's format makes of it.

/// One page, as the device sees it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Entry(u64);

impl Entry {
    const VALID: u64 = 1 << 0;
    const WRITE: u64 = 1 << 1;
    const DEVICE: u64 = 1 << 2;
    const EXCLUSIVE: u64 = 1 << 3;
    const SHIFT: u32 = 12;

    /// No page.
    pub const NONE: Self = Self(0);

    /// A page of system memory, by its frame number.
    #[inline]
    pub const fn system(pfn: usize, writable: bool) -> Self {
        let write = if writable { Self::WRITE } else { 0 };
        Self(((pfn as u64) << Self::SHIFT) | Self::VALID | write)
    }

    /// A page of this device's memory, by its device page number.
    #[inline]
    pub const fn device(number: usize, writable: bool) -> Self {
        Self(Self::system(number, writable).0 | Self::DEVICE)
    }

    /// A page of system memory that only the device may access.
    #[inline]
    pub const fn exclusive(pfn: usize) -> Self {
        Self(Self::system(pfn, false).0 | Self::EXCLUSIVE)
    }

    /// Whether there is a page.
    #[inline]
    pub const fn is_valid(self) -> bool {
        self.0 & Self::VALID != 0
    }

    /// Whether the device may write the page.
    #[inline]
    pub const fn is_writable(self) -> bool {
        self.0 & Self::WRITE != 0
    }

    /// Whether the page is in this device's memory.
    #[inline]
    pub const fn is_device(self) -> bool {
        self.0 & Self::DEVICE != 0
    }

    /// Whether the device has the page for itself.
    #[inline]
    pub const fn is_exclusive(self) -> bool {
        self.0 & Self::EXCLUSIVE != 0
    }

    /// Whether the device may have changed the page through this entry.
    #[inline]
    pub const fn may_be_dirty(self) -> bool {
        self.0 & (Self::WRITE | Self::EXCLUSIVE) != 0
    }

    /// Frame number, or device page number if [`Self::is_device`].
    #[inline]
    pub const fn number(self) -> usize {
        (self.0 >> Self::SHIFT) as usize
    }

    /// The same rights, of page `number`.
    #[inline]
    pub(crate) const fn with_number(self, number: usize) -> Self {
        let rights = self.0 & ((1 << Self::SHIFT) - 1);
        Self(rights | (number as u64) << Self::SHIFT)
    }

    /// Whether it names a page of system memory that the device may have written.
    #[inline]
    pub(crate) const fn may_have_dirtied(self) -> bool {
        // By one test, because entries are removed many at a time.
        const KINDS: u32 =
            1 << Entry::WRITE | 1 << Entry::EXCLUSIVE | 1 << (Entry::WRITE | Entry::EXCLUSIVE);
        let kind = self.0 & (Self::WRITE | Self::DEVICE | Self::EXCLUSIVE);
        KINDS >> kind & 1 != 0
    }

    /// The same page, not to be written.
    #[inline]
    pub const fn write_protected(self) -> Self {
        Self(self.0 & !Self::WRITE)
    }

    /// The same page, which may be written.
    #[inline]
    pub(crate) const fn writable(self) -> Self {
        Self(self.0 | Self::WRITE)
    }

    /// The page `pages` after this one, with the same rights; [`Self::NONE`] stays so.
    #[inline]
    pub const fn plus(self, pages: usize) -> Self {
        if !self.is_valid() {
            return self;
        }
        Self(self.0.wrapping_add((pages as u64) << Self::SHIFT))
    }

    /// The page `pages` before this one, as [`Self::plus`].
    #[inline]
    pub const fn minus(self, pages: usize) -> Self {
        self.plus(pages.wrapping_neg())
    }

    /// Whether a translation that was kept as `self` is no longer right where the table says `now`.
    #[inline]
    pub const fn is_outdated_by(self, now: Self) -> bool {
        let lost = self.0 & !now.0;
        self.is_valid() && ((self.0 ^ now.0) & !Self::WRITE != 0 || lost & Self::WRITE != 0)
    }

    /// The bits, for a format that keeps them as they are.
    #[inline]
    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    /// The entry of which these are the bits.
    #[inline]
    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// A translation: what a walk finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// The very page that was asked for.
    pub entry: Entry,
    /// Log2 of the pages that are mapped together, aligned to that size.
    pub order: u32,
}
