// SPDX-License-Identifier: GPL-2.0
//! The structures and numbers of this crate beside those of the C header, as a
//! C compiler sees them.

use super::command::Stop;
use super::setting::Set;
use super::*;
use crate::abi::ABI_VERSION;
use crate::counters::Counters;
use crate::lock::RawLock;
use crate::managed::RawAlloc;
use crate::placement::{
    Attributes,
    MemoryRaw,
    Placement,
    Policy,
    PolicyRaw,
    Preferred,
    UnplugRaw, //
};
use crate::pull::RawPull;
use crate::queue::{
    fence::RawFence,
    RawQueue, //
};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{
    Path,
    PathBuf, //
};
use std::process::{
    Command as Program,
    Stdio, //
};

/// One assertion in C.
fn must(c: &mut String, left: &str, right: u64) {
    let _ = writeln!(c, "_Static_assert({left} == {right}ull, \"{left} is not {right}\");");
}

fn field_size<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// Asserts size and place of every field, and that there are no others.
macro_rules! layout {
    ($c:ident, $rust:ty, $name:literal, $($field:ident)*) => {
        let structure = concat!("struct dmirror_", $name);
        must(&mut $c, &format!("sizeof({structure})"), size_of::<$rust>() as u64);
        let mut sum = 0;
        $(
            let at = std::mem::offset_of!($rust, $field) as u64;
            let field = stringify!($field);
            must(&mut $c, &format!("__builtin_offsetof({structure}, {field})"), at);
            let size = field_size(|all: &$rust| &all.$field);
            must(&mut $c, &format!("sizeof((({structure} *)0)->{field})"), size as u64);
            sum += size;
        )*
        assert_eq!(sum, size_of::<$rust>(), "fields of {structure}");
    };
}

/// Asserts size and place of every field of the structures of the mock device. These have no
/// padding, because the traits that they derive require that.
fn arguments(c: &mut String) {
    let path = header().with_file_name("../common/arguments.rs");
    let source = std::fs::read_to_string(path).expect("no samples/common/arguments.rs");
    let mut structure = String::new();
    let mut size = 0;
    let mut at = 0;
    let mut count = 0;
    for line in source.lines().map(str::trim) {
        if let Some((name, rest)) = line.strip_suffix('{').and_then(|line| line.split_once(": ")) {
            structure = format!("struct dmirror_{}", name.to_lowercase());
            size = rest.trim().parse().expect("not a size");
            at = 0;
            count += 1;
            must(c, &format!("sizeof({structure})"), size);
        } else if let Some((field, kind)) =
            line.strip_suffix(',').and_then(|line| line.split_once(": "))
        {
            let field = field.trim_start_matches("r#");
            let bits: u64 = kind[1..].parse().expect("not an integer type");
            must(c, &format!("__builtin_offsetof({structure}, {field})"), at);
            must(c, &format!("sizeof((({structure} *)0)->{field})"), bits / 8);
            let signed = u64::from(kind.starts_with('i'));
            must(c, &format!("((__typeof__((({structure} *)0)->{field}))-1 < 0)"), signed);
            at += bits / 8;
        } else if line == "}" && !structure.is_empty() {
            assert_eq!(at, size, "fields of {structure}");
        }
    }
    assert_eq!(count, 21, "structures of arguments.rs");
}

