// SPDX-License-Identifier: GPL-2.0

//! The blitter: copies pages of the host between bus addresses, and can reach no device memory.
//! The driver schedules it, and waits for the end of a copy.

use super::{
    copy_engine::{
        CopyBus,
        Descriptor, //
    },
    registers::{
        Register,
        Registers, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    }, //
};

/// Maximum duration of a copy. Real hardware would be reset after a timeout.
const BLIT_TIMEOUT: Delta = Delta::from_secs(10);

/// Carries out `copy`, which has a source, in pages of the host. Context: may sleep, for as long as
/// the register of the delay says.
///
/// # Errors
///
/// - `EIO`: the register says that this copy fails.
/// - `EFAULT`: there is no memory at an address.
pub(crate) fn blit(registers: &Registers, copy: &Descriptor, bus: &impl CopyBus) -> Result {
    let since = Instant::<Monotonic>::now();
    let result = if registers.fail_copy() {
        Err(EIO)
    } else {
        transfer(copy, bus)
    };
    if let Some(delay) = registers.delay(Register::CopyDelay) {
        let left = delay.min(BLIT_TIMEOUT) - since.elapsed();
        if left > Delta::ZERO {
            fsleep(left);
        }
    }
    result
}

fn transfer(copy: &Descriptor, bus: &impl CopyBus) -> Result {
    let source = copy.source.ok_or(EFAULT)?;
    for at in (0..copy.bytes).step_by(PAGE_SIZE) {
        // CAST: Both have 64 bits. OVERFLOW: The driver has mapped both ranges.
        let at = at as u64;
        bus.copy(source + at, copy.destination + at, PAGE_SIZE)?;
    }
    Ok(())
}
