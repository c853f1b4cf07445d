// SPDX-License-Identifier: GPL-2.0
/*
 * Fences: the parts of the kernel's dma_fence that are inline, run in interrupts, or live longer
 * than the modules.
 *
 * A fence has neither a release nor a wait operation, so that once it is signalled nothing of it
 * needs this module: others may hold it for as long as they like.
 */
#include <linux/completion.h>
#include <linux/dma-fence.h>
#include <linux/err.h>
#include <linux/export.h>
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/hrtimer.h>
#include <linux/irq_work.h>
#include <linux/list.h>
#include <linux/rcupdate.h>
#include <linux/refcount.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/sync_file.h>
#include <linux/wait.h>

#include "fence.h"

/* @base first: the kernel's default release frees it by that address. */
struct rust_hmm_fence {
	struct dma_fence base;
	const void *type;
	/* Made by rust_hmm_fence_create(): the driver signals it, and nothing else does. */
	bool by_driver;
};

static const char *fence_name(struct dma_fence *fence)
{
	return "rust_hmm";
}

static const struct dma_fence_ops fence_ops = {
	.get_driver_name = fence_name,
	.get_timeline_name = fence_name,
};

struct dma_fence *rust_hmm_fence_alloc(void)
{
	struct rust_hmm_fence *fence = kzalloc_obj(*fence, GFP_KERNEL_ACCOUNT);

	return fence ? &fence->base : NULL;
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_alloc);

/* For one that was never initialized. */
void rust_hmm_fence_free(struct dma_fence *fence)
{
	kfree(container_of(fence, struct rust_hmm_fence, base));
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_free);

void rust_hmm_fence_init(struct dma_fence *fence, const void *type,
			 u64 context, u64 seqno)
{
	container_of(fence, struct rust_hmm_fence, base)->type = type;
	dma_fence_init64(fence, &fence_ops, NULL, context, seqno);
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_init);

/* Before anybody else has the fence. */
void rust_hmm_fence_set_by_driver(struct dma_fence *fence)
{
	container_of(fence, struct rust_hmm_fence, base)->by_driver = true;
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_set_by_driver);

void rust_hmm_fence_signal(struct dma_fence *fence, int error)
{
	bool cookie = dma_fence_begin_signalling();

	if (error)
		dma_fence_set_error(fence, error);
	dma_fence_signal(fence);
	dma_fence_end_signalling(cookie);
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_signal);

/* Not once it is signalled, but then nobody has to wait. */
static bool fence_is_ours(struct dma_fence *fence)
{
	return rcu_access_pointer(fence->ops) == &fence_ops;
}

/*
 * For drivers in C: checks what a type ensures in Rust. Of several calls for a fence one succeeds. A
 * fence that was signalled is not known as ours any more, and needs no signal.
 */
int rust_hmm_fence_signal_ours(struct dma_fence *fence, int error)
{
	bool ours, cookie;
	unsigned long flags;

	if (!fence || error > 0 || error < -MAX_ERRNO || dma_fence_is_signaled(fence))
		return -EINVAL;
	if (!fence_is_ours(fence) || !container_of(fence, struct rust_hmm_fence, base)->by_driver)
		return -EPERM;
	cookie = dma_fence_begin_signalling();
	dma_fence_lock_irqsave(fence, flags);
	ours = !dma_fence_is_signaled_locked(fence);
	if (ours) {
		if (error)
			dma_fence_set_error(fence, error);
		dma_fence_signal_locked(fence);
	}
	dma_fence_unlock_irqrestore(fence, flags);
	dma_fence_end_signalling(cookie);
	return ours ? 0 : -EINVAL;
}

/* NULL if it is not one of ours. */
const void *rust_hmm_fence_type(struct dma_fence *fence)
{
	if (!fence_is_ours(fence))
		return NULL;
	return container_of(fence, struct rust_hmm_fence, base)->type;
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_type);

