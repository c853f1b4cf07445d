/* SPDX-License-Identifier: GPL-2.0 */
/*
 * C helpers: inline functions and macros that bindgen cannot see, and the few
 * operations that must not be expressed in Rust because they touch memory
 * that other agents write at the same time.
 */
#ifndef _RUST_HMM_HELPERS_H
#define _RUST_HMM_HELPERS_H

#include <linux/refcount.h>
#include <linux/types.h>

/*
 * Returns the folio of a mapped page. The data race is with a concurrent
 * addition to an LRU list, and harmless: compound_head shares its word with
 * lru.next, whose bit 0 is clear.
 */
#define mapped_page_folio(page) data_race(page_folio(page))

struct dev_pagemap;
struct file;
struct folio;
struct mm_struct;
struct mmu_interval_notifier;
struct page;
struct task_struct;
struct vm_area_struct;
struct vm_fault;
struct xarray;

/* include/linux/mmu_notifier.h */
void rust_hmm_interval_set_seq(struct mmu_interval_notifier *sub,
			       unsigned long seq);
bool rust_hmm_interval_read_retry(struct mmu_interval_notifier *sub,
				  unsigned long seq);

/* include/linux/mmap_lock.h, include/linux/mm.h */
int rust_hmm_mmap_read_lock_killable(struct mm_struct *mm);
int rust_hmm_notifier_register(struct mm_struct *mm);
bool rust_hmm_mmap_read_trylock(struct mm_struct *mm);
bool rust_hmm_mmap_is_contended(struct mm_struct *mm);
void rust_hmm_mmap_read_unlock(struct mm_struct *mm);
struct vm_area_struct *rust_hmm_vma_lookup(struct mm_struct *mm,
					   unsigned long addr);
struct vm_area_struct *rust_hmm_vma_of_offset(struct mm_struct *mm,
					      unsigned long from,
					      unsigned long pgoff);
unsigned long rust_hmm_vma_anon(const struct vm_area_struct *vma);
bool rust_hmm_vma_is_anonymous(struct vm_area_struct *vma);
unsigned long rust_hmm_vma_anon_offset(const struct vm_area_struct *vma);
bool rust_hmm_vma_has_offset(const struct vm_area_struct *vma,
			     unsigned long pgoff);
struct mm_struct *rust_hmm_vma_mm(const struct vm_area_struct *vma);
bool rust_hmm_fatal_signal_pending(void);
bool rust_hmm_sleep_killable(unsigned int ms);
bool rust_hmm_may_sleep(void);
bool rust_hmm_mm_in_use(const struct mm_struct *mm);

/* include/linux/memcontrol.h, include/linux/sched/mm.h */
struct mem_cgroup *rust_hmm_charge_to(struct mm_struct *mm);
void rust_hmm_charge_end(struct mem_cgroup *old);

/* include/linux/xarray.h, include/linux/refcount.h, include/linux/rcupdate.h */
int rust_hmm_xa_insert(struct xarray *xa, unsigned long index, void *entry);
bool rust_hmm_refcount_inc_not_zero(refcount_t *count);
void rust_hmm_free_rcu(void *object);

/* include/linux/kthread.h */
struct task_struct *rust_hmm_kthread_run(int (*run)(void *data), void *data,
					 const char *name);
int rust_hmm_kthread_stop_put(struct task_struct *task);

/* Address spaces that map a page */
struct rust_hmm_user {
	struct mm_struct *mm;
	unsigned long addr;
};

unsigned int rust_hmm_pfn_users(unsigned long pfn, bool delay,
				struct rust_hmm_user *users,
				unsigned int count);
bool rust_hmm_vma_run(struct vm_area_struct *vma, unsigned long addr,
		      unsigned long first, unsigned long last,
		      unsigned long *seen, unsigned long *start,
		      unsigned long *end);
/* State of pages for a migration */
enum rust_hmm_pages {
	/* Anonymous system memory, or holes that a fault fills with it. */
	RUST_HMM_PAGES_SYSTEM,
	/* In the device memory @tile. */
	RUST_HMM_PAGES_DEVICE,
	/* Being migrated by another task. */
	RUST_HMM_PAGES_BUSY,
	/* Another user has a reference, temporarily or permanently. */
	RUST_HMM_PAGES_HELD,
	/* Not movable: file pages, pinned, KSM, or memory of another device. */
	RUST_HMM_PAGES_STAY,
	/* In a VMA from which migrate_vma_setup() isolates no pages. */
	RUST_HMM_PAGES_REFUSED,
};

