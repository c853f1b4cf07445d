// SPDX-License-Identifier: GPL-2.0
//! Finds every use of `unsafe` in the token stream of a file, including those in macro invocations.

use crate::{
    comment::Lines,
    Source, //
};
use anyhow::{
    anyhow,
    ensure,
    Result, //
};
use proc_macro2::{
    Delimiter,
    TokenStream,
    TokenTree, //
};
use serde::Serialize;
use std::collections::BTreeMap;

/// Item or expression that an `unsafe` keyword introduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Block,
    Impl,
    Fn,
    Trait,
    Other,
}

/// One use of `unsafe`.
#[derive(Debug, Serialize)]
pub(crate) struct Site {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) kind: Kind,
    /// Name of the enclosing function, or of the unsafe item itself.
    pub(crate) within: String,
    /// Text of the safety comment: the facts a block relies on, or the requirements of a function.
    pub(crate) safety: Option<String>,
}

struct Finder<'a> {
    file: &'a str,
    lines: Lines<'a>,
    found: Vec<Site>,
}

fn ident(token: Option<&TokenTree>) -> Option<String> {
    match token? {
        TokenTree::Ident(ident) => Some(ident.to_string()),
        _ => None,
    }
}

fn is_punct(token: &TokenTree, chars: &[char]) -> bool {
    matches!(token, TokenTree::Punct(punct) if chars.contains(&punct.as_char()))
}

/// Renders tokens as source text, with spaces only between words.
fn spelled<'a>(tokens: impl Iterator<Item = &'a TokenTree>) -> String {
    let mut text = String::new();
    for token in tokens {
        let word = matches!(token, TokenTree::Ident(_));
        if word && text.ends_with(|c: char| c.is_alphanumeric() || c == '>') {
            text.push(' ');
        }
        text += &token.to_string();
    }
    text
}

/// Returns the kind of the `unsafe` token at index `at`, and the item's name if it has one. `None`
/// if the token is part of a function pointer type.
fn kind(tokens: &[TokenTree], at: usize) -> Option<(Kind, Option<String>)> {
    let next = tokens.get(at + 1);
    if matches!(next, Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace) {
        return Some((Kind::Block, None));
    }
    match ident(next).as_deref() {
        Some("impl") => {
            let rest = tokens.iter().skip(at + 2);
            let rest = rest.take_while(|token| !matches!(token, TokenTree::Group(_)));
            Some((Kind::Impl, Some(spelled(rest))))
        }
        Some("trait") => Some((Kind::Trait, ident(tokens.get(at + 2)))),
        Some("fn" | "extern") => {
            let mut rest = (at + 1..tokens.len()).skip_while(|i| {
                ident(tokens.get(*i)).as_deref() == Some("extern")
                    || matches!(tokens.get(*i), Some(TokenTree::Literal(_)))
            });
            let first = rest.next()?;
            if ident(tokens.get(first)).as_deref() != Some("fn") {
                return Some((Kind::Other, None));
            }
            ident(tokens.get(first + 1)).map(|name| (Kind::Fn, Some(name)))
        }
        _ => Some((Kind::Other, None)),
    }
}

impl Finder<'_> {
    /// Walks `stream`. `starts` has the first lines of the constructs that enclose the tokens,
    /// innermost last, out to the statement.
    fn walk(&mut self, stream: TokenStream, within: &str, starts: &[usize]) {
        let tokens = stream.into_iter().collect::<Vec<_>>();
        let mut within = within.to_string();
        let mut begin = None;
        for (at, token) in tokens.iter().enumerate() {
            let line = token.span().start().line;
            let start = *begin.get_or_insert(line);
            match token {
                TokenTree::Ident(word) if word == "fn" => {
                    if let Some(name) = ident(tokens.get(at + 1)) {
                        within = name;
                    }
                }
                TokenTree::Ident(word) if word == "unsafe" => {
                    if let Some((kind, name)) = kind(&tokens, at) {
                        self.site(kind, name.as_ref().unwrap_or(&within), line, start, starts);
                    }
                }
                TokenTree::Group(group) => {
                    let brace = group.delimiter() == Delimiter::Brace;
                    // A comment above the head of a body does not cover the statements in the body.
                    let mut inner = Vec::new();
                    if !brace {
                        inner.extend_from_slice(starts);
                        inner.push(start);
                    }
                    self.walk(group.stream(), &within, &inner);
                    if brace {
                        begin = None;
                    }
                }
                _ => {}
            }
            if is_punct(token, &[';', ',']) {
                begin = None;
            }
        }
    }

    fn site(&mut self, kind: Kind, within: &str, line: usize, start: usize, starts: &[usize]) {
        let safety = match kind {
            Kind::Fn | Kind::Trait => {
                self.lines.safety_section(line).or_else(|| self.lines.safety_section(start))
            }
            _ => [line, start]
                .iter()
                .chain(starts.iter().rev())
                .find_map(|line| self.lines.safety(*line)),
        };
        self.found.push(Site {
            file: self.file.to_string(),
            line,
            kind,
            within: within.to_string(),
            safety,
        });
    }
}

/// Returns all uses of `unsafe` in `source`.
pub(crate) fn find(source: &Source) -> Result<Vec<Site>> {
    let stream: TokenStream =
        source.text.parse().map_err(|error| anyhow!("{}: {error}", source.name))?;
    let mut finder =
        Finder { file: &source.name, lines: Lines::new(&source.text), found: Vec::new() };
    finder.walk(stream, "", &[]);
    Ok(finder.found)
}

