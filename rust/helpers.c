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
#include <linux/hrtimer.h>
#include <linux/ioport.h>
#include <linux/kthread.h>
#include <linux/maple_tree.h>
#include <linux/memcontrol.h>
#include <linux/mempolicy.h>
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
#include <linux/shrinker.h>
#include <linux/string.h>
#include <linux/xarray.h>

#include "helpers.h"

#if IS_BUILTIN(CONFIG_KUNIT)
#include <kunit/test.h>
#include <kunit/test-bug.h>
#include <linux/anon_inodes.h>
#include <linux/fs.h>
#include <linux/kdev_t.h>
#include <linux/major.h>
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

/*
 * Allocates the interval notifier tree of @mm, so that later insertions do not
 * take the mmap lock. mmu_interval_notifier_insert() would wait for it, and not
 * be killable. Returns 0, -EINTR if the task was killed, or -ENOMEM.
 */
int rust_hmm_notifier_register(struct mm_struct *mm)
{
	static const struct mmu_interval_notifier_ops no_ops;
	struct mmu_interval_notifier empty;
	int ret = mmap_write_lock_killable(mm);

	if (ret)
		return ret;
	/*
	 * An empty range is refused, but only after the tree has been
	 * allocated. mmu_notifier_register() would lock all mappings even if
	 * the tree exists.
	 */
	ret = mmu_interval_notifier_insert_locked(&empty, mm, 0, 0, &no_ops);
	mmap_write_unlock(mm);
	return ret == -EOVERFLOW ? 0 : ret;
}
EXPORT_SYMBOL_GPL(rust_hmm_notifier_register);

bool rust_hmm_mmap_read_trylock(struct mm_struct *mm)
{
	return mmap_read_trylock(mm);
}
EXPORT_SYMBOL_GPL(rust_hmm_mmap_read_trylock);

bool rust_hmm_mmap_is_contended(struct mm_struct *mm)
{
	return mmap_lock_is_contended(mm);
}
EXPORT_SYMBOL_GPL(rust_hmm_mmap_is_contended);

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

/*
 * Returns the page offset at which the anonymous pages of @vma begin. Pages
 * keep their offset when they are moved, also by mremap(). Before 7.3, private
 * copies of file pages had the offset of the file.
 */
unsigned long rust_hmm_vma_anon_offset(const struct vm_area_struct *vma)
{
#ifdef RUST_HMM_SERIES_7_3
	return vma_start_anon_pgoff(vma);
#else
	return vma->vm_pgoff;
#endif
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_anon_offset);

/*
 * Returns whether @vma contains page offset @pgoff, see
 * rust_hmm_vma_anon_offset().
 */
bool rust_hmm_vma_has_offset(const struct vm_area_struct *vma,
			     unsigned long pgoff)
{
	/* Unsigned: an offset below the first one becomes a huge number. */
	return pgoff - rust_hmm_vma_anon_offset(vma) < vma_pages(vma);
}

/*
 * Returns the first VMA with an anon_vma that ends behind @from and contains
 * page offset @pgoff, or NULL. The mmap lock must be held.
 */
struct vm_area_struct *rust_hmm_vma_of_offset(struct mm_struct *mm,
					      unsigned long from,
					      unsigned long pgoff)
{
	struct vm_area_struct *vma;

	for (vma = find_vma(mm, from); vma; vma = find_vma(mm, vma->vm_end))
		if (READ_ONCE(vma->anon_vma) &&
		    rust_hmm_vma_has_offset(vma, pgoff))
			break;
	return vma;
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_of_offset);

/* Identifies the anon_vma of @vma; 0 if it never had anonymous pages. */
unsigned long rust_hmm_vma_anon(const struct vm_area_struct *vma)
{
	return (unsigned long)READ_ONCE(vma->anon_vma);
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_anon);

bool rust_hmm_vma_is_anonymous(struct vm_area_struct *vma)
{
	return vma_is_anonymous(vma);
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_is_anonymous);

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

