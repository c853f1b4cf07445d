// SPDX-License-Identifier: GPL-2.0

//! Detection of sequential access, for which whole blocks are migrated ahead of the device.

use crate::mm::addr::PageRange;
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
use kernel::prelude::*;

/// Number of streams that are tracked for a mirror, for example one for each engine or array.
const MAX_STREAMS: usize = 8;

/// Maximum gap in bytes between accesses of a stream. Pages in a gap may have been resident
/// already.
const MAX_GAP_BYTES: usize = 128 << 10;

/// A sequential stream.
#[derive(Clone, Copy)]
struct Stream {
    /// Expected address of the next fault: the end of the last migrated range.
    next: usize,
    /// Number of consecutive faults at the expected address.
    length: u32,
    /// Number of the last fault of the stream.
    used: u64,
}

/// Streams of a mirror.
pub(super) struct Streams {
    places: [Option<Stream>; MAX_STREAMS],
    faults: u64,
    /// Index of the stream of the last fault.
    last: Option<usize>,
}

impl Streams {
    pub(super) const fn new() -> Self {
        Self {
            places: [None; MAX_STREAMS],
            faults: 0,
            last: None,
        }
    }

    /// Records a fault. Returns the number of blocks to migrate, beginning with the block of the
    /// fault. Returns 0 if the fault belongs to no stream, or the stream is too short yet.
    pub(super) fn fault(&mut self, range: PageRange, ahead: usize) -> usize {
        self.faults += 1;
        let faults = self.faults;
        // Faults come in batches, and a batch may skip resident pages.
        let goes_on = |place: &Stream| {
            range.start() >= place.next && range.start() - place.next <= MAX_GAP_BYTES
        };
        let found = self
            .places
            .iter()
            .position(|place| place.as_ref().is_some_and(goes_on));
        let oldest = || {
            let used = |place: &Option<Stream>| place.map_or(0, |place| place.used);
            let least = self
                .places
                .iter()
                .enumerate()
                .min_by_key(|(_, place)| used(place));
            least.map_or(0, |(at, _)| at)
        };
        let at = found.unwrap_or_else(oldest);
        self.last = Some(at);
        let Some(slot) = self.places.get_mut(at) else {
            return 0;
        };
        let length = match (found, &slot) {
            (Some(_), Some(place)) => place.length.saturating_add(1),
            _ => 0,
        };
        *slot = Some(Stream {
            next: range.end(),
            length,
            used: faults,
        });
        match length {
            0 | 1 => 0,
            length => (1usize << (length - 2).min(16)).min(ahead),
        }
    }

    /// Records that the migration for the last fault ended at the end of `range`. A few pages
    /// before `range` may not have moved.
    pub(super) fn moved(&mut self, range: PageRange) {
        let last = self.last.and_then(|at| self.places.get_mut(at)?.as_mut());
        let adjoins =
            |place: &&mut Stream| range.start().saturating_sub(place.next) <= MAX_GAP_BYTES;
        if let Some(place) = last.filter(adjoins) {
            place.next = place.next.max(range.end());
        }
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_stream)]
mod tests {
    use super::*;
    use kernel::page::PAGE_SIZE;

    /// Pages of a block.
    const BLOCK: usize = (2 << 20) / PAGE_SIZE;
    /// Pages that a fault migrates outside of a stream.
    const PART: usize = (64 << 10) / PAGE_SIZE;

    fn page(number: usize) -> Result<PageRange> {
        PageRange::from_pages(0x10_0000_0000 + number * PAGE_SIZE, 1)
    }

    #[test]
    fn stream_grows_and_random_walk_does_not() -> Result {
        let mut stream = Streams::new();
        let mut next = 0;
        let mut brought = KVec::new();
        for _ in 0..8 {
            let blocks = stream.fault(page(next)?, 8);
            brought.push(blocks, GFP_KERNEL)?;
            let pages = if blocks == 0 { PART } else { blocks * BLOCK };
            stream.moved(PageRange::from_pages(page(next)?.start(), pages)?);
            next += pages;
        }
        assert_eq!(&brought[..], &[0, 0, 1, 2, 4, 8, 8, 8]);
        for jump in [77_000, 3_000, 900_000, 20_000, 500_000] {
            assert_eq!(stream.fault(page(jump)?, 8), 0);
        }
        // Random faults do not remove the stream.
        assert_eq!(stream.fault(page(next)?, 8), 8);
        // Descending accesses are no stream.
        for number in (1000..1010).rev() {
            assert_eq!(stream.fault(page(number * BLOCK)?, 8), 0);
        }
        Ok(())
    }

    #[test]
    fn several_streams_are_followed() -> Result {
        let mut stream = Streams::new();
        for step in 0..4 {
            for number in 0..4 {
                let start = page(number * 1_000_000 + step * BLOCK)?;
                let blocks = stream.fault(start, 1);
                assert_eq!(blocks, usize::from(step >= 2));
                stream.moved(PageRange::from_pages(start.start(), BLOCK)?);
            }
        }
        Ok(())
    }
}
