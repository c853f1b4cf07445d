// SPDX-License-Identifier: GPL-2.0
/*
 * gpusvm_dmirror: the ioctl ABI of the kernel's lib/test_hmm.c, implemented with
 * the DRM frameworks drm_gpusvm and drm_pagemap instead of direct HMM calls.
 *
 * This is a reference for the benchmark, not a production driver. It cannot be
 * unloaded, so it is loaded once per boot, and not together with another module
 * that provides /dev/hmm_dmirror0.
 *
 * The device is a mock: its page table is a two-level radix tree in this module,
 * its memory is RAM behind ZONE_DEVICE device-private pages, and the CPU copies.
 * The driver side of the frameworks (chunk and notifier sizes, garbage collection
 * of unmapped ranges, retry rules, eviction before a second attempt to migrate)
 * follows drivers/gpu/drm/xe/xe_svm.c.
 *
 * Simpler than Xe: device memory is a bitmap under a spinlock and freed inline;
 * there are no fences and no TLB flushes; a full device fails with ENOMEM; DMA
 * addresses are physical addresses (dma-direct without an IOMMU).
 *
 * Differences from test_hmm: migrations act on whole ranges of up to 2 MiB, and
 * migrate all of a range or nothing (EBUSY); a CPU fault migrates a whole range
 * back; reads map pages read-only, so that a later write costs a fault per range;
 * EXCLUSIVE is refused.
 *
 * Locks, outer to inner:
 *   gd_vm.lock            one ioctl or one garbage collection at a time per open
 *                         file; guards range lookup and every page table walk.
 *   gd_migrate_lock       as Xe's driver_migrate_lock.
 *   mmap_lock
 *   svm.notifier_lock     taken for write by invalidation (in the framework),
 *                         for read around every use or change of PTEs here.
 *   gc_lock, gd_device.lock, the XArray's own lock: leaves.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bitmap.h>
#include <linux/device/faux.h>
#include <linux/dma-mapping.h>
#include <linux/fs.h>
#include <linux/highmem.h>
#include <linux/hmm.h>
#include <linux/ioctl.h>
#include <linux/kref.h>
#include <linux/log2.h>
#include <linux/memremap.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/sched/mm.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include <drm/drm_drv.h>
#include <drm/drm_gpusvm.h>
#include <drm/drm_pagemap.h>

/* ------------------------------------------------------------------ ABI -- */

struct hmm_dmirror_cmd {
	__u64 addr, ptr, npages, cpages, faults;
};

#define GD_IOC(nr)		_IOWR('H', nr, struct hmm_dmirror_cmd)
#define GD_READ			GD_IOC(0x00)
#define GD_WRITE		GD_IOC(0x01)
#define GD_MIGRATE_TO_DEV	GD_IOC(0x02)
#define GD_MIGRATE_TO_SYS	GD_IOC(0x03)
#define GD_SNAPSHOT		GD_IOC(0x04)
#define GD_RELEASE		GD_IOC(0x07)
#define GD_FLAGS		GD_IOC(0x08)
#define GD_FLAG_FAIL_ALLOC	1ULL

#define GD_PROT_ERROR		0xFF
#define GD_PROT_READ		0x01
#define GD_PROT_WRITE		0x02
#define GD_PROT_PMD		0x04
#define GD_PROT_PUD		0x08
#define GD_PROT_ZERO		0x10
#define GD_PROT_DEV_LOCAL	0x20
#define GD_PROT_DEV_REMOTE	0x30

/* ----------------------------------------------------------- parameters -- */

static unsigned int vram_mb = 256;
module_param(vram_mb, uint, 0444);
MODULE_PARM_DESC(vram_mb, "device memory per device in MiB, a multiple of 128");

static bool static_backing;
module_param(static_backing, bool, 0444);
MODULE_PARM_DESC(static_backing,
		 "N: RAM behind device memory is allocated and freed with each device allocation (as test_hmm does); Y: once at load (as real VRAM)");

static bool evict_on_close = true;
module_param(evict_on_close, bool, 0644);
MODULE_PARM_DESC(evict_on_close,
		 "Y: close moves the mm's device pages to RAM (as test_hmm does); N: they stay until touched (as Xe)");

/* ---------------------------------------------------------------- types -- */

#define GD_NDEV		2
#define GD_NOTIFIER_SZ	SZ_512M
#define GD_TIMEOUT_MS	1000

#define PDE_SHIFT	21
#define PDE_SIZE	(1UL << PDE_SHIFT)
#define PDE_NPTES	(PDE_SIZE >> PAGE_SHIFT)

/* A device PTE: page aligned address | flags. */
#define PTE_VALID	BIT_ULL(0)
#define PTE_WRITE	BIT_ULL(1)
#define PTE_DEVMEM	BIT_ULL(2)	/* device address, not a DMA address */
#define PTE_ADDR	(~((u64)PAGE_SIZE - 1))

struct gd_pde {
	u64 huge;		/* one PTE for the whole 2 MiB, or 0 */
	u64 *ptes;		/* PDE_NPTES entries, or NULL */
};

struct gd_device {
	struct miscdevice	misc;
	char			name[16];
	struct faux_device	*fdev;
	struct drm_device	*drm;
	struct drm_pagemap	dpagemap;
	struct dev_pagemap	pagemap;
	unsigned long		base_pfn;
	unsigned long		npages;
	struct page		**backing;	/* by device page number */
	spinlock_t		lock;		/* protects the fields below */
	unsigned long		*used;
	unsigned long		hint;
	struct list_head	bos;
	unsigned long		evict_gen;
	bool			fail_alloc;
};