/*
 * Sleeps for @ms, and returns whether the task was killed.
 * schedule_timeout_killable() would return early: after any wake-up, including
 * a delayed one from an earlier wait, and when jiffies catch up after late
 * ticks.
 */
bool rust_hmm_sleep_killable(unsigned int ms)
{
	ktime_t end = ktime_add_ms(ktime_get(), ms);

	while (ktime_before(ktime_get(), end) && !fatal_signal_pending(current)) {
		set_current_state(TASK_KILLABLE);
		schedule_hrtimeout(&end, HRTIMER_MODE_ABS);
	}
	return fatal_signal_pending(current);
}
EXPORT_SYMBOL_GPL(rust_hmm_sleep_killable);

/*
 * Returns whether the current task may sleep. Without CONFIG_PREEMPT_COUNT, a
 * section with preemption disabled is not detected here, only by lockdep.
 */
bool rust_hmm_may_sleep(void)
{
	return in_task() && !rcu_preempt_depth() &&
	       (!IS_ENABLED(CONFIG_PREEMPT_COUNT) || preemptible());
}
EXPORT_SYMBOL_GPL(rust_hmm_may_sleep);

/*
 * Returns whether @mm has users. Takes no reference, because dropping the last
 * one would tear down the address space here.
 */
bool rust_hmm_mm_in_use(const struct mm_struct *mm)
{
	return atomic_read(&mm->mm_users) != 0;
}
EXPORT_SYMBOL_GPL(rust_hmm_mm_in_use);

/*
 * Charges allocations of this task with __GFP_ACCOUNT to the memory cgroup of
 * @mm, until rust_hmm_charge_end(). Returns the previous cgroup.
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

/* Calls xa_insert() with accounted memory. */
int rust_hmm_xa_insert(struct xarray *xa, unsigned long index, void *entry)
{
	return xa_insert(xa, index, entry, GFP_KERNEL_ACCOUNT);
}

bool rust_hmm_refcount_inc_not_zero(refcount_t *count)
{
	return refcount_inc_not_zero(count);
}

/* Frees an object from kmalloc() after a grace period. May sleep. */
void rust_hmm_free_rcu(void *object)
{
	kvfree_rcu_mightsleep(object);
}
EXPORT_SYMBOL_GPL(rust_hmm_free_rcu);

/* Starts a thread. The caller owns a reference to the returned task. */
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

/*
 * Stops the thread, waits for its end, and drops the reference. Returns -EINTR
 * if the thread never ran.
 */
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

/* The fault holds the folio lock, so that no other task can split the folio. */
bool rust_hmm_vmf_folio_is_large(const struct vm_fault *vmf)
{
	return folio_test_large(page_folio(vmf->page));
}
EXPORT_SYMBOL_GPL(rust_hmm_vmf_folio_is_large);

/* Returns whether the fault may drop the mmap lock and be retried. */
bool rust_hmm_vmf_can_retry(const struct vm_fault *vmf)
{
	return (vmf->flags & FAULT_FLAG_ALLOW_RETRY) &&
	       !(vmf->flags & FAULT_FLAG_VMA_LOCK);
}
EXPORT_SYMBOL_GPL(rust_hmm_vmf_can_retry);

/*
 * Returns whether the fault came from user mode, so that the task repeats the
 * instruction after the fault.
 */
bool rust_hmm_vmf_is_user(const struct vm_fault *vmf)
{
	return vmf->flags & FAULT_FLAG_USER;
}
EXPORT_SYMBOL_GPL(rust_hmm_vmf_is_user);

/*
 * Drops the mmap lock and returns VM_FAULT_RETRY, as folio_lock_or_retry() does;
 * the VMA is not valid afterwards. With FAULT_FLAG_RETRY_NOWAIT the lock stays
 * held. Returns 0 if the fault cannot be retried.
 */
vm_fault_t rust_hmm_vmf_retry(struct vm_fault *vmf)
{
	if (!rust_hmm_vmf_can_retry(vmf))
		return 0;
	if (!(vmf->flags & FAULT_FLAG_RETRY_NOWAIT))
		mmap_read_unlock(vmf->vma->vm_mm);
	return VM_FAULT_RETRY;
}
EXPORT_SYMBOL_GPL(rust_hmm_vmf_retry);

