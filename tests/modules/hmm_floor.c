// SPDX-License-Identifier: GPL-2.0
/*
 * Lower bound of the benchmark: a driver that only copies pages and calls migrate_vma_*(), with
 * those ioctls of test_hmm that hmm-bench needs for this.
 *
 * It has no mirror and no device page table, registers no notifier, ignores huge pages, serves one
 * process at a time, and fails at the first error. A complete driver cannot migrate pages through
 * the same kernel interface at a lower cost.
 */
#include <linux/fs.h>
#include <linux/highmem.h>
#include <linux/ioport.h>
#include <linux/memremap.h>
#include <linux/migrate.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

/* rust/helpers/page_copy.c */
size_t rust_hmm_page_to_user(unsigned long user, unsigned long pfn,
			     size_t offset, size_t len);

#define BATCH PTRS_PER_PTE
#define WINDOW (SZ_64K >> PAGE_SHIFT)

struct command {
	__u64 addr, ptr, npages, cpages, faults;
};

#define MIGRATE_TO_DEV _IOWR('H', 0x02, struct command)
#define MIGRATE_TO_SYS _IOWR('H', 0x03, struct command)

static ulong mib = 256;
module_param(mib, ulong, 0444);
MODULE_PARM_DESC(mib, "MiB of device memory, a multiple of 128");

static struct dev_pagemap pagemap;
static unsigned long npages, first_pfn;
/* Contents of device memory, and its free pages. */
static struct page **contents;
static unsigned long *stack, top;
static spinlock_t lock;

/* Arrays of the ioctl in progress, of which there is at most one; a CPU fault uses its own. */
struct batch {
	unsigned long src[BATCH];
	unsigned long dst[BATCH];
	struct page *pages[BATCH];
};

static DEFINE_MUTEX(busy);
static struct batch *batch;

static struct page *contents_of(struct page *page)
{
	return contents[page_to_pfn(page) - first_pfn];
}

static void floor_folio_free(struct folio *folio)
{
	unsigned long flags;

	spin_lock_irqsave(&lock, flags);
	stack[top++] = folio_pfn(folio);
	spin_unlock_irqrestore(&lock, flags);
}

static unsigned long take(void)
{
	unsigned long pfn;

	spin_lock_irq(&lock);
	pfn = top ? stack[--top] : 0;
	spin_unlock_irq(&lock);
	return pfn;
}

/* Allocate destination pages in system memory for the isolated pages, and copy the contents. */
static int fill_system(struct batch *b, unsigned long count)
{
	unsigned long i, got, want = 0, next = 0;

	for (i = 0; i < count; i++)
		want += (b->src[i] & (MIGRATE_PFN_MIGRATE | MIGRATE_PFN_VALID)) ==
			(MIGRATE_PFN_MIGRATE | MIGRATE_PFN_VALID);
	memset(b->pages, 0, want * sizeof(b->pages[0]));
	got = alloc_pages_bulk(GFP_HIGHUSER_MOVABLE, want, b->pages);
	for (i = 0; i < count && next < got; i++) {
		struct page *from = migrate_pfn_to_page(b->src[i]);
		struct page *to;

		if (!from || !(b->src[i] & MIGRATE_PFN_MIGRATE))
			continue;
		to = b->pages[next++];
		__SetPageLocked(to);
		copy_highpage(to, contents_of(from));
		b->dst[i] = migrate_pfn(page_to_pfn(to));
	}
	return got == want ? 0 : -ENOMEM;
}

static int to_system(struct vm_area_struct *vma, unsigned long start,
		     unsigned long end, struct page *fault, struct batch *b)
{
	struct migrate_vma args = {
		.vma = vma,
		.src = b->src,
		.dst = b->dst,
		.start = start,
		.end = end,
		.pgmap_owner = &pagemap,
		.flags = MIGRATE_VMA_SELECT_DEVICE_PRIVATE,
		.fault_page = fault,
	};
	int ret = migrate_vma_setup(&args);

	if (ret)
		return ret;
	ret = fill_system(b, args.npages);
	migrate_vma_pages(&args);
	migrate_vma_finalize(&args);
	return ret;
}

static vm_fault_t floor_migrate_to_ram(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	unsigned long start = vmf->address & ~(WINDOW * PAGE_SIZE - 1);
	unsigned long end = min(start + WINDOW * PAGE_SIZE, vma->vm_end);
	struct batch *b = kmalloc_obj(*b);
	int ret;

	if (!b)
		return VM_FAULT_OOM;
	ret = to_system(vma, max(start, vma->vm_start), end, vmf->page, b);
	kfree(b);
	return ret ? VM_FAULT_SIGBUS : 0;
}

static const struct dev_pagemap_ops floor_ops = {
	.folio_free = floor_folio_free,
	.migrate_to_ram = floor_migrate_to_ram,
};

