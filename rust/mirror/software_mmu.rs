// SPDX-License-Identifier: GPL-2.0

//! Memory access by engines of a software device, through cached translations.
//!
//! Like hardware, an engine walks the page table while it changes concurrently, and caches the
//! translations in a TLB until a flush. The *drain* makes this safe: an invalidation changes the
//! entries, and then takes the lock of each walker to flush its TLB, before it returns. A walker
//! holds its lock from the walk, or from the check of a cached translation, until the end of the
//! access. Therefore it observes the changed entries, or the invalidation waits for its access.

use super::{
    walkers::EngineGuard,
    Device,
    Mirror,
    MirrorShared,
    PageAddress,
    PageMemory,
    PageMemoryMut, //
};
use crate::pgtable::{
    DevicePte,
    Leaf, //
};
use kernel::{
    prelude::*,
    sync::atomic::ordering::Acquire, //
};

/// Reason why a translation cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TranslateError {
    /// The entry was removed or changed and its flush has not completed, or it has become writable.
    /// The caller must walk again.
    Changing,
    /// The entry was removed or changed, and the flush that should have removed the translation has
    /// completed. This is a bug of the driver's flush.
    Stale,
    /// The translation is read-only, and the access is a write.
    ReadOnly,
}

/// Translation of a device page that a device found in the table that it walks itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableTranslation {
    /// Address of the page, as the device uses it.
    pub address: u64,
    /// Whether the device may write to the page.
    pub writable: bool,
}

/// Critical section for one access of an engine, with the walker's spinlock held.
///
/// The pages of translations that the section resolves stay valid until it is dropped.
///
/// # Context
///
/// The owner of a section must not sleep.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::mirror::Device;
/// use rust_hmm::mirror::Mirror;
/// use rust_hmm::mirror::PageMemory;
///
/// /// Reads by engine 0. Returns whether the page was present; if not, the engine faults.
/// fn read<D: Device>(mirror: &Mirror<D>, page: usize, to: &mut [u8]) -> Result<bool> {
///     let section = mirror.enter(0)?;
///     let Some(leaf) = section.walk(page) else {
///         return Ok(false);
///     };
///     match section.resolve(page, &leaf) {
///         Ok(PageMemory::Cpu(pages)) => pages.read(0, to).map(|()| true),
///         // Device memory, which this device does not have, or a concurrent update.
///         _ => Ok(false),
///     }
/// }
/// ```
pub struct AccessSection<'m, D: Device> {
    walker: EngineGuard<'m, D::Walker>,
    inner: &'m MirrorShared<D>,
}

impl<D: Device> Mirror<D> {
    /// Begins an access by walker `index`, see [`Device::walkers`].
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there is no such walker.
    /// - `EDEADLK` if the task holds the walker's lock, or if it holds that of another walker and
    ///   the lock of this one is contended.
    ///
    /// # Context
    ///
    /// Takes the walker's spinlock. A task should be in one section at a time.
    pub fn enter(&self, index: usize) -> Result<AccessSection<'_, D>> {
        let inner = self.inner();
        let walkers = inner.walkers.as_ref().ok_or(EINVAL)?;
        Ok(AccessSection {
            walker: walkers.hold(index)?,
            inner,
        })
    }
}