/* Folios of pages */
enum rust_hmm_folios {
	/*
	 * Small folios only, and no hole that a CPU fault may fill with a large
	 * one.
	 */
	RUST_HMM_FOLIOS_SMALL,
	/* One huge page that is mapped by a PMD. */
	RUST_HMM_FOLIOS_HUGE,
	/* Large folios, or holes for them. */
	RUST_HMM_FOLIOS_LARGE,
};

unsigned long rust_hmm_vma_alike(struct vm_area_struct *vma,
				 unsigned long start, unsigned long end,
				 const void *tile, bool system,
				 enum rust_hmm_pages *kind,
				 enum rust_hmm_folios *folios);
bool rust_hmm_vma_may_migrate(struct vm_area_struct *vma);
bool rust_hmm_vma_make_writable(struct vm_area_struct *vma, unsigned long addr,
				unsigned long end);
struct page *rust_hmm_pfn_page(unsigned long pfn);
unsigned long rust_hmm_page_pfn(const struct page *page);
void rust_hmm_pfn_get(unsigned long pfn);
void rust_hmm_pfn_put(unsigned long pfn);
void rust_hmm_pfn_unlock(unsigned long pfn);

/* Huge pages of private device memory that are migrated back */
enum rust_hmm_huge {
	/* No page is present. */
	RUST_HMM_HUGE_HOLE,
	/* A huge page of @tile, mapped only here; locked and referenced. */
	RUST_HMM_HUGE_HELD,
	/* Such a page, but another task holds its lock. */
	RUST_HMM_HUGE_BUSY,
	/* Any other state. */
	RUST_HMM_HUGE_OTHER,
};
enum rust_hmm_huge rust_hmm_huge_hold(struct vm_area_struct *vma,
				      unsigned long addr, const void *tile,
				      const struct page *locked,
				      unsigned long *pfn);
void rust_hmm_huge_settle(struct vm_area_struct *vma, unsigned long addr,
			  unsigned long pfn);

/* trace.h */
int rust_hmm_mm_pid(struct mm_struct *mm);
void rust_hmm_trace_device_fault(int pid, unsigned int mirror,
				 unsigned long start, unsigned long pages,
				 bool write, int result);
void rust_hmm_trace_cpu_fault(unsigned int device, unsigned long address,
			      unsigned long moved, int result);
void rust_hmm_trace_migrate_begin(int pid, unsigned int mirror,
				  unsigned long start, unsigned long pages,
				  bool to_device, int trigger);
void rust_hmm_trace_migrate_end(int pid, unsigned int mirror, bool to_device,
				int trigger, unsigned long moved,
				unsigned long switched, unsigned long stayed,
				int result);
void rust_hmm_trace_evict(unsigned int device, int need, unsigned long moved,
			  unsigned long left);
void rust_hmm_trace_thrash(int pid, unsigned int mirror, unsigned long start,
			   unsigned long pages, bool stays, unsigned long ms);
void rust_hmm_trace_invalidate(int pid, unsigned int mirror,
			       unsigned long start, unsigned long pages,
			       int event, unsigned long changed);
void rust_hmm_trace_retry(int pid, unsigned int mirror, unsigned long start,
			  unsigned long pages, int reason);

/* Faults */
struct vm_area_struct *rust_hmm_vmf_vma(const struct vm_fault *vmf);
unsigned long rust_hmm_vmf_address(const struct vm_fault *vmf);
bool rust_hmm_vmf_is_pte(const struct vm_fault *vmf);
struct page *rust_hmm_vmf_page(const struct vm_fault *vmf);
bool rust_hmm_vmf_folio_is_large(const struct vm_fault *vmf);
bool rust_hmm_vmf_can_retry(const struct vm_fault *vmf);
bool rust_hmm_vmf_is_user(const struct vm_fault *vmf);
vm_fault_t rust_hmm_vmf_retry(struct vm_fault *vmf);

