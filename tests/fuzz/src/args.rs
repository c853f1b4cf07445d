// SPDX-License-Identifier: GPL-2.0
//! Arguments of ioctls: valid ones, some of which are then modified.

use crate::arena::{
    self,
    BUFFER,
    BUFFER_LEN, //
};
use crate::calls::Op;
use crate::extended;
use crate::mutate;
use crate::sys;
use hmm::abi::iowr;
use hmm::rng::Rng;
use hmm::{
    HUGE_PAGES,
    PAGE_SIZE, //
};

/// Maximum number of words of an argument.
const MOST: usize = 34;

/// Maximum delay that a test parameter sets, in ns: longer delays would dominate the run.
const DELAY: u64 = 20_000;

/// `DMIRROR_SET`: type and number of the ioctl, the only parts that the driver compares.
const SET: u64 = 0x4847;
/// Its parameter `DMIRROR_SKIP_FLUSH`, which is never set: a device that skips flushes uses stale
/// translations, and the library raises an alarm.
const SKIP_FLUSH: u64 = 2;
/// A parameter that does not exist.
const NO_SETTING: u64 = 6;

/// An argument.
pub struct Argument {
    /// The number of the ioctl.
    pub request: u64,
    /// The structure.
    pub words: [u64; MOST],
    /// Size in bytes.
    bytes: usize,
    /// Whether the call may take long.
    pub heavy: bool,
}

/// Writes a `struct dmirror_set`.
pub fn put_set(at: usize, what: u64, value: u64) {
    for (index, word) in [32, what, value, 0].into_iter().enumerate() {
        sys::poke(at + index * 8, word);
    }
}

/// A word from its low and high half.
pub fn two(low: u64, high: u64) -> u64 {
    low | (high << 32)
}

/// A number of pages.
fn count(rng: &mut Rng) -> u64 {
    match rng.below(1024) {
        0..4 => 512,
        4 => 2 * HUGE_PAGES as u64,
        5 => mutate::border(rng),
        6..40 => 1 + rng.below_u64(64),
        _ => 1 + rng.below_u64(8),
    }
}

/// A buffer of `bytes`.
fn buffer(rng: &mut Rng, bytes: u64) -> u64 {
    let end = (BUFFER + BUFFER_LEN) as u64;
    match rng.below(16) {
        // The buffer ends where a hole begins.
        0 | 1 => end.wrapping_sub(bytes),
        2 => end.wrapping_sub(bytes).wrapping_add(PAGE_SIZE as u64),
        3 => arena::page(rng) as u64 + rng.below_u64(PAGE_SIZE as u64),
        4 => arena::any_page(rng) as u64,
        _ => BUFFER as u64,
    }
}

impl Argument {
    /// Number of pages of the range.
    pub fn pages(&self) -> usize {
        self.words[2] as usize
    }

    fn new(number: u8, bytes: usize) -> Argument {
        let request = iowr(number, bytes);
        Argument { request, words: [0; MOST], bytes, heavy: false }
    }

