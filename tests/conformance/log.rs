// SPDX-License-Identifier: GPL-2.0

//! The state of the model after the stages of a log so far, and the stages that it allows next.

use super::line::{
    Line,
    PAGE, //
};
use std::collections::{
    BTreeMap,
    BTreeSet,
    HashMap,
    HashSet, //
};

/// An invalidation that a task is handling.
struct Serving {
    mirror: u64,
    window: u64,
    /// Flushes of other tasks that were pending when it began.
    others: HashSet<u64>,
    has_flushed: bool,
}

/// A pending flush.
struct Flush {
    mirror: u64,
    number: u64,
}

/// State of a mirror.
#[derive(Default)]
pub(super) struct Mirror {
    /// For each marked page, the migration that has marked it.
    pub(super) marks: BTreeMap<u64, u64>,
    /// Announced migrations.
    announced: HashSet<u64>,
    /// Pending flushes.
    flushes: HashSet<u64>,
    /// By window: number of tasks that are handling an invalidation.
    serving: BTreeMap<u64, usize>,
    /// By window: number of the last invalidation.
    events: BTreeMap<u64, u64>,
}

/// State of a migration.
#[derive(Default)]
pub(super) struct Migration {
    mirrors: HashSet<u64>,
    is_isolated: bool,
    moved: Option<BTreeSet<u64>>,
    /// Mirrors whose entries were switched or removed.
    switched: HashSet<u64>,
    is_final: bool,
}

/// State of a task.
#[derive(Default)]
struct Task {
    flushes: Vec<Flush>,
    serving: Vec<Serving>,
    /// The window in which it collects, and the number of the last invalidation at that time.
    collects: Option<(u64, u64)>,
}

#[derive(Default)]
pub(super) struct Log {
    pub(super) mirrors: HashMap<u64, Mirror>,
    pub(super) migrations: HashMap<u64, Migration>,
    tasks: HashMap<String, Task>,
    flushes: u64,
    /// Number of invalidations so far.
    events: u64,
    pub(super) seen: BTreeMap<String, u64>,
}

/// Fails with the message `wrong` unless `holds`.
fn need(holds: bool, wrong: impl FnOnce() -> String) -> Result<(), String> {
    if holds {
        Ok(())
    } else {
        Err(wrong())
    }
}

impl Log {
    pub(super) fn step(&mut self, line: &Line<'_>) -> Result<(), String> {
        *self.seen.entry(line.stage.to_string()).or_default() += 1;
        match (line.stage, line.mirror) {
            ("event", Some(mirror)) => self.event(line, mirror),
            ("event-over", Some(mirror)) => self.event_over(line, mirror),
            ("collect", None) => self.collect(line),
            ("install", Some(mirror)) => self.install(line, mirror),
            ("announce", Some(mirror)) => self.announce(line, mirror, false),
            ("announce-reader", Some(mirror)) => self.announce(line, mirror, true),
            ("isolate", None) => self.isolate(line),
            ("move", None) => self.moves(line),
            ("switch", Some(mirror)) => self.switch(line, mirror),
            ("finalize", None) => self.finalize(line),
            ("end", Some(mirror)) => self.end(line, mirror),
            ("flush", Some(mirror)) => self.flush(line, mirror),
            ("flush-over", Some(mirror)) => self.flush_over(line, mirror),
            ("remove", Some(mirror)) => self.remove(line, mirror),
            (stage, _) => Err(format!("the model has no stage {stage} of this kind")),
        }
    }

    fn count(&mut self, what: &str) {
        *self.seen.entry(what.to_string()).or_default() += 1;
    }

    fn task(&mut self, line: &Line<'_>) -> &mut Task {
        self.tasks.entry(line.task.to_string()).or_default()
    }

    /// Handles an invalidation. All migrations except the one that caused it lose their marks (H3,
    /// H9, H10).
    fn event(&mut self, line: &Line<'_>, number: u64) -> Result<(), String> {
        let mirror = self.mirrors.entry(number).or_default();
        need(line.name == 0 || mirror.announced.contains(&line.name), || {
            "an event of a migration that was not announced to the mirror".to_string()
        })?;
        let mut others = mirror.flushes.clone();
        let before = mirror.marks.len();
        mirror.marks.retain(|page, name| *name == line.name || !line.has(*page));
        let lost = mirror.marks.len() != before;
        self.events += 1;
        mirror.events.insert(line.window(), self.events);
        *mirror.serving.entry(line.window()).or_default() += 1;
        let task = self.task(line);
        // The flush of the event's first window covers all of its windows.
        others.retain(|number| task.flushes.iter().all(|flush| flush.number != *number));
        let mirror = number;
        let window = line.window();
        task.serving.push(Serving { mirror, window, others, has_flushed: false });
        if lost {
            self.count("event takes marks");
        }
        if line.name != 0 {
            self.count("event is its migration's own");
        }
        Ok(())
    }

