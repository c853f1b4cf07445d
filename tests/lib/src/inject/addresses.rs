// SPDX-License-Identifier: GPL-2.0
//! Addresses of functions of the kernel, and of modules, to which injected failures are limited.

use std::fs;
use std::io;

/// Smallest address range in a text like `/proc/modules` that contains all modules `names`.
pub fn module_span(text: &str, names: &[&str]) -> Option<(u64, u64)> {
    let range = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let size: u64 = words.get(1)?.parse().ok()?;
        let start = u64::from_str_radix(words.get(5)?.strip_prefix("0x")?, 16).ok()?;
        names.contains(words.first()?).then_some((start, start + size))
    };
    let hull = |a: (u64, u64), b: (u64, u64)| (a.0.min(b.0), a.1.max(b.1));
    text.lines().filter_map(range).reduce(hull).filter(|(start, _)| *start != 0)
}

/// Maximum length of such a range.
const NEAR: u64 = 1 << 14;

/// Addresses and names of the symbols in a text like `/proc/kallsyms`.
fn symbols(text: &str) -> impl Iterator<Item = (u64, &str)> + Clone {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        Some((address, words.nth(1)?))
    })
}

/// Address of symbol `name` in such a text.
fn address_of(text: &str, name: &str) -> Option<u64> {
    symbols(text).find(|(_, symbol)| *symbol == name).map(|(address, _)| address)
}

/// Address range of function `name` in such a text: up to the next symbol.
fn function_span(text: &str, name: &str) -> Option<(u64, u64)> {
    let start = address_of(text, name)?;
    let end = symbols(text).map(|(address, _)| address).filter(|address| *address > start).min()?;
    Some((start, end))
}

/// Address range of the adjacent functions `names`.
pub(super) fn joint_span(text: &str, names: &[&str]) -> Option<(u64, u64)> {
    let spans = names.iter().map(|name| function_span(text, name));
    let (start, end) = spans.reduce(|a, b| Some((a?.0.min(b?.0), a?.1.max(b?.1)))).flatten()?;
    (end - start < NEAR).then_some((start, end))
}

/// Distance from the kernel's code within which modules are loaded, on each architecture.
const REACH: u64 = 1 << 31;

/// Address range of modules that are loaded on the same side of the kernel's code as `module`.
/// `text` is one like `/proc/kallsyms`.
fn area_around(text: &str, module: (u64, u64)) -> Option<(u64, u64)> {
    let start = address_of(text, "_stext")?;
    let end = address_of(text, "_etext")?;
    if module.1 <= start {
        Some((start.saturating_sub(REACH), start))
    } else if module.0 >= end {
        Some((end, end.saturating_add(REACH)))
    } else {
        None
    }
}

/// Address range into which this kernel loads modules. Any of `names` must be loaded.
///
/// It is for code of a module that is being loaded, whose own range is not known yet.
pub fn module_area(names: &[&str]) -> io::Result<(u64, u64)> {
    let modules = fs::read_to_string("/proc/modules")?;
    let symbols = fs::read_to_string("/proc/kallsyms")?;
    let area = module_span(&modules, names).and_then(|span| area_around(&symbols, span));
    let missing = || format!("no addresses of {} and of the kernel", names.join(", "));
    area.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, missing()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_hold_all_modules() {
        let text = "rust_dmirror 4096 0 - Live 0xffffffffc0204000 (O)\n\
                    rust_hmm 8192 1 rust_dmirror, Live 0xffffffffc0200000\n\
                    other 4096 0 - Live 0xffffffffc0300000\n";
        let span = (0xffff_ffff_c020_0000, 0xffff_ffff_c020_5000);
        assert_eq!(module_span(text, &["rust_hmm", "rust_dmirror"]), Some(span));
        assert_eq!(module_span("rust_hmm 8192 1 - Live 0x0\n", &["rust_hmm"]), None);
        assert_eq!(module_span(text, &["none"]), None);
    }

    #[test]
    fn functions_end_at_the_next_symbol() {
        let text = "ffffffff81000100 t after\n\
                    ffffffff81000000 T before\n\
                    ffffffff81000040 t wanted\n\
                    ffffffffc0200000 t wanted_too\t[rust_hmm]\n";
        let span = (0xffff_ffff_8100_0040, 0xffff_ffff_8100_0100);
        assert_eq!(function_span(text, "wanted"), Some(span));
        assert_eq!(function_span(text, "want"), None);
    }

    #[test]
    fn modules_are_on_one_side_of_the_kernel() {
        let text = "ffffffff81000000 T _stext\n\
                    ffffffff82000000 T _etext\n";
        let below = (0xffff_ffff_0100_0000, 0xffff_ffff_8100_0000);
        let above = (0xffff_ffff_8200_0000, u64::MAX);
        let at = |start: u64| area_around(text, (start, start + 0x1000));
        assert_eq!(at(0xffff_ffff_80ff_f000), Some(below));
        assert_eq!(at(0xffff_ffff_a000_0000), Some(above));
        assert_eq!(at(0xffff_ffff_8100_0000), None);
        assert_eq!(area_around("ffffffff81000000 T _stext\n", below), None);
    }

    #[test]
    fn adjacent_functions_are_merged() {
        let text = "ffffffff81000000 T one\n\
                    ffffffff81000040 t two\n\
                    ffffffff81000100 t three\n\
                    ffffffff81100000 t far\n\
                    ffffffff81100100 t end\n";
        let span = (0xffff_ffff_8100_0000, 0xffff_ffff_8100_0100);
        assert_eq!(joint_span(text, &["one", "two"]), Some(span));
        assert_eq!(joint_span(text, &["two", "one"]), Some(span));
        assert_eq!(joint_span(text, &["one", "far"]), None);
        assert_eq!(joint_span(text, &["one", "none"]), None);
    }
}
