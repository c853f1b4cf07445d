// SPDX-License-Identifier: GPL-2.0

//! Stand-in for a space: the parts that its mirrors and windows use.

use crate::{
    kernel::{
        identity::{
            DeviceId,
            MmId, //
        },
        rcu_map::RcuArc, //
    },
    mm::{
        notifier::NotifierRange,
        registration::Registration, //
    },
    stand_ins::PerExecution, //
};
use kernel::{
    mm::MmWithUser,
    model::Memory,
    prelude::*,
    sync::{
        LockClassKey,
        Mutex,
        MutexGuard, //
    }, //
};
use super::{
    mirrors::SpaceMirrors,
    windows::NotifierWindows, //
};

/// Attributes of devices, which are removed with the last mirror of a device.
pub(crate) struct Attributes;

impl Attributes {
    pub(super) fn remove_device(&self, _device: DeviceId) {}
}

pub(crate) struct Space {
    pub(super) mirrors: SpaceMirrors,
    pub(super) registration: Registration,
    pub(super) windows: NotifierWindows,
    pub(super) attributes: Attributes,
}

impl Space {
    pub(crate) fn mirrors(&self) -> &SpaceMirrors {
        &self.mirrors
    }

    pub(crate) fn windows(&self) -> &NotifierWindows {
        &self.windows
    }

    pub(super) fn is_first_of(&self, _event: &NotifierRange<'_>) -> bool {
        true
    }
}

/// A reference that keeps a space.
pub(crate) struct SpaceHandle {
    pub(super) space: RcuArc<Space>,
    /// Called when this is dropped.
    pub(super) ended: Box<dyn Fn() + Send + Sync>,
}

impl Drop for SpaceHandle {
    fn drop(&mut self) {
        (self.ended)();
    }
}

impl core::ops::Deref for SpaceHandle {
    type Target = Space;

    fn deref(&self) -> &Space {
        &self.space
    }
}

/// Excludes that two mirrors are opened or closed at the same time.
pub(crate) struct Opening(PerExecution<Mutex<()>>);

impl Opening {
    pub(super) fn lock(&self) -> MutexGuard<'static, ()> {
        self.0.get().lock()
    }
}

pub(crate) static OPENING: Opening = Opening(PerExecution::new());

static SPACE: PerExecution<RcuArc<Space>> = PerExecution::new();

/// Creates the space of an execution, which is not dropped, and its address space.
pub(super) fn create() -> (RcuArc<Space>, &'static MmWithUser) {
    let mm: &MmWithUser = Box::leak(Box::new(MmWithUser { tree: Memory::new(0) }));
    let name = MmId::of_user(mm);
    let key = core::pin::Pin::static_ref(&LockClassKey);
    OPENING.0.set(Mutex::new((), c"opening", key));
    let init = try_pin_init!(Space {
        mirrors <- SpaceMirrors::new(),
        registration: Registration::new(name).make()?,
        windows: NotifierWindows::new(name).make()?,
        attributes: Attributes,
    }? Error);
    let space = RcuArc::pin_init(init).unwrap();
    SPACE.set(space.clone());
    (space, mm)
}

pub(crate) fn find(_name: MmId) -> Option<RcuArc<Space>> {
    Some(SPACE.get().clone())
}
