// SPDX-License-Identifier: GPL-2.0
//! Table of the operations that issue each ioctl. A test compares it with the UAPI headers, so that
//! a new ioctl requires an operation that uses it.

/// Origin of an ioctl or of one of its flags.
#[derive(Clone, Copy, Debug)]
enum By {
    /// Each of these operations, by [`crate::torture::op::Op::name`].
    Ops(&'static [&'static str]),
    /// Each lane, when it begins, ends, or reads counters.
    Lane,
    /// The last part of a run, `lane/unplug.rs`.
    LastPart,
}

use By::{
    Lane,
    LastPart,
    Ops, //
};

/// Ioctls of `dmirror_uapi.h`, without prefix.
const IOCTLS: &[(&str, By)] = &[
    ("INFO", Ops(&["EngineRead", "Resize"])),
    ("COUNTERS", Lane),
    ("SUBMIT", Ops(&["EngineRead", "Watch", "Count"])),
    ("WAIT", Ops(&["EngineRead", "Finish"])),
    ("STOP", Ops(&["Finish"])),
    ("ENGINE", Ops(&["EngineStatus"])),
    ("MIGRATE", Ops(&["Migrate", "CommonMove"])),
    ("SET", Ops(&["CopyFail", "CopyDelay", "FlushDelay", "Connect"])),
    ("DISCARD", Ops(&["Discard"])),
    ("SET_ATTRIBUTES", Ops(&["Attributes"])),
    ("GET_ATTRIBUTES", Ops(&["Attributes"])),
    ("PLACEMENT", Ops(&["Placement"])),
    ("POLICY", Ops(&["Policy"])),
    ("MEMORY", Ops(&["Resize"])),
    ("UNPLUG", LastPart),
    ("QUEUE_CREATE", Ops(&["Queued", "QueueWork", "ManagedLater", "Notify"])),
    ("QUEUE_DESTROY", Ops(&["Queued", "QueueWork", "ManagedLater", "Notify"])),
    ("QUEUE_SUBMIT", Ops(&["Queued", "QueueWork", "Notify", "Blit"])),
    ("QUEUE_RECORD", Ops(&["Queued"])),
    ("QUEUE_WAIT", Ops(&["Queued", "Notify", "Blit"])),
    ("QUEUE_WAITS", Ops(&["Notify"])),
    ("FENCE_CREATE", Ops(&["QueueWork", "Notify"])),
    ("FENCE_SIGNAL", Ops(&["QueueWork", "Notify"])),
    ("FENCE_CHECK", Ops(&["QueueWork", "Notify", "Blit"])),
    ("FENCE_SYNC", Ops(&["Queued", "QueueWork", "Notify", "Blit"])),
    ("FENCE_RELEASE", Ops(&["Queued", "QueueWork", "Notify", "Blit"])),
    ("FENCE_EXPORT", Ops(&["Blit", "Notify"])),
    ("FENCE_IMPORT", Ops(&["Blit", "Queued", "Notify"])),
    ("FENCE_NOTIFY", Ops(&["Notify", "Blit"])),
    ("BLIT", Ops(&["Blit"])),
    ("LOCK", Ops(&["HostLock", "Hold", "HoldCommon", "Blit"])),
    ("UNLOCK", Ops(&["HostLock", "Unhold", "Blit"])),
    ("LOCKED", Ops(&["HostLock", "Hold", "UseHeld"])),
    ("PULL", Ops(&["Pull", "AskPull"])),
    ("ALLOC", Ops(&["Managed", "ManagedLater"])),
    ("EVENTS", Ops(&["Events", "EventsOf"])),
];

