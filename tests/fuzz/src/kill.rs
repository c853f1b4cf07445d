// SPDX-License-Identifier: GPL-2.0
//! Latency of SIGKILL: kills a process in the middle of each kind of long call.

use crate::sys;
use hmm::engine::{
    Command,
    EngineOp,
    Setting,
    Way, //
};
use hmm::{
    Child,
    Device,
    Errno,
    Gate,
    Mapping,
    Op,
    Ptr,
    HUGE_SIZE,
    PAGE_SIZE, //
};
use serde::Serialize;
use std::sync::atomic::{
    AtomicU32,
    Ordering::Relaxed, //
};
use std::time::{
    Duration,
    Instant, //
};

/// A kind of long call.
struct Kind {
    name: &'static str,
    /// Prepares the call, opens the gate, and makes the call, which should not return.
    run: fn(&Gate) -> Result<(), String>,
    /// Test parameters of the device during the call.
    settings: &'static [(Setting, u64)],
    /// Only for devices with private memory.
    private: bool,
}

/// Index of the tested node.
static NODE: AtomicU32 = AtomicU32::new(0);

const SECOND: u64 = 1_000_000_000;
const SLOW_COPIES: &[(Setting, u64)] = &[(Setting::CopyDelay, SECOND)];
const SLOW_FLUSHES: &[(Setting, u64)] = &[(Setting::FlushDelay, SECOND / 100)];
const NONE: &[(Setting, u64)] = &[];

const fn kind(name: &'static str, run: fn(&Gate) -> Result<(), String>) -> Kind {
    Kind { name, run, settings: NONE, private: false }
}

const fn slow(name: &'static str, run: fn(&Gate) -> Result<(), String>) -> Kind {
    Kind { name, run, settings: SLOW_COPIES, private: false }
}

const KINDS: &[Kind] = &[
    kind("WAIT for ever", wait),
    kind("READ of 64 GiB", read),
    kind("READ_UNLOCKED of 64 GiB", read_unlocked),
    kind("WRITE of 1 GiB", write),
    kind("SNAPSHOT of 8 TiB", snapshot),
    kind("EXCLUSIVE of 512 MiB", exclusive),
    kind("CHECK_EXCLUSIVE of everything", check_exclusive),
    kind("MIGRATE of 16 Mi holes", migrate_holes),
    slow("MIGRATE to the device, copies of 1 s", migrate_slow),
    slow("MIGRATE_TO_DEV, copies of 1 s", migrate_to_dev),
    slow("MIGRATE to the system, copies of 1 s", migrate_back),
    slow("MIGRATE_TO_SYS, copies of 1 s", migrate_to_sys),
    Kind {
        name: "a CPU fault, copies of 1 s",
        run: cpu_fault,
        settings: SLOW_COPIES,
        private: true,
    },
    slow("RELEASE, copies of 1 s", release),
    Kind {
        name: "DISCARD, flushes of 10 ms",
        run: discard,
        settings: SLOW_FLUSHES,
        private: false,
    },
    kind("READ with userfaultfd and no handler", userfault),
    kind("FENCE_SYNC of a fence that is never signalled", fence_sync),
    kind("read of events that do not come", events),
    kind("mmap of 64 GiB of the node", mmap),
    kind("exit with 64 endless commands for each engine", commands),
    slow("exit with a command whose fault waits for a migration", command_in_fault),
];

fn name(error: Errno) -> String {
    error.to_string()
}

fn node() -> Result<Device, String> {
    Device::open(NODE.load(Relaxed)).map_err(name)
}

fn ready(gate: &Gate) -> Result<(), String> {
    gate.open().map_err(|error| error.to_string())
}

/// Reports a call that returned, which must be distinguished from a kill.
fn over<T: std::fmt::Debug>(result: Result<T, Errno>) -> Result<(), String> {
    Err(format!("the call ended by itself: {result:?}"))
}

