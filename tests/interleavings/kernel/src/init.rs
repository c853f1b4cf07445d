// SPDX-License-Identifier: GPL-2.0

//! Initializers. The kernel's write in place; these return a value.

use core::{
    convert::Infallible,
    pin::Pin, //
};

/// Initializer of a `T`.
pub trait PinInit<T, E = Infallible> {
    /// Returns the value.
    fn make(self) -> Result<T, E>;
}

/// An initializer that cannot fail.
pub struct Ready<T>(pub T);

impl<T> PinInit<T> for Ready<T> {
    fn make(self) -> Result<T, Infallible> {
        Ok(self.0)
    }
}

/// In the kernel, the constructors of these types return initializers.
macro_rules! values {
    ($([$($generics:tt)*] $type:ty;)*) => {$(
        impl<$($generics)*> PinInit<$type> for $type {
            fn make(self) -> Result<Self, Infallible> {
                Ok(self)
            }
        }
    )*};
}

values! {
    [T, B] crate::sync::lock::Lock<T, B>;
    [] crate::sync::CondVar;
    [] crate::sync::Completion;
    [] crate::sync::poll::PollCondVar;
    [T] crate::revocable::Revocable<T>;
    [T] crate::types::Opaque<T>;
}

/// An initializer that may fail.
pub struct Try<T, E>(pub Result<T, E>);

impl<T, E> PinInit<T, E> for Try<T, E> {
    fn make(self) -> Result<T, E> {
        self.0
    }
}

/// Stand-in for the trait of the kernel.
pub trait PinnedDrop {
    /// Drops it.
    fn drop(self: Pin<&mut Self>);
}

/// Initializes a structure whose fields have initializers.
#[macro_export]
macro_rules! pin_init {
    ($name:ident { $($fields:tt)* }) => {
        $crate::init::Ready($crate::pin_init_fields!([$name] [] $($fields)*))
    };
}

/// Like [`pin_init`], for initializers that may fail.
#[macro_export]
macro_rules! try_pin_init {
    ($name:ident { $($fields:tt)* }? $error:ty) => {
        $crate::init::Try((|| -> ::core::result::Result<_, $error> {
            Ok($crate::try_pin_init_fields!([$name] [] $($fields)*))
        })())
    };
}

/// Initializes the fields one after the other.
#[doc(hidden)]
#[macro_export]
macro_rules! pin_init_fields {
    ([$name:ident] [$($done:tt)*]) => { $name { $($done)* } };
    ([$name:ident] [$($done:tt)*] ,) => { $name { $($done)* } };
    ([$name:ident] [$($done:tt)*] $field:ident <- $value:expr, $($rest:tt)*) => {
        $crate::pin_init_fields!([$name]
            [$($done)* $field: match $crate::init::made($value) {
                Ok(value) => value,
                Err(never) => match never {},
            },] $($rest)*)
    };
    ([$name:ident] [$($done:tt)*] $field:ident: $value:expr, $($rest:tt)*) => {
        $crate::pin_init_fields!([$name] [$($done)* $field: $value,] $($rest)*)
    };
    ([$name:ident] [$($done:tt)*] $field:ident, $($rest:tt)*) => {
        $crate::pin_init_fields!([$name] [$($done)* $field,] $($rest)*)
    };
}

/// As [`pin_init_fields`], but returns the errors of initializers.
#[doc(hidden)]
#[macro_export]
macro_rules! try_pin_init_fields {
    ([$name:ident] [$($done:tt)*]) => { $name { $($done)* } };
    ([$name:ident] [$($done:tt)*] ,) => { $name { $($done)* } };
    ([$name:ident] [$($done:tt)*] $field:ident <- $value:expr, $($rest:tt)*) => {
        $crate::try_pin_init_fields!([$name]
            [$($done)* $field: $crate::init::PinInit::make($value)?,] $($rest)*)
    };
    ([$name:ident] [$($done:tt)*] $field:ident: $value:expr, $($rest:tt)*) => {
        $crate::try_pin_init_fields!([$name] [$($done)* $field: $value,] $($rest)*)
    };
    ([$name:ident] [$($done:tt)*] $field:ident, $($rest:tt)*) => {
        $crate::try_pin_init_fields!([$name] [$($done)* $field,] $($rest)*)
    };
}

/// Returns the value of an infallible initializer.
pub fn made<T>(init: impl PinInit<T, Infallible>) -> Result<T, Infallible> {
    init.make()
}