    /// Handles the end of an invalidation. The entries that it removed must be flushed, and those
    /// that were removed concurrently before it (rule 2).
    fn event_over(&mut self, line: &Line<'_>, number: u64) -> Result<(), String> {
        let task = self.task(line);
        // All windows begin before the first flush is waited for.
        let at = task.serving.iter().rposition(|serving| serving.mirror == number);
        let serving =
            at.map(|at| task.serving.remove(at)).ok_or("the end of an event that has not begun")?;
        // The flush may be that of another window of the event, which then has ended.
        let is_last = !task.serving.iter().any(|serving| serving.mirror == number);
        let own = is_last && task.flushes.iter().any(|flush| flush.mirror == number);
        let mirror = self.mirrors.entry(number).or_default();
        if let Some(serving) = mirror.serving.get_mut(&serving.window) {
            *serving -= 1;
        }
        need(!own, || "an event is over before its flush is".to_string())?;
        let left = serving.others.intersection(&mirror.flushes).next().is_some();
        if !serving.others.is_empty() {
            self.count("event while others flush");
        }
        need(serving.has_flushed || !left, || {
            "an event ends while entries removed by others are not flushed".to_string()
        })
    }

    fn collect(&mut self, line: &Line<'_>) -> Result<(), String> {
        self.task(line).collects = Some((line.window(), self.events));
        Ok(())
    }

    /// Handles an installation. No invalidation of the window may have begun since the range was
    /// collected (rule 1), and no migration may have marked the pages (H2).
    fn install(&mut self, line: &Line<'_>, number: u64) -> Result<(), String> {
        let window = line.window();
        let before = self.task(line).collects.take();
        let before = before.filter(|(collected, _)| *collected == window);
        let mirror = self.mirrors.entry(number).or_default();
        let last = mirror.events.get(&window).copied().unwrap_or(0);
        need(before.is_none_or(|(_, before)| before >= last), || {
            "entries are installed although an invalidation has begun since they were collected"
                .to_string()
        })?;
        let marked = line.set.iter().find(|page| mirror.marks.contains_key(page));
        need(marked.is_none(), || {
            format!(
                "an entry is installed that a migration has marked: page {:#x}",
                marked.unwrap_or(&0) * PAGE
            )
        })?;
        if before.is_some() {
            self.count("install with a known begin");
        }
        Ok(())
    }

    /// Handles an announcement. A page has only one mark (H13). No invalidation may be in progress,
    /// except for a reader (H4).
    fn announce(&mut self, line: &Line<'_>, number: u64, reader: bool) -> Result<(), String> {
        let mirror = self.mirrors.entry(number).or_default();
        let taken = line.set.iter().find(|page| mirror.marks.contains_key(page));
        need(taken.is_none(), || {
            format!("a page is marked twice: {:#x}", taken.unwrap_or(&0) * PAGE)
        })?;
        need(line.set.iter().all(|page| line.has(*page)), || {
            "a mark beyond the range".to_string()
        })?;
        let serving = mirror.serving.get(&line.window()).copied().unwrap_or(0);
        need(reader || serving == 0, || {
            "announced while an invalidation is under way".to_string()
        })?;
        need(mirror.announced.insert(line.name), || "announced twice".to_string())?;
        mirror.marks.extend(line.set.iter().map(|page| (*page, line.name)));
        let migration = self.migrations.entry(line.name).or_default();
        need(!migration.is_isolated, || "announced after its pages were isolated".to_string())?;
        migration.mirrors.insert(number);
        if (line.set.len() as u64) < line.pages {
            self.count("announce of a part");
        }
        Ok(())
    }

    /// Handles an isolation. Write access must be flushed before (H1).
    fn isolate(&mut self, line: &Line<'_>) -> Result<(), String> {
        let pending = !self.task(line).flushes.is_empty();
        need(!pending, || "pages are isolated before write access was flushed".to_string())?;
        // A CPU fault without readers announces nothing.
        let migration = self.migrations.entry(line.name).or_default();
        need(!migration.is_isolated, || "isolated twice".to_string())?;
        migration.is_isolated = true;
        Ok(())
    }

