// SPDX-License-Identifier: GPL-2.0

//! The attributes of the kernel's macros crate that `rust/` uses.

use proc_macro::{Delimiter, Group, Ident, TokenStream, TokenTree};

/// Removes the tests, which need the kernel.
#[proc_macro_attribute]
pub fn kunit_tests(_name: TokenStream, _module: TokenStream) -> TokenStream {
    TokenStream::new()
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