    /// A valid argument, except that its addresses may be unmapped.
    pub fn of(op: Op, rng: &mut Rng, last_id: u64) -> Argument {
        let mut new = match op {
            Op::Info => Argument::new(0x40, 40),
            Op::Counters => Argument::new(0x41, 264),
            Op::Submit => Argument::submit(rng),
            Op::Wait => {
                let mut new = Argument::new(0x43, 72);
                let long = rng.pick(&[u64::MAX, i64::MAX as u64, 1 << 40]);
                let timeout = rng.pick(&[0, 0, 0, 0, 0, 1, 1000, 100_000]);
                new.words[1] = last_id.saturating_sub(rng.below_u64(8));
                new.words[2] = if rng.one_in(256) { long } else { timeout };
                new
            }
            Op::Stop => {
                let mut new = Argument::new(0x44, 16);
                new.words[1] = last_id.saturating_sub(rng.below_u64(16));
                new
            }
            Op::Engine => {
                let mut new = Argument::new(0x45, 160);
                new.words[0] = two(0, rng.below_u64(3));
                new
            }
            Op::Migrate => {
                let mut new = Argument::new(0x46, 80);
                let pages = count(rng);
                new.words[0] = two(0, rng.below_u64(4));
                new.words[1] = arena::page(rng) as u64;
                new.words[2] = pages;
                new.words[3] = if rng.one_in(2) { buffer(rng, pages) } else { 0 };
                new.heavy = true;
                new
            }
            Op::Set => {
                let mut new = Argument::new(0x47, 32);
                let (what, most) =
                    rng.pick(&[(0, DELAY), (1, 64), (3, 2), (4, DELAY), (5, 3), (NO_SETTING, 2)]);
                (new.words[1], new.words[2]) = (what, rng.below_u64(most));
                new
            }
            Op::Discard => {
                let mut new = Argument::new(0x48, 24);
                (new.words[1], new.words[2]) = (arena::page(rng) as u64, count(rng));
                new.heavy = true;
                new
            }
            Op::Unknown => {
                let mut new = Argument::new(rng.bits() as u8, 40);
                new.request = match rng.below(8) {
                    0..3 => new.request,
                    // A valid number with another size and direction, or a number of another
                    // driver.
                    3 | 4 => iowr(rng.below(0x7e) as u8, rng.below(1 << 14)),
                    5 => iowr(rng.below(0x7e) as u8, 40) & !(rng.below_u64(4) << 30),
                    6 => rng.pick(&[0x5401, 0x541b, 0x5421, 0x5450, 0x5451, 0x6601, 1, 2]),
                    _ => rng.bits() & 0xffff_ffff,
                };
                new
            }
            Op::Template | Op::Engines => {
                let words = if op == Op::Template { 2 } else { 3 };
                let number = rng.below_u64(u64::from(extended::TEMPLATE_COMMANDS) + 1);
                let mut new = Argument::new(0, words * 8);
                new.request = extended::iow_t(number, words as u64 * 8);
                extended::fill_template(number, rng, &mut new.words);
                new.heavy = number != 0;
                new
            }
            Op::Sample => {
                let bytes = if rng.one_in(3) { 32 } else { extended::SAMPLE_BYTES };
                let number = rng.below(usize::from(extended::SAMPLE_COMMANDS) + 1) as u8;
                let mut new = Argument::new(number, bytes);
                extended::fill_sample(rng, &mut new.words);
                new.heavy = true;
                new
            }
            _ => match extended::ioctl(op) {
                Some((number, bytes)) => {
                    let mut new = Argument::new(number, bytes);
                    extended::fill(op, rng, &mut new.words);
                    new
                }
                None => Argument::command(op, rng),
            },
        };
        if op.is_extension() {
            // An extension: the argument begins with its size.
            new.words[0] |= match rng.below(32) {
                0 => rng.below_u64(new.bytes as u64),
                1 => new.bytes as u64 + rng.below_u64(64),
                2 => new.bytes as u64 + rng.below_u64(2 * PAGE_SIZE as u64),
                3 => mutate::border(rng) & 0xffff_ffff,
                _ => new.bytes as u64,
            };
        }
        new
    }

    /// `struct hmm_dmirror_cmd`.
    fn command(op: Op, rng: &mut Rng) -> Argument {
        let mut new = Argument::new(op as u8, 40);
        let pages = count(rng);
        let bytes = match op {
            Op::Snapshot => pages,
            _ => pages.wrapping_mul(PAGE_SIZE as u64),
        };
        new.words[0] = arena::page(rng) as u64;
        new.words[1] = buffer(rng, bytes);
        if op == Op::Snapshot && !rng.one_in(64) {
            // A snapshot that is too long then reaches the hole early.
            new.words[1] = (BUFFER + BUFFER_LEN) as u64 - pages.min(1024);
        }
        new.words[2] = pages;
        new.heavy = pages >= 64 || matches!(op, Op::Release | Op::Exclusive | Op::CheckExclusive);
        new
    }

    fn submit(rng: &mut Rng) -> Argument {
        let mut new = Argument::new(0x42, 80);
        let op = rng.below_u64(8);
        let bytes = match rng.below(64) {
            0 => mutate::border(rng),
            1..4 => 2 << 20,
            _ => 8 + rng.below_u64(2 * PAGE_SIZE as u64),
        } & !7;
        let place = |rng: &mut Rng| arena::page(rng) as u64 + rng.below_u64(512) * 8;
        let verify = matches!(op, 0 | 5 | 6) && rng.one_in(8);
        let stride = rng.pick(&[8, 64, 4096, 8192, 1 << 20, 1 << 47, u64::MAX - 7]);
        let endless = rng.one_in(128);
        new.words[0] = two(0, verify.into());
        new.words[1] = two(rng.pick(&[0, 1, 0xffff_ffff]), op);
        new.words[2] = place(rng);
        new.words[3] = bytes.max(8);
        new.words[4] = if op == 4 { place(rng) } else { 0 };
        new.words[5] = if op == 7 { place(rng) } else { rng.bits() };
        new.words[6] = if matches!(op, 3 | 6) { stride } else { 0 };
        new.words[7] = if endless { 0 } else { 1 + rng.below_u64(2) };
        new.words[8] = if endless { 10_000_000 } else { rng.below_u64(2) * rng.below_u64(10_000) };
        new
    }

    /// Limits the range to a few pages.
    pub fn shorten(&mut self, op: Op) {
        if op as usize <= Op::ReadUnlocked as usize {
            self.words[2] = self.words[2].min(4);
        }
    }

