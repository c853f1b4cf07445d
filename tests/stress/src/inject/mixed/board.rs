// SPDX-License-Identifier: GPL-2.0
//! The set of failure sources that are armed, shared between the process that arms them and the
//! processes that run into the failures.

use hmm::{
    Errno,
    Mapping,
    PAGE_SIZE, //
};

/// One word for each source. It is odd while the source is set, and changes with every update. A
/// process that compares two states can therefore detect every source that was set at any time
/// between them.
pub struct Board {
    words: Mapping,
    names: Vec<String>,
}

/// The words of a board at one time.
pub struct State(Vec<u64>);

impl Board {
    /// Creates a board with no source set. Processes that are forked later share it.
    pub fn new(names: Vec<String>) -> Result<Board, Errno> {
        assert!(names.len() <= PAGE_SIZE / 8, "a board is a page");
        Ok(Board { words: Mapping::shared(1)?, names })
    }

    /// Records that source `name` will be set next, or was cleared. Only one process calls this.
    pub fn publish(&self, name: &str, is_set: bool) {
        let index = self.names.iter().position(|other| other == name);
        let index = index.expect("a source of this board");
        let word = self.words.get(0, index);
        if (word % 2 == 1) != is_set {
            self.words.set(0, index, word + 1);
        }
    }

    /// Returns the current state.
    pub fn state(&self) -> State {
        State((0..self.names.len()).map(|index| self.words.get(0, index)).collect())
    }

    /// Returns whether one of `names` was set at any time between `before` and now.
    pub fn any_since(&self, before: &State, names: &[&str]) -> bool {
        let wanted = self.names.iter().enumerate().filter(|(_, name)| names.contains(&&***name));
        wanted.into_iter().any(|(index, _)| {
            let was = before.0[index];
            was % 2 == 1 || self.words.get(0, index) != was
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrently_set_source_is_detected() {
        let board = Board::new(vec!["copy".into(), "space".into()]).unwrap();
        let before = board.state();
        assert!(!board.any_since(&before, &["copy", "space"]));
        board.publish("copy", true);
        assert!(board.any_since(&before, &["copy"]) && !board.any_since(&before, &["space"]));
        let during = board.state();
        board.publish("copy", true);
        board.publish("copy", false);
        assert!(board.any_since(&before, &["copy", "space"]));
        assert!(board.any_since(&during, &["copy"]));
        assert!(!board.any_since(&board.state(), &["copy"]));
    }
}
