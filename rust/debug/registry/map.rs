// SPDX-License-Identifier: GPL-2.0

//! File `rust_hmm/map` in debugfs: translations of the devices.

use super::{
    list::{
        at_short,
        next,
        short, //
    },
    ObjectKind, //
};
use crate::{
    mm::{
        addr::PageRange,
        vma::fatal_signal_pending, //
    },
    pgtable::DevicePte, //
};
use core::fmt::Write;
use kernel::{
    debugfs::BinaryWriter,
    fmt,
    fs::file,
    page::PAGE_SHIFT,
    prelude::*,
    uaccess::UserSliceWriter, //
};

/// Maximum length of a line, in bytes.
const LINE_MAX_BYTES: usize = 96;

/// Maximum number of bytes that one read returns.
const READ_MAX_BYTES: usize = 16384;

/// Consecutive pages that are shown alike.
struct MapRun {
    start: usize,
    pages: usize,
    entry: DevicePte,
    huge: bool,
}

impl MapRun {
    /// Returns whether a page with `entry` is shown like those of the run.
    fn is_like(&self, entry: DevicePte, huge: bool) -> bool {
        let looks =
            |entry: DevicePte| (entry.is_device(), entry.is_exclusive(), entry.is_writable());
        looks(self.entry) == looks(entry) && self.huge == huge
    }
}

/// Text of the runs.
struct MapLines {
    text: KVec<u8>,
    mirror: u32,
    pid: i32,
    run: Option<MapRun>,
}

impl fmt::Write for MapLines {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().try_for_each(|byte| {
            let pushed = self.text.push_within_capacity(byte);
            pushed.map_err(|_| fmt::Error)
        })
    }
}

impl MapLines {
    /// Adds a translation. Returns `false` if it does not fit into the buffer.
    fn add(&mut self, range: PageRange, entry: DevicePte, huge: bool) -> bool {
        if let Some(run) = &mut self.run {
            let end = run.start + (run.pages << PAGE_SHIFT);
            if end == range.start() && run.is_like(entry, huge) {
                run.pages += range.pages();
                return true;
            }
        }
        // Require space for the previous run, which is written now, and for this one.
        if self.text.capacity() - self.text.len() < 2 * LINE_MAX_BYTES {
            return false;
        }
        self.end_run();
        self.run = Some(MapRun {
            start: range.start(),
            pages: range.pages(),
            entry,
            huge,
        });
        true
    }

    /// Writes the last run, if there is one.
    fn end_run(&mut self) {
        let Some(run) = self.run.take() else {
            return;
        };
        let place = if run.entry.is_device() {
            "device"
        } else if run.entry.is_exclusive() {
            "exclusive"
        } else {
            "system"
        };
        let access = if run.entry.is_writable() { "rw" } else { "r" };
        let size = if run.huge { "huge" } else { "small" };
        let mirror = self.mirror;
        let pid = self.pid;
        let start = run.start;
        let pages = run.pages;
        // Cannot fail: `add` has ensured that the longest line fits.
        let _fits = writeln!(
            self,
            "{mirror} {pid} {start:#x} {pages} {place} {access} {size}"
        );
    }
}

/// Contents of the file `map`: the runs of all mirrors.
///
/// The file position encodes where the next read continues: the low 19 bits of the mirror's number,
/// and below them the number of the page in 44 bits. A read returns whole lines, after a bounded
/// amount of work.
pub(crate) struct MapFile;

const PAGE_NUMBER_BITS: u32 = 44;

impl MapFile {
    fn position(mirror: u64, addr: usize) -> file::Offset {
        let pages = (addr >> PAGE_SHIFT) as u64;
        file::Offset::try_from(mirror << PAGE_NUMBER_BITS | pages).unwrap_or(file::Offset::MAX)
    }
}