void rust_hmm_fence_get(struct dma_fence *fence)
{
	dma_fence_get(fence);
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_get);

void rust_hmm_fence_put(struct dma_fence *fence)
{
	dma_fence_put(fence);
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_put);

bool rust_hmm_fence_begin_signalling(void)
{
	return dma_fence_begin_signalling();
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_begin_signalling);

void rust_hmm_fence_end_signalling(bool cookie)
{
	dma_fence_end_signalling(cookie);
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_end_signalling);

struct fence_waiter {
	struct dma_fence_cb cb;
	struct completion *bell;
};

static void fence_ring(struct dma_fence *fence, struct dma_fence_cb *cb)
{
	complete(container_of(cb, struct fence_waiter, cb)->bell);
}

/*
 * Sleeps until @fence signals, @bell is rung, or @timeout jiffies have passed.
 * Returns 1 if the fence is signalled, 0 if not, -ERESTARTSYS after a signal.
 */
int rust_hmm_fence_wait(struct dma_fence *fence, struct completion *bell,
			unsigned long timeout, bool killable)
{
	struct fence_waiter waiter = { .bell = bell };
	long left;

	/*
	 * Tells lockdep that the fence is waited for here, and checks it. Not interruptible: with a
	 * pending signal it would fail before it checks. Only a positive value means signalled.
	 */
	if (dma_fence_wait_timeout(fence, false, 0) > 0)
		return 1;
	if (dma_fence_add_callback(fence, &waiter.cb, fence_ring))
		return 1;
	left = killable ? wait_for_completion_killable_timeout(bell, timeout) :
			  wait_for_completion_interruptible_timeout(bell, timeout);
	dma_fence_remove_callback(fence, &waiter.cb);
	if (dma_fence_is_signaled(fence))
		return 1;
	return left < 0 ? -ERESTARTSYS : 0;
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_wait);

/*
 * What leaves as a sync file can reach other drivers, who may wait for it where memory is
 * reclaimed. But our operations fault pages in and take the mmap lock. So they get a fence of its
 * own, which signals when ours does, and with -ETIMEDOUT after a limit: its signalling path is a
 * callback or a timer.
 */
struct fence_bound {
	struct dma_fence *inner, *outer;
	struct dma_fence_cb cb;
	struct irq_work work;
	struct hrtimer timer;
	struct list_head list;
	struct rcu_head rcu;
	/* One for the callback and one for the timer. */
	refcount_t refs;
	atomic_t ended;
};

static LIST_HEAD(bounds);
static DEFINE_SPINLOCK(bounds_lock);
static DECLARE_WAIT_QUEUE_HEAD(bounds_gone);

static void bound_put(struct fence_bound *bound)
{
	unsigned long flags;

	if (!refcount_dec_and_test(&bound->refs))
		return;
	spin_lock_irqsave(&bounds_lock, flags);
	list_del(&bound->list);
	if (list_empty(&bounds))
		wake_up_all(&bounds_gone);
	spin_unlock_irqrestore(&bounds_lock, flags);
	dma_fence_put(bound->inner);
	dma_fence_put(bound->outer);
	/* The handler that we may be in still looks at it. */
	kfree_rcu(bound, rcu);
}

static void bound_end(struct fence_bound *bound, int error)
{
	if (atomic_xchg(&bound->ended, 1) == 0)
		rust_hmm_fence_signal(bound->outer, error);
}

static void bound_work(struct irq_work *work)
{
	struct fence_bound *bound = container_of(work, struct fence_bound, work);
	int status = dma_fence_get_status(bound->inner);

	bound_end(bound, status < 0 ? status : 0);
	if (hrtimer_try_to_cancel(&bound->timer) > 0)
		bound_put(bound);
	bound_put(bound);
}

static void bound_signalled(struct dma_fence *fence, struct dma_fence_cb *cb)
{
	/* The other fence's lock is of the same class as the one that is held. */
	irq_work_queue(&container_of(cb, struct fence_bound, cb)->work);
}