/* One device memory allocation: contiguous, a power of two pages, aligned. */
struct gd_bo {
	struct drm_pagemap_devmem devmem;
	struct gd_device	*dev;
	struct kref		ref;
	struct list_head	link;
	unsigned long		first;
	unsigned int		order;
	bool			one_block;	/* backing is one block of @order */
	unsigned long		evict_gen;
};

struct gd_range {
	struct drm_gpusvm_range	base;
	struct drm_gpusvm_pages	pages;
	struct list_head	gc_link;
	bool			bound;		/* PTEs are present */
	bool			write;		/* pages were faulted for writing */
};

/* One open file: a device address space that mirrors the opener's mm. */
struct gd_vm {
	struct drm_gpusvm	svm;
	struct gd_device	*dev;
	struct mutex		lock;
	struct xarray		pt;		/* va >> PDE_SHIFT -> gd_pde */
	bool			closed;		/* under notifier_lock */
	spinlock_t		gc_lock;
	struct list_head	gc_list;
	struct work_struct	gc_work;
};

static struct gd_device gd_devices[GD_NDEV];
static DECLARE_RWSEM(gd_migrate_lock);

static struct gd_range *to_gd_range(struct drm_gpusvm_range *r)
{
	return container_of(r, struct gd_range, base);
}

static struct gd_vm *to_gd_vm(struct drm_gpusvm *svm)
{
	return container_of(svm, struct gd_vm, svm);
}

static struct gd_bo *to_gd_bo(struct drm_pagemap_devmem *devmem)
{
	return container_of(devmem, struct gd_bo, devmem);
}

static struct page *gd_backing(struct gd_device *dev, unsigned long device_pfn)
{
	return dev->backing[device_pfn - dev->base_pfn];
}

/* The mock bus: no IOMMU and dma-direct, so a DMA address is a physical one. */
static struct page *gd_dma_to_page(dma_addr_t addr)
{
	return pfn_to_page(PHYS_PFN(addr));
}

/* ---------------------------------------------------- device page table -- */

static struct gd_pde *gd_pde(struct gd_vm *vm, unsigned long va)
{
	return xa_load(&vm->pt, va >> PDE_SHIFT);
}

/*
 * Preallocate page tables for a bind, before any lock of the invalidation path is
 * taken.
 */
static int gd_pt_prepare(struct gd_vm *vm, unsigned long va, bool need_ptes)
{
	struct gd_pde *pde = gd_pde(vm, va);
	int err;

	if (!pde) {
		pde = kzalloc_obj(*pde);
		if (!pde)
			return -ENOMEM;
		err = xa_err(xa_store(&vm->pt, va >> PDE_SHIFT, pde, GFP_KERNEL));
		if (err) {
			kfree(pde);
			return err;
		}
	}
	if (need_ptes && !pde->ptes) {
		pde->ptes = (u64 *)get_zeroed_page(GFP_KERNEL);
		if (!pde->ptes)
			return -ENOMEM;
	}
	return 0;
}

static void gd_pde_free(struct gd_pde *pde)
{
	if (pde)
		free_page((unsigned long)pde->ptes);
	kfree(pde);
}

static u64 gd_mkpte(const struct drm_pagemap_addr *a, bool write)
{
	return a->addr | PTE_VALID | (write ? PTE_WRITE : 0) |
	       (a->proto == DRM_INTERCONNECT_SYSTEM ? 0 : PTE_DEVMEM);
}

/*
 * Install the PTEs of a range with valid pages; -EAGAIN if they were invalidated.
 */
static int gd_bind(struct gd_vm *vm, struct gd_range *range)
{
	const struct drm_pagemap_addr *a = range->pages.dma_addr;
	unsigned long va = drm_gpusvm_range_start(&range->base);
	unsigned long n = drm_gpusvm_range_size(&range->base) >> PAGE_SHIFT;
	bool huge = n == PDE_NPTES && a->order == ilog2(PDE_NPTES);
	struct gd_pde *pde;
	unsigned long i, j;
	int err;

	err = gd_pt_prepare(vm, va, !huge);
	if (err)
		return err;

	drm_gpusvm_notifier_lock(&vm->svm);
	if (!drm_gpusvm_pages_valid(&vm->svm, &range->pages)) {
		drm_gpusvm_notifier_unlock(&vm->svm);
		return -EAGAIN;
	}
	pde = gd_pde(vm, va);
	if (huge) {
		pde->huge = gd_mkpte(a, range->write);
	} else {
		u64 *pte = pde->ptes + ((va & (PDE_SIZE - 1)) >> PAGE_SHIFT);

		for (i = 0; i < n; a++) {
			u64 v = gd_mkpte(a, range->write);

			for (j = 0; j < NR_PAGES(a->order); j++, v += PAGE_SIZE)
				pte[i++] = v;
		}
	}
	range->bound = true;
	drm_gpusvm_notifier_unlock(&vm->svm);
	return 0;
}

/* Caller holds notifier_lock: for write, or for read and gd_vm.lock. */
static void gd_zap(struct gd_vm *vm, struct gd_range *range)
{
	unsigned long va = drm_gpusvm_range_start(&range->base);
	struct gd_pde *pde;

	if (!range->bound)
		return;
	range->bound = false;
	pde = gd_pde(vm, va);
	if (pde->huge)
		pde->huge = 0;
	else
		memset(pde->ptes + ((va & (PDE_SIZE - 1)) >> PAGE_SHIFT), 0,
		       (drm_gpusvm_range_size(&range->base) >> PAGE_SHIFT) * sizeof(u64));
}