/// A large unpopulated range of the address space.
fn sparse(bytes: usize, prot: i32) -> Result<usize, String> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let addr = sys::mmap(0, bytes, prot, flags, -1, 0);
    let addr = usize::try_from(addr).map_err(|_| name(Errno(-addr as i32)))?;
    crate::arena::advise(addr, bytes, libc::MADV_NOHUGEPAGE);
    Ok(addr)
}

const GIB: usize = 1 << 30;
const READ: i32 = libc::PROT_READ;
const WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// One of the `test_hmm` ioctls, with any pointer: a stray write can only harm this process.
fn old(device: &Device, op: Op, addr: usize, ptr: usize, npages: usize) -> Result<(), String> {
    let mut cmd = hmm::abi::Cmd {
        addr: addr as u64,
        ptr: ptr as u64,
        npages: npages as u64,
        ..Default::default()
    };
    let at = std::ptr::addr_of_mut!(cmd) as usize;
    loop {
        let result = sys::ioctl(device.fd(), op.request(), at);
        if result != -(libc::EINTR as isize) {
            return over::<isize>(if result < 0 { Err(Errno(-result as i32)) } else { Ok(result) });
        }
    }
}

/// A large buffer with little memory: maps the same file repeatedly.
fn buffer(bytes: usize) -> Result<usize, String> {
    let addr = sparse(bytes, WRITE)?;
    let file = sys::call3(libc::SYS_memfd_create, c"hmm".as_ptr() as usize, 0, 0);
    sys::call3(libc::SYS_ftruncate, file as usize, 64 << 20, 0);
    for at in (0..bytes).step_by(64 << 20) {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE;
        sys::mmap(addr + at, 64 << 20, WRITE, flags, file as i32, 0);
    }
    Ok(addr)
}

fn wait(gate: &Gate) -> Result<(), String> {
    let device = node()?;
    let map = Mapping::anon(1).map_err(name)?;
    let job = device.submit(Command::new(EngineOp::Fill, map.addr(), 8).rounds(0)).map_err(name)?;
    ready(gate)?;
    over(job.poll(Duration::MAX))
}

fn read(gate: &Gate) -> Result<(), String> {
    let device = node()?;
    let addr = sparse(64 * GIB, READ)?;
    let to = buffer(2 * GIB)?;
    ready(gate)?;
    old(&device, Op::Read, addr, to, 64 * GIB / PAGE_SIZE)
}

fn read_unlocked(gate: &Gate) -> Result<(), String> {
    let device = node()?;
    let addr = sparse(64 * GIB, READ)?;
    let to = buffer(2 * GIB)?;
    ready(gate)?;
    old(&device, Op::ReadUnlocked, addr, to, 64 * GIB / PAGE_SIZE)
}

fn write(gate: &Gate) -> Result<(), String> {
    let device = node()?;
    let addr = sparse(GIB, WRITE)?;
    let from = buffer(GIB)?;
    ready(gate)?;
    old(&device, Op::Write, addr, from, GIB / PAGE_SIZE)
}

fn snapshot(gate: &Gate) -> Result<(), String> {
    let device = node()?;
    // One byte for each page.
    let pages = 8192 * GIB / PAGE_SIZE;
    let to = buffer(pages)?;
    ready(gate)?;
    old(&device, Op::Snapshot, 0x1000_0000, to, pages)
}

fn exclusive(gate: &Gate) -> Result<(), String> {
    let device = node()?;
    let addr = sparse(GIB / 2, WRITE)?;
    ready(gate)?;
    old(&device, Op::Exclusive, addr, 0, GIB / 2 / PAGE_SIZE)
}

fn check_exclusive(gate: &Gate) -> Result<(), String> {
    let device = node()?;
    let addr = sparse(GIB, READ)?;
    // Populate the device page table.
    let _ = device.probe(Op::Read, addr as u64, (GIB / PAGE_SIZE) as u64, Ptr::Null);
    ready(gate)?;
    loop {
        let _ = device.probe(Op::CheckExclusive, 0, (1 << 52) - 1, Ptr::Null);
    }
}

