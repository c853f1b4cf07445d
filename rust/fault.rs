// SPDX-License-Identifier: GPL-2.0

//! Device faults.

mod policy;

pub use policy::FaultOutcome;
