// SPDX-License-Identifier: GPL-2.0
//! Attributes and fault policies. The location of memory must not affect its contents.

use super::{
    fail,
    Fail,
    Lane, //
};
use crate::torture::op::{
    Kind,
    Span, //
};
use hmm::placement::{
    Attributes,
    Policy,
    Preferred, //
};
use hmm::Errno;

impl Lane<'_> {
    pub(super) fn set_policy(&mut self, dev: usize, which: usize) -> Result<(), Fail> {
        let policy = [Policy::None, Policy::Default, Policy::OnePage][which % 3];
        match self.devices[dev].set_policy(policy) {
            Ok(()) => Ok(()),
            Err(error) => fail("policy", error),
        }
    }

    /// Sets all attributes of a range and reads them back. They must be equal if the range is
    /// mapped.
    pub(super) fn attributes(
        &mut self,
        dev: usize,
        at: Span,
        preferred: usize,
        values: u32,
        order: Option<u32>,
    ) -> Result<(), Fail> {
        if self.regions[at.r].kind == Kind::Uffd {
            return Ok(());
        }
        let place = [Preferred::Anywhere, Preferred::Device, Preferred::System][preferred % 3];
        let flags = Attributes::ACCESSED_BY | Attributes::READ_MOSTLY | Attributes::NEVER_MIGRATE;
        let new = Attributes::NONE.prefer(place).order(order);
        let new = Attributes { what: Attributes::ALL, values: values & flags, ..new };
        let mapped = at.pages().all(|page| self.regions[at.r].pages[page].mapped);
        let addr = self.addr(at);
        match self.devices[dev].set_attributes(addr, at.n, new) {
            Ok(()) if !mapped => return fail("attributes", "were set where nothing is mapped"),
            Ok(()) => {}
            Err(Errno::EFAULT) if !mapped => return Ok(()),
            Err(error) => return self.expect("attributes", error, &[Errno::ENOMEM]),
        }
        match self.devices[dev].attributes(addr, at.n) {
            Ok(found) if found == new => Ok(()),
            Ok(found) => fail("attributes", format!("found {found:?}, expected {new:?}")),
            Err(error) => fail("attributes", error),
        }
    }
}