/// Flag bits of these ioctls.
const FLAGS: &[(&str, By)] = &[
    ("SUBMIT_VERIFY", Ops(&["Watch"])),
    ("MIGRATE_TO_SYSTEM", Ops(&["Migrate", "CommonMove"])),
    ("MIGRATE_ORDINARY", Ops(&["Migrate", "CommonMove"])),
    ("ATTR_PREFERRED", Ops(&["Attributes"])),
    ("ATTR_ACCESSED_BY", Ops(&["Attributes"])),
    ("ATTR_READ_MOSTLY", Ops(&["Attributes"])),
    ("ATTR_NEVER_MIGRATE", Ops(&["Attributes"])),
    ("ATTR_GRANULARITY", Ops(&["Attributes"])),
    ("MEMORY_RESTORE", Ops(&["Resize"])),
    ("FENCE_OF_FILE", Ops(&["Queued", "Notify"])),
    ("LOCK_FINE", Ops(&["HostLock", "Hold", "HoldCommon"])),
    ("PULL_ASK", Ops(&["AskPull"])),
    ("ALLOC_HOST_SHARED", Ops(&["ManagedLater"])),
    ("ALLOC_POPULATE", Ops(&["Managed", "ManagedLater"])),
    ("ALLOC_HUGE", Ops(&["ManagedLater"])),
    ("EVENTS_ALL", Ops(&["EventsOf"])),
];

/// Ioctls of the kernel's `test_hmm_uapi.h`.
const TEST_HMM: &[(&str, By)] = &[
    ("READ", Ops(&["DevRead"])),
    ("WRITE", Ops(&["DevWrite"])),
    ("MIGRATE_TO_DEV", Ops(&["ToDevice"])),
    ("MIGRATE_TO_SYS", Ops(&["ToSystem"])),
    ("SNAPSHOT", Ops(&["Snapshot"])),
    ("EXCLUSIVE", Ops(&["Exclusive"])),
    ("CHECK_EXCLUSIVE", Ops(&["CheckExclusive"])),
    ("RELEASE", Ops(&["Release"])),
    ("FLAGS", Ops(&["FailAlloc"])),
    ("READ_UNLOCKED", Ops(&["DevRead"])),
];

use crate::torture::draw::Draw;
use crate::torture::op::Op;
use std::collections::BTreeSet;
use std::path::Path;

/// Reads the UAPI header from the checkout that contains this crate.
fn header() -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = here.ancestors().map(|dir| dir.join("samples/dmirror/dmirror_uapi.h"));
    let path = found.find(|path| path.exists()).expect("no dmirror_uapi.h above this crate");
    std::fs::read_to_string(path).expect("the header cannot be read")
}

/// Names that the header defines as `value`, without prefix.
fn defined<'a>(header: &'a str, value: &str) -> BTreeSet<&'a str> {
    let lines = header.lines().filter_map(|line| line.strip_prefix("#define DMIRROR_"));
    let pairs = lines.filter_map(|line| line.split_once(char::is_whitespace));
    pairs.filter(|(_, text)| text.trim().starts_with(value)).map(|(name, _)| name).collect()
}

/// Compares a table with the names in the header, and its operations with the drawn ones.
fn compare(table: &[(&str, By)], names: &BTreeSet<&str>, drawn: &BTreeSet<String>) {
    let listed: BTreeSet<&str> = table.iter().map(|(name, _)| *name).collect();
    assert_eq!(listed.len(), table.len(), "a name is listed twice");
    let missing: Vec<_> = names.difference(&listed).collect();
    assert!(missing.is_empty(), "no operation of the torture issues {missing:?}");
    let unknown: Vec<_> = listed.difference(names).collect();
    assert!(unknown.is_empty(), "the header does not define {unknown:?}");
    for (name, by) in table {
        match by {
            Ops(ops) => {
                assert!(!ops.is_empty(), "{name}: no operation");
                for op in *ops {
                    assert!(drawn.contains(*op), "{name}: {op} is not drawn");
                }
            }
            Lane | LastPart => {}
        }
    }
}

#[test]
fn each_ioctl_is_covered() {
    let drawn: BTreeSet<String> =
        Draw::new(1, 0, 2).take(100_000).map(|op: Op| op.name()).collect();
    let header = header();
    compare(IOCTLS, &defined(&header, "_IOWR('H'"), &drawn);
    compare(FLAGS, &defined(&header, "(1u <<"), &drawn);
    compare(TEST_HMM, &hmm::Op::ALL.iter().map(|op| op.name()).collect(), &drawn);
}

#[test]
fn uncovered_ioctl_is_detected() {
    let header = header() + "#define DMIRROR_NEW\t_IOWR('H', 0x7f, struct dmirror_info)\n";
    let names = defined(&header, "_IOWR('H'");
    assert!(names.contains("NEW") && names.len() == IOCTLS.len() + 1, "{names:?}");
}
