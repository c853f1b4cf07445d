// SPDX-License-Identifier: GPL-2.0
/*
 * C helpers of rust_hmm, see helpers.h.
 *
 * All are exported, because generic or inlined Rust code that calls them is
 * compiled into the driver's module.
 */
#include <linux/export.h>
#include <linux/gfp.h>
#include <linux/highmem.h>
#include <linux/hmm.h>
#include <linux/ioport.h>
#include <linux/kthread.h>
#include <linux/memcontrol.h>
#include <linux/memremap.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/pagemap.h>
#include <linux/preempt.h>
#include <linux/rmap.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/string.h>

#include "helpers.h"

#if IS_BUILTIN(CONFIG_KUNIT)
#include <kunit/test.h>
#include <kunit/test-bug.h>
#include <linux/mman.h>
#endif

void rust_hmm_interval_set_seq(struct mmu_interval_notifier *sub,
			       unsigned long seq)
{
	mmu_interval_set_seq(sub, seq);
}
EXPORT_SYMBOL_GPL(rust_hmm_interval_set_seq);

bool rust_hmm_interval_read_retry(struct mmu_interval_notifier *sub,
				  unsigned long seq)
{
	return mmu_interval_read_retry(sub, seq);
}
EXPORT_SYMBOL_GPL(rust_hmm_interval_read_retry);

int rust_hmm_mmap_read_lock_killable(struct mm_struct *mm)
{
	return mmap_read_lock_killable(mm);
}
EXPORT_SYMBOL_GPL(rust_hmm_mmap_read_lock_killable);

void rust_hmm_mmap_read_unlock(struct mm_struct *mm)
{
	mmap_read_unlock(mm);
}
EXPORT_SYMBOL_GPL(rust_hmm_mmap_read_unlock);

struct vm_area_struct *rust_hmm_vma_lookup(struct mm_struct *mm,
					   unsigned long addr)
{
	struct vm_area_struct *vma = find_vma(mm, addr);

	return vma && vma->vm_start <= addr ? vma : NULL;
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_lookup);

struct mm_struct *rust_hmm_vma_mm(const struct vm_area_struct *vma)
{
	return vma->vm_mm;
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_mm);

bool rust_hmm_fatal_signal_pending(void)
{
	return fatal_signal_pending(current);
}
EXPORT_SYMBOL_GPL(rust_hmm_fatal_signal_pending);

/* Where the kernel does not count, it cannot be told: then lockdep must. */
bool rust_hmm_may_sleep(void)
{
	return !IS_ENABLED(CONFIG_PREEMPT_COUNT) || preemptible();
}
EXPORT_SYMBOL_GPL(rust_hmm_may_sleep);

/* Without a reference, of which the last one could tear it down here. */
bool rust_hmm_mm_in_use(const struct mm_struct *mm)
{
	return atomic_read(&mm->mm_users) != 0;
}
EXPORT_SYMBOL_GPL(rust_hmm_mm_in_use);

/*
 * From now on what this task allocates with __GFP_ACCOUNT is charged to the
 * control group of @mm. Returns what it was charged to before.
 */
struct mem_cgroup *rust_hmm_charge_to(struct mm_struct *mm)
{
	return set_active_memcg(get_mem_cgroup_from_mm(mm));
}
EXPORT_SYMBOL_GPL(rust_hmm_charge_to);

void rust_hmm_charge_end(struct mem_cgroup *old)
{
	mem_cgroup_put(set_active_memcg(old));
}
EXPORT_SYMBOL_GPL(rust_hmm_charge_end);

/* Returns the running thread with a reference of the caller's. */
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

/* Waits for the thread's end; -EINTR if it never began. */
int rust_hmm_kthread_stop_put(struct task_struct *task)
{
	return kthread_stop_put(task);
}
EXPORT_SYMBOL_GPL(rust_hmm_kthread_stop_put);

struct vm_area_struct *rust_hmm_vmf_vma(const struct vm_fault *vmf)
{
	return vmf->vma;
}
EXPORT_SYMBOL_GPL(rust_hmm_vmf_vma);

unsigned long rust_hmm_vmf_address(const struct vm_fault *vmf)
{
	return vmf->address;
}
EXPORT_SYMBOL_GPL(rust_hmm_vmf_address);

bool rust_hmm_vmf_is_pte(const struct vm_fault *vmf)
{
	return vmf->pte;
}
EXPORT_SYMBOL_GPL(rust_hmm_vmf_is_pte);

struct page *rust_hmm_vmf_page(const struct vm_fault *vmf)
{
	return vmf->page;
}
EXPORT_SYMBOL_GPL(rust_hmm_vmf_page);