/*
 * The device's own loads and stores: copy between @buf and [va, end) through
 * the device page table. Returns the address that faulted, or @end.
 */
static unsigned long gd_access(struct gd_vm *vm, unsigned long va,
			       unsigned long end, void *buf, bool write)
{
	u64 need = PTE_VALID | (write ? PTE_WRITE : 0);

	drm_gpusvm_notifier_lock(&vm->svm);
	while (va < end) {
		unsigned long stop = min(end, ALIGN(va + 1, PDE_SIZE));
		struct gd_pde *pde = gd_pde(vm, va);

		if (!pde)
			goto out;
		for (; va < stop; va += PAGE_SIZE, buf += PAGE_SIZE) {
			unsigned long off = va & (PDE_SIZE - 1);
			struct page *page;
			u64 pte = 0;

			if (pde->huge)
				pte = pde->huge + off;
			else if (pde->ptes)
				pte = pde->ptes[off >> PAGE_SHIFT];
			if ((pte & need) != need)
				goto out;

			if (pte & PTE_DEVMEM)
				page = gd_backing(vm->dev, PHYS_PFN(pte & PTE_ADDR));
			else
				page = gd_dma_to_page(pte & PTE_ADDR);
			if (write)
				memcpy_to_page(page, 0, buf, PAGE_SIZE);
			else
				memcpy_from_page(buf, page, 0, PAGE_SIZE);
		}
	}
out:
	drm_gpusvm_notifier_unlock(&vm->svm);
	return va;
}

/* -------------------------------------------------------- device memory -- */

static void gd_backing_free(struct gd_bo *bo)
{
	struct page **p = bo->dev->backing + bo->first;
	unsigned long i;

	if (static_backing)
		return;
	if (bo->one_block) {
		__free_pages(p[0], bo->order);
		return;
	}
	/* Stops early after a failed gd_backing_alloc(). */
	for (i = 0; i < 1UL << bo->order && p[i]; i++) {
		__free_page(p[i]);
		p[i] = NULL;
	}
}

static int gd_backing_alloc(struct gd_bo *bo)
{
	struct page **p = bo->dev->backing + bo->first;
	unsigned long i, n = 1UL << bo->order;
	struct page *page = NULL;

	if (static_backing)
		return 0;
	if (!xchg(&bo->dev->fail_alloc, false))
		page = alloc_pages(GFP_HIGHUSER | (bo->order ? __GFP_NOWARN | __GFP_NORETRY : 0),
				   bo->order);
	if (page) {
		bo->one_block = true;
		for (i = 0; i < n; i++)
			p[i] = page + i;
		return 0;
	}
	memset(p, 0, n * sizeof(*p));
	for (i = 0; i < n; i++) {
		p[i] = alloc_page(GFP_HIGHUSER);
		if (!p[i])
			return -ENOMEM;
	}
	return 0;
}

static void gd_vram_free(struct gd_bo *bo)
{
	struct gd_device *dev = bo->dev;
	unsigned long flags;

	spin_lock_irqsave(&dev->lock, flags);
	list_del(&bo->link);
	bitmap_clear(dev->used, bo->first, 1U << bo->order);
	spin_unlock_irqrestore(&dev->lock, flags);
}

/* May run in atomic context: the last put of a page frees its allocation. */
static void gd_bo_free(struct kref *ref)
{
	struct gd_bo *bo = container_of(ref, struct gd_bo, ref);

	gd_backing_free(bo);
	gd_vram_free(bo);
	mmdrop(bo->devmem.mm);
	kfree(bo);
}

static void gd_devmem_release(struct drm_pagemap_devmem *devmem)
{
	kref_put(&to_gd_bo(devmem)->ref, gd_bo_free);
}

static int gd_populate_devmem_pfn(struct drm_pagemap_devmem *devmem,
				  unsigned long npages, unsigned long *pfn)
{
	struct gd_bo *bo = to_gd_bo(devmem);
	unsigned long i;

	for (i = 0; i < npages; i++)
		pfn[i] = bo->dev->base_pfn + bo->first + i;
	return 0;
}

static struct gd_device *gd_page_device(struct page *page)
{
	return container_of(page_pgmap(page), struct gd_device, pagemap);
}

/*
 * Sources are DMA addresses; a hole (never populated, or the zero page) has
 * address 0 and is cleared. Destination pages are contiguous, so where only the
 * head of a large folio is given the rest follows from it.
 */
static int gd_copy_to_devmem(struct page **pages,
			     struct drm_pagemap_addr *addr,
			     unsigned long npages, struct dma_fence *fence)
{
	struct gd_device *dev = NULL;
	unsigned long i, k, dpfn = 0;

	for (i = 0; i < npages;) {
		unsigned long nr = addr[i].addr ? NR_PAGES(addr[i].order) : 1;
		struct page *src = addr[i].addr ? gd_dma_to_page(addr[i].addr) : NULL;

		if (pages[i]) {
			dev = gd_page_device(pages[i]);
			dpfn = page_to_pfn(pages[i]);
		}
		if (WARN_ON_ONCE(!dev))
			return -EIO;
		for (k = 0; k < nr; k++, dpfn++) {
			if (src)
				copy_highpage(gd_backing(dev, dpfn), src + k);
			else
				clear_highpage(gd_backing(dev, dpfn));
		}
		i += nr;
	}
	return 0;
}

