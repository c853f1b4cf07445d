// SPDX-License-Identifier: GPL-2.0
/*
 * Drops objects in a workqueue, for owners that must not wait for the drop: it
 * would wait for the caller itself. The worker runs code of the driver that
 * owns the object. Therefore a module is freed only when no object is pending.
 */
#include <linux/atomic.h>
#include <linux/errno.h>
#include <linux/export.h>
#include <linux/limits.h>
#include <linux/module.h>
#include <linux/notifier.h>
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

/*
 * Not ordered: the drop of one object may wait for the drop of another one. For
 * example, dropping device memory waits until its pages are freed.
 */
static struct workqueue_struct *queue;

/* Number of queued objects that are not dropped yet */
static atomic_t pending = ATOMIC_INIT(0);

static void drop_object(struct work_struct *work)
{
	struct rust_hmm_deferred *object;

	object = container_of(work, struct rust_hmm_deferred, work);
	object->drop(object);
	/*
	 * Last: after this, rust_hmm_deferred_flush() returns and the driver's
	 * code may be freed. Pairs with the acquire there.
	 */
	atomic_dec_return_release(&pending);
}

/* Queues @object, which a worker drops. Context: any but NMI. */
void rust_hmm_deferred_queue(struct rust_hmm_deferred *object)
{
	atomic_inc(&pending);
	INIT_WORK(&object->work, drop_object);
	queue_work(queue, &object->work);
}
EXPORT_SYMBOL_GPL(rust_hmm_deferred_queue);

/* Waits until all queued objects are dropped. Context: may sleep. */
void rust_hmm_deferred_flush(void)
{
	/* A drop may queue another object, which a single flush does not cover. */
	while (atomic_read_acquire(&pending))
		flush_workqueue(queue);
}
EXPORT_SYMBOL_GPL(rust_hmm_deferred_flush);

/*
 * MODULE_STATE_GOING: the exit function of the module has returned, so that the
 * module queues no more objects. Its code is freed after this returns.
 */
static int module_changes(struct notifier_block *block, unsigned long state,
			  void *module)
{
	if (state == MODULE_STATE_GOING)
		rust_hmm_deferred_flush();
	return NOTIFY_DONE;
}

static struct notifier_block modules = {
	.notifier_call = module_changes,
	/* Runs before other notifiers free memory that the module's code uses. */
	.priority = INT_MAX,
};

int rust_hmm_deferred_init(void)
{
	int ret;

	queue = alloc_workqueue("rust_hmm", WQ_UNBOUND, 0);
	if (!queue)
		return -ENOMEM;
	ret = register_module_notifier(&modules);
	if (ret)
		destroy_workqueue(queue);
	return ret;
}

void rust_hmm_deferred_exit(void)
{
	unregister_module_notifier(&modules);
	rust_hmm_deferred_flush();
	destroy_workqueue(queue);
}
