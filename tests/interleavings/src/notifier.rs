// SPDX-License-Identifier: GPL-2.0

//! Stand-in for interval notifiers. No events are delivered to them.

use crate::{
    kernel::identity::EventOwner,
    mm::{
        addr::PageRange,
        registration::RegisteredMm, //
    }, //
};
use core::{
    marker::PhantomData,
    ops::ControlFlow, //
};
use kernel::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotifierEvent {
    Unmap,
    Clear,
    ProtectionPage,
    Migrate,
    Exclusive,
}

pub struct NotifierRange<'a> {
    pub reason: NotifierEvent,
    pub range: PageRange,
    owner: EventOwner,
    _borrow: PhantomData<&'a ()>,
}

impl NotifierRange<'_> {
    pub(crate) fn new(
        reason: NotifierEvent,
        range: PageRange,
        owner: impl Into<EventOwner>,
    ) -> Self {
        Self { reason, range, owner: owner.into(), _borrow: PhantomData }
    }

    pub(crate) fn is_from(&self, owner: impl Into<EventOwner>) -> bool {
        matches!(self.reason, NotifierEvent::Migrate | NotifierEvent::Exclusive)
            && self.owner == owner.into()
    }

    pub(crate) fn within(&self, range: PageRange) -> Self {
        Self { range, ..*self }
    }
}

pub trait NotifierOps: Send + Sync + Sized + 'static {
    type Pending: Send;

    fn invalidate(
        &self,
        event: &NotifierRange<'_>,
        pending: &mut Option<Self::Pending>,
    ) -> ControlFlow<()>;

    fn finish(&self, pending: Self::Pending);
}

pub struct IntervalNotifier<S: NotifierOps> {
    subscriber: S,
}

impl<S: NotifierOps> IntervalNotifier<S> {
    pub(crate) fn new(
        of: RegisteredMm<'_>,
        _range: PageRange,
        subscriber: S,
    ) -> impl PinInit<Self, Error> {
        // The core searches the tree of the notifiers.
        assert_ne!(of.mm().tree.read(), 0);
        kernel::init::Try(Ok(Self { subscriber }))
    }

    pub fn subscriber(&self) -> &S {
        &self.subscriber
    }
}
