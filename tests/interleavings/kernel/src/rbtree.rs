// SPDX-License-Identifier: GPL-2.0

//! Stand-in for `kernel::rbtree`.

use crate::{
    alloc::{
        AllocError,
        Flags, //
    },
    error::Error, //
};
use std::collections::BTreeMap;

/// A tree.
pub struct RBTree<K, V>(BTreeMap<K, V>);

/// An element that is not in a tree.
pub struct RBTreeNode<K, V>(K, V);

impl<K, V> RBTreeNode<K, V> {
    pub fn new(key: K, value: V, _flags: Flags) -> Result<Self, AllocError> {
        Ok(Self(key, value))
    }
}

/// Memory of an element.
pub struct RBTreeNodeReservation<K, V>(core::marker::PhantomData<(K, V)>);

impl<K, V> RBTreeNodeReservation<K, V> {
    pub fn new(_flags: Flags) -> Result<Self, AllocError> {
        Ok(Self(core::marker::PhantomData))
    }

    pub fn into_node(self, key: K, value: V) -> RBTreeNode<K, V> {
        RBTreeNode(key, value)
    }
}

/// A position in a tree whose elements can be changed.
pub struct CursorMut<'a, K, V>(&'a mut BTreeMap<K, V>, K);

impl<K: Ord + Clone, V> CursorMut<'_, K, V> {
    pub fn current_mut(&mut self) -> (&K, &mut V) {
        (&self.1, self.0.get_mut(&self.1).expect("an element"))
    }

    pub fn move_next(self) -> Option<Self> {
        use core::ops::Bound::{
            Excluded,
            Unbounded, //
        };

        let after = (Excluded(&self.1), Unbounded);
        let key = self.0.range(after).next()?.0.clone();
        Some(Self(self.0, key))
    }

    /// Removes the element. Returns the next one, or else the one before, and the element.
    pub fn remove_current(self) -> (Option<Self>, RBTreeNode<K, V>) {
        let key = self.1.clone();
        let value = self.0.remove(&self.1).expect("an element");
        let next = self.0.range(&key..).next();
        let next = next.or_else(|| self.0.range(..&key).next_back());
        let next = next.map(|(next, _)| next.clone());
        (next.map(|next| Self(self.0, next)), RBTreeNode(key, value))
    }
}

/// A position in a tree.
pub struct Cursor<'a, K, V>((&'a K, &'a V));

impl<K, V> Cursor<'_, K, V> {
    pub fn current(&self) -> (&K, &V) {
        self.0
    }
}

impl<K: Ord, V> RBTree<K, V> {
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self(BTreeMap::new())
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        self.0.get(key)
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.0.get_mut(key)
    }

    /// Inserts `node`. Returns the node that it replaces, if any.
    pub fn insert(&mut self, node: RBTreeNode<K, V>) -> Option<RBTreeNode<K, V>>
    where
        K: Clone,
    {
        let key = node.0.clone();
        self.0
            .insert(node.0, node.1)
            .map(|value| RBTreeNode(key, value))
    }

    pub fn remove_node(&mut self, key: &K) -> Option<RBTreeNode<K, V>> {
        self.0
            .remove_entry(key)
            .map(|(key, value)| RBTreeNode(key, value))
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.0.remove(key)
    }

    pub fn cursor_lower_bound(&self, key: &K) -> Option<Cursor<'_, K, V>> {
        self.0.range(key..).next().map(Cursor)
    }

    pub fn cursor_lower_bound_mut(&mut self, key: &K) -> Option<CursorMut<'_, K, V>>
    where
        K: Clone,
    {
        let key = self.0.range(key..).next()?.0.clone();
        Some(CursorMut(&mut self.0, key))
    }

    pub fn cursor_front_mut(&mut self) -> Option<CursorMut<'_, K, V>>
    where
        K: Clone,
    {
        let key = self.0.keys().next()?.clone();
        Some(CursorMut(&mut self.0, key))
    }

    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.0.values()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Error type of functions that cannot fail here.
pub type Never = Error;