/* The fault holds the folio's lock: nobody else splits it. */
bool rust_hmm_vmf_folio_is_large(const struct vm_fault *vmf)
{
	return folio_test_large(page_folio(vmf->page));
}
EXPORT_SYMBOL_GPL(rust_hmm_vmf_folio_is_large);

unsigned long rust_hmm_page_to_pfn(const struct page *page)
{
	return page_to_pfn(page);
}
EXPORT_SYMBOL_GPL(rust_hmm_page_to_pfn);

/* The device memory a page belongs to, or NULL for other memory. */
struct dev_pagemap *rust_hmm_pfn_pgmap(unsigned long pfn)
{
	struct page *page = pfn_to_page(pfn);

	return is_zone_device_page(page) ? page_pgmap(page) : NULL;
}
EXPORT_SYMBOL_GPL(rust_hmm_pfn_pgmap);

bool rust_hmm_pfn_is_private(unsigned long pfn)
{
	return is_device_private_page(pfn_to_page(pfn));
}
EXPORT_SYMBOL_GPL(rust_hmm_pfn_is_private);

bool rust_hmm_pfn_is_zero(unsigned long pfn)
{
	return is_zero_pfn(pfn);
}
EXPORT_SYMBOL_GPL(rust_hmm_pfn_is_zero);

bool rust_hmm_pfn_is_ksm(unsigned long pfn)
{
	return folio_test_ksm(page_folio(pfn_to_page(pfn)));
}
EXPORT_SYMBOL_GPL(rust_hmm_pfn_is_ksm);

unsigned int rust_hmm_pfn_order(unsigned long pfn)
{
	return folio_order(page_folio(pfn_to_page(pfn)));
}
EXPORT_SYMBOL_GPL(rust_hmm_pfn_order);

void rust_hmm_pfn_mark_dirty(unsigned long pfn)
{
	folio_mark_dirty(page_folio(pfn_to_page(pfn)));
}
EXPORT_SYMBOL_GPL(rust_hmm_pfn_mark_dirty);

void rust_hmm_folio_unlock_put(unsigned long pfn)
{
	struct folio *folio = page_folio(pfn_to_page(pfn));

	folio_unlock(folio);
	folio_put(folio);
}
EXPORT_SYMBOL_GPL(rust_hmm_folio_unlock_put);

/*
 * Allocates and locks a folio for migration to system memory. With @vma the
 * memory policy of @addr applies. Without @must the attempt is cheap: it
 * neither retries nor warns. Returns the page frame number, 0 on failure.
 */
unsigned long rust_hmm_folio_alloc_locked(struct vm_area_struct *vma,
					  unsigned long addr,
					  unsigned int order, bool must)
{
	gfp_t gfp = GFP_HIGHUSER_MOVABLE;
	struct folio *folio;

	if (!must)
		gfp |= __GFP_NORETRY | __GFP_NOWARN;
	if (order)
		gfp |= __GFP_COMP | __GFP_NOWARN;
	folio = vma ? vma_alloc_folio(gfp, order, vma, addr) :
		      folio_alloc(gfp, order);
	if (!folio)
		return 0;
	folio_lock(folio);
	return folio_pfn(folio);
}
EXPORT_SYMBOL_GPL(rust_hmm_folio_alloc_locked);

void rust_hmm_device_folio_init(unsigned long pfn, struct dev_pagemap *pgmap,
				unsigned int order)
{
	zone_device_folio_init((struct folio *)pfn_to_page(pfn), pgmap, order);
}
EXPORT_SYMBOL_GPL(rust_hmm_device_folio_init);

/*
 * migrate_device_range() also isolates a folio from which a migration took
 * everything just before, and that only the reference of its caller keeps from
 * being freed. There is nothing to move, and its mapping is stale: rmap must
 * not walk it. The charge went with the contents. Frees it and returns true.
 */
bool rust_hmm_drop_moved_folio(unsigned long pfn)
{
	struct folio *folio = page_folio(pfn_to_page(pfn));

	if (mem_cgroup_disabled() || folio_memcg_charged(folio))
		return false;
	folio->mapping = NULL;
	folio_unlock(folio);
	folio_put(folio);
	return true;
}
EXPORT_SYMBOL_GPL(rust_hmm_drop_moved_folio);

/*
 * A free head page that still says that it is of a large folio would hide
 * later small folios behind it from migrate_device_range().
 */
