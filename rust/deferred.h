/* SPDX-License-Identifier: GPL-2.0 */
/* Objects that are dropped by a worker: the C side of rust/deferred.rs. */
#ifndef _RUST_HMM_DEFERRED_H
#define _RUST_HMM_DEFERRED_H

#include <linux/workqueue.h>

/* The first member of an object that may be dropped by a worker */
struct rust_hmm_deferred {
	struct work_struct work;
	/* Drops the object that begins here, and frees its memory. */
	void (*drop)(void *object);
};

int rust_hmm_deferred_init(void);
void rust_hmm_deferred_exit(void);
void rust_hmm_deferred_queue(struct rust_hmm_deferred *object);
void rust_hmm_deferred_flush(void);

#endif