static int to_device(struct vm_area_struct *vma, unsigned long start,
		     unsigned long end, unsigned long user, struct batch *b)
{
	struct migrate_vma args = {
		.vma = vma,
		.src = b->src,
		.dst = b->dst,
		.start = start,
		.end = end,
		.pgmap_owner = &pagemap,
		.flags = MIGRATE_VMA_SELECT_SYSTEM,
	};
	unsigned long i, left = 0;
	int ret = migrate_vma_setup(&args);

	if (ret)
		return ret;
	for (i = 0; i < args.npages; i++) {
		struct page *from = migrate_pfn_to_page(b->src[i]);
		unsigned long pfn;

		if (!from || !(b->src[i] & MIGRATE_PFN_MIGRATE))
			continue;
		pfn = take();
		if (!pfn)
			break;
		zone_device_folio_init(page_folio(pfn_to_page(pfn)), &pagemap, 0);
		copy_highpage(contents[pfn - first_pfn], from);
		b->dst[i] = migrate_pfn(pfn);
	}
	migrate_vma_pages(&args);
	migrate_vma_finalize(&args);
	/* Return the migrated data to user space for verification, as test_hmm does. */
	for (i = 0; i < args.npages; i++) {
		struct page *to = migrate_pfn_to_page(b->dst[i]);

		if (!to || !(b->src[i] & MIGRATE_PFN_MIGRATE))
			return -ENOENT;
		left |= rust_hmm_page_to_user(user + i * PAGE_SIZE,
					      page_to_pfn(contents_of(to)), 0,
					      PAGE_SIZE);
	}
	return left ? -EFAULT : 0;
}

static long floor_ioctl(struct file *file, unsigned int number, unsigned long arg)
{
	struct command cmd;
	unsigned long at, end, next;
	long ret = 0;

	if (copy_from_user(&cmd, (void __user *)arg, sizeof(cmd)))
		return -EFAULT;
	if (number != MIGRATE_TO_DEV && number != MIGRATE_TO_SYS)
		return -EINVAL;
	end = cmd.addr + cmd.npages * PAGE_SIZE;
	mutex_lock(&busy);
	for (at = cmd.addr; at < end && !ret; at = next) {
		struct vm_area_struct *vma;

		next = min(ALIGN(at + 1, PMD_SIZE), end);
		mmap_read_lock(current->mm);
		vma = vma_lookup(current->mm, at);
		if (!vma)
			ret = -EINVAL;
		else if (number == MIGRATE_TO_DEV)
			ret = to_device(vma, at, next, cmd.ptr + at - cmd.addr, batch);
		else
			ret = to_system(vma, at, next, NULL, batch);
		mmap_read_unlock(current->mm);
	}
	mutex_unlock(&busy);
	cmd.cpages = cmd.npages;
	if (!ret && copy_to_user((void __user *)arg, &cmd, sizeof(cmd)))
		ret = -EFAULT;
	return ret;
}

static int evict(void)
{
	unsigned long at;

	mutex_lock(&busy);
	for (at = 0; at < npages && top < npages; at += BATCH) {
		memset(batch->dst, 0, sizeof(batch->dst));
		if (migrate_device_range(batch->src, first_pfn + at, BATCH))
			break;
		fill_system(batch, BATCH);
		migrate_device_pages(batch->src, batch->dst, BATCH);
		migrate_device_finalize(batch->src, batch->dst, BATCH);
	}
	mutex_unlock(&busy);
	return top == npages ? 0 : -EBUSY;
}

static int floor_release(struct inode *inode, struct file *file)
{
	return evict();
}

static const struct file_operations floor_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = floor_ioctl,
	.release = floor_release,
};

static struct miscdevice floor_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "hmm_dmirror0",
	.fops = &floor_fops,
};

static void free_all(void)
{
	unsigned long i;

	for (i = 0; contents && i < npages; i++)
		if (contents[i])
			__free_page(contents[i]);
	kvfree(contents);
	kvfree(stack);
	kfree(batch);
}

static int __init floor_init(void)
{
	struct resource *res;
	void *mapped;
	unsigned long i;
	int ret = -ENOMEM;

	npages = mib << (20 - PAGE_SHIFT);
	spin_lock_init(&lock);
	batch = kzalloc_obj(*batch);
	contents = kvcalloc(npages, sizeof(*contents), GFP_KERNEL);
	stack = kvcalloc(npages, sizeof(*stack), GFP_KERNEL);
	if (!batch || !contents || !stack)
		goto fail;
	for (i = 0; i < npages; i++) {
		contents[i] = alloc_page(GFP_HIGHUSER);
		if (!contents[i])
			goto fail;
	}
	res = request_free_mem_region(&iomem_resource, mib << 20, "hmm_floor");
	if (IS_ERR(res)) {
		ret = PTR_ERR(res);
		goto fail;
	}
	pagemap.type = MEMORY_DEVICE_PRIVATE;
	pagemap.range.start = res->start;
	pagemap.range.end = res->end;
	pagemap.nr_range = 1;
	pagemap.ops = &floor_ops;
	pagemap.owner = &pagemap;
	mapped = memremap_pages(&pagemap, NUMA_NO_NODE);
	if (IS_ERR(mapped)) {
		ret = PTR_ERR(mapped);
		goto fail_region;
	}
	first_pfn = pagemap.range.start >> PAGE_SHIFT;
	/* Pushed in reverse, so that the lowest page is allocated first. */
	for (i = npages; i-- > 0;)
		stack[top++] = first_pfn + i;
	ret = misc_register(&floor_device);
	if (!ret)
		return 0;
	memunmap_pages(&pagemap);
fail_region:
	release_mem_region(pagemap.range.start, mib << 20);
fail:
	free_all();
	return ret;
}

static void __exit floor_exit(void)
{
	misc_deregister(&floor_device);
	memunmap_pages(&pagemap);
	release_mem_region(pagemap.range.start, mib << 20);
	free_all();
}

module_init(floor_init);
module_exit(floor_exit);
MODULE_DESCRIPTION("Floor of the benchmark of rust_hmm");
MODULE_AUTHOR("The rust_hmm authors");
MODULE_LICENSE("GPL");
