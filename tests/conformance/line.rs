// SPDX-License-Identifier: GPL-2.0

//! A line of a log: a stage of a run.

use std::collections::HashMap;

/// Size of a page.
pub(super) const PAGE: u64 = 4096;

/// Number of pages of a window. Stages of different windows are independent.
const WINDOW: u64 = 512;

/// A stage of a run.
pub(super) struct Line<'a> {
    pub(super) task: &'a str,
    /// `None` for a stage of all mirrors of the migration.
    pub(super) mirror: Option<u64>,
    pub(super) stage: &'a str,
    /// Identifier of the migration, 0 for none.
    pub(super) name: u64,
    pub(super) start: u64,
    pub(super) pages: u64,
    /// Pages of the range to which the stage applies.
    pub(super) set: Vec<u64>,
}

impl<'a> Line<'a> {
    /// Parses a line `TASK ... hmm_stage: KEY=VALUE...`; `None` for other events and comments.
    pub(super) fn parse(text: &'a str) -> Result<Option<Self>, String> {
        let Some((head, rest)) = text.split_once(" hmm_stage: ") else {
            return Ok(None);
        };
        // NAME-PID [CPU] ...: the name may contain blanks, and may be missing.
        let task = head.split(" [").next().unwrap_or(head).trim();
        let task = task.rsplit('-').next().unwrap_or(task);
        let mut fields = HashMap::new();
        for field in rest.split_whitespace() {
            let (key, value) = field.split_once('=').ok_or(format!("no value: {field}"))?;
            fields.insert(key, value);
        }
        let field = |key: &str| fields.get(key).copied().ok_or(format!("no {key}"));
        let number = |key: &str| {
            let text = field(key)?;
            match text.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16),
                None => text.parse(),
            }
            .map_err(|_| format!("{key}: no number: {text}"))
        };
        let start = number("start")?;
        let mut set = Vec::new();
        for (index, word) in field("set")?.split(',').enumerate() {
            let bits = u64::from_str_radix(word, 16).map_err(|_| format!("no set: {word}"))?;
            let base = start / PAGE + 64 * index as u64;
            set.extend((0..64).filter(|bit| bits >> bit & 1 != 0).map(|bit| base + bit));
        }
        Ok(Some(Self {
            task,
            mirror: Some(number("mirror")?).filter(|mirror| *mirror != u64::from(u32::MAX)),
            stage: field("stage")?,
            name: number("name")?,
            start: start / PAGE,
            pages: number("pages")?,
            set,
        }))
    }

    /// The window that contains the range.
    pub(super) fn window(&self) -> u64 {
        self.start / WINDOW
    }

    pub(super) fn has(&self, page: u64) -> bool {
        (self.start..self.start.saturating_add(self.pages)).contains(&page)
    }
}
