// SPDX-License-Identifier: GPL-2.0
//! Location of the pages of an address space, from the device page tables and from the CPU page
//! table.

use crate::problem::{
    Problem,
    Result, //
};
use crate::sample::Mirror;
use crate::source;
use hmm::{
    pagemap::{
        self,
        Entry, //
    },
    procfs, //
};
use serde::Serialize;

/// Bytes of a page of this machine.
pub fn page_size() -> u64 {
    procfs::page_size() as u64
}

/// Maximum number of pages of a mapping that are read from pagemap at once.
const AT_ONCE: u64 = 1 << 18;

/// Location of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// Not present, or unknown.
    Nothing,
    /// In system memory, not mapped by a device.
    Cpu,
    /// Swapped out, or in device memory that no device of the process maps.
    Elsewhere,
    /// In system memory, mapped by a device.
    System,
    /// In system memory, with exclusive device access.
    Exclusive,
    /// In device memory.
    Device,
}

impl Place {
    /// All locations, with a character and a description.
    pub const ALL: [(Place, char, &'static str); 6] = [
        (Place::Device, 'd', "device memory"),
        (Place::System, 's', "system memory, mapped by a device"),
        (Place::Exclusive, 'x', "system memory, exclusive to a device"),
        (Place::Cpu, 'c', "system memory, of the CPU only"),
        (Place::Elsewhere, 'o', "swapped, or device memory that is not mapped"),
        (Place::Nothing, '.', "nothing"),
    ];

    /// Returns the character of the place.
    pub fn char(self) -> char {
        Self::ALL.iter().find(|(place, ..)| *place == self).map_or('?', |(_, char, _)| *char)
    }

    fn of_entry(entry: Entry) -> Place {
        match (entry.is_present(), entry.is_swap()) {
            (true, _) => Place::Cpu,
            (_, true) => Place::Elsewhere,
            _ => Place::Nothing,
        }
    }
}

/// Consecutive pages in the same location.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Run {
    /// First address.
    pub start: u64,
    /// Pages.
    pub pages: u64,
    /// Their location.
    pub place: Place,
    /// Mirror whose page table has this entry.
    pub mirror: Option<u32>,
    /// Device of the mirror.
    pub device: Option<u32>,
    /// Whether the device may write.
    pub writable: bool,
    /// Whether the device maps huge pages.
    pub huge: bool,
}

impl Run {
    /// The first address behind the run.
    pub fn end(&self) -> u64 {
        self.start + self.pages * page_size()
    }

    /// The part of the run in `start..end`.
    fn cut(&self, start: u64, end: u64) -> Option<Run> {
        let start = self.start.max(start);
        let end = self.end().min(end);
        (start < end).then(|| Run { start, pages: (end - start) / page_size(), ..self.clone() })
    }

    fn continues(&self, other: &Run) -> bool {
        self.end() == other.start
            && Run { start: 0, pages: 0, ..self.clone() }
                == Run { start: 0, pages: 0, ..other.clone() }
    }

    /// Parses a line of the file `map`.
    fn parse(line: &str, device: Option<u32>) -> Option<Run> {
        let mut words = line.split_whitespace();
        let mirror = words.next()?.parse().ok()?;
        let _pid = words.next()?;
        let start = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
        let pages = words.next()?.parse().ok()?;
        let place = match words.next()? {
            "device" => Place::Device,
            "exclusive" => Place::Exclusive,
            "system" => Place::System,
            _ => return None,
        };
        let writable = words.next()? == "rw";
        let huge = words.next()? == "huge";
        Some(Run { start, pages, place, mirror: Some(mirror), device, writable, huge })
    }
}

/// Appends `run`, which does not begin before the last one, and merges it if possible.
fn push(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(last) if last.continues(&run) => last.pages += run.pages,
        _ => runs.push(run),
    }
}

/// The entries of a mirror, as debugfs reports them.
pub fn of_mirror(mirror: &Mirror) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    let mut bad = None;
    source::map(mirror.mirror, |line| match Run::parse(line, mirror.device) {
        Some(run) => push(&mut runs, run),
        None => bad = Some(line.to_string()),
    })?;
    match bad {
        Some(line) => Err(Problem::Format(format!("map: '{line}'"))),
        None => Ok(runs),
    }
}

