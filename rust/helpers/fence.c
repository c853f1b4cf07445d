// SPDX-License-Identifier: GPL-2.0
/*
 * Fences of operations that may fault, take an mmap lock or wait for user space. They are not DMA
 * fences and cannot be converted to DMA fences: see "Indefinite DMA Fences" in
 * Documentation/driver-api/dma-buf.rst. The reverse is allowed: a fence may follow a DMA fence.
 *
 * Lock order: the lock of a DMA fence, then @lock of a fence, then the locks of an eventfd and of
 * a completion. The lock of a DMA fence is never taken under @lock.
 *
 * User space determines the number of watches of a fence. Therefore a signal calls a bounded number
 * of them with interrupts disabled. A worker calls the others in bounded batches.
 */
#include <linux/atomic.h>
#include <linux/completion.h>
#include <linux/dma-fence.h>
#include <linux/err.h>
#include <linux/eventfd.h>
#include <linux/export.h>
#include <linux/list.h>
#include <linux/refcount.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/spinlock.h>

#include "../../include/rust_hmm.h"

/* Most eventfds of a fence: a signal walks them with interrupts disabled. */
#define EVENTFDS 4

/* Most watches that are called under one hold of the lock. */
#define LOT 16

struct rust_hmm_fence {
	refcount_t refs;
	/* 0: not signalled; 1: done; -errno: failed. Written once, under @lock. */
	int status;
	/* Made by rust_hmm_fence_create(). */
	bool by_driver;
	/* Identifies the type of device that signals the fence. Compared, but not dereferenced. */
	const void *kind;
	/* Protects all members below except @dma and @cb. */
	spinlock_t lock;
	/* Watches to be called, in the order of registration. None is added after the signal. */
	struct list_head watches;
	/* Work item for the watches that the signal did not call. Has a reference to the fence. */
	struct rust_hmm_deferred rest;
	struct eventfd_ctx *eventfds[EVENTFDS];
	/* The DMA fence that this fence follows, or NULL. */
	struct dma_fence *dma;
	struct dma_fence_cb cb;
};

struct rust_hmm_fence *rust_hmm_fence_alloc(const void *kind, bool by_driver)
{
	struct rust_hmm_fence *fence = kzalloc_obj(*fence, GFP_KERNEL_ACCOUNT);

	if (!fence)
		return NULL;
	refcount_set(&fence->refs, 1);
	fence->by_driver = by_driver;
	fence->kind = kind;
	spin_lock_init(&fence->lock);
	INIT_LIST_HEAD(&fence->watches);
	return fence;
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_alloc);

void rust_hmm_fence_get(struct rust_hmm_fence *fence)
{
	refcount_inc(&fence->refs);
}

void rust_hmm_fence_put(struct rust_hmm_fence *fence)
{
	int i;

	if (IS_ERR_OR_NULL(fence) || !refcount_dec_and_test(&fence->refs))
		return;
	if (fence->dma) {
		/*
		 * After this the callback neither runs nor can run, because it is called and
		 * removed under the lock of the DMA fence.
		 */
		dma_fence_remove_callback(fence->dma, &fence->cb);
		dma_fence_put(fence->dma);
	}
	for (i = 0; i < EVENTFDS && fence->eventfds[i]; i++)
		eventfd_ctx_put(fence->eventfds[i]);
	kfree(fence);
}

int rust_hmm_fence_status(const struct rust_hmm_fence *fence)
{
	/* Pairs with rust_hmm_fence_signal(): writes before the signal are visible. */
	return smp_load_acquire(&fence->status);
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_status);

bool rust_hmm_fence_by_driver(const struct rust_hmm_fence *fence)
{
	return fence->by_driver;
}

const void *rust_hmm_fence_kind(const struct rust_hmm_fence *fence)
{
	return fence->kind;
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_kind);

/* Most watches that were called under one hold of the lock of any fence. For tests. */
static atomic_t longest_lot = ATOMIC_INIT(0);

unsigned int rust_hmm_fence_longest_lot(void)
{
	return atomic_read(&longest_lot);
}

/*
 * Calls up to LOT watches of @fence, which is signalled. Returns whether any are left. The caller
 * holds @lock.
 */
static bool fence_call_some(struct rust_hmm_fence *fence)
{
	struct rust_hmm_fence_watch *watch;
	int called = 0;

	while (called < LOT && !list_empty(&fence->watches)) {
		watch = list_first_entry(&fence->watches,
					 struct rust_hmm_fence_watch, entry);
		list_del_init(&watch->entry);
		watch->signalled(watch->data);
		called++;
	}
	if (called > atomic_read(&longest_lot))
		atomic_set(&longest_lot, called);
	return !list_empty(&fence->watches);
}

static void fence_call_rest(void *object)
{
	struct rust_hmm_fence *fence = container_of(object, struct rust_hmm_fence, rest);
	bool more;

	do {
		spin_lock_irq(&fence->lock);
		more = fence_call_some(fence);
		spin_unlock_irq(&fence->lock);
		cond_resched();
	} while (more);
	rust_hmm_fence_put(fence);
}

