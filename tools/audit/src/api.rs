// SPDX-License-Identifier: GPL-2.0
//! Public safe functions of the library, compared with the functions that a document's table names.

use crate::Source;
use anyhow::{
    ensure,
    Context,
    Result, //
};
use serde::Serialize;
use std::collections::BTreeSet;
use syn::{
    Attribute,
    ImplItem,
    Item,
    ItemImpl,
    Signature,
    TraitItem,
    Type,
    Visibility, //
};

/// A public safe function.
#[derive(Debug, Serialize, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Function {
    /// `Type::name`, or the name alone.
    name: String,
    file: String,
    /// Whether the table of attacks names it.
    listed: bool,
}

/// Returns whether an item exists only for tests.
fn for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        path.is_ident("kunit_tests")
            || path.is_ident("cfg")
                && matches!(&attribute.meta, syn::Meta::List(list)
                    if list.tokens.to_string().contains("CONFIG_RUST_HMM_KUNIT_TEST"))
    })
}

fn type_name(ty: &Type) -> Option<String> {
    match ty {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        _ => None,
    }
}

#[derive(Default)]
struct Api {
    public: BTreeSet<String>,
    functions: Vec<(Option<String>, String, String)>,
}

impl Api {
    fn function(&mut self, owner: Option<&str>, signature: &Signature, file: &str) {
        if signature.unsafety.is_none() {
            let owner = owner.map(str::to_string);
            self.functions.push((owner, signature.ident.to_string(), file.to_string()));
        }
    }

    fn methods(&mut self, block: &ItemImpl, file: &str) {
        let Some(owner) = type_name(&block.self_ty).filter(|_| block.trait_.is_none()) else {
            return;
        };
        for item in &block.items {
            if let ImplItem::Fn(method) = item {
                if matches!(method.vis, Visibility::Public(_)) && !for_tests(&method.attrs) {
                    self.function(Some(&owner), &method.sig, file);
                }
            }
        }
    }

    fn items(&mut self, items: &[Item], file: &str) {
        for item in items {
            match item {
                Item::Struct(item) if matches!(item.vis, Visibility::Public(_)) => {
                    self.public.insert(item.ident.to_string());
                }
                Item::Enum(item) if matches!(item.vis, Visibility::Public(_)) => {
                    self.public.insert(item.ident.to_string());
                }
                Item::Trait(item) if matches!(item.vis, Visibility::Public(_)) => {
                    let name = item.ident.to_string();
                    self.public.insert(name.clone());
                    for item in &item.items {
                        if let TraitItem::Fn(method) = item {
                            self.function(Some(&name), &method.sig, file);
                        }
                    }
                }
                Item::Fn(item)
                    if matches!(item.vis, Visibility::Public(_)) && !for_tests(&item.attrs) =>
                {
                    self.function(None, &item.sig, file);
                }
                Item::Impl(item) if !for_tests(&item.attrs) => self.methods(item, file),
                Item::Mod(item) if !for_tests(&item.attrs) => {
                    if let Some((_, items)) = &item.content {
                        self.items(items, file);
                    }
                }
                _ => {}
            }
        }
    }
}

/// Returns whether `table` has the function, or all functions of its type, as a literal.
fn is_listed(table: &str, owner: Option<&str>, name: &str) -> bool {
    match owner {
        Some(owner) => {
            table.contains(&format!("``{owner}::{name}``"))
                || table.contains(&format!("``{owner}::*``"))
        }
        None => table.contains(&format!("``{name}``")),
    }
}

/// Returns the public safe functions of `sources`, sorted.
pub(crate) fn functions(sources: &[Source], table: &str) -> Result<Vec<Function>> {
    let mut api = Api::default();
    for source in sources.iter().filter(|source| !source.name.ends_with("tests.rs")) {
        let file = syn::parse_file(&source.text).with_context(|| source.name.clone())?;
        api.items(&file.items, &source.name);
    }
    let public = &api.public;
    let reachable = api.functions.iter().filter(|(owner, _, _)| match owner {
        Some(owner) => public.contains(owner),
        None => true,
    });
    let mut functions = reachable
        .map(|(owner, name, file)| Function {
            name: match owner {
                Some(owner) => format!("{owner}::{name}"),
                None => name.clone(),
            },
            file: file.clone(),
            listed: is_listed(table, owner.as_deref(), name),
        })
        .collect::<Vec<_>>();
    functions.sort();
    Ok(functions)
}

/// Prints the functions. Fails if the table does not name one of them.
pub(crate) fn report(sources: &[Source], table: &str, json: bool) -> Result<()> {
    let functions = functions(sources, table)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&functions)?);
    } else {
        for function in &functions {
            let mark = if function.listed { ' ' } else { '!' };
            println!("{mark} {:44} {}", function.name, function.file);
        }
    }
    let missing = functions.iter().filter(|function| !function.listed);
    let missing = missing.map(|function| function.name.as_str()).collect::<Vec<_>>();
    println!("{} public safe functions, {} not in the table", functions.len(), missing.len());
    ensure!(missing.is_empty(), "the table of attacks does not name: {}", missing.join(" "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "pub struct A; struct B;\n\
        impl A { pub fn one(&self) {} pub(crate) fn two() {} pub unsafe fn three() {} fn four() {} }\n\
        impl B { pub fn hidden() {} }\n\
        pub trait T { fn five(&self); }\n\
        impl T for A { fn five(&self) {} }\n\
        pub fn six() {}\n\
        #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)] pub fn seven() {}\n\
        #[kunit_tests(x)] mod tests { pub fn eight() {} }\n";

    #[test]
    fn only_public_safe_functions_are_listed() {
        let source = Source { name: "a.rs".into(), text: TEXT.into() };
        let table = "``A::*`` ``T::five``";
        let found = functions(&[source], table).unwrap();
        let names = found.iter().map(|function| (function.name.as_str(), function.listed));
        let names = names.collect::<Vec<_>>();
        assert_eq!(names, [("A::one", true), ("T::five", true), ("six", false)]);
        let source = Source { name: "a.rs".into(), text: TEXT.into() };
        assert!(report(&[source], table, true).is_err());
        let source = Source { name: "a.rs".into(), text: TEXT.into() };
        assert!(report(&[source], "``A::one``, ``T::five``, ``six``", false).is_ok());
    }
}
