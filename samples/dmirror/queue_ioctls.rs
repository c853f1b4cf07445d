// SPDX-License-Identifier: GPL-2.0

//! The ioctls of queues and fences; see `dmirror_uapi.h`.

use crate::{
    aperture::Aperture,
    blit::Locked,
    client::Client,
    extension::{no_flags, Structure},
    hardware::command::{RawSpec, Spec},
    queues::Work,
    FILE_OPS,
};
use kernel::{
    page::PAGE_MASK,
    prelude::*,
    sync::Arc,
    time::Delta,
    uaccess::UserSlice, //
};
use rust_hmm::{
    kernel::{
        fence::Status,
        sync_file::SyncFile, //
    },
    mm::addr::PageRange, //
};

const QUEUE_CREATE: u32 = 0x60;
const QUEUE_DESTROY: u32 = 0x61;
const QUEUE_SUBMIT: u32 = 0x62;
const QUEUE_RECORD: u32 = 0x63;
const QUEUE_WAIT: u32 = 0x64;
const QUEUE_WAITS: u32 = 0x65;
const FENCE_CREATE: u32 = 0x66;
const FENCE_SIGNAL: u32 = 0x67;
const FENCE_CHECK: u32 = 0x68;
const FENCE_SYNC: u32 = 0x69;
const FENCE_RELEASE: u32 = 0x6a;
const FENCE_EXPORT: u32 = 0x6b;
const FENCE_IMPORT: u32 = 0x6c;
const FENCE_NOTIFY: u32 = 0x6d;
const BLIT: u32 = 0x6e;

/// `DMIRROR_FENCE_OF_FILE`: import from another open device.
const OF_FILE: u32 = 1;
/// `DMIRROR_FENCE_BY_POLL`.
const BY_POLL: i32 = -1;

/// `DMIRROR_QUEUE_*`: operations that are not commands of an engine.
const MIGRATE: u32 = 0;
const PREFETCH: u32 = 1;
const EVICT: u32 = 2;
const COPY: u32 = 3;
const ENGINE: u32 = 16;

/// Maximum number of fences that an operation depends on.
const MOST_AFTER: usize = 64;

/// `struct dmirror_queue`.
type RawQueue = Structure<96>;

/// `struct dmirror_fence`.
type RawFence = Structure<80>;

/// Handles an ioctl of queues or fences. `EINVAL` for an unknown one.
#[inline(never)]
pub(crate) fn serve(client: &Arc<Client>, number: u32, user: usize) -> Result {
    match number {
        QUEUE_CREATE..=QUEUE_WAITS => queue(client, number, user),
        FENCE_CREATE..=FENCE_NOTIFY => fence(client, number, user),
        BLIT => blit(client, user),
        _ => Err(EINVAL),
    }
}

fn queue(client: &Arc<Client>, number: u32, user: usize) -> Result {
    let mut raw = RawQueue::read(user, 96)?;
    no_flags(raw.u32(4))?;
    let queues = &client.queues;
    let name = raw.u32(8);
    match number {
        QUEUE_CREATE => {
            let name = queues.create()?;
            raw.put_u32(8, name);
            // User space did not receive the number.
            return raw.write().inspect_err(|_| {
                let _gone = queues.destroy(name);
            });
        }
        QUEUE_DESTROY => return queues.destroy(name),
        QUEUE_SUBMIT => {
            let after = after(&raw, |id| Ok(queues.fence(id)?.0))?;
            let id = queues.submit(client, name, after, work(&raw)?)?;
            return numbered(client, raw, id);
        }
        QUEUE_RECORD => {
            let id = queues.record(name)?;
            return numbered(client, raw, id);
        }
        QUEUE_WAIT => {
            let (fence, _) = queues.fence(raw.u64(88))?;
            return queues.queue(name)?.wait(fence);
        }
        _ => {
            let waits = queues.queue(name)?.waits();
            raw.put_all(
                16,
                [waits.on_device, waits.on_host, waits.looks, waits.sleeps],
            );
        }
    }
    raw.write()
}

/// Returns the number of a fence to user space, and releases the fence if that fails.
fn numbered(client: &Client, mut raw: RawQueue, id: u64) -> Result {
    raw.put_u64(88, id);
    raw.write().inspect_err(|_| {
        // User space did not receive the number.
        let _gone = client.queues.release(id);
    })
}

/// Reads the numbers of the fences that an operation depends on, and looks them up with `find`.
fn after<F>(raw: &RawQueue, find: impl Fn(u64) -> Result<F>) -> Result<KVec<F>> {
    let count = usize::try_from(raw.u64(72))?;
    if count > MOST_AFTER {
        return Err(EINVAL);
    }
    let at = UserPtr::from_addr(usize::try_from(raw.u64(64))?);
    let mut ids = UserSlice::new(at, count * size_of::<u64>()).reader();
    let mut after = KVec::with_capacity(count, GFP_KERNEL)?;
    for _ in 0..count {
        after.push(find(ids.read()?)?, GFP_KERNEL)?;
    }
    Ok(after)
}

