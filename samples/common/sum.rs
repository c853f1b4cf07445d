// SPDX-License-Identifier: GPL-2.0

//! Sums of memory as a device reads it. Shared by `samples/mirror_only` and `samples/lpae`.

use kernel::{
    ioctl,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        Arc, //
    },
    time::Delta,
    uaccess::UserSlice, //
};
use rust_hmm::{
    kernel::{
        cancel::CancelToken,
        fence::Fence,
        identity::FenceType,
        sync_file::SyncFile, //
    },
    mirror::{
        Device,
        Mirror,
        PageMemory, //
    },
    mm::{
        addr::PageRange,
        range_fault::Access, //
    },
    queue::{
        HasMirror,
        Queue, //
    }, //
};

/// Ioctl: sum of the 64-bit words of a range.
const SUM: u32 = 0;
/// Ioctl: the same, after a sync file is signalled.
const SUM_AFTER: u32 = 1;

/// Maximum number of consecutive device faults without progress.
const ACCESS_MAX_FAULTS: usize = 100;

/// Timeout of a sum.
const SUM_TIMEOUT: Delta = Delta::from_secs(60);

/// Hooks for the differences between the devices.
pub(crate) trait Hardware: Device {
    /// Handles a device-specific ioctl, which returns four words. `EINVAL` for an unknown one.
    fn command(mirror: &Mirror<Self>, number: u32) -> Result<[u64; 4]> {
        let _ = (mirror, number);
        Err(EINVAL)
    }
}

/// State shared by a file and its queued operations.
pub(crate) struct Client<D: Hardware> {
    mirror: Mirror<D>,
}

impl<D: Hardware> HasMirror for Client<D> {
    type Device = D;

    fn mirror(&self) -> &Mirror<D> {
        &self.mirror
    }
}

impl<D: Hardware> Client<D> {
    /// Adds the words of `range` up to the first page without an entry. Returns the number of pages
    /// and the sum.
    fn add(&self, range: PageRange, page: &mut [u8]) -> Result<(usize, u64)> {
        let mut pages = 0;
        let mut sum = 0u64;
        let table = self.mirror.lock_table()?;
        while pages < range.pages() {
            let Some(PageMemory::Cpu(contents)) = table.readable(range.address(pages)) else {
                break;
            };
            contents.read(0, page)?;
            for chunk in page.chunks_exact(size_of::<u64>()) {
                let mut word = [0; size_of::<u64>()];
                word.copy_from_slice(chunk);
                sum = sum.wrapping_add(u64::from_ne_bytes(word));
            }
            pages += 1;
        }
        Ok((pages, sum))
    }

    /// Returns the sum of the words of `range`, as the device reads them.
    fn sum(&self, range: PageRange, stop: &CancelToken) -> Result<u64> {
        let mut page = KVec::from_elem(0, PAGE_SIZE, GFP_KERNEL)?;
        let mut total = 0u64;
        let mut tries = 0;
        let mut rest = Some(range);
        while let Some(left) = rest {
            stop.check()?;
            let (pages, sum) = self.add(left, &mut page)?;
            total = total.wrapping_add(sum);
            tries = if pages == 0 { tries + 1 } else { 0 };
            if tries > ACCESS_MAX_FAULTS {
                return Err(EBUSY);
            }
            rest = left.from_address(left.start() + pages * PAGE_SIZE);
            if let Some(left) = rest.and_then(|left| left.pmd_pieces().next()) {
                self.mirror.fault(left, Access::Read)?;
            }
        }
        Ok(total)
    }
}

/// An open file. The argument of its ioctls is four words: address, number of pages, sync file, and
/// the returned sum.
pub(crate) struct Sums<D: Hardware> {
    // Dropped before `client`, which its operations use.
    queue: Queue,
    client: Arc<Client<D>>,
}

impl<D: Hardware> Sums<D> {
    /// Creates the state for `mirror`. `kind` identifies the type of device.
    pub(crate) fn new(mirror: Mirror<D>, kind: &'static u8) -> Result<Self> {
        Ok(Self {
            queue: Queue::new(FenceType::of(kind), 16)?,
            client: Arc::new(Client { mirror }, GFP_KERNEL_ACCOUNT)?,
        })
    }

    /// Handles an ioctl.
    pub(crate) fn ioctl(&self, command: u32, argument: usize) -> Result<isize> {
        let words = 4 * size_of::<u64>();
        let (mut input, mut output) =
            UserSlice::new(UserPtr::from_addr(argument), words).reader_writer();
        let mut next = || -> Result<usize> { Ok(usize::try_from(input.read::<u64>()?)?) };
        let range = PageRange::from_pages(next()?, next()?)?;
        let after = next()?;
        let mut fences = KVec::new();
        match ioctl::_IOC_NR(command) {
            SUM if after == 0 => {}
            SUM_AFTER => {
                let dma = SyncFile::fence(i32::try_from(after)?)?;
                fences.push(Fence::of(&dma)?, GFP_KERNEL)?;
            }
            number => {
                for word in D::command(&self.client.mirror, number)? {
                    output.write(&word)?;
                }
                return Ok(0);
            }
        }
        let sum = Arc::new(Atomic::new(0u64), GFP_KERNEL)?;
        let client = self.client.clone();
        let result = sum.clone();
        let done = self.queue.submit(fences, move |stop| {
            result.store(client.sum(range, stop)?, Relaxed);
            Ok(())
        })?;
        done.synchronize(Some(SUM_TIMEOUT))?;
        for word in [range.start() as u64, range.pages() as u64, after as u64] {
            output.write(&word)?;
        }
        output.write(&sum.load(Relaxed))?;
        Ok(0)
    }
}
