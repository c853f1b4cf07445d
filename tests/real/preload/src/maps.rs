// SPDX-License-Identifier: GPL-2.0
//! Mappings of the process, parsed from `/proc/thread-self/maps` without allocation.

use crate::{
    random::Random,
    sys::{
        Errno,
        Fd, //
    }, //
};

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// A mapping whose pages may be migrated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: usize,
    /// Length in pages.
    pub pages: usize,
    /// Executable?
    pub code: bool,
}

/// Selection of mappings by execute permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Only those that are not.
    No,
    /// All.
    Yes,
    /// Only those that are.
    Only,
}

/// Parses a line of a maps file. `None` if the mapping is shared, unreadable, or one of the kernel.
pub fn parse(line: &[u8]) -> Option<Mapping> {
    let (start, rest) = hex(line)?;
    let (end, rest) = hex(rest.strip_prefix(b"-")?)?;
    let [b' ', b'r', _, x, b'p', ..] = *rest else { return None };
    // The vDSO and its data are no memory of the process.
    if let Some(at) = rest.iter().position(|&c| c == b'[') {
        if rest.get(at + 1) == Some(&b'v') {
            return None;
        }
    }
    let pages = end.checked_sub(start)? / PAGE;
    (pages > 0).then_some(Mapping { start, pages, code: x == b'x' })
}

/// Splits a hexadecimal number from the front.
fn hex(text: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0usize;
    let mut rest = text;
    while let [c, tail @ ..] = rest {
        let Some(digit) = (*c as char).to_digit(16) else { break };
        value = value.checked_mul(16)?.checked_add(digit as usize)?;
        rest = tail;
    }
    (rest.len() < text.len()).then_some((value, rest))
}

/// Maximum number of mappings; from more, a random choice.
const MOST: usize = 1024;
/// Length of the evaluated part of a line: addresses, permissions, and the beginning of a name.
const LINE: usize = 128;

/// Mappings that may be moved.
pub struct Maps {
    list: [Mapping; MOST],
    len: usize,
    buffer: [u8; PAGE],
}

impl Maps {
    /// An empty list.
    pub const fn new() -> Maps {
        let none = Mapping { start: 0, pages: 0, code: false };
        Maps { list: [none; MOST], len: 0, buffer: [0; PAGE] }
    }

    /// Reads the mappings from `file`.
    pub fn read(&mut self, file: Fd, code: Code, random: &mut Random) -> Result<(), Errno> {
        let mut line = [0u8; LINE];
        let mut length = 0;
        let mut offset = 0;
        let mut found = 0;
        self.len = 0;
        loop {
            let n = file.read_at(&mut self.buffer, offset)?;
            if n == 0 {
                return Ok(());
            }
            offset += n;
            for &c in self.buffer.iter().take(n) {
                if c != b'\n' {
                    if let Some(place) = line.get_mut(length) {
                        *place = c;
                        length += 1;
                    }
                    continue;
                }
                let mapping = line.get(..length).and_then(parse);
                length = 0;
                let Some(mapping) = mapping else { continue };
                if (mapping.code && code == Code::No) || (!mapping.code && code == Code::Only) {
                    continue;
                }
                found += 1;
                // Reservoir sampling: each mapping has the same probability.
                let index = if self.len < MOST { self.len } else { random.below(found) };
                if let Some(place) = self.list.get_mut(index) {
                    *place = mapping;
                    self.len = self.len.max(index + 1);
                }
            }
        }
    }

    /// Picks a mapping.
    pub fn pick(&self, random: &mut Random) -> Option<Mapping> {
        self.list.get(random.below(self.len)).copied().filter(|_| self.len > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_readable_mappings_are_selected() {
        let heap = parse(b"555555559000-55555557a000 rw-p 00000000 00:00 0 [heap]");
        assert_eq!(heap, Some(Mapping { start: 0x5555_5555_9000, pages: 33, code: false }));
        let code = parse(b"7ffff7c28000-7ffff7d8d000 r-xp 00028000 fe:00 12 /usr/lib/libc.so.6");
        assert!(code.is_some_and(|mapping| mapping.code));
        assert!(parse(b"7ffff7c28000-7ffff7d8d000 rwxp 00000000 00:00 0 ").is_some());
    }

    #[test]
    fn other_mappings_are_not_selected() {
        for line in [
            &b"7ffff7c28000-7ffff7d8d000 rw-s 00000000 00:01 7 /dev/zero (deleted)"[..],
            b"7ffff7c28000-7ffff7d8d000 ---p 00000000 00:00 0 ",
            b"7ffff7fc3000-7ffff7fc5000 r-xp 00000000 00:00 0 [vdso]",
            b"7ffff7fbf000-7ffff7fc3000 r--p 00000000 00:00 0 [vvar]",
            b"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]",
            b"",
            b"-",
            b"1000-1000 rw-p",
            b"2000-1000 rw-p",
        ] {
            assert_eq!(parse(line), None);
        }
    }
}