static int gd_copy_to_ram(struct page **pages, struct drm_pagemap_addr *addr,
			  unsigned long npages, struct dma_fence *fence)
{
	unsigned long i, k;

	for (i = 0; i < npages;) {
		unsigned long nr = 1;

		if (addr[i].addr && pages[i]) {
			struct gd_device *dev = gd_page_device(pages[i]);
			struct page *dst = gd_dma_to_page(addr[i].addr);

			nr = NR_PAGES(addr[i].order);
			for (k = 0; k < nr; k++)
				copy_highpage(dst + k,
					      gd_backing(dev, page_to_pfn(pages[i]) + k));
		}
		i += nr;
	}
	return 0;
}

static const struct drm_pagemap_devmem_ops gd_devmem_ops = {
	.devmem_release		= gd_devmem_release,
	.populate_devmem_pfn	= gd_populate_devmem_pfn,
	.copy_to_devmem		= gd_copy_to_devmem,
	.copy_to_ram		= gd_copy_to_ram,
};

static struct gd_bo *gd_bo_create(struct gd_device *dev, struct mm_struct *mm,
				  unsigned long npages)
{
	struct gd_bo *bo;
	int err;

	bo = kzalloc_obj(*bo);
	if (!bo)
		return ERR_PTR(-ENOMEM);
	bo->dev = dev;
	bo->order = ilog2(npages);
	kref_init(&bo->ref);

	spin_lock_irq(&dev->lock);
	bo->first = bitmap_find_next_zero_area(dev->used, dev->npages, dev->hint,
					       npages, npages - 1);
	if (bo->first >= dev->npages)
		bo->first = bitmap_find_next_zero_area(dev->used, dev->npages, 0,
						       npages, npages - 1);
	if (bo->first >= dev->npages) {
		spin_unlock_irq(&dev->lock);
		kfree(bo);
		return ERR_PTR(-ENOMEM);
	}
	bitmap_set(dev->used, bo->first, npages);
	dev->hint = bo->first + npages;
	list_add_tail(&bo->link, &dev->bos);
	/*
	 * Before a concurrent eviction can find it; the framework does not take a
	 * reference.
	 */
	mmgrab(mm);
	drm_pagemap_devmem_init(&bo->devmem, dev->drm->dev, mm, &gd_devmem_ops,
				&dev->dpagemap, npages << PAGE_SHIFT, NULL);
	spin_unlock_irq(&dev->lock);

	err = gd_backing_alloc(bo);
	if (err) {
		kref_put(&bo->ref, gd_bo_free);
		return ERR_PTR(err);
	}
	return bo;
}

static int gd_populate_mm(struct drm_pagemap *dpagemap, unsigned long start,
			  unsigned long end, struct mm_struct *mm,
			  unsigned long timeslice_ms)
{
	struct gd_device *dev = container_of(dpagemap, struct gd_device, dpagemap);
	struct drm_pagemap_migrate_details details = { .timeslice_ms = timeslice_ms };
	struct gd_bo *bo = gd_bo_create(dev, mm, (end - start) >> PAGE_SHIFT);

	if (IS_ERR(bo))
		return PTR_ERR(bo);
	/* Consumes the reference. */
	return drm_pagemap_migrate_to_devmem(&bo->devmem, mm, start, end, &details);
}

static struct drm_pagemap_addr
gd_device_map(struct drm_pagemap *dpagemap, struct device *dev, struct page *page,
	      unsigned int order, enum dma_data_direction dir)
{
	return drm_pagemap_addr_encode(page_to_phys(page), DRM_INTERCONNECT_DRIVER,
				       order, dir);
}

static void gd_device_unmap(struct drm_pagemap *dpagemap, struct device *dev,
			    const struct drm_pagemap_addr *addr)
{
}

static void gd_pagemap_destroy(struct drm_pagemap *dpagemap, bool atomic)
{
	/* Never put: the module has no exit. */
}

static const struct drm_pagemap_ops gd_pagemap_ops = {
	.device_map	= gd_device_map,
	.device_unmap	= gd_device_unmap,
	.populate_mm	= gd_populate_mm,
	.destroy	= gd_pagemap_destroy,
};

/* Migrate every device allocation of @mm back to RAM, with one attempt each. */
static void gd_evict_mm(struct gd_device *dev, struct mm_struct *mm)
{
	unsigned long gen;
	struct gd_bo *bo;

	spin_lock_irq(&dev->lock);
	gen = ++dev->evict_gen;
	while ((bo = list_first_entry_or_null(&dev->bos, struct gd_bo, link))) {
		if (bo->evict_gen == gen)
			break;
		bo->evict_gen = gen;
		list_move_tail(&bo->link, &dev->bos);
		if (bo->devmem.mm != mm || !kref_get_unless_zero(&bo->ref))
			continue;
		spin_unlock_irq(&dev->lock);
		drm_pagemap_evict_to_ram(&bo->devmem);
		kref_put(&bo->ref, gd_bo_free);
		spin_lock_irq(&dev->lock);
	}
	spin_unlock_irq(&dev->lock);
}

/* ------------------------------------------- ranges, faults, invalidation -- */

static struct drm_gpusvm_range *gd_range_alloc(struct drm_gpusvm *svm)
{
	struct gd_range *range = kzalloc(sizeof(*range), GFP_KERNEL);

	if (!range)
		return NULL;
	INIT_LIST_HEAD(&range->gc_link);
	drm_gpusvm_init_pages(&range->pages, to_gd_vm(svm)->dev->drm);
	return &range->base;
}

static unsigned long gd_range_npages(struct gd_range *range)
{
	return drm_gpusvm_range_size(&range->base) >> PAGE_SHIFT;
}