void rust_hmm_device_folio_reset(unsigned long pfn, unsigned int order)
{
	struct page *page = pfn_to_page(pfn);

	if (!order)
		return;
	/* As zone_device_page_init() does it, for those that hold the order. */
	page[0].flags.f &= ~0xffUL;
	page[1].flags.f &= ~0xffUL;
#ifdef NR_PAGES_IN_LARGE_FOLIO
	((struct folio *)page)->_nr_pages = 0;
#endif
}
EXPORT_SYMBOL_GPL(rust_hmm_device_folio_reset);

/*
 * Contents of pages: engines, processors and copies may touch them at the same
 * time, as the program that uses the device wants it. That is no race of ours.
 */
#define CONTENTS(statement) data_race(({ statement; 0; }))

void rust_hmm_read_page(void *dst, unsigned long pfn, size_t offset,
			size_t len)
{
	CONTENTS(memcpy_from_page(dst, pfn_to_page(pfn), offset, len));
}
EXPORT_SYMBOL_GPL(rust_hmm_read_page);

void rust_hmm_write_page(unsigned long pfn, size_t offset, const void *src,
			 size_t len)
{
	CONTENTS(memcpy_to_page(pfn_to_page(pfn), offset, src, len));
}
EXPORT_SYMBOL_GPL(rust_hmm_write_page);

void rust_hmm_copy_pages(unsigned long dst, unsigned long src,
			 unsigned long npages)
{
	while (npages--)
		copy_highpage(pfn_to_page(dst++), pfn_to_page(src++));
}
EXPORT_SYMBOL_GPL(rust_hmm_copy_pages);

void rust_hmm_clear_pages(unsigned long pfn, unsigned long npages)
{
	while (npages--)
		clear_highpage(pfn_to_page(pfn++));
}
EXPORT_SYMBOL_GPL(rust_hmm_clear_pages);

void rust_hmm_copy_bytes(void *dst, const void *src, size_t len)
{
	CONTENTS(memcpy(dst, src, len));
}
EXPORT_SYMBOL_GPL(rust_hmm_copy_bytes);

void rust_hmm_clear_bytes(void *dst, size_t len)
{
	CONTENTS(memset(dst, 0, len));
}
EXPORT_SYMBOL_GPL(rust_hmm_clear_bytes);

/* Atomic also against the CPU; @offset is a multiple of 8 within the page. */
u64 rust_hmm_fetch_add_page(unsigned long pfn, size_t offset, u64 value)
{
	void *at = kmap_local_page(pfn_to_page(pfn));
	u64 old = atomic64_fetch_add(value, (atomic64_t *)(at + offset));

	kunmap_local(at);
	return old;
}
EXPORT_SYMBOL_GPL(rust_hmm_fetch_add_page);

u64 rust_hmm_fetch_add_bytes(void *at, u64 value)
{
	return atomic64_fetch_add(value, (atomic64_t *)at);
}
EXPORT_SYMBOL_GPL(rust_hmm_fetch_add_bytes);

int rust_hmm_request_region(u64 start, u64 size, const char *name)
{
	return request_mem_region(start, size, name) ? 0 : -EBUSY;
}
EXPORT_SYMBOL_GPL(rust_hmm_request_region);

int rust_hmm_request_free_region(u64 size, const char *name, u64 *start)
{
	struct resource *res;

	res = request_free_mem_region(&iomem_resource, size, name);
	if (IS_ERR(res))
		return PTR_ERR(res);
	*start = res->start;
	return 0;
}
EXPORT_SYMBOL_GPL(rust_hmm_request_free_region);

void rust_hmm_release_region(u64 start, u64 size)
{
	release_mem_region(start, size);
}
EXPORT_SYMBOL_GPL(rust_hmm_release_region);

#if IS_BUILTIN(CONFIG_KUNIT)
unsigned int rust_hmm_kunit_map_order(unsigned long hmm_pfn)
{
	return hmm_pfn_to_map_order(hmm_pfn);
}

unsigned long rust_hmm_kunit_migrate_pfn(unsigned long pfn)
{
	return migrate_pfn(pfn);
}

bool rust_hmm_kunit_is_dirty(unsigned long pfn)
{
	return folio_test_dirty(page_folio(pfn_to_page(pfn)));
}

/* Anonymous memory in an address space of the test's own; 0 on failure. */
unsigned long rust_hmm_kunit_mmap(unsigned long len)
{
	if (!current->mm && kunit_attach_mm())
		return 0;
	return kunit_vm_mmap(kunit_get_current_test(), NULL, 0, len,
			     PROT_READ | PROT_WRITE,
			     MAP_ANONYMOUS | MAP_PRIVATE, 0);
}

int rust_hmm_kunit_munmap(unsigned long addr, unsigned long len)
{
	return vm_munmap(addr, len);
}
#endif
