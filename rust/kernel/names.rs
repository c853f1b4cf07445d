// SPDX-License-Identifier: GPL-2.0

//! Enumerations whose variants have names in log lines and files.

/// Defines an enumeration without fields, and a table `ALL` of its variants and their names. The
/// table is in the order of the discriminants, so that `variant as usize` is an index into it.
macro_rules! named {
    (
        $(#[$meta:meta])* $type:ident: $name:ty;
        $($(#[$doc:meta])* $variant:ident = $text:literal;)*
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum $type {
            $($(#[$doc])* $variant,)*
        }

        impl $type {
            /// All variants with their names.
            const ALL: &'static [(Self, $name)] = &[$((Self::$variant, $text),)*];
        }
    };
}

pub(crate) use named;