static void gd_range_free(struct drm_gpusvm_range *r)
{
	struct gd_range *range = to_gd_range(r);

	drm_gpusvm_free_pages(r->gpusvm, &range->pages, gd_range_npages(range));
	kfree(range);
}

/* Called by the framework with notifier_lock held for write. */
static void gd_invalidate(struct drm_gpusvm *svm,
			  struct drm_gpusvm_notifier *notifier,
			  const struct mmu_notifier_range *mmu_range)
{
	struct gd_vm *vm = to_gd_vm(svm);
	struct drm_gpusvm_ctx ctx = { .in_notifier = true };
	struct drm_gpusvm_range *r = NULL;
	unsigned long start = max(drm_gpusvm_notifier_start(notifier), mmu_range->start);
	unsigned long end = min(drm_gpusvm_notifier_end(notifier), mmu_range->end);
	bool gc = false;

	drm_gpusvm_for_each_range(r, notifier, start, end) {
		struct gd_range *range = to_gd_range(r);

		gd_zap(vm, range);
		drm_gpusvm_unmap_pages(svm, &range->pages, gd_range_npages(range), &ctx);
		if (mmu_range->event != MMU_NOTIFY_UNMAP || vm->closed)
			continue;
		drm_gpusvm_range_set_unmapped(r, &range->pages, 1, mmu_range);
		spin_lock(&vm->gc_lock);
		if (list_empty(&range->gc_link))
			list_add_tail(&range->gc_link, &vm->gc_list);
		spin_unlock(&vm->gc_lock);
		gc = true;
	}
	if (gc)
		queue_work(system_dfl_wq, &vm->gc_work);
}

static const struct drm_gpusvm_ops gd_svm_ops = {
	.range_alloc	= gd_range_alloc,
	.range_free	= gd_range_free,
	.invalidate	= gd_invalidate,
};

static const unsigned long gd_chunks[] = { SZ_2M, SZ_64K, SZ_4K };

/* Drop PTEs and DMA mappings; the range stays. Caller holds gd_vm.lock. */
static void gd_unbind(struct gd_vm *vm, struct gd_range *range)
{
	struct drm_gpusvm_ctx ctx = {};

	drm_gpusvm_notifier_lock(&vm->svm);
	gd_zap(vm, range);
	drm_gpusvm_notifier_unlock(&vm->svm);
	drm_gpusvm_unmap_pages(&vm->svm, &range->pages, gd_range_npages(range), &ctx);
}

static void gd_range_drop(struct gd_vm *vm, struct gd_range *range)
{
	unsigned long va = drm_gpusvm_range_start(&range->base);
	bool whole = drm_gpusvm_range_size(&range->base) == PDE_SIZE;

	gd_unbind(vm, range);

	/* list_del() leaves poison, so a late invalidation cannot add it again. */
	spin_lock(&vm->gc_lock);
	list_del(&range->gc_link);
	spin_unlock(&vm->gc_lock);

	drm_gpusvm_range_remove(&vm->svm, &range->base);
	if (whole)
		gd_pde_free(xa_erase(&vm->pt, va >> PDE_SHIFT));
}

static void gd_gc(struct gd_vm *vm)
{
	struct gd_range *range;

	lockdep_assert_held(&vm->lock);
	for (;;) {
		spin_lock(&vm->gc_lock);
		range = list_first_entry_or_null(&vm->gc_list, struct gd_range, gc_link);
		spin_unlock(&vm->gc_lock);
		if (!range)
			return;
		gd_range_drop(vm, range);
	}
}

static void gd_gc_work(struct work_struct *work)
{
	struct gd_vm *vm = container_of(work, struct gd_vm, gc_work);

	mutex_lock(&vm->lock);
	gd_gc(vm);
	mutex_unlock(&vm->lock);
}

static bool gd_in_devmem(struct drm_gpusvm_range *r)
{
	struct drm_gpusvm_pages_flags flags = {
		.__flags = READ_ONCE(to_gd_range(r)->pages.flags.__flags),
	};

	return flags.has_devmem_pages;
}

/* As xe_svm_alloc_vram(): all of the range or nothing, one retry after evicting. */
static int gd_range_to_devmem(struct gd_vm *vm, struct drm_gpusvm_range *r)
{
	struct gd_device *dev = vm->dev;
	bool write_locked = false;
	int err, retries = 1;

	if (drm_gpusvm_scan_mm(r, dev, &dev->pagemap) == DRM_GPUSVM_SCAN_EQUAL)
		return 0;

	down_read(&gd_migrate_lock);
	do {
		err = drm_pagemap_populate_mm(&dev->dpagemap, drm_gpusvm_range_start(r),
					      drm_gpusvm_range_end(r), vm->svm.mm, 0);
		if (err == -EBUSY && retries) {
			if (!write_locked) {
				up_read(&gd_migrate_lock);
				down_write(&gd_migrate_lock);
				write_locked = true;
			}
			drm_gpusvm_range_evict(&vm->svm, r);
		}
	} while (err == -EBUSY && retries--);
	if (write_locked)
		up_write(&gd_migrate_lock);
	else
		up_read(&gd_migrate_lock);
	return err;
}

static struct drm_gpusvm_ctx gd_ctx(struct gd_vm *vm, bool write)
{
	return (struct drm_gpusvm_ctx) {
		.device_private_page_owner = vm->dev,
		.check_pages_threshold = SZ_64K,
		.devmem_possible = true,
		.read_only = !write,
	};
}

