// SPDX-License-Identifier: GPL-2.0

//! The attributes of the kernel's macros crate that `rust/` uses.

use proc_macro::{
    Delimiter,
    Group,
    Ident,
    TokenStream,
    TokenTree, //
};

/// Names whose users need the kernel, because they have no complete stand-in.
const KERNEL: [&str; 10] = [
    // Alarms and their counts.
    "ExpectedAlarm",
    "FlushLost",
    "Thread",
    // Pages, and memory that a device reaches.
    "alloc_page",
    "coherent",
    "with_writes",
    "DmaBuffer",
    "Buffer",
    // Tests that expect the addresses of an IOMMU.
    "pages_are_mapped_with_entries_and_unmapped_after_the_flush",
    "closing_frees_buffers_that_were_not_dropped",
];

/// Whether the kernel is needed by something in `stream`.
fn needs_kernel(stream: &TokenStream) -> bool {
    stream.clone().into_iter().any(|token| match token {
        TokenTree::Group(group) => needs_kernel(&group.stream()),
        TokenTree::Ident(ident) => KERNEL.contains(&ident.to_string().as_str()),
        _ => false,
    })
}

/// Removes the items that need the kernel from the contents of a module.
fn without_kernel(stream: TokenStream) -> TokenStream {
    let mut kept = TokenStream::new();
    let mut item = TokenStream::new();
    for token in stream {
        let ends = match &token {
            TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
            TokenTree::Punct(punct) => punct.as_char() == ';',
            _ => false,
        };
        // Both `use` and `fn` end at a brace or a semicolon; a brace in a `use` does not matter.
        item.extend([token]);
        if ends {
            let item = core::mem::take(&mut item);
            if !needs_kernel(&item) {
                kept.extend(item);
            }
        }
    }
    kept.extend(item);
    kept
}

/// Makes a suite a module of ordinary tests with the name of the suite, with `--cfg
/// hmm_host_tests`. Otherwise removes it.
#[proc_macro_attribute]
pub fn kunit_tests(name: TokenStream, module: TokenStream) -> TokenStream {
    if !cfg!(hmm_host_tests) {
        return TokenStream::new();
    }
    let attribute: TokenStream = "#[cfg(test)]".parse().expect("tokens");
    let mut name = name.into_iter();
    let module = module.into_iter().map(|token| match token {
        TokenTree::Ident(ident) if ident.to_string() != "mod" => name.next().expect("a name"),
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
            TokenTree::Group(Group::new(Delimiter::Brace, without_kernel(group.stream())))
        }
        token => token,
    });
    attribute.into_iter().chain(module).collect()
}

/// Whether `group` is `[pin]`.
fn is_pin(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Group(group)
        if group.delimiter() == Delimiter::Bracket && group.stream().to_string() == "pin")
}

/// Removes each `#[pin]`.
fn without_pin(stream: TokenStream) -> TokenStream {
    let mut kept = Vec::new();
    for token in stream {
        if is_pin(&token) {
            kept.pop();
            continue;
        }
        kept.push(match token {
            TokenTree::Group(group) => {
                let inner = without_pin(group.stream());
                TokenTree::Group(Group::new(group.delimiter(), inner))
            }
            token => token,
        });
    }
    kept.into_iter().collect()
}

/// Accepts a structure with pinned fields. Here it is initialized by value, because no object with
/// a fixed address is moved.
#[proc_macro_attribute]
pub fn pin_data(_drop: TokenStream, item: TokenStream) -> TokenStream {
    without_pin(item)
}

/// Implements `Drop` by a call of the implementation of `PinnedDrop`.
#[proc_macro_attribute]
pub fn pinned_drop(_arguments: TokenStream, item: TokenStream) -> TokenStream {
    let tokens: Vec<_> = item.clone().into_iter().collect();
    let header = tokens
        .iter()
        .take(tokens.len() - 1)
        .map(|token| match token {
            TokenTree::Ident(ident) if ident.to_string() == "PinnedDrop" => {
                TokenTree::Ident(Ident::new("Drop", ident.span()))
            }
            token => token.clone(),
        });
    let body: TokenStream = "{
        fn drop(&mut self) {
            unsafe {
                <Self as ::kernel::prelude::PinnedDrop>::drop(::core::pin::Pin::new_unchecked(self))
            }
        }
    }"
    .parse()
    .expect("tokens");
    item.into_iter().chain(header).chain(body).collect()
}
