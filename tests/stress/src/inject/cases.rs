// SPDX-License-Identifier: GPL-2.0
//! Definition of a case: an operation, its preparation, and the state that must hold afterwards.

use crate::inject::{
    engines,
    memory,
    placement, //
};
use hmm::inject::Source;
use hmm::{
    Child,
    Device,
    Errno,
    Gate,
    Mapping, //
};

/// Seed of the contents before the operation.
pub const OLD: u64 = 1;
/// Seed of the contents that an operation writes.
pub const NEW: u64 = 2;

/// Number of pages of [`Size::Small`].
pub const SMALL: usize = 16;

/// Memory size of a [`World`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// [`SMALL`] small pages.
    Small,
    /// A huge page.
    Huge,
}

/// Expected contents of the memory after a successful operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// The old contents.
    Old,
    /// The contents that the operation writes.
    New,
    /// Each page has either the old or the new contents.
    Either,
    /// Zeroes, because no page was populated.
    Zero,
    /// The case checks the contents itself.
    Any,
}

impl Contents {
    /// Returns the expected contents after an operation that failed.
    pub fn partly(self) -> Contents {
        match self {
            Contents::New => Contents::Either,
            other => other,
        }
    }
}

/// A device and the memory of a process on which an operation works.
pub struct World {
    /// Number of the device.
    pub index: u32,
    /// The open device.
    pub device: Device,
    /// The memory.
    pub map: Mapping,
    /// More memory, for cases that need it.
    pub other: Option<Mapping>,
    /// A process that shares the memory, and its gate, for cases that need it.
    pub sharer: Option<(Child, Gate)>,
    /// Another device, for cases that need it.
    pub partner: Option<Device>,
    /// Whether the CPU has read all of the memory after an error, which migrates private device
    /// memory back.
    pub looked: bool,
}

impl World {
    /// Opens the device and maps memory, which is not populated yet.
    pub fn new(index: u32, size: Size) -> Result<World, Errno> {
        let map = match size {
            Size::Small => Mapping::anon(SMALL)?,
            Size::Huge => Mapping::anon_huge(1)?,
        };
        let device = Device::open(index)?;
        let other = None;
        let sharer = None;
        let partner = None;
        Ok(World { index, device, map, other, sharer, partner, looked: false })
    }

    /// Compares all pages with `contents` by the CPU.
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

/// A preparation or a check.
pub type Step = fn(&mut World) -> Result<(), String>;

/// An operation with its preparation, documented errors and checks.
pub struct Case {
    /// Name of the case.
    pub name: &'static str,
    /// Memory that it needs.
    pub size: Size,
    /// Brings the world into the state in which the operation begins.
    pub prepare: Step,
    /// The operation.
    pub operate: fn(&mut World) -> Result<(), Errno>,
    /// Errors that the documentation lists, without those that every call may return.
    pub errors: &'static [Errno],
    /// Contents of the memory after the operation.
    pub contents: Contents,
    /// Further checks after the operation.
    pub check: Step,
    /// Sources that are left out because they make no sense in this case.
    pub without: &'static [&'static str],
    /// Whether threads of the device execute a part of the operation.
    pub threads: bool,
}

fn nothing(_: &mut World) -> Result<(), String> {
    Ok(())
}

impl Case {
    /// Returns a case with small memory, filled, whose operation changes no contents and returns no
    /// errors.
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

    /// Returns whether the case leaves out `source`.
    pub fn excludes(&self, source: &Source) -> bool {
        let elsewhere = matches!(source, Source::AnyTask(_)) && !self.threads;
        elsewhere || self.without.contains(&source.to_string().as_str())
    }
}

/// Returns all cases.
pub fn all() -> impl Iterator<Item = &'static Case> {
    memory::CASES.iter().chain(engines::CASES).chain(placement::CASES)
}