static enum hrtimer_restart bound_timeout(struct hrtimer *timer)
{
	struct fence_bound *bound = container_of(timer, struct fence_bound, timer);

	bound_end(bound, -ETIMEDOUT);
	if (dma_fence_remove_callback(bound->inner, &bound->cb))
		bound_put(bound);
	bound_put(bound);
	return HRTIMER_NORESTART;
}

/* Returns a reference. */
static struct dma_fence *fence_bound(struct dma_fence *inner, ktime_t limit)
{
	struct fence_bound *bound;
	struct dma_fence *outer;

	if (dma_fence_is_signaled(inner) || !fence_is_ours(inner))
		return dma_fence_get(inner);
	bound = kzalloc_obj(*bound, GFP_KERNEL_ACCOUNT);
	outer = rust_hmm_fence_alloc();
	if (!bound || !outer) {
		kfree(bound);
		kfree(outer);
		return NULL;
	}
	rust_hmm_fence_init(outer, rust_hmm_fence_type(inner),
			    dma_fence_context_alloc(1), 1);
	bound->inner = dma_fence_get(inner);
	bound->outer = dma_fence_get(outer);
	refcount_set(&bound->refs, 2);
	init_irq_work(&bound->work, bound_work);
	hrtimer_setup(&bound->timer, bound_timeout, CLOCK_MONOTONIC,
		      HRTIMER_MODE_REL_SOFT);
	/* The timer may look at it before it is added. */
	INIT_LIST_HEAD(&bound->cb.node);
	spin_lock_irq(&bounds_lock);
	list_add(&bound->list, &bounds);
	spin_unlock_irq(&bounds_lock);
	/* Not jiffies: they lag where ticks are late, and the limit would come too early. */
	hrtimer_start(&bound->timer, limit, HRTIMER_MODE_REL_SOFT);
	if (dma_fence_add_callback(inner, &bound->cb, bound_signalled))
		irq_work_queue(&bound->work);
	return outer;
}

/* Returns a file descriptor that is reserved, and its file; -errno. @limit is in nanoseconds. */
int rust_hmm_fence_export(struct dma_fence *fence, s64 limit,
			  struct file **file)
{
	struct dma_fence *outer;
	struct sync_file *sync;
	int fd = get_unused_fd_flags(O_CLOEXEC);

	if (fd < 0)
		return fd;
	outer = fence_bound(fence, ns_to_ktime(limit));
	sync = outer ? sync_file_create(outer) : NULL;
	dma_fence_put(outer);
	if (!sync) {
		put_unused_fd(fd);
		return -ENOMEM;
	}
	*file = sync->file;
	return fd;
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_export);

void rust_hmm_fence_install(int fd, struct file *file)
{
	fd_install(fd, file);
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_install);

void rust_hmm_fence_forget(int fd, struct file *file)
{
	put_unused_fd(fd);
	fput(file);
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_forget);

/* The fence of a sync file; of one that we made, the fence without a limit. */
struct dma_fence *rust_hmm_fence_import(int fd)
{
	struct dma_fence *fence = sync_file_get_fence(fd), *inner = NULL;
	struct fence_bound *bound;

	if (!fence || !fence_is_ours(fence))
		return fence;
	spin_lock_irq(&bounds_lock);
	list_for_each_entry(bound, &bounds, list) {
		if (bound->outer == fence) {
			inner = dma_fence_get(bound->inner);
			break;
		}
	}
	spin_unlock_irq(&bounds_lock);
	if (inner) {
		dma_fence_put(fence);
		return inner;
	}
	return fence;
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_import);

/* Waits until nothing here runs any more. All operations have ended, so that this is soon. */
void rust_hmm_fence_exit(void)
{
	wait_event(bounds_gone, list_empty_careful(&bounds));
	/* A handler or a timer may still be about to return. */
	synchronize_rcu();
}
EXPORT_SYMBOL_GPL(rust_hmm_fence_exit);
