// SPDX-License-Identifier: GPL-2.0

//! The hardware of the mock GPU, without its driver.
//!
//! Files in this folder, and `samples/common/walk.rs`, import only each other, the kernel crate,
//! and plain types of the library (addresses, bytes and threads). Engines reach memory by bus
//! addresses, through the [`port::Port`] that the driver attaches to each command.
//! `tools/check/all` checks the imports.
//!
//! - `engine`: schedules commands; `command`: their operations; `status`: their completion.
//! - `mmu`: translates and performs an access; `tlb`: cached translations; `walk`: page table
//!   walker for five formats.
//! - `bus`: actions and the interface to memory; `monitor`: virtual addresses of accesses.
//! - `port`: the address space of a command; `fault`: the fault buffer.
//! - `counters`: performance counters.
//! - `store`: contents of device memory; `copy_engine` and `blit`: copies between bus addresses.
//! - `cache`: write-back cache for memory of the host.
//! - `registers`: faults and delays that tests inject.

pub(crate) mod blit;
pub(crate) mod bus;
pub(crate) mod cache;
pub(crate) mod command;
pub(crate) mod copy_engine;
pub(crate) mod counters;
pub(crate) mod engine;
pub(crate) mod fault;
pub(crate) mod mmu;
pub(crate) mod monitor;
pub(crate) mod port;
pub(crate) mod registers;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod tlb;
#[path = "../common/walk.rs"]
pub(crate) mod walk;