/*
 * Handle one device fault at @va, as __xe_svm_handle_pagefault() does: collect
 * garbage, find the range, migrate it if asked, get its pages, bind. @next is
 * set to the end of the range. Caller holds gd_vm.lock.
 */
static int gd_fault(struct gd_vm *vm, unsigned long va, bool write, bool to_dev,
		    unsigned long *next)
{
	unsigned long timeout = jiffies + msecs_to_jiffies(GD_TIMEOUT_MS);
	struct drm_gpusvm_ctx ctx = gd_ctx(vm, write);
	struct drm_gpusvm_range *r;
	struct gd_range *range;
	int err, refits = 2;

retry:
	if (time_after(jiffies, timeout))
		return -EBUSY;
	gd_gc(vm);

	r = drm_gpusvm_range_find_or_insert(&vm->svm, va, 0, vm->svm.mm_range, &ctx);
	if (IS_ERR(r))
		return PTR_ERR(r) == -ENOENT ? -EFAULT : PTR_ERR(r);
	range = to_gd_range(r);
	*next = drm_gpusvm_range_end(r);

	if (to_dev && !gd_in_devmem(r)) {
		if (!r->flags.migrate_devmem)
			return -ENOENT;
		err = gd_range_to_devmem(vm, r);
		if (err == -EINVAL && refits-- > 0)
			goto refit;
		if (err)
			return err;
	}

	if (READ_ONCE(range->bound) && (!write || range->write))
		return 0;
	gd_unbind(vm, range);

	err = drm_gpusvm_get_pages(&vm->svm, &range->pages, vm->svm.mm,
				   &r->notifier->notifier, drm_gpusvm_range_start(r),
				   drm_gpusvm_range_end(r), &ctx);
	if (err == -EOPNOTSUPP) {
		/*
		 * The range has both RAM and device pages: migrate all of them to
		 * RAM.
		 */
		drm_gpusvm_range_evict(&vm->svm, r);
		goto retry;
	}
	if ((err == -EFAULT || err == -EPERM) && refits-- > 0)
		goto refit;
	if (err)
		return err;
	range->write = write;

	err = gd_bind(vm, range);
	if (err == -EAGAIN)
		goto retry;
	return err;

refit:
	/* The VMA has changed; a new range covers its current extent. */
	gd_range_drop(vm, range);
	goto retry;
}

/* -------------------------------------------------------------- requests -- */

/* READ and WRITE, and the read-back after a migration. */
static int gd_rw(struct gd_vm *vm, struct hmm_dmirror_cmd *cmd, bool write)
{
	unsigned long start = cmd->addr, size = cmd->npages << PAGE_SHIFT;
	unsigned long va = start, end = start + size, next;
	void *buf;
	int err = 0;

	buf = vmalloc(size);
	if (!buf)
		return -ENOMEM;
	if (write && copy_from_user(buf, u64_to_user_ptr(cmd->ptr), size)) {
		err = -EFAULT;
		goto out;
	}

	mutex_lock(&vm->lock);
	while ((va = gd_access(vm, va, end, buf + (va - start), write)) < end) {
		err = gd_fault(vm, va, write, false, &next);
		if (err)
			break;
		cmd->faults++;
	}
	mutex_unlock(&vm->lock);

	cmd->cpages = (va - start) >> PAGE_SHIFT;
	if (!err && !write && copy_to_user(u64_to_user_ptr(cmd->ptr), buf, size))
		err = -EFAULT;
out:
	vfree(buf);
	return err;
}

static int gd_migrate_to_dev(struct gd_vm *vm, struct hmm_dmirror_cmd *cmd)
{
	unsigned long va = cmd->addr, end = va + (cmd->npages << PAGE_SHIFT);
	int err = 0;

	mutex_lock(&vm->lock);
	while (va < end && !err)
		err = gd_fault(vm, va, false, true, &va);
	mutex_unlock(&vm->lock);

	return err ?: gd_rw(vm, cmd, false);
}

static int gd_migrate_to_sys(struct gd_vm *vm, struct hmm_dmirror_cmd *cmd)
{
	unsigned long va = cmd->addr, end = va + (cmd->npages << PAGE_SHIFT);
	struct drm_gpusvm_ctx ctx = gd_ctx(vm, false);
	struct drm_gpusvm_range *r;
	int err = 0;

	mutex_lock(&vm->lock);
	while (va < end) {
		gd_gc(vm);
		r = drm_gpusvm_range_find_or_insert(&vm->svm, va, 0, vm->svm.mm_range,
						    &ctx);
		if (IS_ERR(r)) {
			err = PTR_ERR(r) == -ENOENT ? -EINVAL : PTR_ERR(r);
			break;
		}
		if (gd_in_devmem(r) ||
		    drm_gpusvm_scan_mm(r, vm->dev, &vm->dev->pagemap) != DRM_GPUSVM_SCAN_SYSTEM)
			err = drm_gpusvm_range_evict(&vm->svm, r);
		if (err)
			break;
		va = drm_gpusvm_range_end(r);
		cmd->cpages = (min(va, end) - cmd->addr) >> PAGE_SHIFT;
	}
	mutex_unlock(&vm->lock);
	return err;
}

/* SNAPSHOT is not part of drm_gpusvm: plain hmm_range_fault() without faulting. */
static bool gd_snap_invalidate(struct mmu_interval_notifier *mni,
			       const struct mmu_notifier_range *range,
			       unsigned long seq)
{
	mmu_interval_set_seq(mni, seq);
	return true;
}

static const struct mmu_interval_notifier_ops gd_snap_ops = {
	.invalidate = gd_snap_invalidate,
};