#[derive(Serialize)]
struct Report {
    library: Vec<Site>,
    samples: Vec<Site>,
    files: BTreeMap<String, BTreeMap<Kind, usize>>,
}

/// Prints all uses of `unsafe`. Fails if one in the library has no safety comment or if a sample
/// has any.
pub(crate) fn report(library: &[Source], samples: &[Source], json: bool) -> Result<()> {
    let all = |sources: &[Source]| -> Result<Vec<Site>> {
        Ok(sources.iter().map(find).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    };
    let mut report =
        Report { library: all(library)?, samples: all(samples)?, files: BTreeMap::new() };
    for site in report.library.iter().chain(&report.samples) {
        let file = report.files.entry(site.file.clone()).or_default();
        *file.entry(site.kind).or_default() += 1;
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print_text(&report);
    }
    let silent = report.library.iter().filter(|site| site.safety.is_none());
    let silent = silent.map(|site| format!("{}:{}", site.file, site.line)).collect::<Vec<_>>();
    ensure!(silent.is_empty(), "without SAFETY text: {}", silent.join(" "));
    let samples = report.samples.iter().map(|site| format!("{}:{}", site.file, site.line));
    let samples = samples.collect::<Vec<_>>();
    ensure!(samples.is_empty(), "unsafe in a sample: {}", samples.join(" "));
    Ok(())
}

const KINDS: [Kind; 5] = [Kind::Block, Kind::Impl, Kind::Fn, Kind::Trait, Kind::Other];

fn print_text(report: &Report) {
    let mut file = "";
    for site in report.library.iter().chain(&report.samples) {
        if file != site.file {
            file = &site.file;
            println!("\n{file}");
        }
        let kind = format!("{:?}", site.kind).to_lowercase();
        let safety = site.safety.as_deref().unwrap_or("NOTHING IS SAID");
        println!("  {:>4} {kind:5} {}: {safety}", site.line, site.within);
    }
    println!("\n{:40} {}", "file", KINDS.map(|k| format!("{:>6}", format!("{k:?}"))).concat());
    let mut sum = [0; KINDS.len()];
    for (file, counts) in &report.files {
        let row = KINDS.map(|kind| counts.get(&kind).copied().unwrap_or(0));
        println!("{file:40} {}", row.map(|count| format!("{count:>6}")).concat());
        sum = std::array::from_fn(|i| sum[i] + row[i]);
    }
    println!("{:40} {}", "sum", sum.map(|count| format!("{count:>6}")).concat());
    println!("in samples: {}", report.samples.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sites(text: &str) -> Vec<Site> {
        find(&Source { name: "x.rs".into(), text: text.into() }).unwrap()
    }

    #[test]
    fn every_unsafe_site_is_found_and_no_other_word() {
        let found = sites(
            "// unsafe {}\nfn a() { let s = \"unsafe {}\"; let r = r#\"unsafe \"#; }\n\
             /// # Safety\n///\n/// Once.\npub unsafe extern \"C\" fn b() {}\n\
             // SAFETY: Sent.\nunsafe impl Send for X {}\n\
             struct Y { f: unsafe fn(*mut u8), g: unsafe extern \"C\" fn() }\n\
             #![forbid(unsafe_code)]\n",
        );
        let kinds = found.iter().map(|site| (site.kind, site.within.as_str())).collect::<Vec<_>>();
        assert_eq!(kinds, [(Kind::Fn, "b"), (Kind::Impl, "Send for X")]);
        assert_eq!(found[0].safety.as_deref(), Some("Once."));
        assert_eq!(found[1].safety.as_deref(), Some("Sent."));
    }

    #[test]
    fn comment_of_the_statement_is_used() {
        let found = sites(
            "fn f() {\n\
             // SAFETY: One.\n\
             let x = call(a,\n\
             b,\n\
             unsafe { c() });\n\
             match x {\n\
             // SAFETY: Two.\n\
             Some(y) =>\n\
             unsafe { d(y) },\n\
             // SAFETY: Three.\n\
             None => e(unsafe { f() }),\n\
             }\n\
             pin_init!(S { a <- init(|p| {\n\
             // SAFETY: Four.\n\
             unsafe { p.write(0) } }) })\n\
             }\n",
        );
        let text = found.iter().map(|site| site.safety.clone().unwrap_or_default());
        let text = text.collect::<Vec<_>>();
        assert_eq!(text, ["One.", "Two.", "Three.", "Four."]);
        assert!(found.iter().all(|site| site.within == "f" && site.kind == Kind::Block));
    }

    #[test]
    fn missing_comment_is_reported() {
        // A safety comment that belongs to another statement does not count.
        let found = sites(
            "// SAFETY: Of f.\nfn f() {\nlet a = 1;\nunsafe { b() };\n}\nunsafe trait T {}\n",
        );
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|site| site.safety.is_none()), "{found:?}");
        let library = Source { name: "a.rs".into(), text: "unsafe fn f() {}".into() };
        assert!(report(&[library], &[], false).is_err());
        let sample = Source {
            name: "s.rs".into(),
            text: "// SAFETY: Never.\nunsafe impl Send for X {}".into(),
        };
        assert!(report(&[], &[sample], true).is_err());
        let good = Source { name: "g.rs".into(), text: "fn f() {}".into() };
        assert!(report(&[good], &[], true).is_ok());
    }
}
