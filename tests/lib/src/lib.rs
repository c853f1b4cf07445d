// SPDX-License-Identifier: GPL-2.0
//! Safe access to the `hmm_dmirror` devices, and to the kernel's reports on the memory of a
//! process.
//!
//! A [`Device`] is a software GPU that shares this process's address space. It accesses the same
//! addresses as the CPU, and pages can migrate to its memory and back. A [`Mapping`] is memory for
//! that, which [`pattern`] fills with recognizable contents. The other modules parse reports of the
//! kernel, run parts of a program in child processes and load modules.

pub mod abi;
pub mod alarms;
pub mod c_mirror;
pub mod child;
pub mod counters;
pub mod crowd;
pub mod device;
pub mod dma;
pub mod engine;
pub mod errno;
pub mod events;
pub mod files;
pub mod hostile;
pub mod inject;
pub mod lock;
pub mod managed;
pub mod mapping;
pub mod mirror_only;
pub mod module;
pub mod pagemap;
pub mod pattern;
pub mod placement;
pub mod procfs;
pub mod ptrace;
pub mod pty;
pub mod pull;
pub mod queue;
pub mod residency;
pub mod rng;
pub mod slabs;
pub mod smaps;
pub mod tracing;
pub mod uffd;

pub use abi::{
    Op,
    PageState,
    HUGE_PAGES,
    HUGE_SIZE,
    PAGE_SIZE,
    PAGE_WORDS, //
};
pub use alarms::Alarms;
pub use c_mirror::CMirror;
pub use child::{
    Child,
    Gate, //
};
pub use counters::Counters;
pub use crowd::Crowd;
pub use device::{
    Device,
    Done,
    Ptr, //
};
pub use engine::{
    Command,
    EngineOp,
    Job,
    Migration,
    PageOutcome,
    Setting, //
};
pub use errno::Errno;
pub use lock::{
    Locked,
    LockedRange, //
};
pub use managed::{
    Managed,
    ManagedFlags, //
};
pub use mapping::{
    Mapping,
    Prot,
    View, //
};
pub use mirror_only::{
    LpaeWalk,
    MirrorOnly, //
};
pub use procfs::Settings;
pub use pull::{
    Connection,
    Pulled, //
};
pub use queue::{
    Event,
    Fence,
    Queue,
    QueueOp,
    State,
    SyncFile, //
};
