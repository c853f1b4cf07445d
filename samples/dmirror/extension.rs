// SPDX-License-Identifier: GPL-2.0

//! The ioctls beyond those of `test_hmm`, as `dmirror_uapi.h` describes them.

pub(crate) use crate::structure::{
    no_flags,
    Structure, //
};
use crate::{
    alloc,
    arguments,
    client::Client,
    connect,
    event_ioctls,
    hardware::{
        command::{
            CommandDesc,
            RawCommandDesc, //
        },
        counters::Count,
        engine, //
    },
    lock_ioctls,
    placement,
    queue_ioctls,
    structure, //
};
use kernel::{
    ioctl,
    prelude::*,
    sync::Arc,
    time::Delta,
    uaccess::UserSlice, //
};
use rust_hmm::{
    debug::stats::Counter,
    memory::Memory,
    migrate::{
        Outcome,
        PageOutcome, //
    },
    mm::{
        addr::PageRange,
        device_pages::MemoryKind, //
    }, //
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
const MAX_OUTCOMES: usize = 4096;

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
            let raw = Structure::<arguments::Stop>::read(user, 16)?;
            no_flags(raw.flags)?;
            client.stop(raw.id)
        }
        ENGINE => engine_counters(client, user),
        MIGRATE => migrate(client, user),
        SET => set(client, user),
        DISCARD => {
            let raw = Structure::<arguments::Discard>::read(user, 24)?;
            no_flags(raw.flags)?;
            let range = structure::range(raw.addr, raw.npages)?;
            client.mirror().discard(range)
        }
        number if placement::serves(number) => placement::serve(client, number, user),
        number @ 0x60..=0x6f => queue_ioctls::serve(client, number, user),
        number @ 0x70..=0x77 => lock_ioctls::serve(&**client, number, user),
        connect::PULL => connect::pull(client, user),
        alloc::ALLOC => alloc::alloc(client, user),
        event_ioctls::EVENTS => event_ioctls::events(client, user),
        _ => Err(EINVAL),
    }
}

/// Whether `command` is allowed after the device was unplugged. Only ioctls that report past events
/// are, and another unplug, which the library refuses unless the last one was interrupted.
pub(crate) fn works_without_device(command: u32) -> bool {
    is_extension(command)
        && matches!(
            ioctl::_IOC_NR(command),
            INFO | COUNTERS | WAIT | STOP | ENGINE | placement::PLACEMENT | placement::UNPLUG
        )
}

/// Whether `command` is an extension.
pub(crate) fn is_extension(command: u32) -> bool {
    ioctl::_IOC_TYPE(command) == TYPE && ioctl::_IOC_NR(command) >= INFO
}

#[inline(never)]
fn info(client: &Client, user: usize) -> Result {
    let mut raw = Structure::<arguments::Info>::read(user, 40)?;
    let device = client.device();
    raw.version = VERSION;
    raw.engines = u32::try_from(device.fixed.engines)?;
    raw.tlb_entries = u32::try_from(device.fixed.tlb_entries)?;
    raw.copy_threads = u32::try_from(device.fixed.copy_threads)?;
    let coherent = device.memory.kind() != MemoryKind::Private;
    raw.coherent = u32::from(coherent);
    let bytes = device
        .memory
        .limit()
        .saturating_mul(kernel::page::PAGE_SIZE);
    raw.vram_bytes = bytes as u64;
    raw.queue_depth = engine::COMMAND_DEPTH as u64;
    raw.write()
}

#[inline(never)]
fn counters(client: &Client, user: usize) -> Result {
    let mut raw = Structure::<arguments::Counters>::read(user, 16)?;
    raw.version = VERSION;
    let file = client.mirror().stats();
    let memory: &Memory<_> = client.memory();
    let device = memory.stats();
    let (used, total) = memory.usage();
    let own = client.counters();
    let (bytes_copied, copy_failures) = memory.driver().copy_engine.counters();
    let (coalesced, batches) = client.device().faults.counters();
    raw.faults_read = client.faults_read();
    raw.faults_write = client.faults_write();
    raw.pages_mapped = file.get(Counter::MappedPages);
    raw.invalidations = file.get(Counter::Invalidations);
    raw.invalidated_pages = file.get(Counter::InvalidatedPages);
    raw.migrated_to_device = file.get(Counter::ToDevice);
    raw.migrated_to_system = file.get(Counter::ToSystem);
    raw.cpu_faults = device.get(Counter::CpuFaults);
    raw.cpu_fault_pages = device.get(Counter::CpuFaultPages);
    raw.evicted_pages = device.get(Counter::Evicted);
    raw.retries = file.get(Counter::Retries);
    raw.migrate_skipped = file.get(Counter::Skipped);
    raw.device_pages_used = used as u64;
    raw.device_pages_total = total as u64;
    raw.accesses = own.get(Count::Accesses);
    raw.tlb_hits = own.get(Count::TlbHits);
    raw.tlb_misses = own.get(Count::TlbMisses);
    raw.engine_faults_read = own.get(Count::FaultsRead);
    raw.engine_faults_write = own.get(Count::FaultsWrite);
    raw.stalls_read = own.get(Count::StallsRead);
    raw.stalls_write = own.get(Count::StallsWrite);
    raw.stall_ns_read = own.get(Count::StallNsRead);
    raw.stall_ns_write = own.get(Count::StallNsWrite);
    raw.stall_ns_max = own.get(Count::StallNsMax);
    raw.bytes_read = own.get(Count::BytesRead);
    raw.bytes_written = own.get(Count::BytesWritten);
    raw.stale_hits = own.get(Count::StaleHits);
    raw.switched_pages = file.get(Counter::Switched);
    raw.bytes_copied = bytes_copied;
    raw.copy_failures = copy_failures;
    raw.faults_coalesced = coalesced;
    raw.fault_batches = batches;
    raw.write()
}

