// SPDX-License-Identifier: GPL-2.0

//! Checks that the log of a run is a path of the protocol's model.
//!
//! Standard input has lines of the tracepoint `hmm_stage`, in the order in which the stages
//! happened. [`Log::step`] calls a function for each stage, which checks that the model allows it
//! after the stages before it. Like the model, it tracks marks, flushes and announcements, but not
//! the entries of tables.
//!
//! Prints the count of each stage. Exit status 1: the model does not allow a stage, which is
//! printed with the lines before it. Exit status 2: the input is not a log, or is incomplete.

use line::Line;
use log::Log;
use std::collections::VecDeque;
use std::io::{
    self,
    BufRead, //
};
use std::process::ExitCode;

mod line;
mod log;

/// Number of lines shown before one that fails.
const CONTEXT: usize = 20;

fn main() -> ExitCode {
    let mut log = Log::default();
    let mut last: VecDeque<String> = VecDeque::new();
    for (index, text) in io::stdin().lock().lines().enumerate() {
        let Ok(text) = text else {
            eprintln!("line {}: cannot be read", index + 1);
            return ExitCode::from(2);
        };
        if text.contains("LOST") && text.contains("EVENTS") {
            eprintln!("line {}: the log is not complete: {text}", index + 1);
            return ExitCode::from(2);
        }
        let step = match Line::parse(&text) {
            Err(why) => {
                eprintln!("line {}: {why}: {text}", index + 1);
                return ExitCode::from(2);
            }
            Ok(None) => continue,
            Ok(Some(line)) => log.step(&line),
        };
        if last.len() == CONTEXT {
            last.pop_front();
        }
        last.push_back(text);
        if let Err(wrong) = step {
            eprintln!("line {}: {wrong}", index + 1);
            last.iter().for_each(|text| eprintln!("  {}", text.trim()));
            return ExitCode::from(1);
        }
    }
    if let Some(name) = log.migrations.keys().next() {
        eprintln!("migration {name:#x} has no end");
        return ExitCode::from(1);
    }
    for (what, count) in &log.seen {
        println!("{what}\t{count}");
    }
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;
    use line::PAGE;

    /// Replays lines TASK MIRROR STAGE NAME FIRST PAGES SET, with `-` for all mirrors.
    fn replay(text: &str) -> Result<Log, String> {
        let mut log = Log::default();
        for short in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let words: Vec<&str> = short.split_whitespace().collect();
            let [task, mirror, stage, name, first, pages, set] = words[..] else {
                panic!("seven words, not {short}");
            };
            let mirror = if mirror == "-" { "4294967295" } else { mirror };
            let first: u64 = first.parse().expect("a page");
            let line = format!(
                "x-{task} [000] ..... 1: hmm_stage: mirror={mirror} stage={stage} name=0x{name} \
                 start=0x{:x} pages={pages} set={set},0,0,0,0,0,0,0",
                first * PAGE
            );
            log.step(&Line::parse(&line)?.expect("a stage"))?;
        }
        Ok(log)
    }

    fn fails(text: &str, with: &str) {
        match replay(text) {
            Ok(_) => panic!("nothing is wrong, want: {with}"),
            Err(wrong) => assert!(wrong.contains(with), "{wrong}, want: {with}"),
        }
    }

    const MIGRATION: &str = "
        1 0 announce a 8 2 3
        1 0 flush 0 8 2 0
        1 0 flush-over 0 8 2 0
        1 0 event a 8 2 0
        1 0 event-over 0 0 0 0
        1 - isolate a 8 2 0
        1 - move a 8 2 3
        1 0 switch a 8 2 3
        1 0 flush 0 8 2 0
        1 0 flush-over 0 8 2 0
        1 - finalize a 8 2 0
        1 0 end a 0 0 0
    ";

    /// The lines of a migration, except the one with `without`.
    fn migration(without: &str) -> String {
        let lines = MIGRATION.lines().filter(|line| !line.contains(without));
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn complete_migration_is_accepted() {
        let log = replay(MIGRATION).expect("right");
        assert!(log.migrations.is_empty());
        assert!(log.mirrors[&0].marks.is_empty());
    }

    #[test]
    fn migration_without_a_stage_is_rejected() {
        fails(&migration("announce"), "not announced");
        fails(&migration("isolate"), "not isolated");
        fails(&migration("move"), "before anything has moved");
        fails(&migration("switch"), "before mirror 0 was notified");
        fails(&migration("finalize"), "before its sources were freed");
        fails(
            "1 0 announce a 8 2 3\n1 0 flush 0 8 2 0\n1 - isolate a 8 2 0",
            "before write access was flushed",
        );
    }

    #[test]
    fn source_freed_before_the_flush_is_rejected() {
        let last = MIGRATION.rfind("1 0 flush-over").expect("there");
        let text =
            [&MIGRATION[..last], &MIGRATION[last + "1 0 flush-over 0 8 2 0".len()..]].concat();
        fails(&text, "sources are freed before entries were flushed");
    }

    #[test]
    fn event_clears_the_mark() {
        let event = "2 0 event 0 9 1 0\n2 0 event-over 0 0 0 0\n1 0 switch";
        fails(&MIGRATION.replace("1 0 switch", event), "whose mark was lost");
        let other = MIGRATION.replace(
            "1 0 switch a 8 2 3",
            "2 0 event 0 9 1 0\n2 0 event-over 0 0 0 0\n1 0 switch a 8 2 1",
        );
        assert_eq!(replay(&other).expect("right").seen["event takes marks"], 1);
    }

    #[test]
    fn skipped_page_is_not_committed() {
        fails(&MIGRATION.replace("move a 8 2 3", "move a 8 2 1"), "of a page that stays");
    }

    #[test]
    fn page_has_one_mark() {
        fails("1 0 announce a 8 2 3\n2 0 announce b 9 2 1", "marked twice");
        replay("1 0 announce a 8 2 3\n2 0 announce b 9 2 2").expect("the page behind it");
    }

    #[test]
    fn no_migration_begins_during_an_invalidation() {
        fails("2 0 event 0 100 1 0\n1 0 announce a 8 2 3", "while an invalidation is under way");
        replay("2 0 event 0 100 1 0\n1 0 announce-reader a 8 2 3").expect("waits for nothing");
        replay("2 0 event 0 512 1 0\n1 0 announce a 8 2 3").expect("another window");
    }

    #[test]
    fn marked_and_stale_entries_are_not_installed() {
        fails("1 0 announce a 8 2 3\n2 0 install 0 9 1 1", "that a migration has marked");
        let old =
            "1 - collect 0 8 1 0\n2 0 event 0 100 1 0\n2 0 event-over 0 0 0 0\n1 0 install 0 8 1 1";
        fails(old, "an invalidation has begun");
        let log = replay(&old.replace(" 100 ", " 512 ")).expect("another window");
        assert_eq!(log.seen["install with a known begin"], 1);
    }

    #[test]
    fn invalidation_waits_for_all_overlapping_flushes() {
        fails(
            "1 0 event 0 8 1 0\n1 0 flush 0 8 1 0\n1 0 event-over 0 0 0 0",
            "before its flush is",
        );
        let others = "2 0 flush 0 8 1 0\n1 0 event 0 8 1 0\n1 0 event-over 0 0 0 0";
        fails(others, "entries removed by others are not flushed");
        let own = "2 0 flush 0 8 1 0\n1 0 event 0 8 1 0\n1 0 flush 0 8 1 0\n1 0 flush-over 0 8 1 0\n1 0 event-over 0 0 0 0";
        replay(own).expect("flushed");
    }

    #[test]
    fn event_of_many_windows_flushes_once() {
        let event = "
            1 0 event 0 8 504 0
            1 0 remove 0 8 1000 0
            1 0 flush 0 8 1000 0
            1 0 event 0 512 496 0
            1 0 event-over 0 0 0 0
            1 0 flush-over 0 8 1000 0
            1 0 event-over 0 0 0 0
        ";
        replay(event).expect("flushed");
        fails(&event.replace("1 0 flush-over 0 8 1000 0", ""), "before its flush is");
        let other = ["2 0 flush 0 8 1 0", event].concat();
        fails(&other, "entries removed by others are not flushed");
        let late = event.replace("1 0 event 0 512", "2 0 flush 0 8 1 0\n1 0 event 0 512");
        fails(&late, "entries removed by others are not flushed");
    }
}