impl BinaryWriter for MapFile {
    fn write_to_slice(
        &self,
        writer: &mut UserSliceWriter,
        offset: &mut file::Offset,
    ) -> Result<usize> {
        if writer.is_empty() {
            return Ok(0);
        }
        if writer.len() < 2 * LINE_MAX_BYTES {
            return Err(EINVAL);
        }
        let position = u64::try_from(*offset)?;
        let mut mirror = position >> PAGE_NUMBER_BITS;
        let mut addr = usize::try_from(position & ((1 << PAGE_NUMBER_BITS) - 1))? << PAGE_SHIFT;
        let mut lines = MapLines {
            text: KVec::with_capacity(writer.len().min(READ_MAX_BYTES), GFP_KERNEL)?,
            mirror: 0,
            pid: 0,
            run: None,
        };
        while lines.text.is_empty() {
            if fatal_signal_pending() {
                return Err(EINTR);
            }
            let Some(place) = next(ObjectKind::Mirror, at_short(mirror)) else {
                return Ok(0);
            };
            if short(place.number) != mirror {
                (mirror, addr) = (short(place.number), 0);
            }
            (lines.mirror, lines.pid) = (place.number, place.pid);
            let behind = {
                let subject = place.subject.lock();
                subject.as_ref().and_then(|subject| {
                    subject.translations(addr, &mut |range, entry, huge| {
                        lines.add(range, entry, huge)
                    })
                })
            };
            lines.end_run();
            (mirror, addr) = behind.map_or((mirror + 1, 0), |addr| (mirror, addr));
        }
        writer.write_slice(&lines.text)?;
        *offset = Self::position(mirror, addr);
        Ok(lines.text.len())
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_watch)]
mod tests {
    use super::*;
    use crate::mm::addr::{
        PMD_PAGES,
        PMD_SIZE, //
    };
    use kernel::page::PAGE_SIZE;

    fn lines(capacity: usize) -> Result<MapLines> {
        Ok(MapLines {
            text: KVec::with_capacity(capacity, GFP_KERNEL)?,
            mirror: 7,
            pid: 42,
            run: None,
        })
    }

    #[test]
    fn equal_neighbours_share_a_line() -> Result {
        let mut expected = lines(1024)?;
        let mut lines = lines(1024)?;
        let page = |index: usize| PageRange::from_pages(index * PAGE_SIZE, 1);
        for index in 1..=3 {
            // Page frames need not be consecutive.
            assert!(lines.add(page(index)?, DevicePte::system(9 - index, true), false));
        }
        assert!(lines.add(page(4)?, DevicePte::system(9, false), false));
        assert!(lines.add(page(5)?, DevicePte::device(9, false), false));
        assert!(lines.add(page(7)?, DevicePte::device(10, false), false));
        assert!(lines.add(
            PageRange::from_pages(PMD_SIZE, PMD_PAGES)?,
            DevicePte::exclusive(3),
            true
        ));
        lines.end_run();
        write!(
            expected,
            "7 42 {:#x} 3 system rw small\n7 42 {:#x} 1 system r small\n\
             7 42 {:#x} 1 device r small\n7 42 {:#x} 1 device r small\n\
             7 42 {PMD_SIZE:#x} {PMD_PAGES} exclusive r huge\n",
            PAGE_SIZE,
            4 * PAGE_SIZE,
            5 * PAGE_SIZE,
            7 * PAGE_SIZE
        )
        .map_err(|_| EINVAL)?;
        assert_eq!(&lines.text[..], &expected.text[..]);
        Ok(())
    }

    #[test]
    fn lines_without_space_wait_for_the_next_read() -> Result {
        let mut lines = lines(2 * LINE_MAX_BYTES)?;
        let far = |index: usize| PageRange::from_pages(index * 2 * PAGE_SIZE, 1);
        let mut taken = 0;
        while lines.add(far(taken)?, DevicePte::system(1, true), false) {
            taken += 1;
        }
        lines.end_run();
        assert!(taken > 0);
        let count = lines.text.iter().filter(|byte| **byte == b'\n').count();
        assert_eq!((count, lines.text.last()), (taken, Some(&b'\n')));
        // The longest possible line.
        let mut longest = MapLines {
            mirror: u32::MAX,
            pid: i32::MIN,
            ..lines
        };
        longest.text.clear();
        let end = usize::MAX & kernel::page::PAGE_MASK;
        let all = PageRange::new(1 << 63, end)?;
        assert!(longest.add(all, DevicePte::exclusive(1), false));
        longest.end_run();
        assert!(longest.text.len() <= LINE_MAX_BYTES && longest.text.last() == Some(&b'\n'));
        Ok(())
    }

    #[test]
    fn positions_keep_mirror_and_page() {
        let addr = (1 << 56) - PAGE_SIZE;
        let position = MapFile::position(short(5), addr) as u64;
        assert_eq!(position >> PAGE_NUMBER_BITS, 5);
        assert_eq!(
            (position & ((1 << PAGE_NUMBER_BITS) - 1)) << PAGE_SHIFT,
            addr as u64
        );
        assert_eq!(short(1 << 19), 0);
        assert_eq!(MapFile::position(1 << 19, 0), file::Offset::MAX);
    }
}
