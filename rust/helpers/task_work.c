// SPDX-License-Identifier: GPL-2.0
/*
 * Work that the current task runs before it returns to user mode. The core calls
 * a function of this module for that. Therefore the module is freed only after
 * all such calls have returned.
 */
#include <linux/atomic.h>
#include <linux/errno.h>
#include <linux/export.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/task_work.h>
#include <linux/wait_bit.h>

/* The first member of a work item in rust/kernel/task_work.rs. */
struct rust_hmm_task_work {
	struct callback_head head;
	/* Called once by the task with this structure, which the function frees. */
	void (*run)(void *object);
};

/* Number of added work items that are not done yet */
static atomic_t task_works_pending = ATOMIC_INIT(0);
/* Whether any work was added since the module was loaded */
static bool task_works_used;

static void run_task_work(struct callback_head *head)
{
	struct rust_hmm_task_work *work;

	work = container_of(head, struct rust_hmm_task_work, head);
	work->run(work);
	/*
	 * Full barrier: the effects of the work are visible to who finds 0, and
	 * wake_up_var() sees a task that waits, or that task sees 0. Pairs with
	 * rust_hmm_task_work_exit().
	 */
	if (atomic_dec_and_test(&task_works_pending))
		wake_up_var(&task_works_pending);
}

/*
 * Adds @work, which the current task runs before it returns to user mode or when
 * it exits. Returns -ESRCH if it will do neither: it is a kernel thread, or is
 * already exiting.
 */
int rust_hmm_task_work_add(struct rust_hmm_task_work *work)
{
	int ret;

	/* task_work_add() accepts work for kernel threads, which never run it. */
	if (current->flags & (PF_KTHREAD | PF_USER_WORKER | PF_EXITING))
		return -ESRCH;
	WRITE_ONCE(task_works_used, true);
	atomic_inc(&task_works_pending);
	init_task_work(&work->head, run_task_work);
	ret = task_work_add(current, &work->head, TWA_RESUME);
	if (ret)
		atomic_dec(&task_works_pending);
	return ret;
}

/*
 * Returns whether the current task is exiting. If so, it may have dequeued the fatal
 * signal, so that fatal_signal_pending() returns false.
 */
bool rust_hmm_task_is_exiting(void)
{
	return current->flags & PF_EXITING;
}

/* Waits until all work is done and its calls have returned. No work may be added concurrently. */
void rust_hmm_task_work_exit(void)
{
	if (!READ_ONCE(task_works_used))
		return;
	wait_var_event(&task_works_pending, !atomic_read_acquire(&task_works_pending));
	/*
	 * run_task_work() may not have returned yet. After the decrement the task does not
	 * sleep, but it may be preempted. A grace period of RCU tasks waits for a
	 * voluntary context switch of the task, so that run_task_work() has returned.
	 */
	synchronize_rcu_tasks();
}
