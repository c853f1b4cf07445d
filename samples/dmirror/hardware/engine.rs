// SPDX-License-Identifier: GPL-2.0

//! An engine: a thread that runs its commands in turns. A command that faults is suspended until
//! the fault was served, and another one runs meanwhile.

use super::{
    command::{
        CommandDesc,
        Progress,
        Step, //
    },
    counters::{
        Count,
        Counted,
        Counters, //
    },
    fault::FaultTicket,
    port::Port,
    status::{
        Status,
        ECANCELED, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        Arc,
        CondVar,
        Mutex, //
    },
    time::{
        msecs_to_jiffies,
        Delta,
        Instant,
        Monotonic, //
    }, //
};

/// Maximum number of commands of an engine.
pub(crate) const COMMAND_DEPTH: usize = 64;

/// Maximum number of accesses in a turn.
const TURN_MAX_ACCESSES: usize = 64;

/// Maximum number of attempts to serve a fault of a page that keeps changing.
const FAULT_MAX_TRIES: usize = 30;

/// Interval at which a fault is reported again if the fault buffer was full, in ns.
const FAULT_RETRY_NS: u64 = 5_000_000;

/// Maximum sleep of the thread until the next pause ends, in ms.
const MAX_SLEEP_MS: u64 = 1000;

/// Maximum duration of a turn.
const TURN_TIME: Delta = Delta::from_millis(1);

type Now = Instant<Monotonic>;

fn ns(since: Now) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(0)
}

/// Scheduling state of a command.
enum State<P> {
    Ready,
    /// Waits for a fault to be served.
    Faulting(Arc<FaultTicket<P>>),
    /// Waits to report a fault again, because the fault buffer was full.
    FaultBufferFull {
        addr: usize,
        write: bool,
        since: Now,
    },
    /// Pauses after a round.
    Delayed {
        since: Now,
    },
}

/// A command in an engine's queue.
pub(crate) struct Job<P> {
    port: Arc<P>,
    status: Arc<Status>,
    spec: CommandDesc,
    progress: Progress,
    rounds: u64,
    state: State<P>,
    /// Number of failed attempts to serve the fault of the current access.
    tries: usize,
    /// Start of the current stall, and whether the access is a write.
    stalled: Option<(Now, bool)>,
}

impl<P: Port> Job<P> {
    pub(crate) fn new(port: Arc<P>, status: Arc<Status>, spec: CommandDesc) -> Self {
        port.begin();
        Self {
            port,
            status,
            spec,
            progress: Progress::default(),
            rounds: 0,
            state: State::Ready,
            tries: 0,
            stalled: None,
        }
    }

    /// Ends the command. Drops the reference to the address space before it reports the end,
    /// because the file may be closed right after that.
    fn end(self, result: Result) {
        let Self { port, status, .. } = self;
        port.end();
        drop(port);
        status.finish(result);
    }

    /// Remaining pause in ns. `None` if the command is not pausing.
    fn due(&self) -> Option<u64> {
        let (since, pause) = match &self.state {
            State::Delayed { since } => (since, self.spec.think_ns),
            State::FaultBufferFull { since, .. } => (since, FAULT_RETRY_NS),
            State::Ready | State::Faulting(_) => return None,
        };
        Some(pause.saturating_sub(ns(*since)))
    }

    /// Whether the command can run or needs attention by the thread.
    fn is_ready(&self) -> bool {
        match &self.state {
            // A stopped command also waits for its fault, which is always replied to: the fault
            // buffer still refers to it.
            State::Faulting(wait) => wait.result().is_some(),
            _ if self.status.is_stopped() => true,
            _ => self.due().unwrap_or(0) == 0,
        }
    }

    /// Ends and counts the stall of the current access, if there is one.
    fn end_stall(&mut self, counters: &Counters) {
        if let Some((since, write)) = self.stalled.take() {
            let waited = ns(since);
            counters.stall(write, waited);
            self.port.counters().stall(write, waited);
            self.status.add_stall(waited);
        }
    }
}

