// SPDX-License-Identifier: GPL-2.0

//! Stand-in for `kernel::alloc`. Allocations never fail.

use crate::{
    error::Error,
    init::PinInit, //
};
use core::{
    marker::Unsize,
    ops::{
        CoerceUnsized,
        Deref,
        DerefMut, //
    },
    pin::Pin, //
};

/// The error of a failed allocation.
#[derive(Debug)]
pub struct AllocError;

/// Flags of an allocation.
#[derive(Clone, Copy)]
pub struct Flags;

impl core::ops::BitOr for Flags {
    type Output = Self;

    fn bitor(self, _: Self) -> Self {
        self
    }
}

/// The flags.
pub mod flags {
    use super::Flags;

    pub const GFP_KERNEL: Flags = Flags;
    pub const GFP_KERNEL_ACCOUNT: Flags = Flags;
    pub const GFP_NOWAIT: Flags = Flags;
    pub const GFP_ATOMIC: Flags = Flags;
    pub const __GFP_NOWARN: Flags = Flags;
}

/// A box.
pub struct KBox<T: ?Sized>(Box<T>);

impl<T> KBox<T> {
    pub fn new(value: T, _flags: Flags) -> Result<Self, AllocError> {
        Ok(Self(Box::new(value)))
    }

    pub fn pin(value: T, _flags: Flags) -> Result<Pin<Self>, AllocError> {
        Ok(Self(Box::new(value)).into())
    }

    pub fn pin_init<E>(init: impl PinInit<T, E>, _flags: Flags) -> Result<Pin<Self>, Error>
    where
        Error: From<E>,
    {
        Ok(Self(Box::new(init.make()?)).into())
    }

    pub fn into_inner(this: Self) -> T {
        *this.0
    }
}

impl<T: ?Sized> KBox<T> {
    pub fn into_raw(this: Self) -> *mut T {
        Box::into_raw(this.0)
    }

    pub unsafe fn from_raw(raw: *mut T) -> Self {
        Self(unsafe { Box::from_raw(raw) })
    }

    pub fn leak<'a>(this: Self) -> &'a mut T {
        Box::leak(this.0)
    }
}

impl<T: ?Sized> From<KBox<T>> for Pin<KBox<T>> {
    fn from(this: KBox<T>) -> Self {
        unsafe { Pin::new_unchecked(this) }
    }
}

impl<T: ?Sized + Unsize<U>, U: ?Sized> CoerceUnsized<KBox<U>> for KBox<T> {}

impl<T: ?Sized> Deref for KBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: ?Sized> DerefMut for KBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// A vector.
pub struct KVec<T>(Vec<T>);

pub type KVVec<T> = KVec<T>;
pub type VVec<T> = KVec<T>;

/// A vector is full.
#[derive(Debug)]
pub struct PushError<T>(pub T);

impl<T> KVec<T> {
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    pub fn with_capacity(capacity: usize, _flags: Flags) -> Result<Self, AllocError> {
        Ok(Self(Vec::with_capacity(capacity)))
    }

    pub fn push(&mut self, value: T, _flags: Flags) -> Result<(), AllocError> {
        self.0.push(value);
        Ok(())
    }

    pub fn push_within_capacity(&mut self, value: T) -> Result<(), PushError<T>> {
        if self.0.len() == self.0.capacity() {
            return Err(PushError(value));
        }
        self.0.push(value);
        Ok(())
    }

    pub fn reserve(&mut self, more: usize, _flags: Flags) -> Result<(), AllocError> {
        self.0.reserve(more);
        Ok(())
    }

    pub fn resize(&mut self, len: usize, value: T, _flags: Flags) -> Result<(), AllocError>
    where
        T: Clone,
    {
        self.0.resize(len, value);
        Ok(())
    }

    pub fn remove(&mut self, index: usize) -> Result<T, AllocError> {
        if index < self.0.len() {
            Ok(self.0.remove(index))
        } else {
            Err(AllocError)
        }
    }

    pub fn pop(&mut self) -> Option<T> {
        self.0.pop()
    }

    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&mut T) -> bool) {
        self.0.retain_mut(|value| keep(value));
    }

    pub fn drain_all(&mut self) -> std::vec::Drain<'_, T> {
        self.0.drain(..)
    }

    pub fn as_slice(&self) -> &[T] {
        &self.0
    }

    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }
}

impl<T> Default for KVec<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Deref for KVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for KVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T> IntoIterator for KVec<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a KVec<T> {
    type Item = &'a T;
    type IntoIter = core::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<'a, T> IntoIterator for &'a mut KVec<T> {
    type Item = &'a mut T;
    type IntoIter = core::slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter_mut()
    }
}
