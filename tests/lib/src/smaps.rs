// SPDX-License-Identifier: GPL-2.0
//! `/proc/PID/smaps`: the VMAs of a process, with their statistics.

use std::collections::BTreeMap;
use std::io;

/// One VMA.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vma {
    /// First address.
    pub start: usize,
    /// Address after the last one.
    pub end: usize,
    /// Permissions, as in `rw-p`.
    pub perms: String,
    /// File or `[name]`; empty for anonymous memory.
    pub name: String,
    /// Values in KiB by name, for example `Anonymous`.
    pub kib: BTreeMap<String, u64>,
    /// The two-letter codes of `VmFlags`.
    pub flags: Vec<String>,
}

impl Vma {
    /// Whether the VMA has the flag with this two-letter code.
    pub fn has_flag(&self, code: &str) -> bool {
        self.flags.iter().any(|flag| flag == code)
    }
}

fn parse_header(line: &str) -> Option<Vma> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    let perms = words.next()?.to_string();
    // Offset, device and inode.
    let name = words.skip(3).collect::<Vec<_>>().join(" ");
    Some(Vma { start, end, perms, name, ..Vma::default() })
}

/// Parses the whole file.
pub fn parse(text: &str) -> Vec<Vma> {
    let mut vmas: Vec<Vma> = Vec::new();
    for line in text.lines() {
        let (key, rest) = line.split_once(':').unwrap_or((line, ""));
        // The header has a colon, too: in the device number, after a space.
        if key.contains(' ') || key.contains('-') {
            vmas.extend(parse_header(line));
        } else if let Some(vma) = vmas.last_mut() {
            if key == "VmFlags" {
                vma.flags = rest.split_whitespace().map(String::from).collect();
            } else if let Some(Ok(value)) = rest.split_whitespace().next().map(str::parse) {
                vma.kib.insert(key.to_string(), value);
            }
        }
    }
    vmas
}

/// All mappings of this process.
pub fn read() -> io::Result<Vec<Vma>> {
    Ok(parse(&std::fs::read_to_string("/proc/self/smaps")?))
}

/// KiB of `field` in the mappings that overlap `len` bytes from `addr` on.
pub fn field(addr: usize, len: usize, field: &str) -> io::Result<u64> {
    let inside = |vma: &&Vma| vma.start < addr + len && addr < vma.end;
    let vmas = read()?;
    Ok(vmas.iter().filter(inside).filter_map(|vma| vma.kib.get(field)).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Mapping;

    const SAMPLE: &str = "\
7f0000000000-7f0000004000 rw-p 00000000 00:00 0 
Size:                 16 kB
Rss:                   8 kB
Anonymous:             8 kB
THPeligible:           0
VmFlags: rd wr mr mw me ac
7ffd1000-7ffd5000 r--p 00000000 00:00 0                          [vvar]
Size:                 16 kB
VmFlags: rd mr pf io de dd
";

    #[test]
    fn headers_values_and_flags_are_parsed() {
        let vmas = parse(SAMPLE);
        assert_eq!(vmas.len(), 2);
        assert_eq!((vmas[0].start, vmas[0].end), (0x7f00_0000_0000, 0x7f00_0000_4000));
        assert_eq!((vmas[0].perms.as_str(), vmas[0].name.as_str()), ("rw-p", ""));
        assert_eq!(vmas[0].kib["Anonymous"], 8);
        assert_eq!(vmas[1].name, "[vvar]");
        assert!(vmas[1].has_flag("pf") && !vmas[0].has_flag("pf"));
    }

    #[test]
    fn own_memory_is_counted() {
        let map = Mapping::anon(4).unwrap();
        assert_eq!(field(map.addr(), map.len(), "Anonymous").unwrap(), 0);
        let kib = crate::PAGE_SIZE as u64 / 1024;
        map.fill_pages(1, 0, 3);
        assert_eq!(field(map.addr(), map.len(), "Anonymous").unwrap(), 3 * kib);
    }
}