    /// Makes the argument invalid: a bad range, a bad operation, or a size that is too small.
    pub fn spoil(&mut self, op: Op, rng: &mut Rng) {
        let (addr, pages) = match op {
            Op::Submit | Op::QueueSubmit | Op::Pull => (2, 3),
            Op::Migrate | Op::SetAttributes | Op::GetAttributes => (1, 2),
            Op::Sample | Op::Template | Op::Engines => (0, 1),
            _ => (0, 2),
        };
        match rng.below(6) {
            0 => self.words[addr] |= 1 + rng.below_u64(7),
            1 => self.words[pages] = 0,
            2 => self.words[addr] = rng.pick(&arena::FOREIGN) as u64 | 1,
            3 => self.words[pages] = u64::MAX << rng.below(12),
            // The number stays valid, but the size changes.
            4 => self.request ^= 1 << (16 + rng.below(14)),
            // An unmapped address.
            _ => self.words[addr] = (arena::HOLE + rng.below(64) * PAGE_SIZE) as u64,
        }
        if op == Op::Submit {
            match rng.below(3) {
                0 => self.words[1] |= (8 + rng.below_u64(1 << 28)) << 32,
                1 => self.words[0] = (self.words[0] & !0xffff_ffff) | rng.below_u64(80),
                _ => self.words[8] = 1_000_000_001 + rng.below_u64(1 << 40),
            }
        }
    }

    /// Changes one or two words of the argument; leaves three of four arguments unchanged.
    pub fn mutate(&mut self, op: Op, rng: &mut Rng) {
        if !rng.one_in(4) {
            return;
        }
        for _ in 0..1 + rng.below(2) {
            let index = rng.below((self.bytes / 8).min(10));
            let old = self.words[index];
            self.words[index] = match rng.below(4) {
                0 => two(mutate::half(rng).into(), old >> 32),
                1 => two(old & 0xffff_ffff, mutate::half(rng).into()),
                _ => mutate::word(rng, old),
            };
        }
        if rng.one_in(16) {
            self.request ^= 1 << rng.below(32);
        }
        self.heavy = true;
        extended::restrain(op, &mut self.words);
        if op == Op::Set && matches!(self.words[1] & 0xffff_ffff, 0 | 4) && self.words[2] < 1 << 31
        {
            self.words[2] %= DELAY;
        }
    }

    /// Whether the driver handles the request as `DMIRROR_SET`, also if its number was changed into
    /// that.
    pub fn is_setting(&self) -> bool {
        self.request & 0xffff == SET
    }

    /// Writes a `DMIRROR_SET` to a page that no other thread writes, and returns its address. Never
    /// sets `DMIRROR_SKIP_FLUSH`.
    pub fn place_setting(&mut self, rng: &mut Rng, thread: usize) -> usize {
        self.keep_flushes();
        let page = arena::settings(thread);
        let end = page + PAGE_SIZE - self.bytes;
        let at = match rng.below(16) {
            // A part of the argument is in a hole.
            0 => end + 8 * (1 + rng.below(self.bytes / 8)),
            1..4 => end,
            _ => page,
        };
        self.write(at, page);
        at
    }

    /// Replaces `DMIRROR_SKIP_FLUSH` by an invalid parameter.
    fn keep_flushes(&mut self) {
        if self.words[1] & 0xffff_ffff == SKIP_FLUSH {
            self.words[1] ^= SKIP_FLUSH ^ NO_SETTING;
        }
    }

    /// Writes the argument to memory and returns its address. Some addresses have other contents.
    pub fn place(&self, rng: &mut Rng, thread: usize) -> usize {
        let page = arena::arguments(thread);
        let end = page + PAGE_SIZE - self.bytes;
        let at = match rng.below(32) {
            0..20 => page,
            20..26 => end,
            26 => page + rng.below(256) * 8,
            // A part of the argument is in a hole.
            27 => end + 8 * (1 + rng.below(self.bytes / 8)),
            28 => {
                // Not aligned: use the contents of the page.
                return page + rng.below(PAGE_SIZE);
            }
            29 => {
                self.write(page, page);
                return arena::read_only_alias(thread);
            }
            30 => return arena::any_page(rng),
            _ => return arena::page(rng) + rng.below(512) * 8,
        };
        self.write(at, page);
        at
    }

    fn write(&self, at: usize, page: usize) {
        for (index, word) in self.words.iter().take(self.bytes / 8).enumerate() {
            let addr = at + index * 8;
            if addr < page + PAGE_SIZE {
                sys::poke(addr, *word);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::ALL;

    #[test]
    fn no_argument_skips_flushes() {
        let mut rng = Rng::new(7, 0);
        let mut settings = 0;
        for round in 0..2_000_000 {
            let op = ALL[round % ALL.len()];
            let mut argument = Argument::of(op, &mut rng, 4);
            if rng.one_in(2) {
                argument.spoil(op, &mut rng);
            }
            argument.mutate(op, &mut rng);
            if argument.is_setting() {
                settings += usize::from(op != Op::Set);
                argument.keep_flushes();
                assert_ne!(argument.words[1] & 0xffff_ffff, SKIP_FLUSH);
            }
        }
        assert!(settings > 0, "no other call was changed into DMIRROR_SET");
    }
}
