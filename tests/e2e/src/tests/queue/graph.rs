// SPDX-License-Identifier: GPL-2.0
//! A random graph of operations over two devices and the host. Every edge is respected. A node that
//! fails also fails all nodes that depend on it, and no others.

use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::{
    check,
    check_eq, //
};
use hmm::pattern::WORDS;
use hmm::{
    Device,
    EngineOp,
    Errno,
    Fence,
    Mapping,
    QueueOp,
    State, //
};
use std::collections::HashMap;
use std::time::Duration;

const NODES: usize = 1000;
const QUEUES: usize = 4;
/// Maximal number of dependencies of a node.
const MOST: usize = 4;
/// Maximal distance of a dependency in the list of nodes.
const REACH: usize = 60;
const TOKEN: u64 = 0x5eed_0000_0000_0001;

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((value ^ (value >> 31)) % end as u64) as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Copies the token from the slot of a dependency to its own slot.
    Pass,
    /// Migrates the slots to the device.
    Migrate,
    /// Migrates the slots back.
    Evict,
    /// Fails.
    Bad,
}

struct Node {
    /// Device and queue, or `None` for the host.
    place: Option<(usize, usize)>,
    kind: Kind,
    after: Vec<usize>,
}

fn make(rng: &mut Rng, bad: usize) -> Vec<Node> {
    let mut nodes: Vec<Node> = (0..NODES)
        .map(|index| {
            let mut after: Vec<usize> = (0..rng.below(MOST + 1).min(index))
                .map(|_| index - 1 - rng.below(REACH.min(index)))
                .collect();
            after.sort_unstable();
            after.dedup();
            let place = (rng.below(5) != 0).then(|| (rng.below(2), rng.below(QUEUES)));
            let kind = match rng.below(40) {
                0 if place.is_some() => Kind::Migrate,
                1 if place.is_some() => Kind::Evict,
                _ => Kind::Pass,
            };
            Node { place, kind, after }
        })
        .collect();
    // Not in the first quarter, so that many nodes run with any seed.
    for _ in 0..bad {
        let device = nodes
            .iter_mut()
            .skip(NODES / 4 + rng.below(NODES / 4))
            .find(|node| node.place.is_some() && node.kind == Kind::Pass);
        if let Some(node) = device {
            node.kind = Kind::Bad;
        }
    }
    nodes
}

/// Returns for each node whether it fails: bad nodes, and all nodes that depend on one.
fn failing(nodes: &[Node]) -> Vec<bool> {
    let mut fails: Vec<bool> = Vec::new();
    for node in nodes {
        fails.push(node.kind == Kind::Bad || node.after.iter().any(|before| fails[*before]));
    }
    fails
}

fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `clock_gettime` writes only `time`, which is valid for writes.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

struct Slots(Mapping);

impl Slots {
    fn addr(&self, node: usize) -> usize {
        self.0.page_addr(node / WORDS) + node % WORDS * 8
    }

    fn get(&self, node: usize) -> u64 {
        self.0.get(node / WORDS, node % WORDS)
    }

    /// Returns the dependency from which a node copies the token.
    fn source(nodes: &[Node], node: usize) -> Option<usize> {
        nodes[node].after.iter().copied().find(|before| nodes[*before].kind == Kind::Pass)
    }

    fn op(&self, nodes: &[Node], node: usize) -> QueueOp {
        let all = self.0.addr();
        let len = self.0.len();
        match (nodes[node].kind, Self::source(nodes, node)) {
            (Kind::Migrate, _) => QueueOp::migrate(all, len),
            (Kind::Evict, _) => QueueOp::evict(all, len),
            (Kind::Bad, _) => QueueOp::engine(EngineOp::Read, self.0.guard(), 8),
            (Kind::Pass, None) => QueueOp::engine(EngineOp::Fill, self.addr(node), 8).value(TOKEN),
            (Kind::Pass, Some(before)) => {
                QueueOp::engine_copy(self.addr(node), self.addr(before), 8)
            }
        }
    }
}

