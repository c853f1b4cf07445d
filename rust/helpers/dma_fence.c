// SPDX-License-Identifier: GPL-2.0
/*
 * DMA fences of hardware that accesses pinned memory only, and sync files: wrappers of the kernel's
 * inline functions.
 *
 * A fence has neither a release nor a wait operation. A signalled fence uses no code of this
 * module, so that it may outlive the module.
 */
#include <linux/dma-fence.h>
#include <linux/export.h>
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/slab.h>
#include <linux/sync_file.h>

/* @base is first, because the kernel's default release frees the fence by its address. */
struct hmm_dma_fence {
	struct dma_fence base;
	const void *kind;
};

static const char *fence_name(struct dma_fence *fence)
{
	return "rust_hmm";
}

static const struct dma_fence_ops fence_ops = {
	.get_driver_name = fence_name,
	.get_timeline_name = fence_name,
};

struct dma_fence *rust_hmm_dma_fence_alloc(void)
{
	struct hmm_dma_fence *fence = kzalloc_obj(*fence, GFP_KERNEL_ACCOUNT);

	return fence ? &fence->base : NULL;
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_fence_alloc);

/* Frees a fence that was never initialized. */
void rust_hmm_dma_fence_free(struct dma_fence *fence)
{
	kfree(container_of(fence, struct hmm_dma_fence, base));
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_fence_free);

void rust_hmm_dma_fence_init(struct dma_fence *fence, const void *kind,
			     u64 context, u64 seqno)
{
	container_of(fence, struct hmm_dma_fence, base)->kind = kind;
	dma_fence_init64(fence, &fence_ops, NULL, context, seqno);
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_fence_init);

void rust_hmm_dma_fence_signal(struct dma_fence *fence, int error)
{
	bool cookie = dma_fence_begin_signalling();

	if (error)
		dma_fence_set_error(fence, error);
	dma_fence_signal(fence);
	dma_fence_end_signalling(cookie);
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_fence_signal);

/*
 * Returns the type of device that signals @fence. NULL if the fence is not one of this library, or
 * is signalled, because @ops may be cleared then.
 */
const void *rust_hmm_dma_fence_kind(struct dma_fence *fence)
{
	if (rcu_access_pointer(fence->ops) != &fence_ops)
		return NULL;
	return container_of(fence, struct hmm_dma_fence, base)->kind;
}

void rust_hmm_dma_fence_get(struct dma_fence *fence)
{
	dma_fence_get(fence);
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_fence_get);

void rust_hmm_dma_fence_put(struct dma_fence *fence)
{
	dma_fence_put(fence);
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_fence_put);

bool rust_hmm_dma_fence_begin_signalling(void)
{
	return dma_fence_begin_signalling();
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_fence_begin_signalling);

void rust_hmm_dma_fence_end_signalling(bool cookie)
{
	dma_fence_end_signalling(cookie);
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_fence_end_signalling);

/*
 * Creates a sync file of @fence and reserves a file descriptor for it, which is not installed yet.
 * Returns the descriptor or -errno.
 */
int rust_hmm_sync_file_reserve(struct dma_fence *fence, struct file **file)
{
	struct sync_file *sync;
	int fd = get_unused_fd_flags(O_CLOEXEC);

	if (fd < 0)
		return fd;
	sync = sync_file_create(fence);
	if (!sync) {
		put_unused_fd(fd);
		return -ENOMEM;
	}
	*file = sync->file;
	return fd;
}
EXPORT_SYMBOL_GPL(rust_hmm_sync_file_reserve);

void rust_hmm_sync_file_install(int fd, struct file *file)
{
	fd_install(fd, file);
}
EXPORT_SYMBOL_GPL(rust_hmm_sync_file_install);

void rust_hmm_sync_file_forget(int fd, struct file *file)
{
	put_unused_fd(fd);
	fput(file);
}
EXPORT_SYMBOL_GPL(rust_hmm_sync_file_forget);

struct dma_fence *rust_hmm_sync_file_fence(int fd)
{
	return sync_file_get_fence(fd);
}
EXPORT_SYMBOL_GPL(rust_hmm_sync_file_fence);
