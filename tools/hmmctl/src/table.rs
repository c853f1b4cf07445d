// SPDX-License-Identifier: GPL-2.0
//! Tables in text: parsing of the kernel's, which begin with the names of the columns, and output.

use crate::problem::{
    Problem,
    Result, //
};
use std::collections::BTreeMap;

/// One line, by the names of its columns.
pub type Row = BTreeMap<String, String>;

/// Parses the text of a file called `file`.
pub fn parse(file: &str, text: &str) -> Result<Vec<Row>> {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.len() != names.len() {
            let found = words.len();
            let wanted = names.len();
            return Err(Problem::Format(format!(
                "{file}: {found} words for {wanted} columns: '{line}'"
            )));
        }
        Ok(names
            .iter()
            .zip(words)
            .map(|(name, word)| (name.to_string(), word.to_string()))
            .collect())
    };
    lines.filter(|line| !line.trim().is_empty()).map(row).collect()
}

/// The number in column `name`.
pub fn number<T: std::str::FromStr>(file: &str, row: &Row, name: &str) -> Result<T> {
    let text = row.get(name).map_or("", String::as_str);
    text.parse().map_err(|_| Problem::Format(format!("{file}: column {name} is '{text}'")))
}

/// Lines of words, each column as wide as it needs to be; the first `left` columns flush left.
pub fn aligned(lines: &[Vec<String>], left: usize) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for line in lines {
        widths.resize(widths.len().max(line.len()), 0);
        for (width, word) in widths.iter_mut().zip(line) {
            *width = (*width).max(word.chars().count());
        }
    }
    let mut text = String::new();
    for line in lines {
        let words = line.iter().zip(&widths).enumerate().map(|(index, (word, &width))| {
            if index < left {
                format!("{word:width$}")
            } else {
                format!("{word:>width$}")
            }
        });
        text.push_str(words.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Formats a number of bytes with a unit.
pub fn bytes(value: f64) -> String {
    let mut value = value;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return match unit {
                "B" => format!("{value:.0} B"),
                _ => format!("{value:.1} {unit}"),
            };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_names() {
        let rows = parse("mirrors", "mirror pid device\n3 812 0\n4 812 -\n").unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(number::<u32>("mirrors", &rows[0], "pid").unwrap(), 812);
        assert!(number::<u32>("mirrors", &rows[1], "device").is_err());
        assert!(number::<u32>("mirrors", &rows[1], "nothing").is_err());
        assert!(parse("mirrors", "a b\n1\n").unwrap_err().to_string().contains("1 words for 2"));
        assert_eq!(parse("mirrors", "").unwrap(), Vec::<Row>::new());
    }

    #[test]
    fn columns_are_aligned() {
        let lines = [vec!["a".into(), "1".into()], vec!["bcd".into(), "234".into()]];
        assert_eq!(aligned(&lines, 1), "a      1\nbcd  234\n");
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!(bytes(0.0), "0 B");
        assert_eq!(bytes(4096.0), "4.0 KiB");
        assert_eq!(bytes(1.5 * 1024.0 * 1024.0), "1.5 MiB");
        assert_eq!(bytes(5e15), "4547.5 TiB");
    }
}
