// SPDX-License-Identifier: GPL-2.0

//! Numbers and structures of the user interface: the kernel's `lib/test_hmm_uapi.h`, and
//! `samples/dmirror/dmirror_uapi.h`.

use crate::structure::range;
use core::mem::offset_of;
use kernel::{
    ffi::c_int,
    ioctl,
    prelude::*,
    uaccess::UserSlice, //
};
use rust_hmm::{
    mirror::{
        PageLocation,
        Snapshot, //
    },
    mm::addr::{
        PageRange,
        PMD_ORDER, //
    }, //
};

arguments! {
    /// `struct hmm_dmirror_cmd`.
    RawCommand: 40 {
        addr: u64,
        ptr: u64,
        npages: u64,
        cpages: u64,
        faults: u64,
    }
}

/// Number of bytes of [`RawCommand`] before those that only the driver writes.
const INPUT_BYTES: usize = offset_of!(RawCommand, cpages);

const fn command(number: u32) -> u32 {
    ioctl::_IOWR::<RawCommand>('H' as u32, number)
}

pub(crate) const READ: u32 = command(0x00);
pub(crate) const WRITE: u32 = command(0x01);
pub(crate) const MIGRATE_TO_DEV: u32 = command(0x02);
pub(crate) const MIGRATE_TO_SYS: u32 = command(0x03);
pub(crate) const SNAPSHOT: u32 = command(0x04);
pub(crate) const EXCLUSIVE: u32 = command(0x05);
pub(crate) const CHECK_EXCLUSIVE: u32 = command(0x06);
pub(crate) const RELEASE: u32 = command(0x07);
pub(crate) const FLAGS: u32 = command(0x08);
pub(crate) const READ_UNLOCKED: u32 = command(0x09);

/// Errors that the kernel crate does not name.
pub(crate) const ESTALE: c_int = -116;
pub(crate) const EOPNOTSUPP: c_int = -95;

/// `HMM_DMIRROR_FLAG_FAIL_ALLOC`.
pub(crate) const FLAG_FAIL_ALLOC: u64 = 1;

const PROT_ERROR: u8 = 0xff;
const PROT_NONE: u8 = 0x00;
const PROT_READ: u8 = 0x01;
const PROT_WRITE: u8 = 0x02;
const PROT_PMD: u8 = 0x04;
const PROT_PUD: u8 = 0x08;
const PROT_ZERO: u8 = 0x10;
const PROT_DEV_PRIVATE_LOCAL: u8 = 0x20;
const PROT_DEV_COHERENT_LOCAL: u8 = 0x40;
const PROT_DEV_COHERENT_REMOTE: u8 = 0x50;

const PUD_ORDER: u32 = 18;

/// An ioctl argument of `test_hmm`.
pub(crate) struct Command {
    /// Range of the process.
    pub(crate) range: PageRange,
    /// User buffer.
    pub(crate) ptr: usize,
    /// `npages` as passed by user space; for `FLAGS`, the flags.
    pub(crate) npages: u64,
    /// Out: pages handled.
    pub(crate) cpages: u64,
    /// Out: number of device faults.
    pub(crate) faults: u64,
}

impl Command {
    /// Copies the argument from user space. `EFAULT`: bad pointer. `EINVAL`: bad range.
    pub(crate) fn read(user: usize) -> Result<Self> {
        let inputs: [u64; 3] = UserSlice::new(UserPtr::from_addr(user), INPUT_BYTES)
            .reader()
            .read()?;
        let [addr, ptr, npages] = inputs;
        Ok(Self {
            range: range(addr, npages)?,
            ptr: usize::try_from(ptr)?,
            npages,
            cpages: 0,
            faults: 0,
        })
    }

    /// Copies the results to user space. Called on success only.
    pub(crate) fn write(&self, user: usize) -> Result {
        let outputs = [self.cpages, self.faults];
        // The addition does not wrap: the inputs were read from there.
        let to = UserPtr::from_addr(user.wrapping_add(INPUT_BYTES));
        UserSlice::new(to, size_of_val(&outputs))
            .writer()
            .write(&outputs)
    }
}

/// Returns the byte that `SNAPSHOT` reports for a page.
pub(crate) fn snapshot_byte(page: Snapshot, private: bool) -> u8 {
    let (writable, order, location) = match page {
        Snapshot::Error => return PROT_ERROR,
        Snapshot::None => return PROT_NONE,
        Snapshot::Page {
            writable,
            order,
            location,
        } => (writable, order, location),
    };
    let place = match location {
        PageLocation::System => PROT_NONE,
        PageLocation::Zero => PROT_ZERO,
        PageLocation::Device if private => PROT_DEV_PRIVATE_LOCAL,
        PageLocation::Device => PROT_DEV_COHERENT_LOCAL,
        PageLocation::Remote => PROT_DEV_COHERENT_REMOTE,
    };
    let size = match order {
        PMD_ORDER => PROT_PMD,
        PUD_ORDER => PROT_PUD,
        _ => 0,
    };
    place | size | if writable { PROT_WRITE } else { PROT_READ }
}
