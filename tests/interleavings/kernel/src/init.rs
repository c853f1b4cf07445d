// SPDX-License-Identifier: GPL-2.0

//! Initializers. In the kernel they write into place; here they make a value.

use core::{convert::Infallible, pin::Pin};

/// Makes a `T`.
pub trait PinInit<T, E = Infallible> {
    /// Makes it.
    fn make(self) -> Result<T, E>;
}

/// What cannot fail.
pub struct Ready<T>(pub T);

impl<T> PinInit<T> for Ready<T> {
    fn make(self) -> Result<T, Infallible> {
        Ok(self.0)
    }
}

/// In the kernel the constructors of these give initializers.
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

/// What may fail.
pub struct Try<T, E>(pub Result<T, E>);

impl<T, E> PinInit<T, E> for Try<T, E> {
    fn make(self) -> Result<T, E> {
        self.0
    }
}

/// As the trait of the kernel.
pub trait PinnedDrop {
    /// Drops it.
    fn drop(self: Pin<&mut Self>);
}

/// A value of a structure whose fields are made by initializers.
#[macro_export]
macro_rules! pin_init {
    ($name:ident { $($fields:tt)* }) => {
        $crate::init::Ready($crate::pin_init_fields!([$name] [] $($fields)*))
    };
}

/// As [`pin_init`], where making it may fail.
#[macro_export]
macro_rules! try_pin_init {
    ($name:ident { $($fields:tt)* }? $error:ty) => {
        $crate::init::Try((|| -> ::core::result::Result<_, $error> {
            Ok($crate::pin_init_fields!([$name] [] $($fields)*))
        })())
    };
}

/// Makes the fields one by one.
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

/// What `init` makes.
pub fn made<T>(init: impl PinInit<T, Infallible>) -> Result<T, Infallible> {
    init.make()
}
