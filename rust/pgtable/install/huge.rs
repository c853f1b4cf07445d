// SPDX-License-Identifier: GPL-2.0

//! Replaces a run of entries, which fills a table, by a huge leaf.

use crate::{
    mm::addr::PageRange,
    pgtable::{
        dma::DmaTranslator,
        entry::DevicePte,
        flush::FlushBatch,
        format::{
            slot_of,
            Format, //
        },
        prealloc::Prealloc,
        table::Table,
        tree::{
            self,
            Slot, //
        }, //
    }, //
};
use kernel::{
    prelude::*,
    sync::rcu, //
};

/// Returns whether `entries`, which fill a table, can be merged into one leaf: they must be
/// consecutive, aligned, and have the same rights.
pub(super) fn is_run(entries: &[DevicePte]) -> bool {
    let Some(first) = entries.first() else {
        return false;
    };
    first.is_valid()
        && first.number() % entries.len() == 0
        && entries
            .iter()
            .enumerate()
            .all(|(index, entry)| *entry == first.plus(index))
}

impl<F: Format> Table<F> {
    /// Replaces the entry or the table of `span` by the leaf `new`. `run` are the entries of its
    /// pages, with frame numbers.
    #[expect(
        clippy::too_many_arguments,
        reason = "two call sites; they live in different places"
    )]
    pub(super) fn set_huge(
        &mut self,
        span: PageRange,
        old: Slot,
        new: DevicePte,
        run: &[DevicePte],
        prealloc: &mut Prealloc<F>,
        batch: &mut FlushBatch<F>,
        dma: &mut DmaTranslator<'_, F>,
    ) -> Result {
        let above = self.make_table_above(span.start(), prealloc, batch)?;
        let guard = rcu::read_lock();
        let page = self.pool.page(&guard, above).ok_or(EINVAL)?;
        if !matches!(old, Slot::Leaf(_)) {
            self.pool.count_huge(1);
        }
        let slot = slot_of::<F>(1, span.start());
        page.store(slot, tree::leaf(new));
        self.pool
            .publish(above, 1, span.start(), slot..slot + 1, batch);
        match old {
            Slot::Empty => {
                page.set_used(page.used() + 1);
                page.widen(slot, slot);
                self.live += span.pages();
            }
            Slot::Leaf(huge) => {
                if new.is_device() {
                    dma.retire(span, huge);
                }
                batch.record(span, huge, new);
            }
            Slot::Table(child) => {
                // Record each replaced entry, because the run may replace different pages.
                for (index, now) in run.iter().enumerate() {
                    let before = match self.pool.page(&guard, child).map(|page| page.load(index)) {
                        Some(word) => tree::decode(word),
                        None => Slot::Empty,
                    };
                    if let Slot::Leaf(before) = before {
                        let one = PageRange::from_pages(span.address(index), 1)?;
                        let seen = dma.seen(one.start(), before);
                        if now.is_device() {
                            dma.retire(one, before);
                        }
                        batch.record(one, seen, *now);
                    }
                }
                // A concurrent walker may still use the table, so it is flushed even if no
                // translation was removed.
                let before = self.pool.page(&guard, child).map_or(0, |page| page.used());
                self.live = self.live - before as usize + span.pages();
                batch.detach(&self.pool, span, child);
            }
        }
        Ok(())
    }
}