fn migrate_holes(gate: &Gate) -> Result<(), String> {
    // The time depends on the number of pages, whatever their size.
    const HOLES: usize = 16 << 20;
    let device = node()?;
    let addr = sparse(HOLES * PAGE_SIZE, READ)?;
    ready(gate)?;
    over(device.migrate(addr, HOLES, Way::ToDevice))
}

/// Memory without huge pages, so that each page is a copy.
fn filled(mib: usize) -> Result<Mapping, String> {
    let map = Mapping::anon_aligned((mib << 20).div_ceil(HUGE_SIZE)).map_err(name)?;
    map.fill(1);
    Ok(map)
}

fn migrate_slow(gate: &Gate) -> Result<(), String> {
    let device = node()?;
    let map = filled(4)?;
    ready(gate)?;
    over(device.migrate(map.addr(), map.pages(), Way::ToDevice))
}

fn migrate_to_dev(gate: &Gate) -> Result<(), String> {
    let device = node()?;
    let map = filled(4)?;
    ready(gate)?;
    old(&device, Op::MigrateToDev, map.addr(), 0, map.pages())
}

/// Memory in the device, migrated without the copy delay, which is restored afterwards.
fn resident(device: &Device, mib: usize) -> Result<Mapping, String> {
    let map = filled(mib)?;
    device.set(Setting::CopyDelay, 0).map_err(name)?;
    device.migrate(map.addr(), map.pages(), Way::ToDevice).map_err(name)?;
    device.set(Setting::CopyDelay, SECOND).map_err(name)?;
    Ok(map)
}

fn migrate_back(gate: &Gate) -> Result<(), String> {
    let device = node()?;
    let map = resident(&device, 4)?;
    ready(gate)?;
    over(device.migrate(map.addr(), map.pages(), Way::ToSystem))
}

fn migrate_to_sys(gate: &Gate) -> Result<(), String> {
    let device = node()?;
    let map = resident(&device, 4)?;
    ready(gate)?;
    old(&device, Op::MigrateToSys, map.addr(), 0, map.pages())
}

fn cpu_fault(gate: &Gate) -> Result<(), String> {
    let device = node()?;
    let map = resident(&device, 4)?;
    ready(gate)?;
    (0..map.pages()).for_each(|page| map.set(page, 0, 1));
    over::<()>(Ok(()))
}

fn release(gate: &Gate) -> Result<(), String> {
    let device = node()?;
    let _map = resident(&device, 64)?;
    ready(gate)?;
    over(device.release())
}

fn discard(gate: &Gate) -> Result<(), String> {
    let device = node()?;
    let map = filled(64)?;
    loop {
        let mut data = vec![0; map.len()];
        device.read(map.addr(), &mut data).map_err(name)?;
        let _ = ready(gate);
        device.discard(map.addr(), map.pages()).map_err(name)?;
    }
}

fn userfault(gate: &Gate) -> Result<(), String> {
    let device = node()?;
    let map = Mapping::anon(16).map_err(name)?;
    let _uffd = hmm::uffd::Missing::new(&map).map_err(name)?;
    ready(gate)?;
    old(&device, Op::ReadUnlocked, map.addr(), 0, 16)
}

fn fence_sync(gate: &Gate) -> Result<(), String> {
    let device = node()?;
    let fence = device.host_fence().map_err(name)?;
    ready(gate)?;
    over(fence.sync(None))
}

fn events(gate: &Gate) -> Result<(), String> {
    let device = node()?;
    // Enable only evictions, none of which occur.
    let _stream = device.events(1 << 5, false).map_err(name)?;
    ready(gate)?;
    over(device.read_stream(&mut [0; 4096]))
}

fn mmap(gate: &Gate) -> Result<(), String> {
    let device = node()?;
    ready(gate)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
    let len = 64 * GIB;
    let result = sys::mmap(0, len, WRITE, flags, device.fd(), 0);
    over::<isize>(if result < 0 { Err(Errno(-result as i32)) } else { Ok(result) })
}

