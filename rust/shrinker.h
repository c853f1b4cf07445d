/* SPDX-License-Identifier: GPL-2.0 */
/* One shrinker for many owners: the C side of rust/kernel/shrinker/owner.rs. */
#ifndef _RUST_HMM_SHRINKER_H
#define _RUST_HMM_SHRINKER_H

#include <linux/types.h>

struct rust_hmm_reclaimable;

/* Operations of an owner that the shrinker calls. */
struct rust_hmm_owner_ops {
	/* Takes a reference to the owner. Context: atomic. */
	void (*get)(void *owner);
	/*
	 * Frees up to @pages pages, and drops the reference. Returns the number
	 * of freed pages. Sets @scanned to an upper bound of the number of
	 * pages that were scanned for that. Context: reclaim.
	 */
	unsigned long (*reclaim)(void *owner, unsigned long pages,
				 unsigned long *scanned);
};

int rust_hmm_owners_init(const struct rust_hmm_owner_ops *ops,
			 unsigned long pages, unsigned long batch);
void rust_hmm_owners_exit(void);
struct rust_hmm_reclaimable *rust_hmm_reclaimable_alloc(void *owner);
void rust_hmm_reclaimable_free(struct rust_hmm_reclaimable *object);
void rust_hmm_reclaimable_add(struct rust_hmm_reclaimable *object);
void rust_hmm_reclaimable_del(struct rust_hmm_reclaimable *object);
unsigned long rust_hmm_owners_reclaim(unsigned long pages);

#endif /* _RUST_HMM_SHRINKER_H */
