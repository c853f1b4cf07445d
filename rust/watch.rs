// SPDX-License-Identifier: GPL-2.0

//! Who there is to watch: all mirrors and all device memory, as the files `rust_hmm/mirrors`, `rust_hmm/devices` and
//! `rust_hmm/map` in debugfs show them.
//!
//! A mirror or memory has a [`Seat`] in one list. Who reads holds a lock of the place meanwhile, for a part of
//! the work at a time, so that what he looks at stays. Nothing is taken that a fault or a callback needs, and the page
//! tables are read without a lock.

use crate::{
    locks,
    mm::{addr::PageRange, space::fatal_signal_pending},
    pgtable::Entry,
};
use core::fmt::Write;
use kernel::{
    debugfs::{BinaryWriter, Writer},
    fmt,
    fs::file,
    page::PAGE_SHIFT,
    prelude::*,
    sync::{Arc, Mutex},
    uaccess::UserSliceWriter,
};

/// What is watched.
pub(crate) trait Watched: Send + Sync {
    /// Writes its columns, those of [`MIRROR_COLUMNS`] or [`DEVICE_COLUMNS`] behind the ones that are known here.
    fn columns(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// The device's translations from `from` on; see [`Reader::scan`](crate::pgtable::Reader::scan). `None` for
    /// what has none. Context: may sleep, but for `f`.
    fn translations(
        &self,
        from: usize,
        f: &mut dyn FnMut(PageRange, Entry, bool) -> bool,
    ) -> Option<usize> {
        let _ = (from, f);
        None
    }
}

/// Columns of a mirror that [`Watched::columns`] writes.
const MIRROR_COLUMNS: &str =
    "device alive faults fault_ns migrations mapped invalidations invalidated to_device to_system \
     switched skipped retries replicated collapsed";

/// Columns of a device that [`Watched::columns`] writes.
const DEVICE_COLUMNS: &str =
    "kind used total limit cpu_faults cpu_fault_pages evicted evicted_for_room";

/// What kind of thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Mirror,
    Device,
}

#[pin_data]
struct Place {
    kind: Kind,
    number: u32,
    /// Of a mirror: the process whose memory it shows.
    pid: i32,
    #[pin]
    subject: Mutex<Option<Arc<dyn Watched>>>,
}

kernel::sync::global_lock! {
    // SAFETY: `init` is called when the module is loaded, before there is anything to be put into the list.
    unsafe(uninit) static ALL: Mutex<KVec<Arc<Place>>> = KVec::new();
}

/// A place in the list. Dropping it waits for those who look, for a part of their work.
pub(crate) struct Seat(Arc<Place>);

impl Seat {
    /// Adds `subject`. Context: may sleep. `ENOMEM`.
    // Not inlined: there is one list in all modules.
    #[inline(never)]
    pub(crate) fn new(
        kind: Kind,
        number: u32,
        pid: i32,
        subject: Arc<dyn Watched>,
    ) -> Result<Self> {
        let (name, class) = locks::watched();
        let place = Arc::pin_init(
            pin_init!(Place {
                kind,
                number,
                pid,
                subject <- Mutex::new(Some(subject), name, class),
            }),
            GFP_KERNEL,
        )?;
        let mut spare = KVec::new();
        loop {
            let mut all = ALL.lock();
            if all.len() < all.capacity() {
                all.push_within_capacity(place.clone())
                    .map_err(|_| ENOMEM)?;
                return Ok(Self(place));
            }
            if spare.capacity() > all.len() {
                for other in all.drain_all() {
                    // There is room.
                    let _full = spare.push_within_capacity(other);
                }
                core::mem::swap(&mut *all, &mut spare);
                continue;
            }
            let want = all.len() * 2 + 16;
            drop(all);
            spare = KVec::with_capacity(want, GFP_KERNEL)?;
        }
    }
}

impl Drop for Seat {
    #[inline(never)]
    fn drop(&mut self) {
        *self.0.subject.lock() = None;
        ALL.lock().retain(|place| !Arc::ptr_eq(place, &self.0));
    }
}

/// Before anything else of this module.
///
/// # Safety
///
/// To be called once.
pub(crate) unsafe fn init() {
    // SAFETY: Once, by the function's requirements.
    unsafe { ALL.init() };
}