/// A VMA of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vma {
    /// First address.
    pub start: u64,
    /// First address behind the VMA.
    pub end: u64,
    /// Permissions, as in `rwxp`.
    pub rights: String,
    /// File name, or a name in brackets.
    pub name: String,
}

/// Parses `/proc/PID/maps`.
pub fn vmas(text: &str) -> Vec<Vma> {
    let vma = |line: &str| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let rights = words.next()?.to_string();
        let name = words.skip(3).collect::<Vec<_>>().join(" ");
        let parse = |text| u64::from_str_radix(text, 16).ok();
        Some(Vma { start: parse(start)?, end: parse(end)?, rights, name })
    };
    text.lines().filter_map(vma).collect()
}

/// The runs of `first`, and those of `second` between them. Both are sorted.
pub fn overlay(first: &[Run], second: &[Run]) -> Vec<Run> {
    let mut all = Vec::new();
    let mut others = second.iter().peekable();
    let mut behind = 0;
    let mut fill = |all: &mut Vec<Run>, from: u64, to: u64| {
        while let Some(other) = others.peek() {
            if let Some(part) = other.cut(from, to) {
                push(all, part);
            }
            if other.end() > to {
                break;
            }
            others.next();
        }
    };
    for run in first {
        fill(&mut all, behind, run.start);
        push(&mut all, run.clone());
        behind = run.end();
    }
    fill(&mut all, behind, u64::MAX);
    all
}

/// Merges the entries of all devices of one process. Where they differ, device memory takes
/// precedence over exclusive access, and that over system memory.
pub fn of_mirrors(mirrors: &[&Mirror]) -> Result<Vec<Run>> {
    let all = mirrors.iter().map(|mirror| of_mirror(mirror)).collect::<Result<Vec<_>>>()?;
    let only = |place: Place| {
        let of = |runs: &Vec<Run>| {
            runs.iter().filter(|run| run.place == place).cloned().collect::<Vec<_>>()
        };
        all.iter().map(of).fold(Vec::new(), |sum, runs| overlay(&sum, &runs))
    };
    Ok(overlay(&overlay(&only(Place::Device), &only(Place::Exclusive)), &only(Place::System)))
}

/// Locations in `start..end` of process `pid`, from the CPU page table.
fn of_cpu(pid: u32, start: u64, end: u64) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    let mut at = start;
    while at < end {
        let pages = ((end - at) / page_size()).min(AT_ONCE);
        let entries = pagemap::read_of(&pid.to_string(), at as usize, pages as usize)
            .map_err(|error| Problem::io("read", format!("/proc/{pid}/pagemap").as_ref(), error))?;
        for entry in entries {
            let place = Place::of_entry(entry);
            if place != Place::Nothing {
                let run = Run {
                    start: at,
                    pages: 1,
                    place,
                    mirror: None,
                    device: None,
                    writable: false,
                    huge: false,
                };
                push(&mut runs, run);
            }
            at += page_size();
        }
    }
    Ok(runs)
}

/// A VMA and the location of its pages.
#[derive(Clone, Debug)]
pub struct Region {
    /// The VMA.
    pub vma: Vma,
    /// Location of the pages; pages that are not present are left out.
    pub runs: Vec<Run>,
}

impl Region {
    /// Number of pages in this location.
    pub fn count(&self, place: Place) -> u64 {
        match place {
            Place::Nothing => {
                (self.vma.end - self.vma.start) / page_size()
                    - self.runs.iter().map(|run| run.pages).sum::<u64>()
            }
            _ => self.runs.iter().filter(|run| run.place == place).map(|run| run.pages).sum(),
        }
    }

    /// The location to show for `start..end`: that of most of its present pages. The order of
    /// [`Place`] decides between equal counts.
    pub fn at(&self, start: u64, end: u64) -> Place {
        let mut counts = [(0, Place::Nothing); Place::ALL.len()];
        for (count, (place, ..)) in counts.iter_mut().zip(Place::ALL) {
            count.1 = place;
        }
        let mut left = (end - start) / page_size();
        let first = self.runs.partition_point(|run| run.end() <= start);
        for part in self.runs[first..].iter().map_while(|run| run.cut(start, end)) {
            left -= part.pages;
            if let Some(count) = counts.iter_mut().find(|count| count.1 == part.place) {
                count.0 += part.pages;
            }
        }
        // Show a single present page although most pages are not present.
        let most = counts.iter().max().copied().unwrap_or((0, Place::Nothing));
        if most.0 == 0 && left != 0 {
            Place::Nothing
        } else {
            most.1
        }
    }
}