struct Queue<P> {
    jobs: KVec<Job<P>>,
    /// The thread has removed a command, and may return it.
    running: bool,
    /// Start of the current time without work, and the counter for it.
    rest: Option<(Now, Count)>,
    stop: bool,
}

impl<P> Queue<P> {
    fn load(&self) -> usize {
        self.jobs.len() + usize::from(self.running)
    }
}

/// State of an engine, shared by its thread and its users.
#[pin_data]
pub(crate) struct Engine<P> {
    index: usize,
    #[pin]
    queue: Mutex<Queue<P>>,
    #[pin]
    wake: CondVar,
    counters: Counters,
}

impl<P> Engine<P> {
    pub(crate) fn new(index: usize) -> Result<Arc<Self>> {
        let queue = Queue {
            jobs: KVec::with_capacity(COMMAND_DEPTH, GFP_KERNEL)?,
            running: false,
            rest: None,
            stop: false,
        };
        Arc::pin_init(
            pin_init!(Self {
                index,
                queue <- kernel::new_mutex!(queue, "dmirror::engine_queue"),
                wake <- kernel::new_condvar!("dmirror::engine_wake"),
                counters: Counters::new(),
            }),
            GFP_KERNEL,
        )
    }

    /// Queues a command. `EBUSY` if the queue is full.
    pub(crate) fn submit(&self, job: Job<P>) -> Result {
        let mut queue = self.queue.lock();
        if queue.load() >= COMMAND_DEPTH {
            return Err(EBUSY);
        }
        queue.jobs.push_within_capacity(job).map_err(|_| EBUSY)?;
        drop(queue);
        self.counters.add(Count::Commands, 1);
        self.wake.notify_one();
        Ok(())
    }

    /// Returns the number of commands in the engine.
    pub(crate) fn load(&self) -> usize {
        self.queue.lock().load()
    }

    /// Returns the counters, including the current time without work.
    pub(crate) fn counters(&self) -> &Counters {
        self.settle(&mut self.queue.lock());
        &self.counters
    }

    /// Adds the elapsed time without work to its counter.
    fn settle(&self, queue: &mut Queue<P>) {
        if let Some((since, count)) = &mut queue.rest {
            let now = Now::now();
            let passed = u64::try_from((now - *since).as_nanos()).unwrap_or(0);
            self.counters.add(*count, passed);
            *since = now;
        }
    }

    /// Wakes the thread, so that it checks its commands.
    pub(crate) fn wake(&self) {
        // Taking the lock orders this after the check of the thread that found no ready command, so
        // that its wakeup is not lost. Release it first, because the thread takes it at once.
        drop(self.queue.lock());
        self.wake.notify_one();
    }

    /// Requests the thread to exit.
    pub(crate) fn stop(&self) {
        self.queue.lock().stop = true;
        self.wake.notify_one();
    }
}

impl<P: Port> Engine<P> {
    /// Body of the thread. `buffer` holds the data of an access.
    pub(crate) fn run(self: Arc<Self>, mut buffer: KBox<[u8; PAGE_SIZE]>) {
        while let Some(job) = self.next() {
            let since = Now::now();
            let rest = self.turn(job, &mut buffer);
            self.counters.add(Count::BusyNs, ns(since));
            let mut queue = self.queue.lock();
            queue.running = false;
            if let Some(job) = rest {
                // Does not fail: `running` has reserved the place.
                if let Err(error) = queue.jobs.push_within_capacity(job) {
                    drop(queue);
                    error.0.end(Err(EBUSY));
                }
            }
        }
    }

