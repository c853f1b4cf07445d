// SPDX-License-Identifier: GPL-2.0
//! Cases of attributes, several devices, host locks, managed memory and queues.

use crate::inject::cases::{
    Case,
    Size,
    World,
    NEW,
    OLD, //
};
use crate::inject::memory::{
    all_on_device,
    filled,
    mirrored_on_device,
    on_device,
    sees,
    step, //
};
use hmm::engine::{
    EngineOp,
    Way, //
};
use hmm::events::Type;
use hmm::placement::{
    Attributes,
    Policy,
    Preferred, //
};
use hmm::{
    Command,
    Connection,
    Device,
    Errno,
    ManagedFlags,
    Mapping,
    QueueOp,
    Setting,
    State,
    HUGE_PAGES,
    PAGE_SIZE, //
};
use std::io::Read;
use std::time::Duration;

const MEMORY: &[Errno] = &[Errno::EBUSY, Errno::EINTR, Errno::ENOMEM];
/// Errors of operations that migrate the memory back first. A page may be lost then.
const BACK: &[Errno] = &[Errno::EBUSY, Errno::EINTR, Errno::ENOMEM, Errno::EFAULT];
/// Errors with which an operation of a queue may end.
const QUEUED: &[Errno] =
    &[Errno::EBUSY, Errno::EINTR, Errno::ENOMEM, Errno::EFAULT, Errno::EIO, Errno::ETIMEDOUT];

/// Number of pages that keep attributes: more separate ranges than one node of the maple tree
/// holds.
const LEFT: usize = 32;

pub const CASES: &[Case] = &[
    Case { errors: MEMORY, prepare: on_device, ..Case::new("attributes", attributes) },
    Case { errors: MEMORY, check: all_kept, ..Case::new("attributes_unmap", unmap) },
    Case {
        errors: MEMORY,
        prepare: attracted,
        threads: true,
        ..Case::new("policy_fault", engine_reads)
    },
    Case {
        errors: MEMORY,
        prepare: mostly_read,
        threads: true,
        ..Case::new("read_mostly", engine_reads)
    },
    Case { errors: MEMORY, prepare: partner_has_it, check: all_came, ..Case::new("pull", pull) },
    Case {
        errors: MEMORY,
        prepare: partner_has_it,
        check: all_came,
        size: Size::Huge,
        ..Case::new("pull_huge", pull)
    },
    Case { errors: BACK, ..Case::new("lock", lock) },
    Case { errors: BACK, prepare: on_device, ..Case::new("lock_on_device", lock) },
    Case { errors: BACK, ..Case::new("lock_lookup", locked) },
    Case { errors: MEMORY, ..Case::new("managed", managed) },
    // The CPU touches the memory. A page lost by these sources would kill the process, as in
    // `cpu_access`.
    Case {
        errors: MEMORY,
        without: &["copy", "isolate", "failslab_lasting", "fail_page_alloc_lasting"],
        ..Case::new("managed_populated", managed_populated)
    },
    Case { errors: QUEUED, prepare: filled, threads: true, ..Case::new("queue", queue) },
    Case { errors: QUEUED, prepare: filled, threads: true, ..Case::new("fence_share", share) },
    Case { errors: QUEUED, prepare: filled, threads: true, ..Case::new("blit", blit) },
    Case { errors: QUEUED, ..Case::new("queue_waits", queue_waits) },
    Case { errors: MEMORY, ..Case::new("fence_notify", fence_notify) },
    Case { errors: MEMORY, prepare: filled, ..Case::new("events", events) },
    Case { errors: MEMORY, prepare: on_device, ..Case::new("offline", resize) },
    Case { errors: MEMORY, prepare: mirrored_on_device, ..Case::new("debugfs_read", look) },
];

