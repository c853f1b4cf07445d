// SPDX-License-Identifier: GPL-2.0
//! CPU accesses.

use super::{
    fail,
    Effect,
    Fail,
    Lane, //
};
use crate::torture::op::Span;
use std::sync::atomic::Ordering::SeqCst;

impl Lane<'_> {
    pub(super) fn cpu_write(&mut self, at: Span, seed: u64) -> Result<(), Fail> {
        self.quiesce(at, Effect::Changes)?;
        let region = &mut self.regions[at.r];
        for page in at.pages() {
            if region.allows(page, true) {
                region.fill(page, seed);
            }
        }
        Ok(())
    }

    pub(super) fn cpu_read(&mut self, at: Span) -> Result<(), Fail> {
        self.quiesce(at, Effect::Looks)?;
        let region = &mut self.regions[at.r];
        for page in at.pages() {
            if region.allows(page, false) {
                if let Err(mismatch) = region.check(page) {
                    return fail(format!("CPU read of {:?} memory", region.kind), mismatch);
                }
                region.pages[page].missing = false;
            }
        }
        Ok(())
    }

    /// Adds to the same word of each page, concurrently with engines that add.
    pub(super) fn cpu_add(&mut self, at: Span, word: usize, value: u64) -> Result<(), Fail> {
        self.quiesce(at, Effect::Adds)?;
        for page in at.pages() {
            let region = &mut self.regions[at.r];
            if region.allows(page, true) {
                if let Err(mismatch) = region.settle(page) {
                    return fail("CPU read of a page freed lazily", mismatch);
                }
                region.map.atomic(page, word).fetch_add(value, SeqCst);
                let place = &mut region.words()[page * hmm::pattern::WORDS + word];
                *place = place.wrapping_add(value);
                region.pages[page].missing = false;
            }
        }
        Ok(())
    }
}
