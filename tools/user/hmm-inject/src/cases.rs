// SPDX-License-Identifier: GPL-2.0
//! What a case is: an operation, what must be true before and after it.

use crate::{engines, memory, placement};
use hmm::inject::Source;
use hmm::{Child, Device, Errno, Gate, Mapping};

/// Contents before the operation.
pub const OLD: u64 = 1;
/// Contents after one that writes.
pub const NEW: u64 = 2;

/// Pages of a small world.
pub const SMALL: usize = 16;

/// Memory of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// [`SMALL`] small pages.
    Small,
    /// A huge page.
    Huge,
}

/// What must be in the memory when the operation was successful.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// What was there before.
    Old,
    /// What it has written.
    New,
    /// Page by page one of them.
    Either,
    /// Nothing was ever there.
    Zero,
    /// The case looks itself.
    Any,
}

impl Contents {
    /// The same after an operation that was not successful.
    pub fn partly(self) -> Contents {
        match self {
            Contents::New => Contents::Either,
            other => other,
        }
    }
}

/// A process with memory and a device.
pub struct World {
    /// Number of the device.
    pub index: u32,
    /// The open device.
    pub device: Device,
    /// The memory.
    pub map: Mapping,
    /// More memory, if the case needs it.
    pub other: Option<Mapping>,
    /// Who shares the memory, and its gate, if the case needs that.
    pub sharer: Option<(Child, Gate)>,
    /// Another device, if the case needs that.
    pub partner: Option<Device>,
    /// The CPU has looked at all of the memory after an error, which brings private memory back.
    pub looked: bool,
}

impl World {
    /// An open device, and memory with nothing in it.
    pub fn new(index: u32, size: Size) -> Result<World, Errno> {
        let map = match size {
            Size::Small => Mapping::anon(SMALL)?,
            Size::Huge => Mapping::anon_huge(1)?,
        };
        let device = Device::open(index)?;
        let (other, sharer, partner) = (None, None, None);
        Ok(World { index, device, map, other, sharer, partner, looked: false })
    }

    /// Checks all contents by the CPU.
    pub fn check(&self, contents: Contents) -> Result<(), String> {
        for page in 0..self.map.pages() {
            let is = |seed| self.map.check_pages(seed, page, 1);
            let result = match contents {
                Contents::Old => is(OLD),
                Contents::New => is(NEW),
                Contents::Either => is(OLD).or_else(|_| is(NEW)),
                Contents::Zero => self.map.check_zero(page, 1),
                Contents::Any => Ok(()),
            };
            result.map_err(|mismatch| mismatch.to_string())?;
        }
        Ok(())
    }
}

/// Prepares or checks.
pub type Step = fn(&mut World) -> Result<(), String>;

/// An operation with all that belongs to it.
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// Memory that it needs.
    pub size: Size,
    /// Brings the world into the state in which the operation begins.
    pub prepare: Step,
    /// The operation.
    pub operate: fn(&mut World) -> Result<(), Errno>,
    /// Errors that the documentation names, but for those that each call may have.
    pub errors: &'static [Errno],
    /// What it leaves in the memory.
    pub contents: Contents,
    /// What else must be true after it.
    pub check: Step,
    /// Points that make no sense here.
    pub without: &'static [&'static str],
    /// Threads of the device's do some of it.
    pub threads: bool,
}

fn nothing(_: &mut World) -> Result<(), String> {
    Ok(())
}

impl Case {
    /// A case with small memory, filled, that changes no contents and has no errors.
    pub const fn new(name: &'static str, operate: fn(&mut World) -> Result<(), Errno>) -> Case {
        Case {
            name,
            size: Size::Small,
            prepare: memory::filled,
            operate,
            errors: &[],
            contents: Contents::Old,
            check: nothing,
            without: &[],
            threads: false,
        }
    }

    /// Does the case leave `source` out?
    pub fn excludes(&self, source: &Source) -> bool {
        let elsewhere = matches!(source, Source::AnyTask(_)) && !self.threads;
        elsewhere || self.without.contains(&source.to_string().as_str())
    }
}

/// All cases.
pub fn all() -> impl Iterator<Item = &'static Case> {
    memory::CASES.iter().chain(engines::CASES).chain(placement::CASES)
}