fn structures(c: &mut String) {
    let mut text = String::new();
    layout!(text, Info, "info", size version engines tlb_entries copy_threads coherent vram_bytes
        queue_depth);
    layout!(text, Counters, "counters", size version faults_read faults_write pages_mapped
        invalidations invalidated_pages migrated_to_device migrated_to_system cpu_faults
        cpu_fault_pages evicted_pages retries migrate_skipped device_pages_used device_pages_total
        accesses tlb_hits tlb_misses engine_faults_read engine_faults_write stalls_read
        stalls_write stall_ns_read stall_ns_write stall_ns_max bytes_read bytes_written stale_hits
        switched_pages bytes_copied copy_failures faults_coalesced fault_batches);
    layout!(text, Command, "submit", size flags engine op addr bytes src value stride rounds
        think_ns id);
    layout!(text, Status, "wait", size flags id timeout_ns status reserved result rounds faults
        stalls stall_ns);
    layout!(text, Stop, "stop", size flags id);
    layout!(text, EngineCounters, "engine", size engine version reserved commands accesses tlb_hits
        tlb_misses faults_read faults_write stalls_read stalls_write stall_ns_read stall_ns_write
        stall_ns_max bytes_read bytes_written stale_hits busy_ns idle_ns wait_ns set_aside);
    layout!(text, Migration, "migrate", size flags addr npages outcomes moved switched skipped
        no_memory copy_failed ns);
    layout!(text, Set, "set", size flags what reserved value old);
    layout!(text, Attributes, "attributes", size flags addr npages what preferred values
        granularity);
    layout!(text, Placement, "placement", size flags faults moved in_place evicted_for_room pieces
        pieces_idle chosen);
    layout!(text, PolicyRaw, "policy", size flags policy old);
    layout!(text, MemoryRaw, "memory", size flags first count left);
    layout!(text, UnplugRaw, "unplug", size flags addr npages saved lost);
    layout!(text, Discard, "discard", size flags addr npages);
    layout!(text, RawQueue, "queue", size flags queue op addr bytes src value stride reserved after
        nafter rounds fence);
    layout!(text, RawFence, "fence", size flags fence timeout_ns error fd state result moved
        stayed began_ns ended_ns);
    layout!(text, RawLock, "lock", size flags addr bytes agents device_addr fine users ns looks);
    layout!(text, RawPull, "pull", size flags fd reserved addr npages connection moved switched
        no_memory copy_failed);
    layout!(text, RawAlloc, "alloc", size flags fd queue bytes addr fence);
    c.push_str(&text);
}

