// SPDX-License-Identifier: GPL-2.0
//! The ioctl interface of `/dev/hmm_dmirror*`.
//!
//! Numbers 0x00 to 0x09 are those of the kernel's `lib/test_hmm_uapi.h`; 0x41
//! is the extension of `rust_dmirror` that reads its counters.  The others are in
//! [`crate::engine`].

/// Bytes in a base page of the guest that the programs are built for, see `tools/build`.
pub const PAGE_SIZE: usize = if option_env!("HMM_PAGES_16K").is_some() { 16384 } else { 4096 };
/// Words in a base page.
pub const PAGE_WORDS: usize = PAGE_SIZE / 8;
/// Bytes in a huge page: a PMD maps one page of page table entries of 8 bytes.
pub const HUGE_SIZE: usize = PAGE_WORDS * PAGE_SIZE;
/// Base pages in a huge page.
pub const HUGE_PAGES: usize = HUGE_SIZE / PAGE_SIZE;

/// Argument of every command of the common interface.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cmd {
    /// First address of the range, page aligned.
    pub addr: u64,
    /// User buffer that data is copied from or to.
    pub ptr: u64,
    /// Length of the range in base pages (flag bits for [`Op::Flags`]).
    pub npages: u64,
    /// Out: pages done.
    pub cpages: u64,
    /// Out: rounds of device faults that were needed.
    pub faults: u64,
}

/// Commands of the common interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// The device reads the range; the data is copied to `ptr`.
    Read = 0x00,
    /// The device writes the range with the data at `ptr`.
    Write = 0x01,
    /// Migrate to device memory, then read the range to `ptr`.
    MigrateToDev = 0x02,
    /// Migrate back to system memory.
    MigrateToSys = 0x03,
    /// One byte per page: how the CPU maps it, without faulting.
    Snapshot = 0x04,
    /// Map for exclusive (atomic) device access, then read to `ptr`.
    Exclusive = 0x05,
    /// Fails with `EPERM` while an exclusive entry is left.
    CheckExclusive = 0x06,
    /// Evict all pages of the device and give its memory back.
    Release = 0x07,
    /// Set test flags, see [`FLAG_FAIL_ALLOC`].
    Flags = 0x08,
    /// As `Read`, for memory that a userfaultfd handler fills.
    ReadUnlocked = 0x09,
}

impl Op {
    /// Every command, in order of its number.
    pub const ALL: [Op; 10] = [
        Op::Read,
        Op::Write,
        Op::MigrateToDev,
        Op::MigrateToSys,
        Op::Snapshot,
        Op::Exclusive,
        Op::CheckExclusive,
        Op::Release,
        Op::Flags,
        Op::ReadUnlocked,
    ];

    /// The name used in messages.
    pub fn name(self) -> &'static str {
        match self {
            Op::Read => "READ",
            Op::Write => "WRITE",
            Op::MigrateToDev => "MIGRATE_TO_DEV",
            Op::MigrateToSys => "MIGRATE_TO_SYS",
            Op::Snapshot => "SNAPSHOT",
            Op::Exclusive => "EXCLUSIVE",
            Op::CheckExclusive => "CHECK_EXCLUSIVE",
            Op::Release => "RELEASE",
            Op::Flags => "FLAGS",
            Op::ReadUnlocked => "READ_UNLOCKED",
        }
    }

    /// The ioctl request number.
    pub fn request(self) -> u64 {
        iowr(self as u8, size_of::<Cmd>())
    }
}

/// Flag for [`Op::Flags`]: the next allocation for a migration fails, once.
pub const FLAG_FAIL_ALLOC: u64 = 1;

/// `_IOWR('H', nr, size)` of the kernel's `asm-generic/ioctl.h`.
pub const fn iowr(nr: u8, size: usize) -> u64 {
    const READ_WRITE: u64 = 3;
    (READ_WRITE << 30) | ((size as u64) << 16) | ((b'H' as u64) << 8) | nr as u64
}

/// State of a page, as [`Op::Snapshot`] reports it.
///
/// The low bits are permissions and size; the high four are the kind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PageState(pub u8);