fn run_host(
    nodes: &[Node],
    fences: &[Fence<'_>],
    slots: &Slots,
    share: usize,
) -> Result<Vec<(usize, u64, u64)>, Stop> {
    let mut times = Vec::new();
    let hosts = nodes.iter().enumerate().filter(|(_, node)| node.place.is_none());
    for (index, node) in hosts.skip(share).step_by(2) {
        let mut result = Ok(());
        for before in &node.after {
            match fences[*before].sync(Some(Duration::from_secs(120))).what("host waits")?.state {
                State::Failed(error) if result.is_ok() => result = Err(error),
                _ => {}
            }
        }
        if result.is_ok() {
            let began = now();
            let token = Slots::source(nodes, index).map_or(TOKEN, |before| slots.get(before));
            slots.0.set(index / WORDS, index % WORDS, token);
            times.push((index, began, now()));
        }
        fences[index].signal(result).what("host signals")?;
    }
    Ok(times)
}

fn run(ctx: &Ctx, seed: u64, bad: usize) -> Outcome {
    let devices = [ctx.open()?, Device::open(ctx.second).what("open the second device")?];
    let queues: Vec<Vec<_>> = devices
        .iter()
        .map(|device| (0..QUEUES).map(|_| device.queue()).collect::<Result<_, _>>())
        .collect::<Result<_, _>>()
        .what("make queues")?;
    let nodes = make(&mut Rng(seed), bad);
    let slots = Slots(Mapping::anon(NODES.div_ceil(WORDS)).what("map the slots")?);
    let device_of = |node: usize| nodes[node].place.map_or(0, |place| place.0);
    let mut fences: Vec<Fence<'_>> = Vec::new();
    let mut copies: HashMap<(usize, usize), Fence<'_>> = HashMap::new();
    for index in 0..NODES {
        let Some((device, queue)) = nodes[index].place else {
            fences.push(devices[0].host_fence().what("make a fence of the host")?);
            continue;
        };
        for before in &nodes[index].after {
            if device_of(*before) != device && !copies.contains_key(&(*before, device)) {
                let copy = devices[device].share(&fences[*before]).what("share")?;
                copies.insert((*before, device), copy);
            }
        }
        let after: Vec<&Fence<'_>> = nodes[index]
            .after
            .iter()
            .map(|before| copies.get(&(*before, device)).unwrap_or(&fences[*before]))
            .collect();
        let op = slots.op(&nodes, index);
        fences.push(queues[device][queue].submit(op, &after).what("submit")?);
    }
    let mut times = HashMap::new();
    std::thread::scope(|scope| {
        let nodes = &nodes;
        let fences = &fences;
        let slots = &slots;
        let hosts: Vec<_> = (0..2)
            .map(|share| scope.spawn(move || run_host(nodes, fences, slots, share)))
            .collect();
        for host in hosts {
            match host.join() {
                Ok(done) => times.extend(done?.into_iter().map(|(at, from, to)| (at, (from, to)))),
                Err(_) => return Err(Stop::Fail("a thread of the host panicked".into())),
            }
        }
        Ok(())
    })?;
    let fails = failing(&nodes);
    for (index, fence) in fences.iter().enumerate() {
        let checked = fence.sync(Some(Duration::from_secs(120))).what("wait for the end")?;
        let expected = if fails[index] { State::Failed(Errno::EFAULT) } else { State::Done };
        check_eq!(checked.state, expected, "seed {seed}: node {index}, {:?}", nodes[index].kind);
        if nodes[index].place.is_some() && checked.began_ns != 0 {
            times.insert(index, (checked.began_ns, checked.ended_ns));
        }
        let runs = !fails[index] || nodes[index].after.iter().all(|before| !fails[*before]);
        check_eq!(times.contains_key(&index), runs, "seed {seed}: node {index} has run");
    }
    let mut edges = 0;
    for (index, node) in nodes.iter().enumerate() {
        let Some((began, _)) = times.get(&index) else { continue };
        for before in &node.after {
            let (_, ended) = times[before];
            check!(
                ended <= *began,
                "seed {seed}: {index} began {} ns before {before} ended",
                ended - began
            );
            edges += 1;
        }
        if node.kind == Kind::Pass && !fails[index] {
            check_eq!(slots.get(index), TOKEN, "seed {seed}: slot of node {index}");
        }
    }
    // If nodes fail, many others do not run.
    let least = if bad == 0 { NODES } else { NODES / 10 };
    check!(edges > least, "only {edges} edges");
    Ok(())
}

pub fn respects(ctx: &Ctx) -> Outcome {
    run(ctx, 1, 0)?;
    run(ctx, 2, 3)?;
    run(ctx, 3, 10)?;
    // A different seed in each run, which a failure reports.
    run(ctx, now(), 5)
}