static u8 gd_snap_entry(struct gd_vm *vm, unsigned long e)
{
	struct page *page;
	u8 perm = 0;

	if (e & HMM_PFN_ERROR)
		return GD_PROT_ERROR;
	if (!(e & HMM_PFN_VALID))
		return 0;
	page = hmm_pfn_to_page(e);
	if (is_device_private_page(page))
		perm = page_pgmap(page) == &vm->dev->pagemap ?
			GD_PROT_DEV_LOCAL : GD_PROT_DEV_REMOTE;
	else if (is_zero_pfn(page_to_pfn(page)))
		perm = GD_PROT_ZERO;
	perm |= e & HMM_PFN_WRITE ? GD_PROT_WRITE : GD_PROT_READ;
	if (hmm_pfn_to_map_order(e) + PAGE_SHIFT == PMD_SHIFT)
		perm |= GD_PROT_PMD;
	else if (hmm_pfn_to_map_order(e) + PAGE_SHIFT == PUD_SHIFT)
		perm |= GD_PROT_PUD;
	return perm;
}

static int gd_snapshot(struct gd_vm *vm, struct hmm_dmirror_cmd *cmd)
{
	unsigned long va = cmd->addr, end = va + (cmd->npages << PAGE_SHIFT);
	unsigned long timeout = jiffies + msecs_to_jiffies(GD_TIMEOUT_MS);
	struct mm_struct *mm = vm->svm.mm;
	struct mmu_interval_notifier mni;
	unsigned long pfns[32], n, i;
	u8 perm[32];
	int err;

	if (!mmget_not_zero(mm))
		return -EINVAL;
	err = mmu_interval_notifier_insert(&mni, mm, va, end - va, &gd_snap_ops);
	if (err)
		goto put;
	for (; va < end; va += n << PAGE_SHIFT) {
		struct hmm_range range = {
			.notifier = &mni,
			.hmm_pfns = pfns,
			.dev_private_owner = vm->dev,
			.start = va,
		};

		n = min(ARRAY_SIZE(pfns), (end - va) >> PAGE_SHIFT);
		range.end = va + (n << PAGE_SHIFT);
		do {
			if (time_after(jiffies, timeout)) {
				err = -EBUSY;
				break;
			}
			range.notifier_seq = mmu_interval_read_begin(&mni);
			mmap_read_lock(mm);
			err = hmm_range_fault(&range);
			/*
			 * No page references are needed while mmap_lock is held.
			 */
			for (i = 0; !err && i < n; i++)
				perm[i] = gd_snap_entry(vm, pfns[i]);
			mmap_read_unlock(mm);
		} while (err == -EBUSY || (!err && mmu_interval_read_retry(&mni, range.notifier_seq)));
		if (err)
			break;
		if (copy_to_user(u64_to_user_ptr(cmd->ptr) + cmd->cpages, perm, n)) {
			err = -EFAULT;
			break;
		}
		cmd->cpages += n;
	}
	mmu_interval_notifier_remove(&mni);
put:
	mmput(mm);
	return err;
}

/* ------------------------------------------------------------------ file -- */

static int gd_open(struct inode *inode, struct file *file)
{
	struct gd_device *dev = container_of(file->private_data, struct gd_device, misc);
	struct gd_vm *vm;
	int err;

	vm = kzalloc_obj(*vm);
	if (!vm)
		return -ENOMEM;
	vm->dev = dev;
	mutex_init(&vm->lock);
	xa_init(&vm->pt);
	spin_lock_init(&vm->gc_lock);
	INIT_LIST_HEAD(&vm->gc_list);
	INIT_WORK(&vm->gc_work, gd_gc_work);

	err = drm_gpusvm_init(&vm->svm, "gpusvm_dmirror", current->mm, 0, TASK_SIZE,
			      GD_NOTIFIER_SZ, &gd_svm_ops, gd_chunks,
			      ARRAY_SIZE(gd_chunks));
	if (err) {
		kfree(vm);
		return err;
	}
	drm_gpusvm_driver_set_lock(&vm->svm, &vm->lock);
	file->private_data = vm;
	return 0;
}

/* As xe_svm_fini(): no range leaves the interval tree while its pages are mapped for DMA. */
static void gd_unbind_all(struct gd_vm *vm)
{
	struct drm_gpusvm_notifier *notifier, *next_notifier;
	struct drm_gpusvm_range *r, *next;

	drm_gpusvm_for_each_notifier_safe(notifier, next_notifier, &vm->svm, 0, LONG_MAX)
		drm_gpusvm_for_each_range_safe(r, next, notifier, 0, LONG_MAX)
			gd_unbind(vm, to_gd_range(r));
}

static int gd_release(struct inode *inode, struct file *file)
{
	struct gd_vm *vm = file->private_data;
	struct mm_struct *mm = vm->svm.mm;
	struct gd_pde *pde;
	unsigned long i;

	drm_gpusvm_notifier_lock(&vm->svm);
	vm->closed = true;
	drm_gpusvm_notifier_unlock(&vm->svm);
	disable_work_sync(&vm->gc_work);

	mmgrab(mm);
	mutex_lock(&vm->lock);
	gd_unbind_all(vm);
	drm_gpusvm_fini(&vm->svm);
	mutex_unlock(&vm->lock);
	if (evict_on_close)
		gd_evict_mm(vm->dev, mm);
	mmdrop(mm);

	xa_for_each(&vm->pt, i, pde)
		gd_pde_free(pde);
	xa_destroy(&vm->pt);
	kfree(vm);
	return 0;
}

