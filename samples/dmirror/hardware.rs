// SPDX-License-Identifier: GPL-2.0

//! The mock GPU without its driver.
//!
//! Files in this folder import only each other, the kernel crate, and plain types of the library:
//! addresses, page numbers, bytes and threads. What an engine reaches beyond that is behind the
//! [`port::Port`] that the driver attaches to each command. `tools/check/all` checks the imports.
//!
//! - `engine`: runs commands by turns; `command`: what they do; `status`: their ends.
//! - `mmu`: an access: TLB, walk, memory; `tlb`: translations; `walk`: page tables of three formats.
//! - `bus`: an action at an address, and the way to memory.
//! - `port`: what an engine is connected to; `fault`: the fault buffer.
//! - `counters`: what engines count.
//! - `store`: contents of device memory.

pub(crate) mod bus;
pub(crate) mod command;
pub(crate) mod counters;
pub(crate) mod engine;
pub(crate) mod fault;
pub(crate) mod mmu;
pub(crate) mod port;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod tlb;
pub(crate) mod walk;
