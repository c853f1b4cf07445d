// SPDX-License-Identifier: GPL-2.0
/*
 * Exports the functions for drivers in C, which are written in Rust (rust/capi/), and asserts the
 * layout of the structures of their header: offset and size of each field, as in
 * rust/capi/layout.rs.
 */
#include <linux/build_bug.h>
#include <linux/export.h>
#include <linux/stddef.h>

#include "../../include/rust_hmm.h"

#define SIZE(type, bytes) static_assert(sizeof(struct type) == (bytes))
#define AT(type, field, offset, bytes) \
	static_assert(offsetof(struct type, field) == (offset) && \
		      sizeof_field(struct type, field) == (bytes))

SIZE(rust_hmm_place, 24);
AT(rust_hmm_place, kind, 0, 4);
AT(rust_hmm_place, reserved, 4, 4);
AT(rust_hmm_place, first, 8, 8);
AT(rust_hmm_place, pages, 16, 8);

SIZE(rust_hmm_copy_job, 64);
AT(rust_hmm_copy_job, source, 0, 24);
AT(rust_hmm_copy_job, destination, 24, 24);
AT(rust_hmm_copy_job, state, 48, 8);
AT(rust_hmm_copy_job, index, 56, 8);

SIZE(rust_hmm_memory_ops, 40);
AT(rust_hmm_memory_ops, size, 0, 8);
AT(rust_hmm_memory_ops, copy, 8, 8);
AT(rust_hmm_memory_ops, ring_doorbell, 16, 8);
AT(rust_hmm_memory_ops, cancelled, 24, 8);
AT(rust_hmm_memory_ops, freed, 32, 8);

SIZE(rust_hmm_usage, 24);
AT(rust_hmm_usage, used, 0, 8);
AT(rust_hmm_usage, total, 8, 8);
AT(rust_hmm_usage, limit, 16, 8);

SIZE(rust_hmm_mirror_ops, 32);
AT(rust_hmm_mirror_ops, size, 0, 8);
AT(rust_hmm_mirror_ops, flags, 8, 4);
AT(rust_hmm_mirror_ops, reserved, 12, 4);
AT(rust_hmm_mirror_ops, flush_start, 16, 8);
AT(rust_hmm_mirror_ops, flush_wait, 24, 8);

SIZE(rust_hmm_served, 16);
AT(rust_hmm_served, moved, 0, 8);
AT(rust_hmm_served, in_place, 8, 8);

SIZE(rust_hmm_residency, 4);
AT(rust_hmm_residency, location, 0, 1);
AT(rust_hmm_residency, writable, 1, 1);
AT(rust_hmm_residency, order, 2, 1);
AT(rust_hmm_residency, reserved, 3, 1);

SIZE(rust_hmm_migration, 32);
AT(rust_hmm_migration, target, 0, 4);
AT(rust_hmm_migration, flags, 4, 4);
AT(rust_hmm_migration, pages, 8, 8);
AT(rust_hmm_migration, npages, 16, 8);
AT(rust_hmm_migration, stop, 24, 8);

SIZE(rust_hmm_outcome, 48);
AT(rust_hmm_outcome, moved, 0, 8);
AT(rust_hmm_outcome, switched, 8, 8);
AT(rust_hmm_outcome, entries, 16, 8);
AT(rust_hmm_outcome, skipped, 24, 8);
AT(rust_hmm_outcome, no_memory, 32, 8);
AT(rust_hmm_outcome, copy_failed, 40, 8);

SIZE(rust_hmm_attributes, 12);
AT(rust_hmm_attributes, valid, 0, 4);
AT(rust_hmm_attributes, preferred, 4, 1);
AT(rust_hmm_attributes, accessed_by, 5, 1);
AT(rust_hmm_attributes, read_mostly, 6, 1);
AT(rust_hmm_attributes, never_migrate, 7, 1);
AT(rust_hmm_attributes, granularity, 8, 1);
AT(rust_hmm_attributes, reserved, 9, 3);

EXPORT_SYMBOL_GPL(rust_hmm_memory_create);
EXPORT_SYMBOL_GPL(rust_hmm_memory_destroy);
EXPORT_SYMBOL_GPL(rust_hmm_memory_evict);
EXPORT_SYMBOL_GPL(rust_hmm_memory_unplug);
EXPORT_SYMBOL_GPL(rust_hmm_memory_usage);
EXPORT_SYMBOL_GPL(rust_hmm_memory_counter);
EXPORT_SYMBOL_GPL(rust_hmm_copy_done);
EXPORT_SYMBOL_GPL(rust_hmm_copy_cancelled);

EXPORT_SYMBOL_GPL(rust_hmm_mirror_create);
EXPORT_SYMBOL_GPL(rust_hmm_mirror_destroy);
EXPORT_SYMBOL_GPL(rust_hmm_mirror_alive);
EXPORT_SYMBOL_GPL(rust_hmm_mirror_counter);
EXPORT_SYMBOL_GPL(rust_hmm_fault);
EXPORT_SYMBOL_GPL(rust_hmm_serve);
EXPORT_SYMBOL_GPL(rust_hmm_discard);
EXPORT_SYMBOL_GPL(rust_hmm_table_lock);
EXPORT_SYMBOL_GPL(rust_hmm_table_unlock);
EXPORT_SYMBOL_GPL(rust_hmm_table_lookup);
EXPORT_SYMBOL_GPL(rust_hmm_snapshot);

EXPORT_SYMBOL_GPL(rust_hmm_migrate);

EXPORT_SYMBOL_GPL(rust_hmm_attributes_set);
EXPORT_SYMBOL_GPL(rust_hmm_attributes_clear);
EXPORT_SYMBOL_GPL(rust_hmm_attributes_get);

#ifdef CONFIG_RUST_HMM_QUEUE
EXPORT_SYMBOL_GPL(rust_hmm_fence_create);
EXPORT_SYMBOL_GPL(rust_hmm_fence_signal_once);
EXPORT_SYMBOL_GPL(rust_hmm_fence_wait_for);
EXPORT_SYMBOL_GPL(rust_hmm_fence_get);
EXPORT_SYMBOL_GPL(rust_hmm_fence_put);
EXPORT_SYMBOL_GPL(rust_hmm_fence_eventfd);
EXPORT_SYMBOL_GPL(rust_hmm_fence_watch);
EXPORT_SYMBOL_GPL(rust_hmm_fence_unwatch);
EXPORT_SYMBOL_GPL(rust_hmm_fence_from_dma);
EXPORT_SYMBOL_GPL(rust_hmm_fence_from_file);

EXPORT_SYMBOL_GPL(rust_hmm_queue_create);
EXPORT_SYMBOL_GPL(rust_hmm_queue_destroy);
EXPORT_SYMBOL_GPL(rust_hmm_queue_submit);
EXPORT_SYMBOL_GPL(rust_hmm_queue_record);
EXPORT_SYMBOL_GPL(rust_hmm_queue_wait);
EXPORT_SYMBOL_GPL(rust_hmm_stopped);
#endif
