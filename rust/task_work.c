// SPDX-License-Identifier: GPL-2.0
/*
 * Work that the current task does before it returns to user mode. The core
 * calls a function of this module for it, so the module is only freed when
 * no such call is outstanding, and none is returning.
 */
#include <linux/atomic.h>
#include <linux/errno.h>
#include <linux/export.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/wait_bit.h>

#include "task_work.h"

/* Work that was added and is not done yet */
static atomic_t pending = ATOMIC_INIT(0);
/* Whether there ever was any */
static bool used;

static void run(struct callback_head *head)
{
	struct rust_hmm_task_work *work;

	work = container_of(head, struct rust_hmm_task_work, head);
	work->run(work);
	if (atomic_dec_and_test(&pending))
		wake_up_var(&pending);
}

/*
 * Has the current task do @work before it returns to user mode, or when it
 * exits. -ESRCH if it does neither any more.
 */
int rust_hmm_task_work_add(struct rust_hmm_task_work *work)
{
	int ret;

	/* task_work_add() accepts work for kernel threads, which never do it. */
	if (current->flags & (PF_KTHREAD | PF_USER_WORKER | PF_EXITING))
		return -ESRCH;
	WRITE_ONCE(used, true);
	atomic_inc(&pending);
	init_task_work(&work->head, run);
	ret = task_work_add(current, &work->head, TWA_RESUME);
	if (ret)
		atomic_dec(&pending);
	return ret;
}

/* Whether the current task exits: it may have lost the signal that killed it. */
bool rust_hmm_task_is_exiting(void)
{
	return current->flags & PF_EXITING;
}

/* Waits until all work is done and its calls have returned. None may be added. */
void rust_hmm_task_work_exit(void)
{
	if (!READ_ONCE(used))
		return;
	wait_var_event(&pending, !atomic_read_acquire(&pending));
	/*
	 * run() may still be about to return. The task sleeps nowhere after
	 * the decrement, but may be preempted: only a grace period that waits
	 * for voluntary context switches covers that.
	 */
	synchronize_rcu_tasks();
}