unsigned long rust_hmm_page_to_pfn(const struct page *page)
{
	return page_to_pfn(page);
}
EXPORT_SYMBOL_GPL(rust_hmm_page_to_pfn);

/*
 * Returns the pagemap of the device memory of a page, or NULL for other memory.
 */
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

unsigned int rust_hmm_pfn_order(unsigned long pfn)
{
	return folio_order(page_folio(pfn_to_page(pfn)));
}
EXPORT_SYMBOL_GPL(rust_hmm_pfn_order);

/* folio_mark_dirty(), with an inline fast path for anonymous folios. */
static __always_inline void mark_dirty(struct folio *folio)
{
	unsigned long flags = READ_ONCE(folio->flags.f);

	/* A folio without PG_swapcache is not in the swap cache. */
	if (unlikely(flags & BIT(PG_swapcache)) || !folio_test_anon(folio))
		folio_mark_dirty(folio);
	else if (!(flags & BIT(PG_dirty)))
		folio_set_dirty(folio);
}

/* Marks the folios of @npages consecutive page frames dirty. */
void rust_hmm_mark_dirty(unsigned long pfn, unsigned long npages)
{
	unsigned long end = pfn + npages;

	while (pfn < end) {
		struct folio *folio = mapped_page_folio(pfn_to_page(pfn));

		mark_dirty(folio);
		pfn = folio_pfn(folio) + folio_nr_pages(folio);
	}
}
EXPORT_SYMBOL_GPL(rust_hmm_mark_dirty);

/* Marks the folios of @count page frames dirty; @count must not be 0. */
void rust_hmm_mark_all_dirty(const unsigned long *pfns, unsigned long count)
{
	const unsigned long *end = pfns + count;

	do
		mark_dirty(mapped_page_folio(pfn_to_page(*pfns)));
	while (++pfns < end);
}
EXPORT_SYMBOL_GPL(rust_hmm_mark_all_dirty);

void rust_hmm_folio_unlock_put(unsigned long pfn)
{
	struct folio *folio = page_folio(pfn_to_page(pfn));

	folio_unlock(folio);
	folio_put(folio);
}
EXPORT_SYMBOL_GPL(rust_hmm_folio_unlock_put);

/*
 * Allocates and locks a folio for migration to system memory; it is dirty. With
 * @vma the memory policy of @addr applies. Without @must the attempt is cheap:
 * it neither retries nor warns. Returns the page frame number, 0 on failure.
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
	folio_set_dirty(folio);
	return folio_pfn(folio);
}
EXPORT_SYMBOL_GPL(rust_hmm_folio_alloc_locked);

/*
 * Pages in each call of the bulk allocator; the array of them is on the stack.
 */
#define BULK 32

/*
 * Allocates locked, dirty pages for the marked entries of @dst, which are
 * ULONG_MAX. @marked of the @npages entries are marked. Entries for which the
 * bulk allocator has no page become 0. All of them become 0 if a memory policy
 * applies, because the bulk allocator ignores it. Returns whether each marked
 * entry got a page.
 */
bool rust_hmm_fill_marked(struct vm_area_struct *vma, unsigned long *dst,
			  unsigned long npages, unsigned long marked)
{
	const gfp_t gfp = GFP_HIGHUSER_MOVABLE | __GFP_NORETRY | __GFP_NOWARN;
	struct page *pages[BULK];
	unsigned int next = 0, got = 0;
	bool more = true, all = true;
	unsigned long i;

#ifdef CONFIG_NUMA
	more = !current->mempolicy && !(vma && vma_policy(vma));
#endif
	for (i = 0; i < npages && marked; i++) {
		if (dst[i] != ULONG_MAX)
			continue;
		if (next == got && more) {
			unsigned int want = min_t(unsigned long, marked, BULK);

			memset(pages, 0, want * sizeof(pages[0]));
			next = 0;
			got = alloc_pages_bulk(gfp, want, pages);
			more = got == want;
		}
		marked--;
		if (next == got) {
			dst[i] = 0;
			all = false;
			continue;
		}
		/*
		 * No other task has a reference, so that the page lock is free.
		 */
		__SetPageLocked(pages[next]);
		SetPageDirty(pages[next]);
		dst[i] = migrate_pfn(page_to_pfn(pages[next++]));
	}
	return all;
}
EXPORT_SYMBOL_GPL(rust_hmm_fill_marked);

