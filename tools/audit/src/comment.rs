// SPDX-License-Identifier: GPL-2.0
//! Comments of a source file. They are found by line, because the parser does not keep them.

/// Lines of a file, without leading and trailing white space.
pub(crate) struct Lines<'a>(Vec<&'a str>);

impl<'a> Lines<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self(text.lines().map(str::trim).collect())
    }

    /// Returns the comment lines that end right above line `line` (counted from 1), first to last.
    /// Attributes between the comment and the line are skipped.
    fn above(&self, line: usize, prefix: &str) -> Vec<&'a str> {
        let mut at = line.saturating_sub(1).min(self.0.len());
        let mut found = Vec::new();
        while at > 0 {
            let text = self.0[at - 1];
            match text.strip_prefix(prefix) {
                // `///` and `//!` lines are documentation, not plain comments.
                Some(rest) if prefix != "//" || !rest.starts_with(['/', '!']) => {
                    found.push(rest.trim())
                }
                _ if text.starts_with("#[") && found.is_empty() => {}
                _ => break,
            }
            at -= 1;
        }
        found.reverse();
        found
    }

    /// Returns the text of the `// SAFETY:` comment above `line`.
    pub(crate) fn safety(&self, line: usize) -> Option<String> {
        let comment = self.above(line, "//");
        let start = comment.iter().position(|text| text.starts_with("SAFETY:"))?;
        let mut words = vec![comment[start].trim_start_matches("SAFETY:").trim()];
        for text in &comment[start + 1..] {
            // A remark with another marker ends the text.
            if marker(text) {
                break;
            }
            words.push(text);
        }
        joined(&words)
    }

    /// Returns the text of the section `# Safety` in the documentation above `line`.
    pub(crate) fn safety_section(&self, line: usize) -> Option<String> {
        let doc = self.above(line, "///");
        let start = doc.iter().position(|text| *text == "# Safety")?;
        let body = doc[start + 1..].iter().take_while(|text| !text.starts_with("# "));
        joined(&body.copied().collect::<Vec<_>>())
    }
}

/// Returns whether a comment line begins with a word such as `INVARIANT:`.
fn marker(text: &str) -> bool {
    text.split_once(':').is_some_and(|(word, _)| {
        word.len() > 2 && word.chars().all(|c| c.is_ascii_uppercase() || c == ' ')
    })
}

fn joined(words: &[&str]) -> Option<String> {
    let text = words.iter().filter(|word| !word.is_empty()).copied().collect::<Vec<_>>().join(" ");
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_with_the_comment() {
        let text = "// before\n// SAFETY: one\n// two.\n// INVARIANT: three\nunsafe {}\n";
        assert_eq!(Lines::new(text).safety(5).as_deref(), Some("one two."));
        assert_eq!(Lines::new(text).safety(4).as_deref(), Some("one two."));
        assert_eq!(Lines::new("/// SAFETY: no\nunsafe {}").safety(2), None);
        assert_eq!(Lines::new("// SAFETY:\nunsafe {}").safety(2), None);
        assert_eq!(Lines::new("// SAFETY: far\n\nunsafe {}").safety(3), None);
    }

    #[test]
    fn attributes_and_doc_sections_are_skipped() {
        let text = "/// Does it.\n///\n/// # Safety\n///\n/// Be careful.\n///\n/// # Errors\n/// None\n#[inline]\nunsafe fn f() {}";
        assert_eq!(Lines::new(text).safety_section(10).as_deref(), Some("Be careful."));
        let text = "// SAFETY: yes\n#[cfg(x)]\nunsafe impl Send for X {}";
        assert_eq!(Lines::new(text).safety(3).as_deref(), Some("yes"));
    }
}
