// SPDX-License-Identifier: GPL-2.0

//! Amount of memory that a CPU fault on device memory migrates back.
//!
//! The history of CPU faults belongs to the space, so that processes do not affect each other. It
//! begins with the first mirror of a process and ends with the last one.

use super::find;
use crate::{
    kernel::identity::MmId,
    policy::fault_around::FaultWindows, //
};

/// Returns the number of bytes to migrate back for a CPU fault of the address space `mm` at `addr`,
/// on device memory number `memory`.
///
/// An address space without mirrors has no history: a child after `fork()`, or a process that has
/// closed its mirrors while its pages are on the device. Each of its faults gets the first window.
///
/// # Context
///
/// Any but NMI. Takes no lock and allocates nothing.
pub(crate) fn cpu_fault_window(mm: MmId, memory: u32, addr: usize) -> usize {
    match find(mm) {
        Some(space) => space.cpu_faults.record_fault(memory, addr),
        None => FaultWindows::first(),
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[::kernel::prelude::kunit_tests(rust_hmm_cpu_fault_window)]
mod tests {
    use super::*;
    use crate::{
        bindings,
        space::SpaceHandle, //
    };
    use core::ptr::NonNull;
    use kernel::{
        mm::MmWithUser,
        prelude::*,
        sync::aref::ARef, //
    };

    const BASE: usize = 1 << 40;
    const FIRST: usize = 64 << 10;

    fn new_mm() -> Result<ARef<MmWithUser>> {
        // SAFETY: The function has no preconditions.
        let mm = unsafe { bindings::rust_hmm_kunit_mm_alloc() };
        let mm = NonNull::new(mm).ok_or(ENOMEM)?;
        // SAFETY: `mm` has the reference to its users that it was allocated with, which is passed
        // on. `MmWithUser` is a transparent wrapper of `mm_struct`.
        Ok(unsafe { ARef::from_raw(mm.cast()) })
    }

    #[test]
    fn each_space_has_its_own_window() -> Result {
        // Any table of at most 64 windows would have one for two of them.
        const SPACES: usize = 65;
        let mut spaces = KVec::with_capacity(SPACES, GFP_KERNEL)?;
        for _ in 0..SPACES {
            let mm = new_mm()?;
            spaces.push((SpaceHandle::new(&mm)?, mm), GFP_KERNEL)?;
        }
        for (addr, expected) in [(BASE, FIRST), (BASE + FIRST, 2 * FIRST)] {
            for (space, _mm) in &spaces {
                assert_eq!(cpu_fault_window(space.name(), 1, addr), expected);
            }
        }
        Ok(())
    }

    #[test]
    fn window_without_a_space_stays_the_first() -> Result {
        let mm = new_mm()?;
        let name = MmId::of_user(&mm);
        let next = [BASE, BASE + FIRST, BASE + 3 * FIRST];
        let space = SpaceHandle::new(&mm)?;
        let with = next.map(|addr| cpu_fault_window(name, 1, addr));
        assert_eq!(with, [FIRST, 2 * FIRST, 4 * FIRST]);
        drop(space);
        let without = next.map(|addr| cpu_fault_window(name, 1, addr));
        assert_eq!(without, [FIRST; 3]);
        Ok(())
    }
}