fn numbers(c: &mut String) {
    must(c, "DMIRROR_ABI_VERSION", ABI_VERSION.into());
    let requests = [
        ("INFO", 0x40, size_of::<Info>()),
        ("COUNTERS", 0x41, size_of::<Counters>()),
        ("SUBMIT", 0x42, size_of::<Command>()),
        ("WAIT", 0x43, size_of::<Status>()),
        ("STOP", 0x44, size_of::<Stop>()),
        ("ENGINE", 0x45, size_of::<EngineCounters>()),
        ("MIGRATE", 0x46, size_of::<Migration>()),
        ("SET", 0x47, size_of::<Set>()),
        ("DISCARD", 0x48, size_of::<Discard>()),
        ("SET_ATTRIBUTES", 0x50, size_of::<Attributes>()),
        ("GET_ATTRIBUTES", 0x51, size_of::<Attributes>()),
        ("PLACEMENT", 0x52, size_of::<Placement>()),
        ("POLICY", 0x53, size_of::<PolicyRaw>()),
        ("MEMORY", 0x54, size_of::<MemoryRaw>()),
        ("UNPLUG", 0x55, size_of::<UnplugRaw>()),
        ("QUEUE_CREATE", 0x60, size_of::<RawQueue>()),
        ("QUEUE_DESTROY", 0x61, size_of::<RawQueue>()),
        ("QUEUE_SUBMIT", 0x62, size_of::<RawQueue>()),
        ("QUEUE_RECORD", 0x63, size_of::<RawQueue>()),
        ("QUEUE_WAIT", 0x64, size_of::<RawQueue>()),
        ("QUEUE_WAITS", 0x65, size_of::<RawQueue>()),
        ("FENCE_CREATE", 0x66, size_of::<RawFence>()),
        ("FENCE_SIGNAL", 0x67, size_of::<RawFence>()),
        ("FENCE_CHECK", 0x68, size_of::<RawFence>()),
        ("FENCE_SYNC", 0x69, size_of::<RawFence>()),
        ("FENCE_RELEASE", 0x6a, size_of::<RawFence>()),
        ("FENCE_EXPORT", 0x6b, size_of::<RawFence>()),
        ("FENCE_IMPORT", 0x6c, size_of::<RawFence>()),
        ("FENCE_NOTIFY", 0x6d, size_of::<RawFence>()),
        ("BLIT", 0x6e, size_of::<RawQueue>()),
        ("LOCK", 0x70, size_of::<RawLock>()),
        ("UNLOCK", 0x71, size_of::<RawLock>()),
        ("LOCKED", 0x72, size_of::<RawLock>()),
        ("PULL", 0x78, size_of::<RawPull>()),
        ("ALLOC", 0x79, size_of::<RawAlloc>()),
    ];
    for (name, number, size) in requests {
        must(c, &format!("DMIRROR_{name}"), iowr(number, size));
    }
    let ops = [
        ("READ", EngineOp::Read),
        ("WRITE", EngineOp::Write),
        ("FILL", EngineOp::Fill),
        ("ATOMIC_ADD", EngineOp::AtomicAdd),
        ("MEMCPY", EngineOp::Memcpy),
        ("CHECKSUM", EngineOp::Checksum),
        ("STRIDED", EngineOp::Strided),
        ("CHASE", EngineOp::Chase),
    ];
    for (name, op) in ops {
        must(c, &format!("DMIRROR_OP_{name}"), op as u64);
    }
    let attributes = [
        ("PREFERRED", Attributes::PREFERRED),
        ("ACCESSED_BY", Attributes::ACCESSED_BY),
        ("READ_MOSTLY", Attributes::READ_MOSTLY),
        ("NEVER_MIGRATE", Attributes::NEVER_MIGRATE),
        ("GRANULARITY", Attributes::GRANULARITY),
    ];
    for (name, bit) in attributes {
        must(c, &format!("DMIRROR_ATTR_{name}"), bit.into());
    }
    must(c, "DMIRROR_ANYWHERE", Preferred::Anywhere as u64);
    must(c, "DMIRROR_ON_DEVICE", Preferred::Device as u64);
    must(c, "DMIRROR_IN_SYSTEM", Preferred::System as u64);
    must(c, "DMIRROR_POLICY_NONE", Policy::None as u64);
    must(c, "DMIRROR_POLICY_DEFAULT", Policy::Default as u64);
    must(c, "DMIRROR_POLICY_ONE_PAGE", Policy::OnePage as u64);
    must(c, "DMIRROR_MEMORY_RESTORE", 1);
    must(c, "DMIRROR_UNPLUG_SURE", UnplugRaw::SURE.into());
    must(c, "DMIRROR_FENCE_OF_FILE", 1);
    must(c, "DMIRROR_SUBMIT_VERIFY", Command::VERIFY.into());
    must(c, "DMIRROR_ENGINE_ANY", Command::ANY.into());
    must(c, "DMIRROR_MIGRATE_TO_SYSTEM", Way::ToSystem.flags().into());
    must(c, "DMIRROR_MIGRATE_ORDINARY", Way::ToDeviceOrdinary.flags().into());
    let settings = [
        ("COPY_DELAY", Setting::CopyDelay),
        ("COPY_FAIL", Setting::CopyFail),
        ("SKIP_FLUSH", Setting::SkipFlush),
        ("KEEP_WRITE", Setting::KeepWrite),
        ("FLUSH_DELAY", Setting::FlushDelay),
        ("CONNECTION", Setting::Connection),
    ];
    for (name, setting) in settings {
        must(c, &format!("DMIRROR_SET_{name}"), setting as u64);
    }
    let outcomes = ["NONE", "SKIPPED", "NO_MEMORY", "COPY", "MOVED", "SWITCHED", "LOST"];
    let known = [
        PageOutcome::None,
        PageOutcome::Skipped,
        PageOutcome::NoMemory,
        PageOutcome::CopyFailed,
        PageOutcome::Moved,
        PageOutcome::Switched,
        PageOutcome::Lost,
    ];
    for (raw, (name, outcome)) in outcomes.iter().zip(known).enumerate() {
        must(c, &format!("DMIRROR_PAGE_{name}"), raw as u64);
        assert_eq!(PageOutcome::from(raw as u8), outcome);
    }
    assert_eq!(PageOutcome::from(outcomes.len() as u8), PageOutcome::Unknown);
}

/// The header is in the checkout in which the sources, or a copy of them, are.
fn header() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = here.ancestors().map(|dir| dir.join("samples/dmirror/dmirror_uapi.h"));
    found.into_iter().find(|path| path.exists()).expect("no dmirror_uapi.h above this crate")
}

fn compile(text: &str) -> Result<(), String> {
    let mut gcc = Program::new("gcc")
        .args(["-fsyntax-only", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("no gcc");
    let mut input = gcc.stdin.take().expect("no pipe");
    input.write_all(text.as_bytes()).expect("gcc does not listen");
    drop(input);
    let output = gcc.wait_with_output().expect("gcc does not end");
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

#[test]
fn layout_matches_the_c_header() {
    let mut text = format!("#include \"{}\"\n", header().display());
    structures(&mut text);
    arguments(&mut text);
    numbers(&mut text);
    assert_eq!(compile(&text), Ok(()));
    // The compiler notices a wrong size.
    must(&mut text, "sizeof(struct dmirror_info)", 41);
    let why = compile(&text).expect_err("a wrong size was not noticed");
    assert!(why.contains("is not 41"), "{why}");
}