impl<D: Device> AccessSection<'_, D> {
    /// Returns the driver's data of this walker.
    ///
    /// # Context
    ///
    /// Within the section, which holds a spinlock. Does not sleep.
    pub fn data(&mut self) -> &mut D::Walker {
        &mut self.walker.data
    }

    /// Walks the library's tree for the page at `addr`.
    ///
    /// # Context
    ///
    /// Within the section, which holds a spinlock. Does not sleep.
    pub fn walk(&self, addr: usize) -> Option<Leaf> {
        self.inner.reader.walk(addr)
    }

    /// Returns the reason why the table lacks a translation.
    fn outdated(&self) -> TranslateError {
        // `change_beside()` counts an update before its first entry changes, and until its flush
        // has completed.
        match self.inner.changing.load(Acquire) {
            0 => TranslateError::Stale,
            _ => TranslateError::Changing,
        }
    }

    /// Compares a cached translation with the library's tree, and returns the present entry.
    fn check(&self, addr: usize, kept: DevicePte) -> Result<DevicePte, TranslateError> {
        match self.walk(addr) {
            Some(now) if kept.is_valid() && !kept.is_outdated_by(now.entry) => Ok(now.entry),
            _ => Err(self.outdated()),
        }
    }

    /// Compares a translation that the device found in its own table with the library's tree, and
    /// returns the present entry.
    fn compare(&self, addr: usize, found: TableTranslation) -> Result<DevicePte, TranslateError> {
        match self.walk(addr) {
            Some(Leaf { entry, .. })
                if self.inner.reader.page_address(entry, addr) == found.address
                    && (!found.writable || entry.may_be_dirty()) =>
            {
                Ok(entry)
            }
            _ => Err(self.outdated()),
        }
    }

    /// Reads the word at `address`, a multiple of 8, of the table that the device walks itself
    /// ([`Device::table_memory`]). For software that emulates the hardware walker. Only the tables
    /// on the path from [`Mirror::table_root`] to the page at `addr` can be read.
    ///
    /// # Errors
    ///
    /// - [`TranslateError::Changing`] if `address` is in none of these tables, and an update is
    ///   outstanding, which may have replaced the table. See [`Self::reach`].
    /// - [`TranslateError::Stale`] if `address` is in none of these tables, and no update is
    ///   outstanding. This is a bug: an entry of the device's table is wrong, or the device was
    ///   closed.
    ///
    /// # Context
    ///
    /// Within the section, which holds a spinlock. Does not sleep.
    pub fn table_word(&self, addr: usize, address: u64) -> Result<u64, TranslateError> {
        let word = self.inner.reader.image_word(addr, address);
        word.ok_or_else(|| self.outdated())
    }

    /// Returns the location of the page at `addr` for a read, given the translation that the device
    /// found in its own table, in this section or an earlier one.
    ///
    /// The device's table is not trusted. Like an IOMMU, the function gives access only to pages
    /// that the library has mapped at `addr`.
    ///
    /// # Errors
    ///
    /// - [`TranslateError::Changing`] if the library's tree has a different page or fewer
    ///   permissions, and an update is outstanding. Hardware would use the page that it found,
    ///   which stays valid until the flush completes. Software passes the result of [`Self::walk`]
    ///   to [`Self::resolve`], and so accesses the page as it is after the update, without waiting.
    /// - [`TranslateError::Stale`] if the library's tree has a different page or fewer permissions,
    ///   and no update is outstanding. This is a bug: a flush or an entry is wrong.
    ///
    /// # Context
    ///
    /// Within the section, which holds a spinlock. Does not sleep.
    pub fn reach(
        &self,
        addr: usize,
        found: TableTranslation,
    ) -> Result<PageMemory<'_>, TranslateError> {
        let entry = self.compare(addr, found)?;
        let entry = self.frame(addr, entry)?;
        // SAFETY: The walk found the entry in the table in this section. Its removal ends with a
        // drain, which waits for this section, and the place borrows `self`.
        unsafe { self.inner.place(entry) }.ok_or(TranslateError::Changing)
    }

    /// As [`Self::reach`], for a write.
    ///
    /// # Errors
    ///
    /// - [`TranslateError::ReadOnly`] if `found` or the entry does not permit writes. Exclusive
    ///   entries do not permit them.
    /// - [`TranslateError::Changing`] and [`TranslateError::Stale`] as for [`Self::reach`].
    ///
    /// # Context
    ///
    /// Within the section, which holds a spinlock. Does not sleep.
    pub fn reach_mut(
        &self,
        addr: usize,
        found: TableTranslation,
    ) -> Result<PageMemoryMut<'_>, TranslateError> {
        let entry = self.compare(addr, found)?;
        if !found.writable || !entry.is_writable() {
            return Err(TranslateError::ReadOnly);
        }
        let entry = self.frame(addr, entry)?;
        // SAFETY: The walk found the entry in the table in this section, and the entry is writable.
        // Its removal ends with a drain, which waits for this section, and the place borrows
        // `self`.
        unsafe { self.inner.place_mut(entry) }.ok_or(TranslateError::Changing)
    }

    /// Returns `entry` with its page frame number, which is looked up if the table has DMA
    /// addresses.
    #[inline]
    fn frame(&self, addr: usize, entry: DevicePte) -> Result<DevicePte, TranslateError> {
        match self.inner.dma().filter(|_| !entry.is_device()) {
            None => Ok(entry),
            Some(windows) => {
                let frame = windows
                    .cursor()
                    .frame(addr)
                    .ok_or(TranslateError::Changing)?;
                Ok(entry.with_number(frame))
            }
        }
    }

    /// Returns the address that the device uses for the page at `addr`, given the result of
    /// [`Self::walk`] in this section or an earlier one; see
    /// [`TableGuard::target`](super::TableGuard::target). The address is valid until the section is
    /// dropped.
    ///
    /// # Errors
    ///
    /// - As listed for [`TranslateError`].
    /// - [`TranslateError::Stale`] also for system memory, if the table holds page frame numbers.
    ///
    /// # Context
    ///
    /// Within the section, which holds a spinlock. Does not sleep.
    pub fn target(
        &self,
        addr: usize,
        kept: &Leaf,
        write: bool,
    ) -> Result<PageAddress, TranslateError> {
        self.check(addr, kept.entry)?;
        if write && !kept.entry.is_writable() {
            return Err(TranslateError::ReadOnly);
        }
        self.inner.target(kept).ok_or(TranslateError::Stale)
    }

    /// Returns the location of the page at `addr` for a read, given the result of [`Self::walk`] in
    /// this section or an earlier one.
    ///
    /// # Errors
    ///
    /// - As listed for [`TranslateError`], except [`TranslateError::ReadOnly`].
    ///
    /// # Context
    ///
    /// Within the section, which holds a spinlock. Does not sleep.
    pub fn resolve(&self, addr: usize, kept: &Leaf) -> Result<PageMemory<'_>, TranslateError> {
        self.check(addr, kept.entry)?;
        let entry = self.frame(addr, kept.entry)?;
        // SAFETY: `check` found the entry in the table in this section. Its removal ends with a
        // drain, which waits for this section, and the place borrows `self`.
        unsafe { self.inner.place(entry) }.ok_or(TranslateError::Changing)
    }

    /// As [`Self::resolve`], for a write.
    ///
    /// # Errors
    ///
    /// - As listed for [`TranslateError`].
    ///
    /// # Context
    ///
    /// Within the section, which holds a spinlock. Does not sleep.
    pub fn resolve_mut(
        &self,
        addr: usize,
        kept: &Leaf,
    ) -> Result<PageMemoryMut<'_>, TranslateError> {
        let now = self.check(addr, kept.entry)?;
        if !kept.entry.is_writable() {
            return Err(if now.is_writable() {
                TranslateError::Changing
            } else {
                TranslateError::ReadOnly
            });
        }
        let entry = self.frame(addr, kept.entry)?;
        // SAFETY: `check` found the entry in the table in this section, and `kept` is writable. The
        // removal ends with a drain, which waits for this section, and the place borrows `self`.
        unsafe { self.inner.place_mut(entry) }.ok_or(TranslateError::Changing)
    }
}
