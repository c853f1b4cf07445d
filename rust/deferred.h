/* SPDX-License-Identifier: GPL-2.0 */
/* Objects that are dropped by a worker: the C side of rust/kernel/deferred.rs. */
#ifndef _RUST_HMM_DEFERRED_H
#define _RUST_HMM_DEFERRED_H

#include <linux/workqueue.h>

/*
 * A member of an object that a worker drops, or for which it runs deferred work. In
 * rust/kernel/deferred.rs it is the first member.
 */
struct rust_hmm_deferred {
	struct work_struct work;
	/* Called once by the worker with this structure, which the function may free. */
	void (*drop)(void *object);
};

int rust_hmm_deferred_init(void);
void rust_hmm_deferred_exit(void);
void rust_hmm_deferred_queue(struct rust_hmm_deferred *object);
void rust_hmm_deferred_flush(void);

#endif