fn work(raw: &RawQueue) -> Result<Work> {
    let bytes = usize::try_from(raw.u64(24))?;
    let range = |at: u64| {
        let start = usize::try_from(at)?;
        PageRange::new(start, start.checked_add(bytes).ok_or(EINVAL)?)
    };
    let op = raw.u32(12);
    if op < ENGINE {
        let unused = [raw.u64(40), raw.u64(48), raw.u64(80)];
        let source = op == COPY || raw.u64(32) == 0;
        if unused != [0; 3] || !source {
            return Err(EINVAL);
        }
        let to = range(raw.u64(16))?;
        return Ok(match op {
            MIGRATE => Work::Migrate(to),
            PREFETCH => Work::Prefetch(to),
            EVICT => Work::Evict(to),
            COPY => Work::Copy {
                to,
                from: range(raw.u64(32))?,
            },
            _ => return Err(EINVAL),
        });
    }
    let rounds = raw.u64(80);
    Spec::new(&RawSpec {
        op: op - ENGINE,
        addr: raw.u64(16),
        bytes: raw.u64(24),
        src: raw.u64(32),
        value: raw.u64(40),
        stride: raw.u64(48),
        rounds: if rounds == 0 { 1 } else { rounds },
        think_ns: 0,
        verify: false,
    })
    .map(Work::Engine)
}

/// `DMIRROR_BLIT`.
fn blit(client: &Client, user: usize) -> Result {
    let raw = RawQueue::read(user, 96)?;
    no_flags(raw.u32(4) | raw.u32(8) | raw.u32(12))?;
    if [raw.u64(40), raw.u64(48), raw.u64(56), raw.u64(80)] != [0; 4] {
        return Err(EINVAL);
    }
    let bytes = usize::try_from(raw.u64(24))?;
    let device = client.device().agents.own()?;
    let locked = |at: usize| {
        let address = usize::try_from(raw.u64(at))?;
        if !Aperture::holds(address) {
            return Err(EFAULT);
        }
        let region = client.mirror().locked(address & PAGE_MASK).ok_or(EFAULT)?;
        Locked::new(region, address, bytes, &device)
    };
    let places = (locked(16)?, locked(32)?);
    let after = after(&raw, |id| client.queues.dma_fence(id))?;
    let id = client.queues.blit(client, places, bytes, &after)?;
    numbered(client, raw, id)
}

/// Imports a fence: from a sync file, or with `OF_FILE` from another open device.
fn import(client: &Client, raw: &RawFence) -> Result<u64> {
    // CAST: The bits of a descriptor.
    let fd = raw.u32(28) as i32;
    if raw.u32(4) == 0 {
        return client.queues.import(SyncFile::fence(fd)?);
    }
    // Drop the reference to the other file early: dropping the last one evicts device memory.
    let other = FILE_OPS.with(fd, |file| file.client().clone())?;
    client.queues.share(&other.queues, raw.u64(8))
}

fn fence(client: &Arc<Client>, number: u32, user: usize) -> Result {
    let mut raw = RawFence::read(user, 80)?;
    let known = if number == FENCE_IMPORT { OF_FILE } else { 0 };
    no_flags(raw.u32(4) & !known)?;
    let queues = &client.queues;
    let id = raw.u64(8);
    match number {
        FENCE_CREATE => {
            let id = queues.create_fence()?;
            raw.put_u64(8, id);
            return raw.write().inspect_err(|_| {
                let _gone = queues.release(id);
            });
        }
        // CAST: The bits of a negative number.
        FENCE_SIGNAL => {
            return match raw.u32(24) as i32 {
                0 => queues.signal(id, Ok(())),
                error @ -4095..=-1 => queues.signal(id, Err(Error::from_errno(error))),
                _ => Err(EINVAL),
            }
        }
        FENCE_CHECK => {}
        FENCE_SYNC => {
            let (fence, _) = queues.fence(id)?;
            let timeout = match raw.u64(16) {
                u64::MAX => None,
                ns => Some(Delta::from_nanos(i64::try_from(ns).unwrap_or(i64::MAX))),
            };
            let waited = fence.synchronize(timeout);
            if fence.check() == Status::NotDone {
                return waited;
            }
        }
        FENCE_RELEASE => return queues.release(id),
        FENCE_EXPORT => {
            if raw.u64(16) != 0 {
                return Err(EINVAL);
            }
            let file = SyncFile::new(&queues.dma_fence(id)?)?;
            // CAST: A descriptor is not negative.
            raw.put_u32(28, file.fd() as u32);
            raw.write()?;
            file.install();
            return Ok(());
        }
        // CAST: The bits of a descriptor.
        FENCE_NOTIFY => {
            return match raw.u32(28) as i32 {
                BY_POLL => queues.watch(id),
                fd => queues.fence(id)?.0.eventfd(fd),
            }
        }
        _ => {
            let id = import(client, &raw)?;
            raw.put_u64(8, id);
            return raw.write().inspect_err(|_| {
                let _gone = queues.release(id);
            });
        }
    }
    let (fence, findings) = queues.fence(id)?;
    let (state, error) = match fence.check() {
        Status::NotDone => (0, 0),
        Status::Done => (1, 0),
        Status::Failed(error) => (2, error.to_errno()),
    };
    let (began, ended) = findings.report.times();
    if state != 0 {
        queues.reported(id);
    }
    // CAST: The bits of a negative number.
    raw.put_u32(24, error as u32);
    raw.put_all(
        32,
        [
            state,
            findings.value(),
            findings.report.moved() as u64,
            findings.report.stayed() as u64,
            began,
            ended,
        ],
    );
    raw.write()
}
