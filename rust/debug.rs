// SPDX-License-Identifier: GPL-2.0

//! Reports about the library: tracepoints, counters, and files in debugfs.
//!
//! - [`events`] has the events that are passed to tracepoints and drivers.
//! - [`stats`] has counters of events.
//! - [`timing`] has the time that each phase of an operation takes.
//! - `footprint` has the memory that page tables use, and the pages mapped for DMA.
//! - `registry` has the lists of open mirrors and devices.
//! - `trace` has the tracepoints.

pub mod events;
pub(crate) mod footprint;
pub(crate) mod registry;
pub mod stats;
pub mod timing;
pub(crate) mod trace;
