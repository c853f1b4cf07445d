// SPDX-License-Identifier: GPL-2.0

//! The ioctls of queues and fences; see `dmirror_uapi.h`.

use crate::{
    arguments,
    blit::Locked,
    client::Client,
    extension::{
        no_flags,
        Structure, //
    },
    hardware::command::{
        CommandDesc,
        RawCommandDesc, //
    },
    locked_window::LockedWindow,
    queues::work::Work,
    FILE_OPS, //
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
        fence::FenceStatus,
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
const MAX_DEPENDENCIES: usize = 64;

type RawQueue = Structure<arguments::Queue>;

type RawFence = Structure<arguments::Fence>;

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
    no_flags(raw.flags)?;
    let queues = &client.queues;
    let name = raw.queue;
    match number {
        QUEUE_CREATE => {
            let name = queues.create()?;
            raw.queue = name;
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
            let (fence, _) = queues.fence(raw.fence)?;
            return queues.queue(name)?.wait(fence);
        }
        _ => {
            let waits = queues.queue(name)?.waits();
            raw.addr = waits.on_device;
            raw.bytes = waits.on_host;
            raw.src = waits.looks;
            raw.value = waits.sleeps;
        }
    }
    raw.write()
}

/// Returns the number of a fence to user space, and releases the fence if that fails.
fn numbered(client: &Client, mut raw: RawQueue, id: u64) -> Result {
    raw.fence = id;
    raw.write().inspect_err(|_| {
        // User space did not receive the number.
        let _gone = client.queues.release(id);
    })
}

/// Reads the numbers of the fences that an operation depends on, and looks them up with `find`.
fn after<F>(raw: &RawQueue, find: impl Fn(u64) -> Result<F>) -> Result<KVec<F>> {
    let count = usize::try_from(raw.nafter)?;
    if count > MAX_DEPENDENCIES {
        return Err(EINVAL);
    }
    let at = UserPtr::from_addr(usize::try_from(raw.after)?);
    let mut ids = UserSlice::new(at, count * size_of::<u64>()).reader();
    let mut after = KVec::with_capacity(count, GFP_KERNEL)?;
    for _ in 0..count {
        after.push(find(ids.read()?)?, GFP_KERNEL)?;
    }
    Ok(after)
}

fn work(raw: &RawQueue) -> Result<Work> {
    let bytes = usize::try_from(raw.bytes)?;
    let range = |at: u64| {
        let start = usize::try_from(at)?;
        PageRange::new(start, start.checked_add(bytes).ok_or(EINVAL)?)
    };
    let op = raw.op;
    if op < ENGINE {
        let unused = [raw.value, raw.stride, raw.rounds];
        let source = op == COPY || raw.src == 0;
        if unused != [0; 3] || !source {
            return Err(EINVAL);
        }
        let to = range(raw.addr)?;
        return Ok(match op {
            MIGRATE => Work::Migrate(to),
            PREFETCH => Work::Prefetch(to),
            EVICT => Work::Evict(to),
            COPY => Work::Copy {
                to,
                from: range(raw.src)?,
            },
            _ => return Err(EINVAL),
        });
    }
    let rounds = raw.rounds;
    CommandDesc::new(&RawCommandDesc {
        op: op - ENGINE,
        addr: raw.addr,
        bytes: raw.bytes,
        src: raw.src,
        value: raw.value,
        stride: raw.stride,
        rounds: if rounds == 0 { 1 } else { rounds },
        think_ns: 0,
        verify: false,
    })
    .map(Work::Engine)
}

/// `DMIRROR_BLIT`.
fn blit(client: &Client, user: usize) -> Result {
    let raw = RawQueue::read(user, 96)?;
    no_flags(raw.flags | raw.queue | raw.op)?;
    if [raw.value, raw.stride, raw.reserved, raw.rounds] != [0; 4] {
        return Err(EINVAL);
    }
    let bytes = usize::try_from(raw.bytes)?;
    let device = client.device().agents.own()?;
    let locked = |address: u64| {
        let address = usize::try_from(address)?;
        if !LockedWindow::holds(address) {
            return Err(EFAULT);
        }
        let region = client.mirror().locked(address & PAGE_MASK).ok_or(EFAULT)?;
        Locked::new(region, address, bytes, &device)
    };
    let places = (locked(raw.addr)?, locked(raw.src)?);
    let after = after(&raw, |id| client.queues.dma_fence(id))?;
    let id = client.queues.blit(client, places, bytes, &after)?;
    numbered(client, raw, id)
}

/// Imports a fence: from a sync file, or with `OF_FILE` from another open device.
fn import(client: &Client, raw: &RawFence) -> Result<u64> {
    if raw.flags == 0 {
        return client.queues.import(SyncFile::fence(raw.fd)?);
    }
    // Drop the reference to the other file early: dropping the last one evicts device memory.
    let other = FILE_OPS.with(raw.fd, |file| file.client().clone())?;
    client.queues.share(&other.queues, raw.fence)
}

fn fence(client: &Arc<Client>, number: u32, user: usize) -> Result {
    let mut raw = RawFence::read(user, 80)?;
    let valid = if number == FENCE_IMPORT { OF_FILE } else { 0 };
    no_flags(raw.flags & !valid)?;
    let queues = &client.queues;
    let id = raw.fence;
    match number {
        FENCE_CREATE => {
            let id = queues.create_fence()?;
            raw.fence = id;
            return raw.write().inspect_err(|_| {
                let _gone = queues.release(id);
            });
        }
        FENCE_SIGNAL => {
            return match raw.error {
                0 => queues.signal(id, Ok(())),
                error @ -4095..=-1 => queues.signal(id, Err(Error::from_errno(error))),
                _ => Err(EINVAL),
            }
        }
        FENCE_CHECK => {}
        FENCE_SYNC => {
            let (fence, _) = queues.fence(id)?;
            let timeout = match raw.timeout_ns {
                u64::MAX => None,
                ns => Some(Delta::from_nanos(i64::try_from(ns).unwrap_or(i64::MAX))),
            };
            let waited = fence.synchronize(timeout);
            if fence.check() == FenceStatus::NotDone {
                return waited;
            }
        }
        FENCE_RELEASE => return queues.release(id),
        FENCE_EXPORT => {
            if raw.timeout_ns != 0 {
                return Err(EINVAL);
            }
            let file = SyncFile::new(&queues.dma_fence(id)?)?;
            raw.fd = file.fd();
            raw.write()?;
            file.install();
            return Ok(());
        }
        FENCE_NOTIFY => {
            return match raw.fd {
                BY_POLL => queues.watch(id),
                fd => queues.fence(id)?.0.eventfd(fd),
            }
        }
        _ => {
            let id = import(client, &raw)?;
            raw.fence = id;
            return raw.write().inspect_err(|_| {
                let _gone = queues.release(id);
            });
        }
    }
    let (fence, findings) = queues.fence(id)?;
    let (state, error) = match fence.check() {
        FenceStatus::NotDone => (0, 0),
        FenceStatus::Done => (1, 0),
        FenceStatus::Failed(error) => (2, error.to_errno()),
    };
    let (began, ended) = findings.report.times();
    if state != 0 {
        queues.reported(id);
    }
    raw.error = error;
    raw.state = state;
    raw.result = findings.value();
    raw.moved = findings.report.moved() as u64;
    raw.stayed = findings.report.stayed() as u64;
    raw.began_ns = began;
    raw.ended_ns = ended;
    raw.write()
}
