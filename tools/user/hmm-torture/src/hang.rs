// SPDX-License-Identifier: GPL-2.0
//! What is known of a hang: who waits where, and the pages that are waited for.

use hmm::{pagemap, tracing::Tracing};
use std::fmt::Write;
use std::fs::{read_dir, read_to_string, DirEntry, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// Entries of a directory, as far as they can be read.
fn entries(path: &Path) -> impl Iterator<Item = DirEntry> {
    read_dir(path).into_iter().flatten().flatten()
}

/// What all threads of this program and of the driver do that do not run, in the kernel's words,
/// and the pages of this program that are being migrated. The kernel's log gets all that is blocked.
pub fn report() -> String {
    let mut text = String::new();
    let mut ours = Vec::new();
    for process in entries("/proc".as_ref()) {
        let name = read_to_string(process.path().join("comm")).unwrap_or_default();
        if !name.starts_with("hmm-torture") && !name.starts_with("dmirror") {
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
    // Says who else waits, for instance for the same page.
    let _ = std::fs::write("/proc/sysrq-trigger", "w");
    text += &happening().unwrap_or_else(|error| format!("  no events: {error}\n"));
    // This takes locks of the processes that hang.
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for process in ours {
            let _ = tell.send(migrating(&process).unwrap_or_default());
        }
    });
    while let Ok(pages) = told.recv_timeout(Duration::from_secs(5)) {
        text += &pages;
    }
    text
}

/// The library's events of a moment: a hang may be a round that never ends.
fn happening() -> io::Result<String> {
    let tracing = Tracing::start("torture")?;
    std::thread::sleep(MOMENT);
    let all = tracing.text()?;
    let lines: Vec<_> = all.lines().filter(|line| !line.starts_with('#')).collect();
    let last = &lines[lines.len().saturating_sub(EVENTS)..];
    Ok(format!("  {} events in {MOMENT:?}, at last:\n    {}\n", lines.len(), last.join("\n    ")))
}

/// How long events are recorded, and how many are shown.
const MOMENT: Duration = Duration::from_millis(300);
const EVENTS: usize = 150;

/// Swap types of entries of pages that are being migrated, see the kernel's `linux/swap.h`.
const MIGRATION: Range<u64> = 25..28;

/// Bytes of a page, and of its word in `/proc/PID/pagemap`.
const PAGE: u64 = 4096;
const WORD: u64 = 8;

/// Lists pages of a process that are being migrated, with the flags of `/proc/kpageflags`.
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
        let (mut words, mut shown) = (vec![0; ((end - start) / PAGE * WORD) as usize], 0);
        let read = entries.read_at(&mut words, start / PAGE * WORD).unwrap_or(0);
        for (index, word) in words[..read].chunks_exact(WORD as usize).enumerate() {
            let entry = u64::from_ne_bytes(word.try_into().unwrap_or_default());
            // Bit 63: present; bit 62: a swap entry, its type below its offset.
            let (kind, pfn) = (entry & 31, (entry >> 5) & ((1 << 50) - 1));
            if entry >> 62 != 1 || !MIGRATION.contains(&kind) || shown == 4 {
                continue;
            }
            shown += 1;
            let (address, flags) = (start + index as u64 * PAGE, pagemap::flags(pfn)?);
            let process = process.display();
            let _ = writeln!(text, "  {process} {address:#x}: pfn {pfn:#x} migrates, {flags:#x}");
        }
    }
    Ok(text)
}
