// SPDX-License-Identifier: GPL-2.0
/*
 * Drops objects in a workqueue whose owner dropped them where waiting would
 * never end. A worker runs code of the driver that the object belongs to, so
 * a module is only freed when no object is left.
 */
#include <linux/atomic.h>
#include <linux/errno.h>
#include <linux/export.h>
#include <linux/limits.h>
#include <linux/module.h>
#include <linux/notifier.h>
#include <linux/workqueue.h>

#include "deferred.h"

/*
 * Not one worker for all objects: the drop of one may wait for another one's,
 * as that of device memory does for the end of the pages in it.
 */
static struct workqueue_struct *queue;

/* Objects that were queued and are not dropped yet */
static atomic_t pending = ATOMIC_INIT(0);

static void drop_object(struct work_struct *work)
{
	struct rust_hmm_deferred *object;

	object = container_of(work, struct rust_hmm_deferred, work);
	object->drop(object);
	/* Last: rust_hmm_deferred_flush() lets the driver's code be freed. */
	atomic_dec_return_release(&pending);
}

/* Has a worker drop @object. Context: any but NMI. */
void rust_hmm_deferred_queue(struct rust_hmm_deferred *object)
{
	atomic_inc(&pending);
	INIT_WORK(&object->work, drop_object);
	queue_work(queue, &object->work);
}
EXPORT_SYMBOL_GPL(rust_hmm_deferred_queue);

/* Waits until all objects that were queued are dropped. */
void rust_hmm_deferred_flush(void)
{
	/* Dropping one may queue another, which a single flush does not cover. */
	while (atomic_read_acquire(&pending))
		flush_workqueue(queue);
}
EXPORT_SYMBOL_GPL(rust_hmm_deferred_flush);

/*
 * The module's exit function has returned, so it queues nothing from here on.
 * Its code is freed when this has returned.
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
	/* Before other notifiers free anything that the module's code uses. */
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