/* Signals @fence. Returns false if it was signalled before. Context: any but NMI. */
bool rust_hmm_fence_signal(struct rust_hmm_fence *fence, int error)
{
	unsigned long flags;
	bool first;
	int i;

	spin_lock_irqsave(&fence->lock, flags);
	first = !fence->status;
	if (first) {
		/*
		 * Orders the operation's writes before the signal; pairs with
		 * rust_hmm_fence_status().
		 */
		smp_store_release(&fence->status, error ?: 1);
		for (i = 0; i < EVENTFDS && fence->eventfds[i]; i++)
			eventfd_signal(fence->eventfds[i]);
		if (fence_call_some(fence)) {
			rust_hmm_fence_get(fence);
			fence->rest.drop = fence_call_rest;
			rust_hmm_deferred_queue(&fence->rest);
		}
	}
	spin_unlock_irqrestore(&fence->lock, flags);
	return first;
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_signal);

static void fence_dma_signalled(struct dma_fence *dma, struct dma_fence_cb *cb)
{
	struct rust_hmm_fence *fence = container_of(cb, struct rust_hmm_fence, cb);

	/* Not dma_fence_get_status(), which takes the lock of @dma: the caller holds it. */
	rust_hmm_fence_signal(fence, dma->error);
}

/*
 * Signals @fence when @dma is signalled. Takes a reference to @dma. The caller must have the only
 * reference to @fence.
 */
void rust_hmm_fence_follow(struct rust_hmm_fence *fence, struct dma_fence *dma)
{
	int status;

	fence->kind = rust_hmm_dma_fence_kind(dma);
	fence->dma = dma_fence_get(dma);
	if (dma_fence_add_callback(dma, &fence->cb, fence_dma_signalled)) {
		status = dma_fence_get_status(dma);
		rust_hmm_fence_signal(fence, min(status, 0));
	}
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_follow);

/* Adds @watch, whose function is set. Returns false, and adds nothing, if @fence is signalled. */
static bool fence_add(struct rust_hmm_fence *fence, struct rust_hmm_fence_watch *watch)
{
	unsigned long flags;
	bool added;

	INIT_LIST_HEAD(&watch->entry);
	spin_lock_irqsave(&fence->lock, flags);
	added = !fence->status;
	if (added)
		list_add_tail(&watch->entry, &fence->watches);
	spin_unlock_irqrestore(&fence->lock, flags);
	return added;
}

static void fence_complete(void *completion)
{
	complete(completion);
}

/*
 * Sleeps until @fence is signalled, @completion is completed, or @timeout jiffies have passed.
 * Returns 1 if the fence is signalled, 0 if it is not, -ERESTARTSYS if a fatal signal is pending
 * or, unless @killable, any signal.
 */
int rust_hmm_fence_wait(struct rust_hmm_fence *fence, struct completion *completion,
			unsigned long timeout, bool killable)
{
	struct rust_hmm_fence_watch watch = { .signalled = fence_complete, .data = completion };
	long left;

	/*
	 * Annotates the wait for a DMA fence for lockdep. Not interruptible, because it would
	 * return an error if a signal is pending. Only a positive value means that @dma is
	 * signalled.
	 */
	if (fence->dma && dma_fence_wait_timeout(fence->dma, false, 0) > 0)
		return 1;
	if (!fence_add(fence, &watch))
		return 1;
	left = killable ? wait_for_completion_killable_timeout(completion, timeout) :
			  wait_for_completion_interruptible_timeout(completion, timeout);
	rust_hmm_fence_unwatch(fence, &watch);
	if (rust_hmm_fence_status(fence))
		return 1;
	return left < 0 ? -ERESTARTSYS : 0;
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_wait);

void rust_hmm_fence_watch(struct rust_hmm_fence *fence,
			  struct rust_hmm_fence_watch *watch)
{
	if (!fence_add(fence, watch))
		watch->signalled(watch->data);
}

void rust_hmm_fence_unwatch(struct rust_hmm_fence *fence,
			    struct rust_hmm_fence_watch *watch)
{
	unsigned long flags;

	spin_lock_irqsave(&fence->lock, flags);
	list_del_init(&watch->entry);
	spin_unlock_irqrestore(&fence->lock, flags);
}

int rust_hmm_fence_eventfd(struct rust_hmm_fence *fence, int fd)
{
	struct eventfd_ctx *eventfd;
	unsigned long flags;
	int i, ret = -EBUSY;

	if (!fence)
		return -EINVAL;
	eventfd = eventfd_ctx_fdget(fd);
	if (IS_ERR(eventfd))
		return PTR_ERR(eventfd);
	spin_lock_irqsave(&fence->lock, flags);
	for (i = 0; i < EVENTFDS; i++) {
		if (fence->eventfds[i])
			continue;
		fence->eventfds[i] = eventfd;
		if (fence->status)
			eventfd_signal(eventfd);
		ret = 0;
		break;
	}
	spin_unlock_irqrestore(&fence->lock, flags);
	if (ret)
		eventfd_ctx_put(eventfd);
	return ret;
}
