/* SPDX-License-Identifier: GPL-2.0 */
/* Work that a task runs before it returns to user mode: the C side of rust/kernel/task_work.rs. */
#ifndef _RUST_HMM_TASK_WORK_H
#define _RUST_HMM_TASK_WORK_H

#include <linux/task_work.h>

/* The first member of a work item in rust/kernel/task_work.rs. */
struct rust_hmm_task_work {
	struct callback_head head;
	/* Called once by the task with this structure, which the function frees. */
	void (*run)(void *object);
};

int rust_hmm_task_work_add(struct rust_hmm_task_work *work);
bool rust_hmm_task_is_exiting(void);
void rust_hmm_task_work_exit(void);

#endif
