// SPDX-License-Identifier: GPL-2.0
//! Diagnosis of a mismatch: where the pages are now, and the contents that each agent reads.

use super::Lane;
use crate::torture::op::Span;
use hmm::PAGE_SIZE;
use std::fmt::Write;
use std::os::unix::fs::FileExt;

impl Lane<'_> {
    /// Reads the range again with the devices, then with the CPU, because a CPU read migrates pages
    /// back.
    pub(super) fn explain(&self, at: Span) -> String {
        let region = &self.regions[at.r];
        let addr = self.addr(at);
        let mut text = String::new();
        let _ = writeln!(text, "\n  {:?} memory at {addr:#x}", region.kind);
        for page in at.pages() {
            let addr = addr + (page - at.page) * PAGE_SIZE;
            let _ = write!(text, "  page {page}, pagemap {:#018x}", pagemap(addr));
            for (number, device) in self.devices.iter().enumerate() {
                let mut bytes = [0; PAGE_SIZE];
                let found = match device.read(addr, &mut bytes) {
                    Ok(_) => region.compare_bytes(page, &bytes).map_err(|wrong| wrong.to_string()),
                    Err(error) => Err(error.to_string()),
                };
                let _ = match found {
                    Ok(()) => write!(text, ", device {number} right"),
                    Err(error) => write!(text, ", device {number}: {error}"),
                };
            }
            let _ = match region.check(page) {
                Ok(()) => writeln!(text, ", CPU right"),
                Err(wrong) => writeln!(text, ", CPU: {wrong}"),
            };
        }
        text
    }
}

/// The entry of `/proc/self/pagemap` for an address; 0 if it cannot be read.
fn pagemap(addr: usize) -> u64 {
    let mut word = [0; 8];
    let Ok(file) = std::fs::File::open("/proc/self/pagemap") else { return 0 };
    let _ = file.read_exact_at(&mut word, (addr / PAGE_SIZE * 8) as u64);
    u64::from_ne_bytes(word)
}