/// When nothing is left.
pub(crate) fn exit() {
    drop(core::mem::take(&mut *ALL.lock()));
}

/// The one with the lowest number from `from` on, of those in the list now.
fn next(kind: Kind, from: u64, key: impl Fn(u32) -> u64) -> Option<Arc<Place>> {
    let all = ALL.lock();
    let places = all
        .iter()
        .filter(|place| place.kind == kind && key(place.number) >= from);
    places.min_by_key(|place| key(place.number)).cloned()
}

/// Where the pages of a mirror are, of those that its device can translate.
#[derive(Default)]
struct Residency {
    system: usize,
    device: usize,
    exclusive: usize,
}

impl Place {
    /// Counts the pages. `EINTR` if killed.
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

/// The text of the files `mirrors` and `devices`: names of the columns, then a line for each.
pub(crate) struct Report(pub(crate) Kind);

impl Writer for Report {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Kind::Mirror => writeln!(
                f,
                "mirror pid system_pages device_pages exclusive_pages {MIRROR_COLUMNS}"
            )?,
            Kind::Device => writeln!(f, "device {DEVICE_COLUMNS}")?,
        }
        let mut from = 0;
        while let Some(place) = next(self.0, from, u64::from) {
            from = u64::from(place.number) + 1;
            let Ok(pages) = place.residency() else {
                break;
            };
            let subject = place.subject.lock();
            let Some(subject) = subject.as_ref() else {
                continue;
            };
            write!(f, "{}", place.number)?;
            if self.0 == Kind::Mirror {
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

/// Bytes that a line of the file `map` has at most.
const LONGEST: usize = 96;

/// Bytes that one read of it returns at most.
const ROOM: usize = 16384;

/// Pages in a row that the device sees alike.
struct Run {
    start: usize,
    pages: usize,
    entry: Entry,
    huge: bool,
}

impl Run {
    /// Whether a page with `entry` looks the same.
    fn is_like(&self, entry: Entry, huge: bool) -> bool {
        let looks = |entry: Entry| (entry.is_device(), entry.is_exclusive(), entry.is_writable());
        looks(self.entry) == looks(entry) && self.huge == huge
    }
}

/// Text of runs.
struct Lines {
    text: KVec<u8>,
    mirror: u32,
    pid: i32,
    run: Option<Run>,
}

impl fmt::Write for Lines {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().try_for_each(|byte| {
            let pushed = self.text.push_within_capacity(byte);
            pushed.map_err(|_| fmt::Error)
        })
    }
}

impl Lines {
    /// Adds a translation, and says whether there was room for it.
    fn add(&mut self, range: PageRange, entry: Entry, huge: bool) -> bool {
        if let Some(run) = &mut self.run {
            let end = run.start + (run.pages << PAGE_SHIFT);
            if end == range.start() && run.is_like(entry, huge) {
                run.pages += range.pages();
                return true;
            }
        }
        // For that which is to be written, and this one.
        if self.text.capacity() - self.text.len() < 2 * LONGEST {
            return false;
        }
        self.end_run();
        self.run = Some(Run {
            start: range.start(),
            pages: range.pages(),
            entry,
            huge,
        });
        true
    }

    /// Writes the last run.
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
        let (mirror, pid, start, pages) = (self.mirror, self.pid, run.start, run.pages);
        // There is room for a line of the longest.
        let _fits = writeln!(
            self,
            "{mirror} {pid} {start:#x} {pages} {place} {access} {size}"
        );
    }
}

/// The text of the file `map`: the runs of all mirrors. The position in the file is where to go on: the mirror's
/// number, modulo 2^19, in the upper bits, and the number of the page in 44 bits. A read returns whole lines, after a
/// bounded part of the work.
pub(crate) struct Map;

const PAGE_BITS: u32 = 44;

fn key(number: u32) -> u64 {
    u64::from(number) & ((1 << (63 - PAGE_BITS)) - 1)
}

impl Map {
    fn position(mirror: u64, addr: usize) -> file::Offset {
        let pages = (addr >> PAGE_SHIFT) as u64;
        file::Offset::try_from(mirror << PAGE_BITS | pages).unwrap_or(file::Offset::MAX)
    }
}

impl BinaryWriter for Map {
    fn write_to_slice(
        &self,
        writer: &mut UserSliceWriter,
        offset: &mut file::Offset,
    ) -> Result<usize> {
        if writer.is_empty() {
            return Ok(0);
        }
        if writer.len() < 2 * LONGEST {
            return Err(EINVAL);
        }
        let position = u64::try_from(*offset)?;
        let mut mirror = position >> PAGE_BITS;
        let mut addr = usize::try_from(position & ((1 << PAGE_BITS) - 1))? << PAGE_SHIFT;
        let mut lines = Lines {
            text: KVec::with_capacity(writer.len().min(ROOM), GFP_KERNEL)?,
            mirror: 0,
            pid: 0,
            run: None,
        };
        while lines.text.is_empty() {
            if fatal_signal_pending() {
                return Err(EINTR);
            }
            let Some(place) = next(Kind::Mirror, mirror, key) else {
                return Ok(0);
            };
            if key(place.number) != mirror {
                (mirror, addr) = (key(place.number), 0);
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

#[kunit_tests(rust_hmm_watch)]
mod tests {
    use super::*;
    use kernel::page::PAGE_SIZE;

    fn lines(room: usize) -> Result<Lines> {
        Ok(Lines {
            text: KVec::with_capacity(room, GFP_KERNEL)?,
            mirror: 7,
            pid: 42,
            run: None,
        })
    }

    #[test]
    fn neighbours_that_look_alike_are_one_line() -> Result {
        let mut lines = lines(1024)?;
        let page = |index: usize| PageRange::from_pages(index * PAGE_SIZE, 1);
        for index in 1..=3 {
            // Frames need not be in a row.
            assert!(lines.add(page(index)?, Entry::system(9 - index, true), false));
        }
        assert!(lines.add(page(4)?, Entry::system(9, false), false));
        assert!(lines.add(page(5)?, Entry::device(9, false), false));
        assert!(lines.add(page(7)?, Entry::device(10, false), false));
        assert!(lines.add(
            PageRange::from_pages(512 * PAGE_SIZE, 512)?,
            Entry::exclusive(3),
            true
        ));
        lines.end_run();
        let expected = "7 42 0x1000 3 system rw small\n7 42 0x4000 1 system r small\n\
                        7 42 0x5000 1 device r small\n7 42 0x7000 1 device r small\n\
                        7 42 0x200000 512 exclusive r huge\n";
        assert_eq!(core::str::from_utf8(&lines.text), Ok(expected));
        Ok(())
    }

    #[test]
    fn what_has_no_room_is_left_for_the_next_read() -> Result {
        let mut lines = lines(2 * LONGEST)?;
        let far = |index: usize| PageRange::from_pages(index * 2 * PAGE_SIZE, 1);
        let mut taken = 0;
        while lines.add(far(taken)?, Entry::system(1, true), false) {
            taken += 1;
        }
        lines.end_run();
        assert!(taken > 0);
        let count = lines.text.iter().filter(|byte| **byte == b'\n').count();
        assert_eq!((count, lines.text.last()), (taken, Some(&b'\n')));
        // The longest there can be.
        let mut longest = Lines {
            mirror: u32::MAX,
            pid: i32::MIN,
            ..lines
        };
        longest.text.clear();
        let end = usize::MAX & kernel::page::PAGE_MASK;
        let all = PageRange::new(1 << 63, end)?;
        assert!(longest.add(all, Entry::exclusive(1), false));
        longest.end_run();
        assert!(longest.text.len() <= LONGEST && longest.text.last() == Some(&b'\n'));
        Ok(())
    }

    #[test]
    fn positions_keep_mirror_and_page() {
        let addr = (1 << 56) - PAGE_SIZE;
        let position = Map::position(key(5), addr) as u64;
        assert_eq!(position >> PAGE_BITS, 5);
        assert_eq!(
            (position & ((1 << PAGE_BITS) - 1)) << PAGE_SHIFT,
            addr as u64
        );
        assert_eq!(key(1 << 19), 0);
        assert_eq!(Map::position(1 << 19, 0), file::Offset::MAX);
    }
}
