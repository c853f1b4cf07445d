// SPDX-License-Identifier: GPL-2.0

//! State of an open file, shared with its commands: the mirror of the process that opened it.
//!
//! Commands and threads of the fault buffer hold references, so that a file may be closed while its
//! commands run. The mirror is dropped with the last one.

use crate::{
    device::{
        MockDevice,
        Session,
        View, //
    },
    hardware::{
        command::CommandDesc,
        counters::{
            Count,
            Counters, //
        },
        engine::{
            Engine,
            Job, //
        },
        mmu::Context,
        status::Status, //
    },
    lock_ioctls::Locker,
    locked_window::LockedWindow,
    placement::FaultPolicy,
    queues::Queues,
    streams::Stream,
    vram::Vram, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        Arc,
        Mutex,
        SetOnce, //
    }, //
};
use rust_hmm::{
    memory::Memory,
    mirror::{
        Mirror,
        PageMemory, //
    },
    mm::{
        addr::PageRange,
        dma::DmaDevice, //
    }, //
};

/// Maximum number of commands of a file whose status was not collected.
const MAX_COMMANDS: usize = 1024;

/// A command, and the engine that executes it.
struct Command {
    status: Arc<Status>,
    engine: Arc<Engine<Client>>,
}

struct Commands {
    list: KVec<Command>,
    last: u64,
}

/// State of an open file.
#[pin_data]
pub(crate) struct Client {
    // Before `session`: no entry may be left when the device's pages are evicted.
    mirror: Mirror<View>,
    session: Session,
    /// Tag and page table of the mirror, for engines.
    context: Context,
    counters: Counters,
    fault_policy: FaultPolicy,
    /// Rounds of faults of the ioctls that read and write.
    faults_read: Atomic<u64>,
    faults_write: Atomic<u64>,
    #[pin]
    commands: Mutex<Commands>,
    #[pin]
    pub(crate) queues: Queues,
    #[pin]
    pub(crate) locked_window: LockedWindow,
    /// Created by the first request for events.
    stream: SetOnce<Arc<Stream>>,
}

impl Locker for Client {
    type Device = View;

    fn mirror(&self) -> &Mirror<View> {
        &self.mirror
    }

    fn agents(&self) -> &[Arc<DmaDevice>] {
        &self.device().agents.all
    }
}