fn attributes(world: &mut World) -> Result<(), Errno> {
    let addr = world.map.addr();
    let pages = world.map.pages();
    let new = Attributes::NONE
        .prefer(Preferred::Device)
        .flag(Attributes::ACCESSED_BY, true)
        .order(Some(2));
    world.device.set_attributes(addr, pages, new)?;
    // A second range with other attributes, whose end is within the first range.
    world.device.set_attributes(addr + PAGE_SIZE, pages / 2, new.order(None))?;
    let found = world.device.attributes(addr, pages)?;
    if found.preferred == Preferred::Device as u32 && found.what & Attributes::GRANULARITY == 0 {
        Ok(())
    } else {
        Err(Errno::EILSEQ)
    }
}

/// Unmaps every other page of a range, which splits it. Returns how many of the [`LEFT`] remaining
/// pages have attributes.
fn unmap_half(world: &World) -> Result<usize, Errno> {
    let map = Mapping::anon(2 * LEFT)?;
    let new = Attributes::NONE.prefer(Preferred::Device);
    world.device.set_attributes(map.addr(), map.pages(), new)?;
    for page in (1..map.pages()).step_by(2) {
        map.unmap_pages(page, 1)?;
    }
    let mut kept = 0;
    for page in (0..map.pages()).step_by(2) {
        let found = world.device.attributes(map.page_addr(page), 1)?;
        kept += usize::from(found.preferred == Preferred::Device as u32);
    }
    Ok(kept)
}

/// Unmapping must not fail. Without memory, either all attributes of the range are removed or none.
fn unmap(world: &mut World) -> Result<(), Errno> {
    match unmap_half(world)? {
        0 | LEFT => Ok(()),
        _ => Err(Errno::EILSEQ),
    }
}

fn all_kept(world: &mut World) -> Result<(), String> {
    match unmap_half(world).map_err(step("unmap"))? {
        LEFT => Ok(()),
        kept => Err(format!("{kept} of {LEFT} pages have attributes")),
    }
}

fn attracted(world: &mut World) -> Result<(), String> {
    filled(world)?;
    world.device.set_policy(Policy::Default).map_err(step("policy"))
}

fn engine_reads(world: &mut World) -> Result<(), Errno> {
    let read = Command::new(EngineOp::Read, world.map.addr(), world.map.len());
    match world.device.run(read)?.error {
        None => Ok(()),
        Some(error) => Err(error),
    }
}

/// The default policy would migrate the pages, but reads of read-mostly ranges map them in place.
fn mostly_read(world: &mut World) -> Result<(), String> {
    filled(world)?;
    world.device.set_policy(Policy::Default).map_err(step("policy"))?;
    let new = Attributes::NONE.flag(Attributes::READ_MOSTLY, true);
    let set = world.device.set_attributes(world.map.addr(), world.map.pages(), new);
    set.map_err(step("attributes"))
}

fn partner_has_it(world: &mut World) -> Result<(), String> {
    filled(world)?;
    let partner = Device::open(world.index ^ 1).map_err(step("the other device"))?;
    // Coherent memory would otherwise be accessed in place.
    for device in [&world.device, &partner] {
        device
            .set(Setting::Connection, Connection::Migratable as u64)
            .map_err(step("set the connection"))?;
    }
    let addr = world.map.addr();
    let pages = world.map.pages();
    let moved = partner.migrate(addr, pages, Way::ToDevice).map_err(step("migrate"))?.moved;
    world.partner = Some(partner);
    if moved == pages as u64 {
        Ok(())
    } else {
        Err(format!("{moved} pages moved to the other device"))
    }
}

fn pull(world: &mut World) -> Result<(), Errno> {
    let partner = world.partner.as_ref().ok_or(Errno::ENOENT)?;
    world.device.pull(world.map.addr(), world.map.pages(), partner).map(|_| ())
}

fn all_came(world: &mut World) -> Result<(), String> {
    let states = world.device.snapshot(world.map.addr(), world.map.pages());
    let states = states.map_err(step("snapshot"))?;
    // Pages that the CPU has read are in system memory. Coherent memory is not migrated by that, so
    // the pages must be on this device.
    if world.looked && states.iter().all(|state| state.is_ram()) {
        Ok(())
    } else {
        all_on_device(world)
    }
}