/// The VMAs of process `pid` in which a device maps pages, or all with private memory.
pub fn regions(pid: u32, mirrors: &[&Mirror], all: bool) -> Result<Vec<Region>> {
    let path = format!("/proc/{pid}/maps");
    let text = std::fs::read_to_string(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Problem::NoProcess(pid),
        _ => Problem::io("read", path.as_ref(), error),
    })?;
    let runs = of_mirrors(mirrors)?;
    let mut regions = Vec::new();
    for vma in vmas(&text) {
        let first = runs.partition_point(|run| run.end() <= vma.start);
        let own: Vec<Run> =
            runs[first..].iter().map_while(|run| run.cut(vma.start, vma.end)).collect();
        let is_shown =
            !own.is_empty() || (all && vma.rights.ends_with('p') && vma.rights.starts_with('r'));
        // Addresses outside of user space have no pagemap.
        if !is_shown || vma.start >= 1 << 63 {
            continue;
        }
        let runs = overlay(&own, &of_cpu(pid, vma.start, vma.end)?);
        if !runs.is_empty() {
            regions.push(Region { vma, runs });
        }
    }
    Ok(regions)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A run in one location.
    pub fn run(start: u64, pages: u64, place: Place) -> Run {
        let mirror = (place >= Place::System).then_some(3);
        Run {
            start: start * page_size(),
            pages,
            place,
            mirror,
            device: None,
            writable: true,
            huge: false,
        }
    }

    #[test]
    fn lines_are_parsed() {
        let run = Run::parse("3 812 0x7f0000001000 512 device r huge", Some(1)).unwrap();
        assert_eq!((run.start, run.pages, run.place), (0x7f00_0000_1000, 512, Place::Device));
        assert_eq!(
            (run.mirror, run.device, run.writable, run.huge),
            (Some(3), Some(1), false, true)
        );
        assert_eq!(Run::parse("3 812 7f0000001000 512 device r huge", None), None);
        assert_eq!(Run::parse("3 812 0x1000 1 nowhere r small", None), None);
    }

    #[test]
    fn mappings_are_parsed() {
        let text = "7f00-8f00 rw-p 00000000 00:00 0                          [heap]\n8f00-9f00 r--s 0 08:01 7 /a b\n";
        let vmas = vmas(text);
        assert_eq!(
            vmas[0],
            Vma { start: 0x7f00, end: 0x8f00, rights: "rw-p".into(), name: "[heap]".into() }
        );
        assert_eq!(vmas[1].name, "/a b");
    }

    #[test]
    fn overlay_prefers_the_first_layer() {
        let first = [run(2, 2, Place::Device), run(8, 1, Place::System)];
        let second = [run(0, 4, Place::Cpu), run(4, 1, Place::Elsewhere), run(6, 10, Place::Cpu)];
        let all = overlay(&first, &second);
        let expected = [
            run(0, 2, Place::Cpu),
            run(2, 2, Place::Device),
            run(4, 1, Place::Elsewhere),
            run(6, 2, Place::Cpu),
            run(8, 1, Place::System),
            run(9, 7, Place::Cpu),
        ];
        assert_eq!(all, expected);
        assert_eq!(overlay(&[], &second), second);
        assert_eq!(overlay(&first, &[]), first);
    }

    #[test]
    fn blocks_show_the_most_frequent_place() {
        let vma =
            Vma { start: 0, end: 16 * page_size(), rights: "rw-p".into(), name: String::new() };
        let runs = vec![run(0, 4, Place::Device), run(4, 1, Place::System), run(8, 1, Place::Cpu)];
        let region = Region { vma, runs };
        let at = |from: u64, to: u64| region.at(from * page_size(), to * page_size()).char();
        assert_eq!(
            [at(0, 4), at(2, 6), at(4, 8), at(8, 12), at(12, 16)],
            ['d', 'd', 's', 'c', '.']
        );
        assert_eq!(region.count(Place::Nothing), 10);
        assert_eq!(region.count(Place::Device), 4);
    }
}