/*
 * Clears page flags of the previous use. The kernel clears no flags when a
 * device page is freed, and only the lowest eight when it is initialized. Flags
 * that a migration has set would stay: a page that was active could also become
 * unevictable, which is a BUG when it is migrated back, and PG_active of the
 * second page of a large folio is PG_has_hwpoisoned. All pages of ZONE_DEVICE
 * have PG_reserved.
 */
static void clear_stale_flags(struct page *page, unsigned int order)
{
	const unsigned long keep = BIT(PG_reserved);
	unsigned long i;

	for (i = 0; i < 1UL << order; i++)
		page[i].flags.f &= ~(PAGE_FLAGS_CHECK_AT_PREP & ~keep);
}

void rust_hmm_device_folio_init(unsigned long pfn, struct dev_pagemap *pgmap,
				unsigned int order)
{
	clear_stale_flags(pfn_to_page(pfn), order);
	zone_device_folio_init((struct folio *)pfn_to_page(pfn), pgmap, order);
}
EXPORT_SYMBOL_GPL(rust_hmm_device_folio_init);

/*
 * Returns the first page frame number, the order and the pagemap of a device
 * folio whose last reference was dropped, and makes its pages small. If a free
 * head page still had the order, small folios that are allocated behind it
 * later would be taken for its tail pages.
 */
unsigned long rust_hmm_device_folio_reset(struct folio *folio,
					  unsigned int *order,
					  struct dev_pagemap **pgmap)
{
	struct page *page = &folio->page;

	*order = folio_order(folio);
	*pgmap = page_pgmap(page);
	if (*order) {
		/* As zone_device_page_init(); these pages store the order. */
		page[0].flags.f &= ~0xffUL;
		page[1].flags.f &= ~0xffUL;
#ifdef NR_PAGES_IN_LARGE_FOLIO
		folio->_nr_pages = 0;
#endif
	}
	return page_to_pfn(page);
}
EXPORT_SYMBOL_GPL(rust_hmm_device_folio_reset);

struct shrinker *rust_hmm_shrinker_alloc(const char *name)
{
	return shrinker_alloc(0, "%s", name);
}
EXPORT_SYMBOL_GPL(rust_hmm_shrinker_alloc);

void rust_hmm_ranges_init(struct maple_tree *tree)
{
	mt_init(tree);
}
EXPORT_SYMBOL_GPL(rust_hmm_ranges_init);

/*
 * Stores @value for @first to @last; 0 removes the range. With @wait the
 * allocation may reclaim, otherwise it is GFP_NOWAIT.
 */
int rust_hmm_ranges_set(struct maple_tree *tree, unsigned long first,
			unsigned long last, unsigned long value, bool wait)
{
	return mtree_store_range(tree, first, last,
				 value ? xa_mk_value(value) : NULL,
				 wait ? GFP_KERNEL_ACCOUNT :
					GFP_NOWAIT | __GFP_NOWARN);
}
EXPORT_SYMBOL_GPL(rust_hmm_ranges_set);

/*
 * Returns the value of the first range that overlaps @from to @to; 0 if none.
 */
unsigned long rust_hmm_ranges_find(struct maple_tree *tree, unsigned long from,
				   unsigned long to, unsigned long *first,
				   unsigned long *last)
{
	MA_STATE(mas, tree, from, from);
	void *entry;

	mas_lock(&mas);
	entry = mas_find(&mas, to);
	*first = mas.index;
	*last = mas.last;
	mas_unlock(&mas);
	return entry ? xa_to_value(entry) : 0;
}
EXPORT_SYMBOL_GPL(rust_hmm_ranges_find);

