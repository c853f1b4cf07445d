// SPDX-License-Identifier: GPL-2.0
/*
 * A driver in C on rust_hmm (Documentation/c-guide.rst): a device with 16 MiB of memory, which sums
 * and fills process memory. Ioctls take a struct request; two are those of samples/mirror_only.
 */
#include <linux/kfifo.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>
#include <rust_hmm.h>

enum { PAGES = 4096, TRIES = 100, PATIENCE_MS = 60000 };

enum command { SUM, SUM_AFTER, FILL, FILL_AFTER, FAULT, MIGRATE, EVICT, RESIDENT, SET, GET, COUNT };

struct request {
	u64 addr, pages, arg, out;
	union {
		struct rust_hmm_outcome outcome;
		struct rust_hmm_attributes attributes;
		struct rust_hmm_usage usage;
		struct rust_hmm_residency page;
	};
};

/* HARDWARE: the card's memory, and the engine that copies. */
static u8 vram[PAGES][PAGE_SIZE] __aligned(PAGE_SIZE);
static struct rust_hmm_memory *memory;
static DEFINE_KFIFO(jobs, struct rust_hmm_copy_job, 512);
static DEFINE_SPINLOCK(jobs_lock);

/* Kernel address of a page. rust_hmm needs a 64-bit machine, so there is no highmem. */
static void *page_at(const struct rust_hmm_place *place, unsigned long index)
{
	if (place->kind == RUST_HMM_DEVICE)
		return vram[place->first + index];
	return page_address(pfn_to_page(place->first + index));
}

static void copy(struct rust_hmm_copy_job *job)
{
	unsigned long i;

	for (i = 0; i < job->destination.pages && !rust_hmm_copy_cancelled(job); i++) {
		if (job->source.kind == RUST_HMM_NOWHERE)
			clear_page(page_at(&job->destination, i));
		else
			copy_page(page_at(&job->destination, i), page_at(&job->source, i));
	}
	rust_hmm_copy_done(job, i < job->destination.pages ? -ECANCELED : 0);
}

static void copy_all(struct work_struct *work)
{
	struct rust_hmm_copy_job job;

	while (kfifo_out_spinlocked(&jobs, &job, 1, &jobs_lock))
		copy(&job);
}
static DECLARE_WORK(copy_work, copy_all);

/* The driver owns the job: queue it, or copy synchronously if the queue is full. */
static void c_copy(void *data, struct rust_hmm_copy_job *job)
{
	if (!kfifo_in_spinlocked(&jobs, job, 1, &jobs_lock))
		copy(job);
	else
		schedule_work(&copy_work);
}

static const struct rust_hmm_memory_ops memory_ops = { .size = sizeof(memory_ops), .copy = c_copy };

/* An open file: the mirror of the process that opened it. */
struct client {
	struct rust_hmm_mirror *mirror;
	struct rust_hmm_queue *queue;
};

/* HARDWARE: start to invalidate the TLB. This device has none: each access uses the table. */
static unsigned long c_flush_start(void *data, unsigned long start, unsigned long end)
{
	return 0;
}

static const struct rust_hmm_mirror_ops mirror_ops = {
	.size = sizeof(mirror_ops), .flush_start = c_flush_start,
};

/* An operation of the device: fills memory with @value (RUST_HMM_WRITE), or sums it up there. */
struct op {
	struct client *client;
	unsigned long start, end;
	u32 flags;
	u64 value;
};

/* Accesses pages up to the first one without an entry. The table lock keeps them stable. */
static unsigned long touch(struct op *op, unsigned long addr)
{
	struct rust_hmm_place place;
	u64 *words;
	int i;

	for (; addr < op->end; addr += PAGE_SIZE) {
		if (rust_hmm_table_lookup(op->client->mirror, addr, op->flags, &place))
			break;
		words = page_at(&place, 0);
		for (i = 0; i < PAGE_SIZE / sizeof(*words); i++) {
			if (op->flags & RUST_HMM_WRITE)
				WRITE_ONCE(words[i], op->value);
			else
				op->value += READ_ONCE(words[i]);
		}
	}
	return addr;
}

static int run(void *data, const struct rust_hmm_stop *stop)
{
	struct op *op = data;
	unsigned long addr = op->start, next, ahead = 2 * PMD_SIZE;
	int tries = 0, ret = 0;

	while (!ret && tries < TRIES) {
		if (stop && rust_hmm_stopped(stop))
			return -ECANCELED;
		if (rust_hmm_table_lock(op->client->mirror))
			return -EDEADLK;
		next = touch(op, addr);
		rust_hmm_table_unlock(op->client->mirror);
		if (next >= op->end)
			return 0;
		tries = next == addr ? tries + 1 : 0;
		addr = next;
		/* A device fault. The smaller it is, the likelier its first entry remains valid. */
		ahead = tries ? max(ahead / 2, PAGE_SIZE) : min(ahead * 2, PMD_SIZE);
		next = min3(ALIGN(addr + 1, PMD_SIZE), addr + ahead, op->end);
		ret = rust_hmm_serve(op->client->mirror, addr, next, op->flags,
				     RUST_HMM_ATTRIBUTES, NULL);
	}
	return ret ?: -EBUSY;
}

static void op_free(void *data)
{
	kfree(data);
}

