// SPDX-License-Identifier: GPL-2.0
//! Location of memory, as a picture in text.

use crate::abi::PageState;
use crate::device::Device;
use crate::errno::Errno;
use crate::mapping::Mapping;
use crate::pagemap;

/// Location of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Not present.
    Nothing,
    /// The zero page.
    Zero,
    /// System memory.
    Ram,
    /// System memory, part of a huge page.
    RamHuge,
    /// Memory of the queried device.
    Device,
    /// Memory of the queried device, part of a huge page.
    DeviceHuge,
    /// Memory of another device, or swapped out.
    Elsewhere,
    /// Not mapped, or without access.
    NoAccess,
}

impl Place {
    /// Every place with its character and its meaning.
    pub const LEGEND: [(Place, char, &'static str); 8] = [
        (Place::Nothing, '.', "not present"),
        (Place::Zero, '0', "zero page"),
        (Place::Ram, 'r', "RAM"),
        (Place::RamHuge, 'R', "RAM, huge page"),
        (Place::Device, 'd', "device"),
        (Place::DeviceHuge, 'D', "device, huge page"),
        (Place::Elsewhere, 'x', "swap or another device"),
        (Place::NoAccess, '!', "no access"),
    ];

    /// The character in the picture.
    pub fn char(self) -> char {
        Self::LEGEND.iter().find(|(place, ..)| *place == self).map_or('?', |(_, char, _)| *char)
    }

    /// Whether it is in the memory of the queried device.
    pub fn is_device(self) -> bool {
        matches!(self, Place::Device | Place::DeviceHuge)
    }

    /// Combines the device's snapshot with the entry of the process's pagemap.
    pub fn of(state: PageState, entry: pagemap::Entry) -> Place {
        match (state.is_local(), state.is_huge()) {
            (true, true) => return Place::DeviceHuge,
            (true, false) => return Place::Device,
            _ => {}
        }
        if state == PageState::ERROR {
            Place::NoAccess
        } else if state.is_zero() {
            Place::Zero
        } else if state.is_ram() && state.is_huge() {
            Place::RamHuge
        } else if state.is_ram() {
            Place::Ram
        } else if state.is_device() || entry.is_swap() {
            Place::Elsewhere
        } else {
            Place::Nothing
        }
    }
}

/// Locations of `npages` from `addr` on.
pub fn places_at(device: &Device, addr: usize, npages: usize) -> Result<Vec<Place>, Errno> {
    let states = device.snapshot(addr, npages)?;
    let entries = pagemap::read(addr, npages)?;
    Ok(states.into_iter().zip(entries).map(|(state, entry)| Place::of(state, entry)).collect())
}

/// Locations of the pages of `map`.
pub fn places(device: &Device, map: &Mapping) -> Result<Vec<Place>, Errno> {
    places_at(device, map.addr(), map.pages())
}

/// One character for each block of `block` pages: their location if it is the same for all pages,
/// else `*`.
pub fn picture(places: &[Place], block: usize) -> String {
    let of = |pages: &[Place]| {
        if pages.iter().all(|place| *place == pages[0]) {
            pages[0].char()
        } else {
            '*'
        }
    };
    places.chunks(block.max(1)).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pagemap::Entry;

    #[test]
    fn snapshot_and_pagemap_are_combined() {
        let none = Entry(0);
        let swap = Entry(1 << 62);
        let of = |state, entry| Place::of(PageState(state), entry).char();
        assert_eq!(of(0x00, none), '.');
        assert_eq!(of(0x00, swap), 'x');
        assert_eq!(of(0x11, none), '0');
        assert_eq!(of(0x02, none), 'r');
        assert_eq!(of(0x06, none), 'R');
        assert_eq!(of(0x22, swap), 'd');
        assert_eq!(of(0x26, swap), 'D');
        assert_eq!(of(0x42, none), 'd');
        assert_eq!(of(0x32, swap), 'x');
        assert_eq!(of(0xff, none), '!');
    }

    #[test]
    fn differing_blocks_are_marked() {
        use Place::{
            Device,
            Ram, //
        };
        assert_eq!(picture(&[Ram, Ram, Ram, Device, Device], 2), "r*d");
        assert_eq!(picture(&[Ram, Device], 1), "rd");
    }
}
