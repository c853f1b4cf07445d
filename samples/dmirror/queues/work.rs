// SPDX-License-Identifier: GPL-2.0

//! The operations of a queue: which there are, how they run, and their results.

use crate::{
    client::Client,
    device::View,
    hardware::{
        command::CommandDesc,
        status::ECANCELED, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        Arc, //
    },
    time::Delta, //
};
use rust_hmm::{
    kernel::cancel::CancelToken,
    mirror::Mirror,
    mm::addr::PageRange,
    queue::{
        HasMirror,
        TransferReport,
        WorkerPool, //
    }, //
};

/// Interval at which a running operation checks for cancellation.
const CANCEL_POLL_INTERVAL: Delta = Delta::from_millis(50);

/// Results of an operation. They are final when its fence is signalled.
#[derive(Clone)]
pub(crate) struct Findings {
    /// Numbers of migrated pages, and timestamps.
    pub(crate) report: Arc<TransferReport>,
    /// Result of an engine's command.
    pub(super) value: Arc<Atomic<u64>>,
}

impl Findings {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            report: Arc::new(TransferReport::new(), GFP_KERNEL_ACCOUNT)?,
            value: Arc::new(Atomic::new(0), GFP_KERNEL_ACCOUNT)?,
        })
    }

    /// Returns the result of an engine's command.
    pub(crate) fn value(&self) -> u64 {
        self.value.load(Relaxed)
    }
}

/// An operation of a queue.
pub(crate) enum Work {
    Migrate(PageRange),
    Prefetch(PageRange),
    Evict(PageRange),
    Copy { to: PageRange, from: PageRange },
    Engine(CommandDesc),
}

impl HasMirror for Client {
    type Device = View;

    fn mirror(&self) -> &Mirror<View> {
        Self::mirror(self)
    }

    fn worker_pool(&self) -> Option<&WorkerPool> {
        Some(&self.device().worker_pool)
    }

    fn copy(self: &Arc<Self>, to: PageRange, from: PageRange, stop: &CancelToken) -> Result {
        self.run(CommandDesc::copy(to, from)?, stop).map(|_| ())
    }
}

impl Client {
    /// Runs a command on any engine and waits until it has ended. Returns its result.
    pub(super) fn run(self: &Arc<Self>, spec: CommandDesc, stop: &CancelToken) -> Result<u64> {
        let id = loop {
            stop.check()?;
            match self.submit(None, spec) {
                // The engine's queue is full: wait for other commands to end.
                Err(error) if error == EBUSY => kernel::time::delay::fsleep(Delta::from_millis(1)),
                result => break result?,
            }
        };
        let status = self.status(id)?;
        while let Err(error) = status.wait(Some(CANCEL_POLL_INTERVAL)) {
            if error != ETIMEDOUT || stop.is_set() {
                // A concurrent task may have stopped and released it already.
                let _gone = self.stop(id);
            }
        }
        let report = status.report();
        self.forget(id);
        match report.ended {
            Some(result) => result.map(|()| report.result),
            None => Err(Error::from_errno(ECANCELED)),
        }
    }
}