    fn moves(&mut self, line: &Line<'_>) -> Result<(), String> {
        let migration = self.migrations.entry(line.name).or_default();
        need(migration.is_isolated, || "pages move that were not isolated".to_string())?;
        need(migration.moved.is_none(), || "moved twice".to_string())?;
        migration.moved = Some(line.set.iter().copied().collect());
        if migration.mirrors.is_empty() {
            // No stage will end it.
            self.migrations.remove(&line.name);
            self.count("move without mirrors");
        }
        Ok(())
    }

    /// Handles a switch: only for pages that were moved (H5, H6), and whose mark was not removed.
    fn switch(&mut self, line: &Line<'_>, number: u64) -> Result<(), String> {
        let mirror = self.mirrors.entry(number).or_default();
        let migration = self.migrations.entry(line.name).or_default();
        need(migration.mirrors.contains(&number), || {
            "switched without being announced".to_string()
        })?;
        let lost = line.set.iter().find(|page| mirror.marks.get(page) != Some(&line.name));
        need(lost.is_none(), || {
            format!(
                "an entry is switched whose mark was lost: page {:#x}",
                lost.unwrap_or(&0) * PAGE
            )
        })?;
        // Exclusive access and copies neither isolate nor move pages.
        if migration.is_isolated {
            let moved = migration.moved.as_ref().ok_or("switched before anything has moved")?;
            let stays = line.set.iter().find(|page| !moved.contains(page));
            need(stays.is_none(), || {
                format!(
                    "an entry is switched of a page that stays: {:#x}",
                    stays.unwrap_or(&0) * PAGE
                )
            })?;
        }
        need(!migration.is_final, || "switched after the sources were freed".to_string())?;
        migration.switched.insert(number);
        Ok(())
    }

    /// Handles the end of a step: no device may still access a source (H15).
    fn finalize(&mut self, line: &Line<'_>) -> Result<(), String> {
        let pending = !self.task(line).flushes.is_empty();
        need(!pending, || "sources are freed before entries were flushed".to_string())?;
        let Some(migration) = self.migrations.get_mut(&line.name) else {
            return Ok(());
        };
        let moved = migration.moved.as_ref().is_some_and(|moved| !moved.is_empty());
        let left = migration.mirrors.difference(&migration.switched).next();
        need(!moved || left.is_none(), || {
            format!("sources are freed before mirror {} was notified", left.unwrap_or(&0))
        })?;
        migration.is_final = true;
        Ok(())
    }

    fn end(&mut self, line: &Line<'_>, number: u64) -> Result<(), String> {
        let mirror = self.mirrors.entry(number).or_default();
        need(mirror.announced.remove(&line.name), || {
            "the end of a migration that was not announced".to_string()
        })?;
        mirror.marks.retain(|_, name| *name != line.name);
        let migration = self.migrations.entry(line.name).or_default();
        let moved = migration.moved.as_ref().is_some_and(|moved| !moved.is_empty());
        need(!moved || migration.is_final, || {
            "a migration ends before its sources were freed".to_string()
        })?;
        let without = !migration.is_final;
        migration.mirrors.remove(&number);
        if migration.mirrors.is_empty() {
            self.migrations.remove(&line.name);
        }
        if without {
            self.count("end without a switch");
        }
        Ok(())
    }

    fn flush(&mut self, line: &Line<'_>, mirror: u64) -> Result<(), String> {
        self.flushes += 1;
        let number = self.flushes;
        self.mirrors.entry(mirror).or_default().flushes.insert(number);
        let task = self.task(line);
        task.flushes.push(Flush { mirror, number });
        for serving in task.serving.iter_mut().filter(|serving| serving.mirror == mirror) {
            serving.has_flushed = true;
        }
        Ok(())
    }

    fn flush_over(&mut self, line: &Line<'_>, mirror: u64) -> Result<(), String> {
        let flushes = &mut self.task(line).flushes;
        let at = flushes.iter().rposition(|flush| flush.mirror == mirror);
        let flush =
            at.map(|at| flushes.remove(at)).ok_or("the end of a flush that has not begun")?;
        self.mirrors.entry(mirror).or_default().flushes.remove(&flush.number);
        Ok(())
    }

    fn remove(&mut self, line: &Line<'_>, number: u64) -> Result<(), String> {
        let mirror = self.mirrors.entry(number).or_default();
        mirror.marks.retain(|page, _| !line.has(*page));
        Ok(())
    }
}