#[inline(never)]
fn submit(client: &Arc<Client>, user: usize) -> Result {
    let mut raw = Structure::<arguments::Submit>::read(user, 80)?;
    no_flags(raw.flags & !SUBMIT_VERIFY)?;
    let engine = match raw.engine {
        ENGINE_ANY => None,
        number => Some(usize::try_from(number)?),
    };
    let spec = CommandDesc::new(&RawCommandDesc {
        op: raw.op,
        addr: raw.addr,
        bytes: raw.bytes,
        src: raw.src,
        value: raw.value,
        stride: raw.stride,
        rounds: raw.rounds,
        think_ns: raw.think_ns,
        verify: raw.flags & SUBMIT_VERIFY != 0,
    })?;
    let id = client.submit(engine, spec)?;
    raw.id = id;
    raw.write().inspect_err(|_| {
        // User space did not receive the number, so it could not stop the command.
        let _ended = client.stop(id);
    })
}

#[inline(never)]
fn wait(client: &Client, user: usize) -> Result {
    let mut raw = Structure::<arguments::Wait>::read(user, 72)?;
    no_flags(raw.flags)?;
    no_flags(raw.reserved)?;
    let id = raw.id;
    let status = client.status(id)?;
    let timeout = match raw.timeout_ns {
        u64::MAX => None,
        ns => Some(Delta::from_nanos(i64::try_from(ns).unwrap_or(i64::MAX))),
    };
    let waited = status.wait(timeout);
    match waited {
        Err(error) if error != ETIMEDOUT => return Err(error),
        _ => {}
    }
    let report = status.report();
    raw.status = match report.ended {
        Some(Err(error)) => error.to_errno(),
        _ => 0,
    };
    raw.result = report.result;
    raw.rounds = report.rounds;
    raw.faults = report.faults;
    raw.stalls = report.stalls;
    raw.stall_ns = report.stall_ns;
    raw.write()?;
    if report.ended.is_none() {
        return Err(ETIMEDOUT);
    }
    client.forget(id);
    Ok(())
}

#[inline(never)]
fn engine_counters(client: &Client, user: usize) -> Result {
    let mut raw = Structure::<arguments::Engine>::read(user, 16)?;
    no_flags(raw.reserved)?;
    let index = usize::try_from(raw.engine)?;
    let engine = client.device().engines.get(index).ok_or(EINVAL)?;
    let counters = engine.counters();
    raw.version = VERSION;
    raw.commands = counters.get(Count::Commands);
    raw.accesses = counters.get(Count::Accesses);
    raw.tlb_hits = counters.get(Count::TlbHits);
    raw.tlb_misses = counters.get(Count::TlbMisses);
    raw.faults_read = counters.get(Count::FaultsRead);
    raw.faults_write = counters.get(Count::FaultsWrite);
    raw.stalls_read = counters.get(Count::StallsRead);
    raw.stalls_write = counters.get(Count::StallsWrite);
    raw.stall_ns_read = counters.get(Count::StallNsRead);
    raw.stall_ns_write = counters.get(Count::StallNsWrite);
    raw.stall_ns_max = counters.get(Count::StallNsMax);
    raw.bytes_read = counters.get(Count::BytesRead);
    raw.bytes_written = counters.get(Count::BytesWritten);
    raw.stale_hits = counters.get(Count::StaleHits);
    raw.busy_ns = counters.get(Count::BusyNs);
    raw.idle_ns = counters.get(Count::IdleNs);
    raw.wait_ns = counters.get(Count::WaitNs);
    raw.set_aside = counters.get(Count::SetAside);
    raw.write()
}

#[inline(never)]
fn migrate(client: &Client, user: usize) -> Result {
    let mut raw = Structure::<arguments::Migrate>::read(user, 80)?;
    let flags = raw.flags;
    no_flags(flags & !(TO_SYSTEM | ORDINARY))?;
    let all = structure::range(raw.addr, raw.npages)?;
    let outcomes = usize::try_from(raw.outcomes)?;
    let mut pages = KVVec::new();
    if outcomes != 0 {
        pages.resize(all.pages().min(MAX_OUTCOMES), PageOutcome::None, GFP_KERNEL)?;
    }
    let since = kernel::time::Instant::<kernel::time::Monotonic>::now();
    let mut total = Outcome::default();
    let mut rest = Some(all);
    while let Some(range) = rest {
        // Without outcomes the whole range is migrated at once, otherwise as much as the buffer
        // holds.
        let part = match outcomes {
            0 => range,
            _ => PageRange::from_pages(range.start(), range.pages().min(MAX_OUTCOMES))?,
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
            let done = (part.start() - all.start()) >> kernel::page::PAGE_SHIFT;
            let to = UserPtr::from_addr(outcomes.wrapping_add(done));
            let mut writer = UserSlice::new(to, part.pages()).writer();
            for page in pages.iter().take(part.pages()) {
                // CAST: As the header numbers them.
                writer.write(&(*page as u8))?;
            }
        }
        rest = range.from_address(part.end());
    }
    raw.moved = total.moved as u64;
    raw.switched = total.switched as u64;
    raw.skipped = total.skipped as u64;
    raw.no_memory = total.no_memory as u64;
    raw.copy_failed = total.copy_failed as u64;
    raw.ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(0);
    raw.write()
}

#[inline(never)]
fn set(client: &Client, user: usize) -> Result {
    let mut raw = Structure::<arguments::Set>::read(user, 32)?;
    no_flags(raw.flags)?;
    no_flags(raw.reserved)?;
    raw.old = client.device().set(raw.what, raw.value)?;
    client.memory().invalidate_connections();
    raw.write()
}
