// SPDX-License-Identifier: GPL-2.0
//! Diagnosis of a hang: stacks of the blocked threads, and pages that are being migrated.

use hmm::{
    pagemap,
    tracing::Tracing, //
};
use std::fmt::Write;
use std::fs::{
    read_dir,
    read_to_string,
    DirEntry,
    File, //
};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// Entries of a directory; those that cannot be read are skipped.
fn entries(path: &Path) -> impl Iterator<Item = DirEntry> {
    read_dir(path).into_iter().flatten().flatten()
}

/// Reports the kernel stack of each sleeping thread of this program and of the driver, and the
/// pages of this program that are being migrated. Writes all blocked tasks to the kernel log.
pub fn report() -> String {
    let mut text = String::new();
    let mut ours = Vec::new();
    for process in entries("/proc".as_ref()) {
        let name = read_to_string(process.path().join("comm")).unwrap_or_default();
        if !name.starts_with("hmm-stress") && !name.starts_with("dmirror") {
            continue;
        }
        for task in entries(&process.path().join("task")) {
            let path = task.path();
            let stack = read_to_string(path.join("stack")).unwrap_or_default();
            let frames: Vec<_> =
                stack.lines().map(|line| line.trim_start_matches("[<0>] ")).collect();
            let _ = writeln!(text, "  {} {}: {}", path.display(), name.trim(), frames.join(" < "));
        }
        ours.push(process.path());
    }
    // Lists all other blocked tasks in the kernel log, for instance those that wait for the same
    // page.
    let _ = std::fs::write("/proc/sysrq-trigger", "w");
    text += &happening().unwrap_or_else(|error| format!("  no events: {error}\n"));
    // In a thread with a timeout: reading pagemap takes the mmap lock of a process that hangs.
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for process in ours {
            let _ = sender.send(migrating(&process).unwrap_or_default());
        }
    });
    while let Ok(pages) = receiver.recv_timeout(Duration::from_secs(5)) {
        text += &pages;
    }
    text
}

/// Tracepoints of the library during [`MOMENT`], because a hang may be an endless loop.
fn happening() -> io::Result<String> {
    let tracing = Tracing::start("torture")?;
    std::thread::sleep(MOMENT);
    let all = tracing.text()?;
    let lines: Vec<_> = all.lines().filter(|line| !line.starts_with('#')).collect();
    let last = &lines[lines.len().saturating_sub(EVENTS)..];
    Ok(format!("  {} events in {MOMENT:?}, at last:\n    {}\n", lines.len(), last.join("\n    ")))
}

/// Time during which tracepoints are recorded, and the maximum number that is shown.
const MOMENT: Duration = Duration::from_millis(300);
const EVENTS: usize = 150;

/// Swap types of migration entries, see `linux/swap.h`.
const MIGRATION: Range<u64> = 25..28;

/// Size of a page, and of its entry in `/proc/PID/pagemap`.
const PAGE: u64 = hmm::PAGE_SIZE as u64;
const WORD: u64 = 8;

/// Lists pages of a process that have a migration entry, with their flags from `/proc/kpageflags`.
fn migrating(process: &Path) -> io::Result<String> {
    let mut text = String::new();
    let entries = File::open(process.join("pagemap"))?;
    for line in read_to_string(process.join("maps"))?.lines() {
        let bounds = line.split(' ').next().and_then(|range| range.split_once('-'));
        let Some((Ok(start), Ok(end))) = bounds
            .map(|(start, end)| (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16)))
        else {
            continue;
        };
        let mut words = vec![0; ((end - start) / PAGE * WORD) as usize];
        let mut shown = 0;
        let read = entries.read_at(&mut words, start / PAGE * WORD).unwrap_or(0);
        for (index, word) in words[..read].chunks_exact(WORD as usize).enumerate() {
            let entry = u64::from_ne_bytes(word.try_into().unwrap_or_default());
            // Bit 63: present; bit 62: a swap entry, its type below its offset.
            let kind = entry & 31;
            let pfn = (entry >> 5) & ((1 << 50) - 1);
            if entry >> 62 != 1 || !MIGRATION.contains(&kind) || shown == 4 {
                continue;
            }
            shown += 1;
            let address = start + index as u64 * PAGE;
            let flags = pagemap::flags(pfn)?;
            let process = process.display();
            let _ = writeln!(text, "  {process} {address:#x}: pfn {pfn:#x} migrates, {flags:#x}");
        }
    }
    Ok(text)
}