/* Pages and folios, named by page frame number */
unsigned long rust_hmm_page_to_pfn(const struct page *page);
struct dev_pagemap *rust_hmm_pfn_pgmap(unsigned long pfn);
bool rust_hmm_pfn_is_private(unsigned long pfn);
bool rust_hmm_pfn_is_zero(unsigned long pfn);
unsigned int rust_hmm_pfn_order(unsigned long pfn);
void rust_hmm_mark_dirty(unsigned long pfn, unsigned long npages);
void rust_hmm_mark_all_dirty(const unsigned long *pfns, unsigned long count);
void rust_hmm_folio_unlock_put(unsigned long pfn);
unsigned long rust_hmm_folio_alloc_locked(struct vm_area_struct *vma,
					  unsigned long addr,
					  unsigned int order, bool must);
bool rust_hmm_fill_marked(struct vm_area_struct *vma, unsigned long *dst,
			  unsigned long npages, unsigned long marked);
void rust_hmm_device_folio_init(unsigned long pfn, struct dev_pagemap *pgmap,
				unsigned int order);
unsigned long rust_hmm_device_folio_reset(struct folio *folio,
					  unsigned int *order,
					  struct dev_pagemap **pgmap);

/* Copies; other agents may write the memory concurrently, as under a device */
void rust_hmm_read_page(void *dst, unsigned long pfn, size_t offset,
			size_t len);
void rust_hmm_write_page(unsigned long pfn, size_t offset, const void *src,
			 size_t len);
void rust_hmm_copy_pages(unsigned long dst, unsigned long src,
			 unsigned long npages);
void rust_hmm_clear_pages(unsigned long pfn, unsigned long npages);
void rust_hmm_copy_bytes(void *dst, const void *src, size_t len);
void rust_hmm_clear_bytes(void *dst, size_t len);
size_t rust_hmm_page_to_user(unsigned long user, unsigned long pfn,
			     size_t offset, size_t len);
size_t rust_hmm_page_from_user(unsigned long pfn, size_t offset,
			       unsigned long user, size_t len);
size_t rust_hmm_bytes_to_user(unsigned long user, const void *src, size_t len);
size_t rust_hmm_bytes_from_user(void *dst, unsigned long user, size_t len);
size_t rust_hmm_fault_in_user(unsigned long user, size_t len, bool write);
u64 rust_hmm_fetch_add_page(unsigned long pfn, size_t offset, u64 value);
u64 rust_hmm_fetch_add_bytes(void *at, u64 value);

/* include/linux/shrinker.h */
struct shrinker *rust_hmm_shrinker_alloc(const char *name);

/* Memory of device page tables that hardware walks */
void *rust_hmm_table_alloc(size_t size, u64 *addr);
void rust_hmm_table_free(void *table, size_t size);
void rust_hmm_table_wmb(void);

/* include/linux/maple_tree.h, with numbers as values */
void rust_hmm_ranges_init(struct maple_tree *tree);
int rust_hmm_ranges_set(struct maple_tree *tree, unsigned long first,
			unsigned long last, unsigned long value, bool wait);
unsigned long rust_hmm_ranges_at(struct maple_tree *tree, unsigned long index,
				 unsigned long *first, unsigned long *last);
unsigned long rust_hmm_ranges_find(struct maple_tree *tree, unsigned long from,
				   unsigned long to, unsigned long *first,
				   unsigned long *last);
void rust_hmm_ranges_clear(struct maple_tree *tree);

/* include/linux/ioport.h */
int rust_hmm_request_region(u64 start, u64 size, const char *name);
int rust_hmm_request_free_region(u64 size, const char *name, u64 *start);
void rust_hmm_release_region(u64 start, u64 size);

/* For KUnit: the C arithmetic for comparison, and a user address space */
unsigned int rust_hmm_kunit_map_order(unsigned long hmm_pfn);
unsigned long rust_hmm_kunit_migrate_pfn(unsigned long pfn);
bool rust_hmm_kunit_is_dirty(unsigned long pfn);
void rust_hmm_kunit_set_stale_flags(unsigned long pfn);
bool rust_hmm_kunit_has_stale_flags(unsigned long pfn);
unsigned long rust_hmm_kunit_mmap(unsigned long len);
int rust_hmm_kunit_munmap(unsigned long addr, unsigned long len);
struct file *rust_hmm_kunit_open_misc(unsigned int minor);

#endif /* _RUST_HMM_HELPERS_H */