/* Returns the value at @index, and its range; 0 if there is none. */
unsigned long rust_hmm_ranges_at(struct maple_tree *tree, unsigned long index,
				 unsigned long *first, unsigned long *last)
{
	MA_STATE(mas, tree, index, index);
	void *entry;

	mas_lock(&mas);
	entry = mas_walk(&mas);
	*first = mas.index;
	*last = mas.last;
	mas_unlock(&mas);
	return entry ? xa_to_value(entry) : 0;
}
EXPORT_SYMBOL_GPL(rust_hmm_ranges_at);

void rust_hmm_ranges_clear(struct maple_tree *tree)
{
	mtree_destroy(tree);
}
EXPORT_SYMBOL_GPL(rust_hmm_ranges_clear);

int rust_hmm_request_region(u64 start, u64 size, const char *name)
{
	if (request_mem_region(start, size, name))
		return 0;
	/* request_mem_region() does not distinguish -EBUSY and -ENOMEM. */
	if (region_intersects(start, size, IORESOURCE_MEM | IORESOURCE_BUSY,
			      IORES_DESC_NONE) == REGION_DISJOINT)
		return -ENOMEM;
	return -EBUSY;
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

/*
 * Allocates zeroed memory that is aligned to @size, which must be a power of
 * two and at least the page size. May sleep.
 */
void *rust_hmm_table_alloc(size_t size, u64 *addr)
{
	struct page *page;

	page = alloc_pages(GFP_KERNEL_ACCOUNT | __GFP_ZERO, get_order(size));
	if (!page)
		return NULL;
	*addr = page_to_phys(page);
	return page_address(page);
}
EXPORT_SYMBOL_GPL(rust_hmm_table_alloc);

void rust_hmm_table_free(void *table, size_t size)
{
	free_pages((unsigned long)table, get_order(size));
}
EXPORT_SYMBOL_GPL(rust_hmm_table_free);

void rust_hmm_table_wmb(void)
{
	dma_wmb();
}
EXPORT_SYMBOL_GPL(rust_hmm_table_wmb);

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

/*
 * Flags that a migration may have set. In the second page of a large folio, two
 * of them have other meanings: PG_has_hwpoisoned and PG_partially_mapped.
 */
#define STALE (BIT(PG_active) | BIT(PG_reclaim) | BIT(PG_unevictable))

void rust_hmm_kunit_set_stale_flags(unsigned long pfn)
{
	pfn_to_page(pfn)->flags.f |= STALE;
}

bool rust_hmm_kunit_has_stale_flags(unsigned long pfn)
{
	return pfn_to_page(pfn)->flags.f & STALE;
}

/*
 * Maps anonymous memory in an address space of the test; 0 on failure. A test
 * may map more memory than the machine has and use a part of it, because the
 * machines of kunit.py are small.
 */
unsigned long rust_hmm_kunit_mmap(unsigned long len)
{
	if (!current->mm && kunit_attach_mm())
		return 0;
	return kunit_vm_mmap(kunit_get_current_test(), NULL, 0, len,
			     PROT_READ | PROT_WRITE,
			     MAP_ANONYMOUS | MAP_PRIVATE | MAP_NORESERVE, 0);
}

int rust_hmm_kunit_munmap(unsigned long addr, unsigned long len)
{
	return vm_munmap(addr, len);
}

/*
 * Opens the misc device of @minor, with misc_mtx held as in an open of its
 * device node. The thread of a test has no root directory with the node.
 */
struct file *rust_hmm_kunit_open_misc(unsigned int minor)
{
	static const struct file_operations none;
	struct file *file;
	struct inode *inode;
	int ret;

	file = anon_inode_create_getfile("[hmm_kunit]", &none, NULL, O_RDWR, NULL);
	if (IS_ERR(file))
		return file;
	inode = file_inode(file);
	init_special_inode(inode, S_IFCHR | 0600, MKDEV(MISC_MAJOR, minor));
	ret = inode->i_fop->open(inode, file);
	/*
	 * On error the file is leaked, because only the VFS can undo a partial
	 * open.
	 */
	return ret ? ERR_PTR(ret) : file;
}
#endif