fn lock(world: &mut World) -> Result<(), Errno> {
    let addr = world.map.addr();
    let len = world.map.len();
    let device = &world.device;
    let locked = device.lock(addr, len, 1 << world.index, false)?;
    // A second lock, of a part of the locked range.
    let again = device.lock(addr, PAGE_SIZE, 1 << world.index, false);
    let mut bytes = vec![0; len];
    let read = device.read(addr, &mut bytes);
    if let Ok(again) = &again {
        device.unlock(again.device_addr)?;
    }
    device.unlock(locked.device_addr)?;
    again?;
    read?;
    sees(&bytes, OLD)
}

/// The information that a query returns about a lock.
fn locked(world: &mut World) -> Result<(), Errno> {
    let device = &world.device;
    let addr = world.map.addr();
    let len = world.map.len();
    let lock = device.lock(addr, len, 1 << world.index, false)?;
    let found = device.locked(addr + PAGE_SIZE, 2);
    // The unlock may be the call that fails. A lock that stays would be counted in the next
    // iteration.
    device.unlock(lock.device_addr).or_else(|_| device.unlock(lock.device_addr))?;
    let found = found?;
    if (found.addr, found.bytes, found.users) == (addr, len, 1) {
        Ok(())
    } else {
        Err(Errno::EILSEQ)
    }
}

fn managed_with(world: &mut World, populate: bool) -> Result<(), Errno> {
    let flags = ManagedFlags { populate, ..ManagedFlags::default() };
    let memory = world.device.alloc(world.map.len(), flags)?;
    memory.fill(NEW);
    let mut bytes = vec![0; memory.len()];
    world.device.read(memory.addr(), &mut bytes)?;
    sees(&bytes, NEW)
}

fn managed(world: &mut World) -> Result<(), Errno> {
    managed_with(world, false)
}

fn managed_populated(world: &mut World) -> Result<(), Errno> {
    managed_with(world, true)
}

/// A migration to the device, a prefetch and a migration back, in order.
fn queue(world: &mut World) -> Result<(), Errno> {
    let addr = world.map.addr();
    let len = world.map.len();
    let queue = world.device.queue()?;
    let moved = queue.submit(QueueOp::migrate(addr, len), &[])?;
    let mapped = queue.submit(QueueOp::prefetch(addr, len), &[&moved])?;
    let back = queue.submit(QueueOp::evict(addr, len / 2), &[&mapped])?;
    let end = queue.record()?;
    for fence in [&moved, &mapped, &back, &end] {
        if let State::Failed(error) = fence.sync(Some(Duration::from_secs(60)))?.state {
            return Err(error);
        }
    }
    Ok(())
}

/// A copy of locked memory. A queue waits for its DMA fence, which is passed as a sync file.
fn blit(world: &mut World) -> Result<(), Errno> {
    let device = &world.device;
    let to = Mapping::anon(world.map.pages())?;
    let agents = 1 << world.index;
    let bytes = to.len();
    let here = device.lock(world.map.addr(), bytes, agents, true)?;
    let there = device.lock(to.addr(), bytes, agents, true).inspect_err(|_| {
        let _ = device.unlock(here.device_addr);
    })?;
    let result = (|| {
        let done = device.blit(there.device_addr, here.device_addr, bytes, &[])?;
        let known = device.import(&done.export()?)?;
        let event = known.event()?;
        let queue = device.queue()?;
        queue.wait(&known)?;
        let end = queue.record()?;
        end.by_poll()?;
        if let State::Failed(error) = end.sync(Some(Duration::from_secs(60)))?.state {
            return Err(error);
        }
        // A fence reports the signalled state shortly before its eventfds are signalled.
        if !event.poll(Duration::from_secs(60))? {
            return Err(Errno::ETIMEDOUT);
        }
        match event.take()? {
            1 => to.check(OLD).map_err(|_| Errno::EILSEQ),
            _ => Err(Errno::EILSEQ),
        }
    })();
    // The unlock may be the call that fails. The next lock at the same address would find a range
    // that stayed locked.
    let unlock = |addr| device.unlock(addr).or_else(|_| device.unlock(addr));
    let unlocked = [unlock(here.device_addr), unlock(there.device_addr)];
    unlocked.into_iter().fold(result, Result::and)
}

