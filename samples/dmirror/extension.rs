// SPDX-License-Identifier: GPL-2.0

//! The ioctls beyond those of `test_hmm`, as `dmirror_uapi.h` describes them.

pub(crate) use crate::structure::{no_flags, Structure};
use crate::{
    alloc,
    client::Client,
    connect, event_ioctls,
    hardware::{
        command::{RawSpec, Spec},
        counters::Count,
        engine,
    },
    lock_ioctls, placement, queue_ioctls,
};
use kernel::{ioctl, prelude::*, sync::Arc, time::Delta, uaccess::UserSlice};
use rust_hmm::{
    debug::stats::Counter,
    memory::Memory,
    migrate::{Outcome, PageOutcome},
    mm::{addr::PageRange, device_pages::Kind},
};

/// `DMIRROR_ABI_VERSION`.
const VERSION: u32 = 3;

/// Type and numbers of the ioctls. The size that is encoded in an ioctl number is ignored.
const TYPE: u32 = b'H' as u32;
const INFO: u32 = 0x40;
const COUNTERS: u32 = 0x41;
const SUBMIT: u32 = 0x42;
const WAIT: u32 = 0x43;
const STOP: u32 = 0x44;
const ENGINE: u32 = 0x45;
const MIGRATE: u32 = 0x46;
const SET: u32 = 0x47;
const DISCARD: u32 = 0x48;

const SUBMIT_VERIFY: u32 = 1;
const ENGINE_ANY: u32 = u32::MAX;
const TO_SYSTEM: u32 = 1;
const ORDINARY: u32 = 2;

/// Number of page outcomes that are buffered in the kernel.
const OUTCOMES: usize = 4096;

/// Handles an ioctl. `EINVAL` for an unknown one, as in `test_hmm`.
// Not inlined: the handlers keep their arguments on the stack, and their frames would add up.
#[inline(never)]
pub(crate) fn serve(client: &Arc<Client>, command: u32, user: usize) -> Result {
    match ioctl::_IOC_NR(command) {
        INFO => info(client, user),
        COUNTERS => counters(client, user),
        SUBMIT => submit(client, user),
        WAIT => wait(client, user),
        STOP => {
            let raw = Structure::<16>::read(user, 16)?;
            no_flags(raw.u32(4))?;
            client.stop(raw.u64(8))
        }
        ENGINE => engine_counters(client, user),
        MIGRATE => migrate(client, user),
        SET => set(client, user),
        DISCARD => {
            let raw = Structure::<24>::read(user, 24)?;
            no_flags(raw.u32(4))?;
            client.mirror().discard(raw.range(8)?)
        }
        number if placement::serves(number) => placement::serve(client, number, user),
        number @ 0x60..=0x6f => queue_ioctls::serve(client, number, user),
        number @ 0x70..=0x77 => lock_ioctls::serve(client, number, user),
        connect::PULL => connect::pull(client, user),
        alloc::ALLOC => alloc::alloc(client, user),
        event_ioctls::EVENTS => event_ioctls::events(client, user),
        _ => Err(EINVAL),
    }
}

/// Whether `command` is allowed after the device was unplugged. Only ioctls that report past events
/// are.
pub(crate) fn works_without_device(command: u32) -> bool {
    is_extension(command)
        && matches!(
            ioctl::_IOC_NR(command),
            INFO | COUNTERS | WAIT | STOP | ENGINE | placement::PLACEMENT
        )
}

/// Whether `command` is an extension.
pub(crate) fn is_extension(command: u32) -> bool {
    ioctl::_IOC_TYPE(command) == TYPE && ioctl::_IOC_NR(command) >= INFO
}

#[inline(never)]
fn info(client: &Client, user: usize) -> Result {
    let mut raw = Structure::<40>::read(user, 40)?;
    let device = client.device();
    raw.put_u32(4, VERSION);
    raw.put_u32(8, u32::try_from(device.fixed.engines)?);
    raw.put_u32(12, u32::try_from(device.fixed.tlb_entries)?);
    raw.put_u32(16, u32::try_from(device.fixed.copy_threads)?);
    let coherent = device.memory.kind() != Kind::Private;
    raw.put_u32(20, u32::from(coherent));
    let bytes = device
        .memory
        .limit()
        .saturating_mul(kernel::page::PAGE_SIZE);
    raw.put_u64(24, bytes as u64);
    raw.put_u64(32, engine::DEPTH as u64);
    raw.write()
}

#[inline(never)]
fn counters(client: &Client, user: usize) -> Result {
    let mut raw = Structure::<264>::read(user, 16)?;
    raw.put_u32(4, VERSION);
    let file = client.mirror().stats();
    let memory: &Memory<_> = client.memory();
    let device = memory.stats();
    let (used, total) = memory.usage();
    let own = client.counters();
    let (bytes_copied, copy_failures) = memory.driver().copy_engine.counters();
    let (coalesced, batches) = client.device().faults.counters();
    raw.put_all(
        8,
        [
            client.faults_read(),
            client.faults_write(),
            file.get(Counter::MappedPages),
            file.get(Counter::Invalidations),
            file.get(Counter::InvalidatedPages),
            file.get(Counter::ToDevice),
            file.get(Counter::ToSystem),
            device.get(Counter::CpuFaults),
            device.get(Counter::CpuFaultPages),
            device.get(Counter::Evicted),
            file.get(Counter::Retries),
            file.get(Counter::Skipped),
            used as u64,
            total as u64,
            own.get(Count::Accesses),
            own.get(Count::TlbHits),
            own.get(Count::TlbMisses),
            own.get(Count::FaultsRead),
            own.get(Count::FaultsWrite),
            own.get(Count::StallsRead),
            own.get(Count::StallsWrite),
            own.get(Count::StallNsRead),
            own.get(Count::StallNsWrite),
            own.get(Count::StallNsMax),
            own.get(Count::BytesRead),
            own.get(Count::BytesWritten),
            own.get(Count::StaleHits),
            file.get(Counter::Switched),
            bytes_copied,
            copy_failures,
            coalesced,
            batches,
        ],
    );
    raw.write()
}