impl PageState {
    /// Not accessible at all: no mapping, or no permission.
    pub const ERROR: PageState = PageState(0xff);
    /// Nothing there now; an access would fault.
    pub const NONE: PageState = PageState(0x00);
    /// Readable.
    pub const READ: u8 = 0x01;
    /// Readable and writable.
    pub const WRITE: u8 = 0x02;
    /// Mapped by a PMD.
    pub const PMD: u8 = 0x04;
    /// Mapped by a PUD.
    pub const PUD: u8 = 0x08;
    /// The zero page.
    pub const ZERO: u8 = 0x10;
    /// Private memory of this device.
    pub const DEV_PRIVATE_LOCAL: u8 = 0x20;
    /// Private memory of another device.
    pub const DEV_PRIVATE_REMOTE: u8 = 0x30;
    /// Coherent memory of this device.
    pub const DEV_COHERENT_LOCAL: u8 = 0x40;
    /// Coherent memory of another device.
    pub const DEV_COHERENT_REMOTE: u8 = 0x50;

    /// The kind bits.
    pub fn kind(self) -> u8 {
        self.0 & 0xf0
    }

    /// In the memory of the device that was asked?
    pub fn is_local(self) -> bool {
        self != Self::ERROR
            && matches!(self.kind(), Self::DEV_PRIVATE_LOCAL | Self::DEV_COHERENT_LOCAL)
    }

    /// In the memory of any device?
    pub fn is_device(self) -> bool {
        self != Self::ERROR && matches!(self.kind(), 0x20 | 0x30 | 0x40 | 0x50)
    }

    /// Part of a huge mapping?
    pub fn is_huge(self) -> bool {
        self != Self::ERROR && self.0 & (Self::PMD | Self::PUD) != 0
    }

    /// Ordinary system memory?
    pub fn is_ram(self) -> bool {
        self != Self::ERROR && self.kind() == 0 && self.0 & (Self::READ | Self::WRITE) != 0
    }

    /// The zero page?
    pub fn is_zero(self) -> bool {
        self != Self::ERROR && self.kind() == Self::ZERO
    }

    /// May the CPU write without a fault?
    pub fn is_writable(self) -> bool {
        self != Self::ERROR && self.0 & Self::WRITE != 0
    }
}

impl std::fmt::Debug for PageState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#04x}", self.0)
    }
}

/// Version of the extensions.
pub const ABI_VERSION: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{
        align_of,
        offset_of, //
    };

    #[test]
    fn cmd_has_the_layout_of_the_c_structure() {
        assert_eq!(size_of::<Cmd>(), 40);
        assert_eq!(align_of::<Cmd>(), 8);
        assert_eq!(offset_of!(Cmd, addr), 0);
        assert_eq!(offset_of!(Cmd, ptr), 8);
        assert_eq!(offset_of!(Cmd, npages), 16);
        assert_eq!(offset_of!(Cmd, cpages), 24);
        assert_eq!(offset_of!(Cmd, faults), 32);
    }

    #[test]
    fn request_numbers_match_the_c_macros() {
        // Printed by a C program that includes the kernel's header.
        assert_eq!(Op::Read.request(), 0xc028_4800);
        assert_eq!(Op::MigrateToSys.request(), 0xc028_4803);
        assert_eq!(Op::ReadUnlocked.request(), 0xc028_4809);
        for (nr, op) in Op::ALL.iter().enumerate() {
            assert_eq!(op.request(), 0xc028_4800 + nr as u64);
        }
    }

    #[test]
    fn page_states_of_the_upstream_tests() {
        assert!(PageState(0x26).is_local() && PageState(0x26).is_huge());
        assert!(PageState(0x22).is_local() && !PageState(0x22).is_huge());
        assert!(PageState(0x11).is_zero() && !PageState(0x11).is_ram());
        assert!(PageState(0x06).is_ram() && PageState(0x06).is_huge());
        assert!(PageState(0x32).is_device() && !PageState(0x32).is_local());
        assert!(PageState(0x42).is_local());
        for no in [PageState::ERROR, PageState::NONE] {
            assert!(!no.is_device() && !no.is_huge() && !no.is_ram() && !no.is_writable());
            assert!(!no.is_zero());
        }
    }
}
