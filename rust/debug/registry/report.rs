// SPDX-License-Identifier: GPL-2.0

//! Files `rust_hmm/mirrors` and `rust_hmm/devices` in debugfs.

use super::{
    list::{
        next,
        position, //
    },
    ObjectKind,
    RegistryEntry, //
};
use crate::mm::vma::fatal_signal_pending;
use kernel::{
    debugfs::Writer,
    fmt,
    prelude::*, //
};

/// Names of the columns that [`DebugObject::columns`] writes for a mirror.
const MIRROR_COLUMNS: &str =
    "device alive faults fault_ns migrations mapped invalidations invalidated to_device to_system \
     switched skipped retries";

/// Names of the columns that [`DebugObject::columns`] writes for a device.
const DEVICE_COLUMNS: &str =
    "kind used total limit cpu_faults cpu_fault_pages evicted evicted_for_room";

/// Numbers of pages that the device of a mirror can translate, by location.
#[derive(Default)]
struct Residency {
    system: usize,
    device: usize,
    exclusive: usize,
}

impl RegistryEntry {
    /// Counts the pages that the device can translate.
    ///
    /// # Errors
    ///
    /// - `EINTR` if a fatal signal is pending.
    fn residency(&self) -> Result<Residency> {
        let mut total = Residency::default();
        let mut from = Some(0);
        while let Some(addr) = from {
            if fatal_signal_pending() {
                return Err(EINTR);
            }
            let subject = self.subject.lock();
            from = subject.as_ref().and_then(|subject| {
                subject.translations(addr, &mut |range, entry, _| {
                    let place = if entry.is_device() {
                        &mut total.device
                    } else if entry.is_exclusive() {
                        &mut total.exclusive
                    } else {
                        &mut total.system
                    };
                    *place += range.pages();
                    true
                })
            });
        }
        Ok(total)
    }
}

/// Contents of the files `mirrors` and `devices`: a line with the names of the columns, and a line
/// for each object.
pub(crate) struct ObjectReport(pub(crate) ObjectKind);

impl Writer for ObjectReport {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ObjectKind::Mirror => writeln!(
                f,
                "mirror pid system_pages device_pages exclusive_pages {MIRROR_COLUMNS}"
            )?,
            ObjectKind::Device => writeln!(f, "device {DEVICE_COLUMNS}")?,
        }
        let mut from = 0;
        while let Some(place) = next(self.0, from) {
            from = position(place.number) + 1;
            let Ok(pages) = place.residency() else {
                break;
            };
            let subject = place.subject.lock();
            let Some(subject) = subject.as_ref() else {
                continue;
            };
            write!(f, "{}", place.number)?;
            if self.0 == ObjectKind::Mirror {
                let Residency {
                    system,
                    device,
                    exclusive,
                } = pages;
                write!(f, " {} {system} {device} {exclusive}", place.pid)?;
            }
            subject.columns(f)?;
            writeln!(f)?;
        }
        Ok(())
    }
}