/// A fence of another file, on which an operation of a queue depends.
fn share(world: &mut World) -> Result<(), Errno> {
    let addr = world.map.addr();
    let len = world.map.len();
    let gate = world.device.host_fence()?;
    let known = world.device.share(&gate)?;
    let event = known.event()?;
    let queue = world.device.queue()?;
    queue.wait(&known)?;
    let read = queue.submit(QueueOp::engine(EngineOp::Read, addr, len), &[])?;
    gate.signal(Ok(()))?;
    if !event.poll(Duration::from_secs(60))? {
        return Err(Errno::ETIMEDOUT);
    }
    match read.sync(Some(Duration::from_secs(60)))?.state {
        State::Failed(error) => Err(error),
        _ => Ok(()),
    }
}

/// A queue that waits for a host fence, and the counters of its waits.
fn queue_waits(world: &mut World) -> Result<(), Errno> {
    let queue = world.device.queue()?;
    let gate = world.device.host_fence()?;
    queue.wait(&gate)?;
    let end = queue.record()?;
    let before = queue.waits()?;
    gate.signal(Ok(()))?;
    if let State::Failed(error) = end.sync(Some(Duration::from_secs(60)))?.state {
        return Err(error);
    }
    let after = queue.waits()?;
    // One wait, if the fence was not signalled when the wait began.
    let count = |waits: hmm::queue::Waits| waits.on_host + waits.on_device;
    if count(before) <= count(after) && count(after) <= 1 {
        Ok(())
    } else {
        Err(Errno::EILSEQ)
    }
}

/// The end of a fence is reported by an eventfd and by `poll`.
fn fence_notify(world: &mut World) -> Result<(), Errno> {
    let fence = world.device.host_fence()?;
    let event = fence.event()?;
    fence.by_poll()?;
    fence.signal(Ok(()))?;
    let polled = world.device.poll_fences(Duration::from_secs(60))?;
    match (polled, event.take()?, fence.check()?.state) {
        (true, 1, State::Done) => Ok(()),
        _ => Err(Errno::EILSEQ),
    }
}

/// A migration to the device and back emits events to the file that enabled them.
fn events(world: &mut World) -> Result<(), Errno> {
    let device = &world.device;
    let addr = world.map.addr();
    let pages = world.map.pages();
    device.events((1 << Type::ALL.len()) - 1, false)?;
    device.migrate(addr, pages, Way::ToDevice)?;
    device.migrate(addr, pages, Way::ToSystem)?;
    let records = device.records()?;
    device.events(0, false)?;
    if records.iter().any(|record| record.kind == Type::MigrateEnd) {
        Ok(())
    } else {
        Err(Errno::EILSEQ)
    }
}

/// Takes pages of the device out of use, which evicts their contents, and back into use.
fn resize(world: &mut World) -> Result<(), Errno> {
    let left = world.device.resize(0, HUGE_PAGES, false)?;
    world.device.resize(0, HUGE_PAGES, true)?;
    // Pages that could not be evicted.
    match left {
        0 => Ok(()),
        _ => Err(Errno::EBUSY),
    }
}

/// Reads the debugfs files that `hmmctl` shows.
fn look(_: &mut World) -> Result<(), Errno> {
    let mut text = vec![0; 65536];
    for file in ["mirrors", "devices", "map"] {
        let file = std::fs::File::open(format!("/sys/kernel/debug/rust_hmm/{file}"));
        match file.and_then(|mut file| file.read(&mut text)) {
            Ok(0) => return Err(Errno::EILSEQ),
            Ok(_) => {}
            Err(error) => return Err(Errno(error.raw_os_error().unwrap_or(0))),
        }
    }
    Ok(())
}
