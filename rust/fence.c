// SPDX-License-Identifier: GPL-2.0
/*
 * Fences of operations that may fault, take an mmap lock or wait for user space. They are no DMA
 * fences, and none can be made of them: Documentation/driver-api/dma-buf.rst, "Indefinite DMA
 * Fences". The other direction is allowed: a fence may stand for a DMA fence.
 *
 * Lock order: the lock of a DMA fence, then @waiters.lock of a fence, then the locks of an eventfd
 * and of whoever waits. The lock of a DMA fence is never taken under @waiters.lock.
 */
#include <linux/completion.h>
#include <linux/dma-fence.h>
#include <linux/err.h>
#include <linux/eventfd.h>
#include <linux/export.h>
#include <linux/refcount.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/wait.h>

#include "../include/rust_hmm.h"
#include "fence.h"

/* Most eventfds of a fence: a signal walks them with interrupts off. */
#define EVENTFDS 4

struct rust_hmm_fence {
	refcount_t refs;
	/* 0: not signalled; 1: done; -errno: failed. Written once, under @waiters.lock. */
	int status;
	/* Made by rust_hmm_fence_create(). */
	bool by_driver;
	/* Names the type of device that signals it. Only compared. */
	const void *kind;
	wait_queue_head_t waiters;
	struct eventfd_ctx *eventfds[EVENTFDS];
	/* The DMA fence that it stands for, or NULL. */
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
	init_waitqueue_head(&fence->waiters);
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
		 * After this the callback neither runs nor will run: both hold the lock of the
		 * DMA fence.
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
	/* What was written before the signal is visible after this; pairs with the release. */
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

/* Returns whether this call has signalled it. Context: any. */
bool rust_hmm_fence_signal(struct rust_hmm_fence *fence, int error)
{
	unsigned long flags;
	bool first;
	int i;

	spin_lock_irqsave(&fence->waiters.lock, flags);
	first = !fence->status;
	if (first) {
		/* Makes the result visible; pairs with rust_hmm_fence_status(). */
		smp_store_release(&fence->status, error ?: 1);
		wake_up_all_locked(&fence->waiters);
		for (i = 0; i < EVENTFDS && fence->eventfds[i]; i++)
			eventfd_signal(fence->eventfds[i]);
	}
	spin_unlock_irqrestore(&fence->waiters.lock, flags);
	return first;
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_signal);

static void fence_dma_signalled(struct dma_fence *dma, struct dma_fence_cb *cb)
{
	struct rust_hmm_fence *fence = container_of(cb, struct rust_hmm_fence, cb);

	/* Its lock is held: dma_fence_get_status() would take it. */
	rust_hmm_fence_signal(fence, dma->error);
}

/* A fence that signals when @dma does, of which it takes a reference. NULL without memory. */
struct rust_hmm_fence *rust_hmm_fence_of_dma(struct dma_fence *dma)
{
	struct rust_hmm_fence *fence;
	int status;

	fence = rust_hmm_fence_alloc(rust_hmm_dma_fence_kind(dma), false);
	if (!fence)
		return NULL;
	fence->dma = dma_fence_get(dma);
	if (dma_fence_add_callback(dma, &fence->cb, fence_dma_signalled)) {
		status = dma_fence_get_status(dma);
		rust_hmm_fence_signal(fence, min(status, 0));
	}
	return fence;
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_of_dma);

struct fence_waiter {
	struct wait_queue_entry entry;
	struct completion *bell;
};

static int fence_ring(struct wait_queue_entry *entry, unsigned int mode, int flags, void *key)
{
	complete(container_of(entry, struct fence_waiter, entry)->bell);
	return 0;
}

/*
 * Sleeps until @fence signals, @bell is completed, or @timeout jiffies have passed. Returns 1 if
 * the fence is signalled, 0 if not, -ERESTARTSYS if the task was killed or, unless @killable, has a
 * signal.
 */
int rust_hmm_fence_wait(struct rust_hmm_fence *fence, struct completion *bell,
			unsigned long timeout, bool killable)
{
	struct fence_waiter waiter = { .bell = bell };
	long left = 0;

	/*
	 * Annotates the wait for a DMA fence for lockdep. Not interruptible: with a pending signal
	 * it would return an error at once, and a positive value alone says that it is signalled.
	 */
	if (fence->dma && dma_fence_wait_timeout(fence->dma, false, 0) > 0)
		return 1;
	init_waitqueue_func_entry(&waiter.entry, fence_ring);
	add_wait_queue(&fence->waiters, &waiter.entry);
	/* After it is added: a signal from here on completes the bell. */
	if (!rust_hmm_fence_status(fence))
		left = killable ? wait_for_completion_killable_timeout(bell, timeout) :
				  wait_for_completion_interruptible_timeout(bell, timeout);
	remove_wait_queue(&fence->waiters, &waiter.entry);
	if (rust_hmm_fence_status(fence))
		return 1;
	return left < 0 ? -ERESTARTSYS : 0;
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_wait);

static int fence_watched(struct wait_queue_entry *entry, unsigned int mode, int flags, void *key)
{
	struct rust_hmm_fence_watch *watch;

	watch = container_of(entry, struct rust_hmm_fence_watch, entry);
	list_del_init(&entry->entry);
	watch->signalled(watch->data);
	return 0;
}

/* @watch stays where it is until rust_hmm_fence_unwatch(). */
void rust_hmm_fence_watch(struct rust_hmm_fence *fence,
			  struct rust_hmm_fence_watch *watch)
{
	unsigned long flags;

	init_waitqueue_func_entry(&watch->entry, fence_watched);
	INIT_LIST_HEAD(&watch->entry.entry);
	spin_lock_irqsave(&fence->waiters.lock, flags);
	if (fence->status)
		watch->signalled(watch->data);
	else
		__add_wait_queue(&fence->waiters, &watch->entry);
	spin_unlock_irqrestore(&fence->waiters.lock, flags);
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_watch);

/* After this the callback neither runs nor will run. */
void rust_hmm_fence_unwatch(struct rust_hmm_fence *fence,
			    struct rust_hmm_fence_watch *watch)
{
	unsigned long flags;

	spin_lock_irqsave(&fence->waiters.lock, flags);
	list_del_init(&watch->entry.entry);
	spin_unlock_irqrestore(&fence->waiters.lock, flags);
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_unwatch);

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
	spin_lock_irqsave(&fence->waiters.lock, flags);
	for (i = 0; i < EVENTFDS; i++) {
		if (fence->eventfds[i])
			continue;
		fence->eventfds[i] = eventfd;
		if (fence->status)
			eventfd_signal(eventfd);
		ret = 0;
		break;
	}
	spin_unlock_irqrestore(&fence->waiters.lock, flags);
	if (ret)
		eventfd_ctx_put(eventfd);
	return ret;
}