impl Client {
    pub(crate) fn new(device: Arc<MockDevice>) -> Result<Arc<Self>> {
        let current = current!();
        let mm = current.mm().ok_or(EINVAL)?;
        let session = Session::new(device.clone());
        let fault_policy = FaultPolicy::new(device.fixed.policy, device.fixed.parameters)?;
        let agent = device.agents.own()?;
        let format = device.fixed.format;
        let mirror = rust_hmm::new_mirror!(mm, View::new(device), "dmirror::table")?;
        let table = match format.register() {
            Some(format) => Some((format, mirror.table_root().ok_or(ENODEV)?)),
            None => None,
        };
        let context = Context::new(mirror.device().tag(), table, format.has_one_size());
        let commands = Commands {
            list: KVec::new(),
            last: 0,
        };
        let client = Arc::pin_init(
            pin_init!(Self {
                mirror,
                session,
                context,
                counters: Counters::new(),
                fault_policy,
                faults_read: Atomic::new(0),
                faults_write: Atomic::new(0),
                commands <- kernel::new_mutex!(commands, "dmirror::commands"),
                queues <- Queues::new(),
                locked_window <- LockedWindow::new(agent),
                stream: SetOnce::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        client.session.faults.clients().add(&client)?;
        Ok(client)
    }

    pub(crate) fn mirror(&self) -> &Mirror<View> {
        &self.mirror
    }

    pub(crate) fn device(&self) -> &MockDevice {
        &self.session
    }

    pub(crate) fn memory(&self) -> &Memory<Vram> {
        &self.session.memory
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the policy for faults of engines.
    pub(crate) fn fault_policy(&self) -> &FaultPolicy {
        &self.fault_policy
    }

    /// Loses the contents of device pages in `range`, as after a memory error: reads of them fail.
    pub(crate) fn lose(&self, range: PageRange) -> Result {
        for index in 0..range.pages() {
            let table = self.mirror.lock_table()?;
            let place = match table.readable(range.address(index)) {
                Some(PageMemory::Device(range)) => Some(range),
                _ => None,
            };
            drop(table);
            if let Some(range) = place {
                let (vram, range) = self.session.vram(range)?;
                vram.lose(range.first)?;
            }
        }
        Ok(())
    }

    /// Returns the event stream of the file, and creates it if there is none. `EBUSY`: too many
    /// streams of the device. `ENOMEM`.
    pub(crate) fn stream(&self) -> Result<&Arc<Stream>> {
        // Not two of them.
        let _commands = self.commands.lock();
        if self.stream.as_ref().is_none() {
            let stream = self.session.streams.add(&self.mirror)?;
            self.stream.populate(stream);
        }
        self.stream.as_ref().ok_or(EBUSY)
    }

    /// Event stream of the file, if it was requested.
    pub(crate) fn events(&self) -> Option<&Stream> {
        self.stream.as_ref().map(|stream| &**stream)
    }

    /// Counts faults of an ioctl.
    #[inline]
    pub(crate) fn add_faults(&self, write: bool, count: u64) {
        if count == 0 {
            return;
        }
        let counter = if write {
            &self.faults_write
        } else {
            &self.faults_read
        };
        counter.add(count, Relaxed);
    }

    pub(crate) fn faults_read(&self) -> u64 {
        self.faults_read.load(Relaxed)
    }

    pub(crate) fn faults_write(&self) -> u64 {
        self.faults_write.load(Relaxed)
    }

    /// Name of the mirror in TLBs.
    pub(crate) fn tag(&self) -> u64 {
        self.mirror.device().tag()
    }

    /// Gives a command to engine `index`, or to the one with the least to do. Returns its name.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is no such engine; `EBUSY` if it has too many, or the file; `ENOMEM`.
    pub(crate) fn submit(self: &Arc<Self>, index: Option<usize>, spec: CommandDesc) -> Result<u64> {
        let engines = &self.session.engines;
        let engine = match index {
            Some(index) => engines.get(index),
            None => engines.iter().min_by_key(|engine| engine.load()),
        };
        let engine = engine.ok_or(EINVAL)?.clone();
        let mut commands = self.commands.lock();
        if commands.list.len() >= MAX_COMMANDS {
            return Err(EBUSY);
        }
        let id = commands.last + 1;
        let status = Status::new(id)?;
        commands.list.reserve(1, GFP_KERNEL_ACCOUNT)?;
        engine.submit(Job::new(self.clone(), status.clone(), spec))?;
        commands.last = id;
        commands
            .list
            .push(Command { status, engine }, GFP_KERNEL_ACCOUNT)?;
        self.counters.add(Count::Commands, 1);
        Ok(id)
    }

    /// The command of that name. `ENOENT`.
    pub(crate) fn status(&self, id: u64) -> Result<Arc<Status>> {
        let commands = self.commands.lock();
        let command = commands
            .list
            .iter()
            .find(|command| command.status.id() == id);
        Ok(command.ok_or(ENOENT)?.status.clone())
    }

    /// Removes a completed command from the list. Returns `false` if it was removed before.
    pub(crate) fn forget(&self, id: u64) -> bool {
        let mut commands = self.commands.lock();
        let at = commands
            .list
            .iter()
            .position(|command| command.status.id() == id);
        at.is_some_and(|at| commands.list.remove(at).is_ok())
    }

    /// Asks a command to end. `ENOENT`.
    pub(crate) fn stop(&self, id: u64) -> Result {
        let commands = self.commands.lock();
        let command = commands
            .list
            .iter()
            .find(|command| command.status.id() == id)
            .ok_or(ENOENT)?;
        command.status.stop();
        command.engine.wake();
        Ok(())
    }

    /// Ends all queues, stops all commands and waits for them. No more can be submitted. If no
    /// other file is open, the process's pages migrate back from the device.
    pub(crate) fn close(&self) {
        self.queues.close();
        let list = core::mem::take(&mut self.commands.lock().list);
        for command in &list {
            command.status.stop();
            command.engine.wake();
        }
        for command in &list {
            command.status.wait_for_end();
        }
        self.session.faults.clients().remove(self.tag());
        if self.session.is_ending() {
            // Pages that stay migrate back when the session ends.
            let _ = self.mirror.drain();
        }
        if let Some(stream) = self.stream.as_ref() {
            self.session.streams.remove(stream);
        }
    }
}
