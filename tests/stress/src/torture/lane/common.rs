// SPDX-License-Identifier: GPL-2.0
//! Memory that all lanes use concurrently: of one process (anonymous, can be migrated), and of all
//! processes (a shared file).

use super::{
    fail,
    Fail,
    Lane, //
};
use crate::torture::op::Advice;
use hmm::engine::Way;
use hmm::{
    Command,
    EngineOp,
    Errno, //
};
use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;

/// Values that a lane wrote into its own words of common pages, by (`wide`, page).
pub type Own = HashMap<(bool, usize), u64>;

/// Index of the first word that belongs to a single lane.
const OWN: usize = 8;

impl Lane<'_> {
    /// Index of the lane's own word in common pages.
    pub(super) fn own_word(&self) -> usize {
        OWN + self.number
    }

    pub(super) fn common_add(&mut self, wide: bool, page: usize, value: u64) -> Result<(), Fail> {
        let Some(common) = self.env.common(wide) else { return Ok(()) };
        common.map.atomic(page, 0).fetch_add(value, SeqCst);
        common.sums.atomic(0, page).fetch_add(value, SeqCst);
        Ok(())
    }

    pub(super) fn common_dev_add(
        &mut self,
        wide: bool,
        dev: usize,
        page: usize,
        value: u64,
    ) -> Result<(), Fail> {
        let Some(common) = self.env.common(wide) else { return Ok(()) };
        let command = Command::new(EngineOp::AtomicAdd, common.map.page_addr(page), 8);
        let command = command.stride(8).value(value).engine(Command::ANY);
        match self.one_word(dev, command) {
            Ok(_) => {
                common.sums.atomic(0, page).fetch_add(value, SeqCst);
                Ok(())
            }
            Err(error) => fail("addition to a common word", error),
        }
    }

    /// Executes a command on one word, which takes effect completely or not at all, so that it can
    /// be repeated.
    fn one_word(&mut self, dev: usize, command: Command) -> Result<u64, Errno> {
        self.patiently(|lane| {
            let ended = lane.run(dev, command)?;
            ended.error.map_or(Ok(ended.status.result), Err)
        })
    }

    pub(super) fn common_own(
        &mut self,
        wide: bool,
        dev: usize,
        page: usize,
        by_device: bool,
        value: u64,
    ) -> Result<(), Fail> {
        let Some(common) = self.env.common(wide) else { return Ok(()) };
        let word = self.own_word();
        let addr = common.map.page_addr(page) + word * 8;
        let read = Command::new(EngineOp::Read, addr, 8).engine(Command::ANY);
        let seen = [
            common.map.get(page, word),
            self.one_word(dev, read).map_err(|error| format!("read of an own word: {error}"))?,
        ];
        let own = self.own.get(&(wide, page)).copied().unwrap_or(0);
        if seen != [own; 2] {
            let again: Vec<_> =
                (0..self.devices.len()).map(|dev| self.one_word(dev, read)).collect();
            let cpu = common.map.get(page, word);
            return fail(
                "own word in a common page",
                format!(
                    "page {page}: CPU and device see {seen:x?}, expected {own:#x}; now devices see \
                     {again:x?}, the CPU {cpu:#x}"
                ),
            );
        }
        if by_device {
            let write = Command::new(EngineOp::Write, addr, 8).engine(Command::ANY).value(value);
            self.one_word(dev, write).map_err(|error| format!("write of an own word: {error}"))?;
        } else {
            common.map.set(page, word, value);
        }
        self.own.insert((wide, page), value);
        Ok(())
    }

    pub(super) fn common_move(&mut self, dev: usize, way: Way) -> Result<(), Fail> {
        let map = &self.env.narrow.map;
        match self.devices[dev].migrate(map.addr(), map.pages(), way) {
            Ok(done) => {
                *self.counts.entry("  common pages moved".to_string()).or_default() += done.moved;
                Ok(())
            }
            Err(error) => self.expect("migration of common memory", error, &[Errno::ENOMEM]),
        }
    }

    pub(super) fn common_advise(&mut self, advice: Advice) -> Result<(), Fail> {
        if let Err(error) = self.env.narrow.map.advise(super::memory::code(advice)) {
            self.note(format!("  {advice:?}: {error}"));
        }
        Ok(())
    }
}