fn commands(gate: &Gate) -> Result<(), String> {
    let device = node()?;
    let map = filled(4)?;
    let engines = device.info().map_err(name)?.engines;
    for engine in 0..engines {
        while device
            .submit(Command::new(EngineOp::Fill, map.addr(), map.len()).rounds(0).engine(engine))
            .is_ok()
        {}
    }
    ready(gate)?;
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn command_in_fault(gate: &Gate) -> Result<(), String> {
    let device = node()?;
    let map = filled(2)?;
    let writes = Command::new(EngineOp::Fill, map.addr(), map.len()).rounds(0);
    device.submit(writes).map_err(name)?;
    std::thread::sleep(Duration::from_millis(100));
    ready(gate)?;
    over(device.migrate(map.addr(), map.pages(), Way::ToDevice))
}

/// Result of one kind of call.
#[derive(Debug, Serialize)]
pub struct Died {
    /// Name of the call.
    pub call: &'static str,
    /// Longest time from the signal until the process was reaped, in ms.
    pub max_ms: f64,
    /// Description of a failure.
    pub wrong: Option<String>,
}

fn kill(kind: &Kind, delay: Duration, timeout: Duration) -> Result<Duration, String> {
    let control = node()?;
    for (setting, value) in kind.settings {
        control.set(*setting, *value).map_err(name)?;
    }
    let gate = Gate::new().map_err(name)?;
    let mut child = Child::spawn(|| (kind.run)(&gate)).map_err(name)?;
    let result =
        gate.wait().map_err(|error| format!("it does not begin: {error}")).and_then(|()| {
            std::thread::sleep(delay);
            if child.try_wait().is_some() {
                return child.outcome().map(|()| Duration::ZERO);
            }
            let since = Instant::now();
            child.signal(hmm::child::SIGKILL);
            while child.try_wait().is_none() {
                if since.elapsed() > timeout {
                    crate::tell_stacks();
                    return Err(format!("still there after {} s", timeout.as_secs()));
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            Ok(since.elapsed())
        });
    for (setting, _) in kind.settings {
        control.set(*setting, 0).map_err(name)?;
    }
    // A hanging process would delay the next one.
    child.wait_timeout(Duration::from_secs(30));
    result
}

/// Kills a process in each kind of call, several times after different delays.
pub fn run(filter: &[String], rounds: u32, limit: Duration, node: u32, json: bool) -> Vec<Died> {
    NODE.store(node, Relaxed);
    let coherent = node >= 2;
    let chosen = |kind: &&Kind| {
        let named = filter.is_empty() || filter.iter().any(|part| kind.name.contains(part));
        named && !(kind.private && coherent)
    };
    let mut all = Vec::new();
    if !json {
        println!("1..{}", KINDS.iter().filter(chosen).count());
    }
    for kind in KINDS.iter().filter(chosen) {
        let mut died = Died { call: kind.name, max_ms: 0.0, wrong: None };
        for round in 0..rounds {
            let delay = Duration::from_millis(20 + u64::from(round) * 170);
            match kill(kind, delay, limit * 4) {
                Ok(time) => died.max_ms = died.max_ms.max(time.as_secs_f64() * 1e3),
                Err(why) => died.wrong = Some(why),
            }
        }
        if died.wrong.is_none() && died.max_ms > limit.as_secs_f64() * 1e3 {
            died.wrong = Some(format!("longer than {} s", limit.as_secs_f64()));
        }
        let number = all.len() + 1;
        let call = died.call;
        let ms = died.max_ms;
        if !json {
            match &died.wrong {
                None => println!("ok {number} killed in {call} # dies in {ms:.1} ms"),
                Some(why) => println!("not ok {number} killed in {call} # {why}"),
            }
        }
        all.push(died);
    }
    all
}
