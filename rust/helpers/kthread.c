// SPDX-License-Identifier: GPL-2.0
/* Kernel threads. */
#include <linux/err.h>
#include <linux/export.h>
#include <linux/kthread.h>
#include <linux/sched/task.h>

/* Starts a thread. The caller owns a reference to the returned task. */
struct task_struct *rust_hmm_kthread_run(int (*run)(void *data), void *data,
					 const char *name)
{
	struct task_struct *task = kthread_create(run, data, "%s", name);

	if (!IS_ERR(task)) {
		get_task_struct(task);
		wake_up_process(task);
	}
	return task;
}
EXPORT_SYMBOL_GPL(rust_hmm_kthread_run);

/*
 * Stops the thread, waits for its end, and drops the reference. Returns -EINTR
 * if the thread never ran.
 */
int rust_hmm_kthread_stop_put(struct task_struct *task)
{
	return kthread_stop_put(task);
}
EXPORT_SYMBOL_GPL(rust_hmm_kthread_stop_put);