#[inline(never)]
fn submit(client: &Arc<Client>, user: usize) -> Result {
    let mut raw = Structure::<80>::read(user, 80)?;
    let flags = raw.u32(4);
    no_flags(flags & !SUBMIT_VERIFY)?;
    let engine = match raw.u32(8) {
        ENGINE_ANY => None,
        number => Some(usize::try_from(number)?),
    };
    let spec = Spec::new(&RawSpec {
        op: raw.u32(12),
        addr: raw.u64(16),
        bytes: raw.u64(24),
        src: raw.u64(32),
        value: raw.u64(40),
        stride: raw.u64(48),
        rounds: raw.u64(56),
        think_ns: raw.u64(64),
        verify: flags & SUBMIT_VERIFY != 0,
    })?;
    let id = client.submit(engine, spec)?;
    raw.put_u64(72, id);
    raw.write().inspect_err(|_| {
        // User space did not receive the number, so it could not stop the command.
        let _ended = client.stop(id);
    })
}

#[inline(never)]
fn wait(client: &Client, user: usize) -> Result {
    let mut raw = Structure::<72>::read(user, 72)?;
    no_flags(raw.u32(4))?;
    no_flags(raw.u32(28))?;
    let id = raw.u64(8);
    let status = client.status(id)?;
    let timeout = match raw.u64(16) {
        u64::MAX => None,
        ns => Some(Delta::from_nanos(i64::try_from(ns).unwrap_or(i64::MAX))),
    };
    let waited = status.wait(timeout);
    match waited {
        Err(error) if error != ETIMEDOUT => return Err(error),
        _ => {}
    }
    let report = status.report();
    let errno = match report.ended {
        Some(Err(error)) => error.to_errno(),
        _ => 0,
    };
    // CAST: The bits of a negative number.
    raw.put_u32(24, errno as u32);
    raw.put_all(
        32,
        [
            report.result,
            report.rounds,
            report.faults,
            report.stalls,
            report.stall_ns,
        ],
    );
    raw.write()?;
    if report.ended.is_none() {
        return Err(ETIMEDOUT);
    }
    client.forget(id);
    Ok(())
}

#[inline(never)]
fn engine_counters(client: &Client, user: usize) -> Result {
    let mut raw = Structure::<160>::read(user, 16)?;
    no_flags(raw.u32(12))?;
    let index = usize::try_from(raw.u32(4))?;
    let engine = client.device().engines.get(index).ok_or(EINVAL)?;
    raw.put_u32(8, VERSION);
    raw.put_all(16, engine.counters().all());
    raw.write()
}

#[inline(never)]
fn migrate(client: &Client, user: usize) -> Result {
    let mut raw = Structure::<80>::read(user, 80)?;
    let flags = raw.u32(4);
    no_flags(flags & !(TO_SYSTEM | ORDINARY))?;
    let range = raw.range(8)?;
    let outcomes = usize::try_from(raw.u64(24))?;
    let mut pages = KVVec::new();
    if outcomes != 0 {
        pages.resize(range.pages().min(OUTCOMES), PageOutcome::None, GFP_KERNEL)?;
    }
    let since = kernel::time::Instant::<kernel::time::Monotonic>::now();
    let mut total = Outcome::default();
    let mut rest = Some(range);
    while let Some(range) = rest {
        // Without outcomes the whole range is migrated at once, otherwise as much as the buffer
        // holds.
        let part = match outcomes {
            0 => range,
            _ => PageRange::from_pages(range.start(), range.pages().min(OUTCOMES))?,
        };
        let migration = client
            .mirror()
            .migrate(part)
            .faultless(flags & ORDINARY == 0)
            .outcomes(&mut pages);
        let outcome = if flags & TO_SYSTEM != 0 {
            migration.to_system()
        } else {
            migration.to_device()
        };
        total += outcome.map_err(crate::structure::gone_is_invalid)?;
        if outcomes != 0 {
            let done = (part.start() - raw.range(8)?.start()) >> kernel::page::PAGE_SHIFT;
            let to = UserPtr::from_addr(outcomes.wrapping_add(done));
            let mut writer = UserSlice::new(to, part.pages()).writer();
            for page in pages.iter().take(part.pages()) {
                // CAST: As the header numbers them.
                writer.write(&(*page as u8))?;
            }
        }
        rest = range.from_address(part.end());
    }
    let ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(0);
    raw.put_all(
        32,
        [
            total.moved as u64,
            total.switched as u64,
            total.skipped as u64,
            total.no_memory as u64,
            total.copy_failed as u64,
            ns,
        ],
    );
    raw.write()
}

#[inline(never)]
fn set(client: &Client, user: usize) -> Result {
    let mut raw = Structure::<32>::read(user, 32)?;
    no_flags(raw.u32(4))?;
    no_flags(raw.u32(12))?;
    let old = client.device().set(raw.u32(8), raw.u64(16))?;
    client.memory().connections_changed();
    raw.put_u64(24, old);
    raw.write()
}