static long gd_ioctl(struct file *file, unsigned int command, unsigned long arg)
{
	void __user *uarg = (void __user *)arg;
	struct gd_vm *vm = file->private_data;
	struct hmm_dmirror_cmd cmd;
	int err;

	if (copy_from_user(&cmd, uarg, sizeof(cmd)))
		return -EFAULT;
	if (cmd.addr & ~PAGE_MASK)
		return -EINVAL;
	if (cmd.addr >= cmd.addr + (cmd.npages << PAGE_SHIFT) ||
	    cmd.npages > TASK_SIZE >> PAGE_SHIFT)
		return -EINVAL;
	cmd.cpages = 0;
	cmd.faults = 0;

	switch (command) {
	case GD_READ:
		err = gd_rw(vm, &cmd, false);
		break;
	case GD_WRITE:
		err = gd_rw(vm, &cmd, true);
		break;
	case GD_MIGRATE_TO_DEV:
		err = gd_migrate_to_dev(vm, &cmd);
		break;
	case GD_MIGRATE_TO_SYS:
		err = gd_migrate_to_sys(vm, &cmd);
		break;
	case GD_SNAPSHOT:
		err = gd_snapshot(vm, &cmd);
		break;
	case GD_RELEASE:
		gd_evict_mm(vm->dev, vm->svm.mm);
		err = 0;
		break;
	case GD_FLAGS:
		WRITE_ONCE(vm->dev->fail_alloc, cmd.npages & GD_FLAG_FAIL_ALLOC);
		err = 0;
		break;
	default:
		return -EINVAL;
	}
	if (err)
		return err;
	return copy_to_user(uarg, &cmd, sizeof(cmd)) ? -EFAULT : 0;
}

static const struct file_operations gd_fops = {
	.owner		= THIS_MODULE,
	.open		= gd_open,
	.release	= gd_release,
	.unlocked_ioctl	= gd_ioctl,
};

/* ---------------------------------------------------------------- module -- */

/* The drm_device is never registered: it only anchors the frameworks. */
static const struct file_operations gd_drm_fops = { .owner = THIS_MODULE };
static const struct drm_driver gd_drm_driver = {
	.name	= "gpusvm_dmirror",
	.desc	= "test_hmm ABI on drm_gpusvm",
	.major	= 1,
	.fops	= &gd_drm_fops,
};

static int __init gd_device_init(struct gd_device *dev, int id)
{
	unsigned long size = (unsigned long)vram_mb * SZ_1M, i;
	struct resource *res;
	struct page *page;
	void *p;
	int err;

	snprintf(dev->name, sizeof(dev->name), "hmm_dmirror%d", id);
	spin_lock_init(&dev->lock);
	INIT_LIST_HEAD(&dev->bos);
	dev->npages = size >> PAGE_SHIFT;
	dev->used = bitmap_zalloc(dev->npages, GFP_KERNEL);
	dev->backing = kvcalloc(dev->npages, sizeof(*dev->backing), GFP_KERNEL);
	if (!dev->used || !dev->backing)
		return -ENOMEM;
	for (i = 0; static_backing && i < dev->npages; i++) {
		if (!(i % PDE_NPTES)) {
			page = alloc_pages(GFP_KERNEL, ilog2(PDE_NPTES));
			if (!page)
				return -ENOMEM;
		}
		dev->backing[i] = page + i % PDE_NPTES;
	}

	dev->fdev = faux_device_create(dev->name, NULL, NULL);
	if (!dev->fdev)
		return -ENODEV;
	err = dma_coerce_mask_and_coherent(&dev->fdev->dev, DMA_BIT_MASK(64));
	if (err)
		return err;
	dev->drm = drm_dev_alloc(&gd_drm_driver, &dev->fdev->dev);
	if (IS_ERR(dev->drm))
		return PTR_ERR(dev->drm);

	res = request_free_mem_region(&iomem_resource, size, dev->name);
	if (IS_ERR(res))
		return PTR_ERR(res);
	dev->pagemap.type = MEMORY_DEVICE_PRIVATE;
	dev->pagemap.range.start = res->start;
	dev->pagemap.range.end = res->end;
	dev->pagemap.nr_range = 1;
	dev->pagemap.owner = dev;
	dev->pagemap.ops = drm_pagemap_pagemap_ops_get();
	p = memremap_pages(&dev->pagemap, numa_node_id());
	if (IS_ERR(p))
		return PTR_ERR(p);
	dev->base_pfn = PHYS_PFN(res->start);

	err = drm_pagemap_init(&dev->dpagemap, &dev->pagemap, dev->drm, &gd_pagemap_ops);
	if (err)
		return err;

	dev->misc.minor = MISC_DYNAMIC_MINOR;
	dev->misc.name = dev->name;
	dev->misc.fops = &gd_fops;
	return misc_register(&dev->misc);
}

/*
 * No exit and no unwinding: a bench module, loaded once per boot. (A live
 * drm_pagemap holds a reference on this module in any case.)
 */
static int __init gd_init(void)
{
	int i, err;

	for (i = 0; i < GD_NDEV; i++) {
		err = gd_device_init(&gd_devices[i], i);
		if (err) {
			pr_err("device %d: %d\n", i, err);
			return i ? 0 : err;
		}
	}
	pr_info("%u MiB per device, %s backing\n", vram_mb,
		static_backing ? "static" : "dynamic");
	return 0;
}
module_init(gd_init);

MODULE_DESCRIPTION("test_hmm ioctl ABI on drm_gpusvm and drm_pagemap (benchmark peer)");
MODULE_LICENSE("GPL");
