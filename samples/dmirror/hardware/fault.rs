// SPDX-License-Identifier: GPL-2.0

//! A fault that an engine has reported, until the driver replies.

use super::engine::Engine;
use kernel::{
    prelude::*,
    sync::{Arc, SetOnce},
};

/// What a command waits for.
pub(crate) struct Wait<P> {
    result: SetOnce<Result>,
    engine: Arc<Engine<P>>,
}

impl<P> Wait<P> {
    /// A fault of `engine` without a reply. `ENOMEM`.
    pub(crate) fn new(engine: Arc<Engine<P>>) -> Result<Arc<Self>> {
        let result = SetOnce::new();
        Ok(Arc::new(Self { result, engine }, GFP_KERNEL)?)
    }

    /// How the fault was served, if it was.
    pub(crate) fn result(&self) -> Option<Result> {
        self.result.copy()
    }

    /// Replies to the fault and wakes its engine. Only the first reply counts.
    pub(crate) fn reply(&self, result: Result) {
        self.result.populate(result);
        self.engine.wake();
    }
}