/* Queues a copy of @op, whose end signals the eventfd @event unless that is 0. */
static int submit(const struct op *op, struct rust_hmm_fence *fence, int event)
{
	struct op *later = kmemdup(op, sizeof(*op), GFP_KERNEL);
	struct rust_hmm_fence *done;
	int ret;

	if (!later)
		return -ENOMEM;
	done = rust_hmm_queue_submit(op->client->queue, &fence, 1, run, op_free, later);
	if (IS_ERR(done))
		return PTR_ERR(done);
	/* The operation runs even if this fails. */
	ret = event ? rust_hmm_fence_eventfd(done, event) : 0;
	rust_hmm_fence_put(done);
	return ret;
}

/* Does @op after the sync file in the lower half of @fds, or without one after the queue. */
static int after(struct op *op, u64 fds, bool in_queue)
{
	struct rust_hmm_fence *fence = NULL;
	int ret;

	if (lower_32_bits(fds))
		fence = rust_hmm_fence_from_file(lower_32_bits(fds));
	else if (!in_queue)
		fence = rust_hmm_queue_record(op->client->queue);
	if (IS_ERR(fence))
		return PTR_ERR(fence);
	ret = in_queue ? submit(op, fence, upper_32_bits(fds)) :
			 rust_hmm_fence_wait_for(fence, PATIENCE_MS);
	rust_hmm_fence_put(fence);
	return ret || in_queue ? ret : run(op, NULL);
}

static int command(struct client *client, unsigned int nr, struct request *r, unsigned long end)
{
	struct op op = { .client = client, .start = r->addr, .end = end };
	struct rust_hmm_migration how = { .target = r->arg, .flags = r->arg >> 32 };
	struct rust_hmm_mirror *mirror = client->mirror;
	int ret;

	switch (nr) {
	case SUM:
	case SUM_AFTER:
		ret = after(&op, nr == SUM ? 0 : r->arg, false);
		r->out = op.value;
		return ret;
	case FILL:
	case FILL_AFTER:
		op.flags = RUST_HMM_WRITE;
		op.value = r->out;
		return after(&op, r->arg, nr == FILL_AFTER);
	case FAULT:
		return rust_hmm_fault(mirror, r->addr, end, r->arg);
	case MIGRATE:
		return rust_hmm_migrate(mirror, r->addr, end, &how, &r->outcome);
	case EVICT:
		return rust_hmm_memory_evict(memory);
	case RESIDENT:
		return rust_hmm_snapshot(mirror, r->addr, r->addr + PAGE_SIZE, &r->page);
	case SET:
		if (!r->attributes.valid)
			return rust_hmm_attributes_clear(mirror, r->addr, end);
		return rust_hmm_attributes_set(mirror, r->addr, end, &r->attributes);
	case GET:
		return rust_hmm_attributes_get(mirror, r->addr, end, &r->attributes);
	case COUNT:
		r->out = rust_hmm_mirror_counter(mirror, r->arg) +
			 rust_hmm_memory_counter(memory, r->arg);
		rust_hmm_memory_usage(memory, &r->usage);
		return 0;
	}
	return -EINVAL;
}

static long c_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct request r = {};
	size_t size = min(_IOC_SIZE(cmd), sizeof(r));
	unsigned long end;
	int ret;

	if (copy_from_user(&r, (void __user *)arg, size))
		return -EFAULT;
	if (check_mul_overflow(r.pages, PAGE_SIZE, &end) || check_add_overflow(end, r.addr, &end))
		return -EINVAL;
	ret = command(file->private_data, _IOC_NR(cmd), &r, end);
	return ret >= 0 && copy_to_user((void __user *)arg, &r, size) ? -EFAULT : ret;
}

static int c_release(struct inode *inode, struct file *file)
{
	struct client *client = file->private_data;

	/* First: queued operations use the mirror. */
	rust_hmm_queue_destroy(client->queue);
	rust_hmm_mirror_destroy(client->mirror);
	kfree(client);
	return 0;
}

static int c_open(struct inode *inode, struct file *file)
{
	struct client *client = kzalloc_obj(*client, GFP_KERNEL_ACCOUNT);
	int ret;

	if (!client)
		return -ENOMEM;
	file->private_data = client;
	client->queue = rust_hmm_queue_create(vram, 16);
	client->mirror = rust_hmm_mirror_create(current->mm, &mirror_ops, client, memory);
	ret = PTR_ERR_OR_ZERO(client->queue) ?: PTR_ERR_OR_ZERO(client->mirror);
	if (ret)
		c_release(inode, file);
	return ret;
}

static const struct file_operations fops = {
	.owner = THIS_MODULE, .open = c_open, .release = c_release, .unlocked_ioctl = c_ioctl,
};

static struct miscdevice node = {
	.minor = MISC_DYNAMIC_MINOR, .name = "hmm_c_mirror", .fops = &fops,
};

static int __init c_init(void)
{
	int ret;

	memory = rust_hmm_memory_create(&memory_ops, NULL, PAGES);
	ret = PTR_ERR_OR_ZERO(memory) ?: misc_register(&node);
	if (ret)
		rust_hmm_memory_destroy(memory);
	return ret;
}
module_init(c_init);

static void __exit c_exit(void)
{
	misc_deregister(&node);
	/* No file is open, so no mirror uses the memory. */
	rust_hmm_memory_destroy(memory);
	flush_work(&copy_work);
}
module_exit(c_exit);

MODULE_DESCRIPTION("A driver in C on rust_hmm");
MODULE_LICENSE("GPL");