    /// Waits for a ready command and removes it from the queue. Returns `None` if the thread must
    /// exit.
    fn next(&self) -> Option<Job<P>> {
        let mut queue = self.queue.lock();
        loop {
            if queue.stop {
                return None;
            }
            if let Some(at) = queue.jobs.iter().position(Job::is_ready) {
                queue.running = true;
                return queue.jobs.remove(at).ok();
            }
            let count = if queue.jobs.is_empty() {
                Count::IdleNs
            } else {
                Count::WaitNs
            };
            queue.rest = Some((Now::now(), count));
            // A kernel thread gets no signals.
            match queue.jobs.iter().filter_map(Job::due).min() {
                Some(left) => {
                    let slice_ms = left.div_ceil(1_000_000).clamp(1, MAX_SLEEP_MS) as u32;
                    let _why = self
                        .wake
                        .wait_interruptible_timeout(&mut queue, msecs_to_jiffies(slice_ms));
                }
                None => {
                    let _signal = self.wake.wait_interruptible(&mut queue);
                }
            }
            self.settle(&mut queue);
            queue.rest = None;
        }
    }

    /// Runs a command for one turn. Returns it if it has not ended.
    fn turn(self: &Arc<Self>, mut job: Job<P>, buffer: &mut [u8; PAGE_SIZE]) -> Option<Job<P>> {
        match core::mem::replace(&mut job.state, State::Ready) {
            State::Faulting(wait) => match wait.result() {
                // The page changed concurrently: retry a limited number of times.
                Some(Err(error)) if error == EBUSY && job.tries < FAULT_MAX_TRIES => job.tries += 1,
                Some(Err(error)) => {
                    job.end(Err(error));
                    return None;
                }
                _ => {}
            },
            State::FaultBufferFull { addr, write, .. } if !job.status.is_stopped() => {
                self.report(&mut job, addr, write);
                return Some(job);
            }
            _ => {}
        }
        let since = Now::now();
        for _ in 0..TURN_MAX_ACCESSES {
            if job.status.is_stopped() {
                let result = if job.spec.rounds == 0 {
                    Ok(())
                } else {
                    Err(Error::from_errno(ECANCELED))
                };
                job.end(result);
                return None;
            }
            let port = job.port.clone();
            let counted = Counted {
                engine: &self.counters,
                file: port.counters(),
            };
            let step = job
                .spec
                .step(&*port, self.index, counted, &mut job.progress, buffer);
            let step = match step {
                Ok(Step::Fault { addr, write }) => {
                    let count = if write {
                        Count::FaultsWrite
                    } else {
                        Count::FaultsRead
                    };
                    counted.add(count, 1);
                    job.status.add_fault();
                    drop(port);
                    return self.set_aside(job, addr, write);
                }
                step => step,
            };
            drop(port);
            job.tries = 0;
            job.end_stall(&self.counters);
            match step {
                Ok(Step::Round(result)) => {
                    job.rounds += 1;
                    job.status.round(result);
                    if job.rounds == job.spec.rounds {
                        job.end(Ok(()));
                        return None;
                    }
                    if job.spec.think_ns != 0 {
                        job.state = State::Delayed { since: Now::now() };
                        return Some(job);
                    }
                }
                Ok(_) => {}
                Err(error) => {
                    job.end(Err(error));
                    return None;
                }
            }
            if since.elapsed() > TURN_TIME {
                break;
            }
        }
        Some(job)
    }

    /// Suspends a command until its fault at `addr` was served.
    fn set_aside(self: &Arc<Self>, mut job: Job<P>, addr: usize, write: bool) -> Option<Job<P>> {
        if job.stalled.is_some_and(|(_, other)| other != write) {
            // A copy whose read has stalled stalls in its write now: count two stalls.
            job.end_stall(&self.counters);
        }
        job.stalled.get_or_insert((Now::now(), write));
        self.counters.add(Count::SetAside, 1);
        self.report(&mut job, addr, write);
        Some(job)
    }

    /// Reports the fault at `addr`.
    fn report(self: &Arc<Self>, job: &mut Job<P>, addr: usize, write: bool) {
        job.state = match job.port.report(self, addr, write) {
            Some(wait) => State::Faulting(wait),
            None => State::FaultBufferFull {
                addr,
                write,
                since: Now::now(),
            },
        };
    }
}
