// SPDX-License-Identifier: GPL-2.0
/*
 * Reverse mapping of device pages, and walks of the CPU page table. The core has
 * such functions, but exports none of them.
 */
#include <linux/delay.h>
#include <linux/export.h>
#include <linux/interval_tree_generic.h>
#include <linux/memcontrol.h>
#include <linux/memremap.h>
#include <linux/fs.h>
#include <linux/hugetlb.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/rmap.h>
#include <linux/sched/mm.h>
#include <linux/swap.h>
#include <linux/swapops.h>
#include <linux/leafops.h>
#include <linux/userfaultfd_k.h>

/* An address at which a page is mapped. */
struct rust_hmm_user {
	struct mm_struct *mm;
	unsigned long addr;
};

/* State of pages for a migration. */
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

/* Folios of pages. */
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

/* Huge page of private device memory that is migrated back. */
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

/*
 * Injected delay before the lock of an anon_vma is taken, in ms, which widens the
 * race window. Longer than an RCU grace period.
 */
#define REVERSE_MAPPING_DELAY 100

/*
 * Returns the PMD entry for @addr; NULL if there is no PMD table. The caller holds
 * the mmap lock or that of the anon_vma, so that the table is not freed.
 */
static pmd_t *find_pmd(struct mm_struct *mm, unsigned long addr)
{
	pgd_t *pgdp = pgd_offset(mm, addr), pgd = pgdp_get(pgdp);
	p4d_t *p4dp, p4d;
	pud_t *pudp, pud;

	if (pgd_none(pgd) || pgd_bad(pgd))
		return NULL;
	p4dp = p4d_offset(pgdp, addr);
	p4d = p4dp_get(p4dp);
	if (p4d_none(p4d) || p4d_bad(p4d))
		return NULL;
	pudp = pud_offset(p4dp, addr);
	pud = pudp_get(pudp);
	if (pud_none(pud) || pud_leaf(pud) || pud_bad(pud))
		return NULL;
	return pmd_offset(pudp, addr);
}

/*
 * Returns the PTE for @addr with the PTE lock held. @pmd is not a leaf. The caller
 * holds the PMD lock, so that the PTE table is not freed.
 */
static pte_t *lock_entry_below(struct mm_struct *mm, pmd_t *pmd,
			       unsigned long addr, spinlock_t *above,
			       spinlock_t **lock)
{
	*lock = pte_lockptr(mm, pmd);
	if (*lock != above)
		spin_lock_nested(*lock, SINGLE_DEPTH_NESTING);
	return pte_offset_kernel(pmd, addr);
}

/*
 * Returns the PTE for @addr with the PTE lock and the PMD lock held; NULL if there
 * is no PTE table. Locks of the caller: as for find_pmd().
 */
static pte_t *lock_entry(struct mm_struct *mm, unsigned long addr,
			 spinlock_t **above, spinlock_t **lock)
{
	pmd_t *pmd = find_pmd(mm, addr);

	if (!pmd)
		return NULL;
	*above = pmd_lock(mm, pmd);
	if (pmd_none(*pmd) || !pmd_present(*pmd) || pmd_leaf(*pmd) ||
	    pmd_bad(*pmd)) {
		spin_unlock(*above);
		return NULL;
	}
	return lock_entry_below(mm, pmd, addr, *above, lock);
}

/*
 * Returns the pfn that @pte maps, relative to @first. Device-private entries count as
 * mappings; ULONG_MAX for other entries.
 */
static unsigned long frame_index(pte_t pte, unsigned long first)
{
	softleaf_t entry;

	if (pte_present(pte))
		return pte_pfn(pte) - first;
	entry = softleaf_from_pte(pte);
	if (!softleaf_is_device_private(entry))
		return ULONG_MAX;
	return softleaf_to_pfn(entry) - first;
}

/* Returns whether a huge device-private entry maps @pfn at @addr. */
static bool is_huge_entry_of(struct mm_struct *mm, unsigned long addr,
			     unsigned long pfn)
{
	pmd_t *pmd = find_pmd(mm, addr);
	unsigned long first;
	bool found = false;
	spinlock_t *lock;

	if (!pmd)
		return false;
	lock = pmd_lock(mm, pmd);
	if (pmd_is_device_private_entry(*pmd)) {
		first = softleaf_to_pfn(softleaf_from_pmd(*pmd));
		found = pfn == first + ((addr & ~PMD_MASK) >> PAGE_SHIFT);
	}
	spin_unlock(lock);
	return found;
}

/*
 * Returns the first address from @addr to before @end, within one PTE table, that
 * maps its pfn: @addr maps @pfn, and so on. Returns @end if there is none.
 */
static unsigned long first_mapped(struct mm_struct *mm, unsigned long addr,
				  unsigned long end, unsigned long pfn)
{
	spinlock_t *above, *lock;
	pte_t *ptep;

	if (is_huge_entry_of(mm, addr, pfn))
		return addr;
	ptep = lock_entry(mm, addr, &above, &lock);
	if (!ptep)
		return end;
	for (; addr < end; addr += PAGE_SIZE, ptep++, pfn++)
		if (!frame_index(ptep_get(ptep), pfn))
			break;
	if (lock != above)
		spin_unlock(lock);
	spin_unlock(above);
	return addr;
}

/*
 * Returns the first address at which @vma maps a page of the anonymous @folio;
 * ULONG_MAX if there is none. The caller holds the lock of the anon_vma.
 */
static unsigned long mapped_address(struct vm_area_struct *vma,
				    struct folio *folio)
{
	unsigned long base = rust_hmm_vma_anon_offset(vma);
	unsigned long from = max(folio->index, base);
	unsigned long to = min(folio->index + folio_nr_pages(folio),
			       base + vma_pages(vma));
	unsigned long addr, end, next, pfn;

	if (from >= to)
		return ULONG_MAX;
	addr = vma->vm_start + ((from - base) << PAGE_SHIFT);
	end = vma->vm_start + ((to - base) << PAGE_SHIFT);
	for (; addr < end; addr = next) {
		next = pmd_addr_end(addr, end);
		pfn = folio_pfn(folio) + base - folio->index +
		      ((addr - vma->vm_start) >> PAGE_SHIFT);
		from = first_mapped(vma->vm_mm, addr, next, pfn);
		if (from < next)
			return from;
	}
	return ULONG_MAX;
}

/* Offsets of the first and the last page of a VMA in the interval tree of its anon_vma. */
static inline unsigned long chain_start(struct anon_vma_chain *chain)
{
	return rust_hmm_vma_anon_offset(chain->vma);
}

static inline unsigned long chain_last(struct anon_vma_chain *chain)
{
	return chain_start(chain) + vma_pages(chain->vma) - 1;
}

/* As in mm/interval_tree.c, whose functions are not exported. */
INTERVAL_TREE_DEFINE(struct anon_vma_chain, rb, unsigned long, rb_subtree_last,
		     chain_start, chain_last, static inline, chain)

/* Iterates over the VMAs of @anon_vma that have an offset from @first to @last. */
#define for_each_chain(chain, anon_vma, first, last)                       \
	for (chain = chain_iter_first(&(anon_vma)->rb_root, first, last);  \
	     chain; chain = chain_iter_next(chain, first, last))

/*
 * Returns the anon_vma of the locked @folio with its lock @lock held for reading;
 * NULL if the folio is not mapped or the lock is contended.
 *
 * As in folio_lock_anon_vma_read(): the folio lock does not keep the folio mapped,
 * because zapping a device-private entry takes no folio lock. So the anon_vma can
 * be freed until its lock is held and the folio is found mapped after that. Its
 * slab cache is SLAB_TYPESAFE_BY_RCU, so that under rcu_read_lock() the memory
 * stays an anon_vma. Uses a trylock: a waiter would need a reference, and
 * __put_anon_vma() is not exported. @delay: injects a delay into the window
 * before the lock.
 */
static struct anon_vma *lock_anon_vma(struct folio *folio, bool delay,
				      struct rw_semaphore **lock)
{
	struct anon_vma *anon_vma = NULL;
	unsigned long mapping;

	rcu_read_lock();
	mapping = (unsigned long)READ_ONCE(folio->mapping);
	if ((mapping & FOLIO_MAPPING_FLAGS) != FOLIO_MAPPING_ANON ||
	    !folio_mapped(folio))
		goto unlock;
	anon_vma = (struct anon_vma *)(mapping - FOLIO_MAPPING_ANON);
	if (unlikely(delay))
		mdelay(REVERSE_MAPPING_DELAY);
	*lock = &READ_ONCE(anon_vma->root)->rwsem;
	if (!down_read_trylock(*lock)) {
		anon_vma = NULL;
	} else if (!folio_mapped(folio)) {
		up_read(*lock);
		anon_vma = NULL;
	}
unlock:
	rcu_read_unlock();
	return anon_vma;
}

/*
 * Finds up to @count address spaces that map pages of the anonymous folio at @pfn,
 * each with the address of the mapping. Returns their number. Each entry of @users
 * has a reference (mmget()), which the caller drops. An mm may occur once for each
 * of its VMAs. Best effort: returns 0 if the folio or its anon_vma is locked. @pfn
 * must have a struct page. @delay: see lock_anon_vma(). Context: may sleep.
 */
unsigned int rust_hmm_pfn_users(unsigned long pfn, bool delay,
				struct rust_hmm_user *users,
				unsigned int count)
{
	struct folio *folio = page_folio(pfn_to_page(pfn));
	unsigned int found = 0, seen = 0;
	struct anon_vma_chain *chain;
	struct anon_vma *anon_vma;
	struct rw_semaphore *lock;
	unsigned long addr, last;

	if (!folio_try_get(folio))
		return 0;
	if (page_folio(pfn_to_page(pfn)) != folio || !folio_trylock(folio))
		goto put;
	if (folio_test_ksm(folio))
		goto unlock;
	anon_vma = lock_anon_vma(folio, delay, &lock);
	if (!anon_vma)
		goto unlock;
	last = folio->index + folio_nr_pages(folio) - 1;
	for_each_chain(chain, anon_vma, folio->index, last) {
		cond_resched();
		/* Page tables of a VMA are not freed while it is in the tree. */
		addr = mapped_address(chain->vma, folio);
		if (addr == ULONG_MAX)
			continue;
		/* Skip an exiting process, which unmaps the folio soon. */
		if (mmget_not_zero(chain->vma->vm_mm)) {
			users[found].mm = chain->vma->vm_mm;
			users[found].addr = addr;
			found++;
		}
		/* Each VMA maps a small folio once, so that its mapcount bounds the walk. */
		seen++;
		if (found == count ||
		    (!folio_test_large(folio) && seen >= folio_mapcount(folio)))
			break;
	}
	up_read(lock);
unlock:
	folio_unlock(folio);
put:
	folio_put(folio);
	return found;
}
EXPORT_SYMBOL_GPL(rust_hmm_pfn_users);

/*
 * Finds the range around @addr that maps pfns from @first to before @last, within
 * @vma and one PTE table. Returns false if @addr maps none of them. Sets the bit of
 * each mapped pfn, relative to @first, in @seen. The caller holds the mmap lock.
 */
bool rust_hmm_vma_run(struct vm_area_struct *vma, unsigned long addr,
		      unsigned long first, unsigned long last,
		      unsigned long *seen, unsigned long *start,
		      unsigned long *end)
{
	unsigned long low = max(vma->vm_start, addr & PMD_MASK);
	unsigned long high = min(vma->vm_end, (addr & PMD_MASK) + PMD_SIZE);
	unsigned long at, index, count = last - first;
	spinlock_t *above, *lock;
	pte_t *ptep, *p;

	ptep = lock_entry(vma->vm_mm, addr, &above, &lock);
	if (!ptep)
		return false;
	*start = addr;
	*end = addr;
	for (at = addr, p = ptep; at < high; at += PAGE_SIZE, p++) {
		index = frame_index(ptep_get(p), first);
		if (index >= count)
			break;
		__set_bit(index, seen);
		*end = at + PAGE_SIZE;
	}
	for (p = ptep; *end > addr && *start > low; *start -= PAGE_SIZE) {
		index = frame_index(ptep_get(--p), first);
		if (index >= count)
			break;
		__set_bit(index, seen);
	}
	if (lock != above)
		spin_unlock(lock);
	spin_unlock(above);
	return *end > addr;
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_run);

/*
 * Returns whether KSM may merge pages of @vma from @start to @end: because of the
 * VMA itself, or of a VMA of another process that shares them since a fork. In the
 * second case the shared page becomes a KSM page in place, and its reverse mapping
 * is that of the other process.
 */
static bool may_merge(struct vm_area_struct *vma, unsigned long start,
		      unsigned long end)
{
	struct anon_vma *anon_vma = READ_ONCE(vma->anon_vma);
	pgoff_t count = (end - start) >> PAGE_SHIFT;
	struct anon_vma_chain *chain;
	bool found = false;
	pgoff_t first;

	if (vma->vm_flags & VM_MERGEABLE)
		return true;
	/*
	 * A forked process has an anon_vma of its own below the root. The mmap
	 * lock prevents a concurrent fork of this process.
	 */
	if (!anon_vma || data_race(anon_vma->root->num_children) < 2)
		return false;
	first = rust_hmm_vma_anon_offset(vma) +
		((start - vma->vm_start) >> PAGE_SHIFT);
	down_read(&anon_vma->root->rwsem);
	for_each_chain(chain, anon_vma->root, first, first + count - 1) {
		/* A concurrent madvise() of that process may change it: see below. */
		found = data_race(chain->vma->vm_flags) & VM_MERGEABLE;
		if (found)
			break;
	}
	up_read(&anon_vma->root->rwsem);
	return found;
}

/*
 * Classifies the mapped @page for a migration. Sets @large if it is part of a large
 * folio. Inlined, like the next functions, because it runs for each page.
 */
static __always_inline enum rust_hmm_pages
kind_of_page(struct page *page, const void *tile, bool *large)
{
	struct folio *folio = mapped_page_folio(page);

	*large |= folio_test_large(folio);
	if (folio_is_zone_device(folio))
		return page_pgmap(page)->ops == tile ? RUST_HMM_PAGES_DEVICE :
						       RUST_HMM_PAGES_STAY;
	if (!folio_test_anon(folio) || folio_test_ksm(folio))
		return RUST_HMM_PAGES_STAY;
	if (folio_ref_count(folio) <= folio_expected_ref_count(folio))
		return RUST_HMM_PAGES_SYSTEM;
	if (folio_maybe_dma_pinned(folio))
		return RUST_HMM_PAGES_STAY;
	/*
	 * Extra references of pages not on the LRU are those of per-CPU batches, which the core
	 * drains.
	 */
	return folio_test_lru(folio) ? RUST_HMM_PAGES_HELD :
				       RUST_HMM_PAGES_SYSTEM;
}

static __always_inline enum rust_hmm_pages
kind_of_leaf(softleaf_t entry, const void *tile, bool *large)
{
	if (softleaf_is_device_private(entry))
		return kind_of_page(pfn_to_page(softleaf_to_pfn(entry)), tile,
				    large);
	return softleaf_is_migration(entry) ? RUST_HMM_PAGES_BUSY :
					      RUST_HMM_PAGES_STAY;
}

/* Only holes of anonymous VMAs can be populated by a migration. */
static enum rust_hmm_pages kind_of_hole(struct vm_area_struct *vma)
{
	return vma_is_anonymous(vma) ? RUST_HMM_PAGES_SYSTEM :
				       RUST_HMM_PAGES_STAY;
}

/* Returns whether a CPU fault may fill a hole of @vma with a large folio. */
static bool may_get_large_folios(struct vm_area_struct *vma)
{
	return IS_ENABLED(CONFIG_TRANSPARENT_HUGEPAGE) &&
	       !(vma->vm_flags & VM_NOHUGEPAGE);
}

static __always_inline enum rust_hmm_pages
kind_of_pte(struct vm_area_struct *vma, pte_t pte, const void *tile,
	    bool *large)
{
	if (pte_none(pte)) {
		*large |= may_get_large_folios(vma);
		return kind_of_hole(vma);
	}
	/* Swapped-out pages stay, because the swap cache may have a KSM page. */
	if (!pte_present(pte))
		return kind_of_leaf(softleaf_from_pte(pte), tile, large);
	if (is_zero_pfn(pte_pfn(pte)))
		return kind_of_hole(vma);
	return pte_special(pte) ? RUST_HMM_PAGES_STAY :
				  kind_of_page(pte_page(pte), tile, large);
}

static enum rust_hmm_pages kind_of_pmd(struct vm_area_struct *vma, pmd_t pmd,
				       const void *tile, bool *large)
{
	struct page *page;

	if (pmd_none(pmd)) {
		*large |= may_get_large_folios(vma);
		return kind_of_hole(vma);
	}
	if (!pmd_present(pmd))
		return kind_of_leaf(softleaf_from_pmd(pmd), tile, large);
	page = pmd_page(pmd);
	/* In an anonymous VMA, this is the huge zero folio. */
	if (vma_is_anonymous(vma) && !PageAnon(page) &&
	    !is_zone_device_page(page))
		return RUST_HMM_PAGES_SYSTEM;
	return kind_of_page(page, tile, large);
}

/*
 * Returns the number of PTEs, at most @count, that map consecutive private pages of
 * one chunk with the same rights, each a folio of its own: @ptep, and the PTEs that
 * follow it in the direction of @step, which is 1 or -1. @ptep maps such a page, or
 * another one of device memory, for which the result is 1.
 *
 * Pages that a migration has moved to a device are often consecutive. Each of them
 * costs a seventh of kind_of_pte().
 */
static unsigned long private_run(pte_t *ptep, unsigned long count, long step)
{
	pte_t pte = ptep_get(ptep);
	softleaf_t first = softleaf_from_pte(pte);
	struct dev_pagemap *pgmap;
	struct page *page;
	unsigned long i;
	pteval_t delta;

	if (!softleaf_is_device_private(first))
		return 1;
	page = pfn_to_page(softleaf_to_pfn(first));
	pgmap = page_pgmap(page);
	/*
	 * The frame number is the lowest field of an entry, so that the entries of
	 * consecutive pages differ by 1. @delta is the same difference of their PTEs.
	 */
	delta = pte_val(swp_entry_to_pte(swp_entry(0, 1))) -
		pte_val(swp_entry_to_pte(swp_entry(0, 0)));
	for (i = 1; i < count; i++) {
		ptep += step;
		/* ZONE_DEVICE depends on SPARSEMEM_VMEMMAP: the pages are an array. */
		page += step;
		pte = __pte(pte_val(pte) + step * delta);
		if (!pte_same(ptep_get(ptep), pte))
			break;
		if (PageCompound(page) || ((struct folio *)page)->pgmap != pgmap)
			break;
	}
	return i;
}

/*
 * Returns the number of PTEs, at most @count, that map pages of the device memory
 * @tile: @ptep, and the PTEs that follow it in the direction of @step.
 */
static unsigned long device_run(struct vm_area_struct *vma, pte_t *ptep,
				unsigned long count, long step,
				const void *tile)
{
	unsigned long found = 0, run;
	bool large = false;

	while (found < count) {
		if (kind_of_pte(vma, ptep_get(ptep), tile, &large) !=
		    RUST_HMM_PAGES_DEVICE)
			break;
		run = private_run(ptep, count - found, step);
		found += run;
		ptep += run * step;
	}
	return found;
}

/* As rust_hmm_vma_alike(), without the check for KSM. */
static unsigned long alike(struct vm_area_struct *vma, unsigned long start,
			   unsigned long end, const void *tile,
			   enum rust_hmm_pages *kind,
			   enum rust_hmm_folios *folios)
{
	unsigned long count = (end - start) >> PAGE_SHIFT, i;
	bool large = false, whole = count == HPAGE_PMD_NR;
	pmd_t *pmdp = find_pmd(vma->vm_mm, start), pmd;
	spinlock_t *above, *lock;
	pte_t *ptep;

	if (!pmdp) {
		*kind = kind_of_hole(vma);
		if (may_get_large_folios(vma))
			*folios = RUST_HMM_FOLIOS_LARGE;
		return count;
	}
	above = pmd_lock(vma->vm_mm, pmdp);
	pmd = *pmdp;
	if (pmd_none(pmd) || !pmd_present(pmd) || pmd_leaf(pmd)) {
		*kind = kind_of_pmd(vma, pmd, tile, &large);
		if (pmd_leaf(pmd) && whole)
			*folios = RUST_HMM_FOLIOS_HUGE;
		else if (pmd_leaf(pmd) || large)
			*folios = RUST_HMM_FOLIOS_LARGE;
		spin_unlock(above);
		return count;
	}
	if (pmd_bad(pmd)) {
		*kind = RUST_HMM_PAGES_STAY;
		spin_unlock(above);
		return count;
	}
	ptep = lock_entry_below(vma->vm_mm, pmdp, start, above, &lock);
	*kind = kind_of_pte(vma, ptep_get(ptep), tile, &large);
	i = 1;
	if (*kind == RUST_HMM_PAGES_DEVICE && !large)
		i = private_run(ptep, count, 1);
	/* The first page of another kind affects @large, too. */
	for (; i < count; i++)
		if (kind_of_pte(vma, ptep_get(ptep + i), tile, &large) != *kind)
			break;
	if (large)
		*folios = RUST_HMM_FOLIOS_LARGE;
	if (lock != above)
		spin_unlock(lock);
	spin_unlock(above);
	return i;
}

/*
 * Finds the pages around @addr, from @start to before @end, that are in the device
 * memory @tile, and sets @start and @end to them. Returns false if the page at @addr
 * is not. Only the pages that it finds are classified, and one at each end.
 *
 * @start to @end must be in one PTE table. The caller holds the mmap lock or the VMA
 * lock. Page table locks are dropped before the return, so that pages may change.
 */
bool rust_hmm_vma_device_run(struct vm_area_struct *vma, unsigned long addr,
			     const void *tile, unsigned long *start,
			     unsigned long *end)
{
	pmd_t *pmdp = find_pmd(vma->vm_mm, addr), pmd;
	unsigned long behind, before = 0;
	bool large = false, found;
	spinlock_t *above, *lock;
	pte_t *ptep;

	if (!pmdp)
		return false;
	above = pmd_lock(vma->vm_mm, pmdp);
	pmd = *pmdp;
	if (!pmd_present(pmd) || pmd_leaf(pmd) || pmd_bad(pmd)) {
		found = (!pmd_present(pmd) || pmd_leaf(pmd)) &&
			kind_of_pmd(vma, pmd, tile, &large) ==
				RUST_HMM_PAGES_DEVICE;
		spin_unlock(above);
		return found;
	}
	ptep = lock_entry_below(vma->vm_mm, pmdp, addr, above, &lock);
	behind = device_run(vma, ptep, (*end - addr) >> PAGE_SHIFT, 1, tile);
	if (behind)
		before = device_run(vma, ptep - 1, (addr - *start) >> PAGE_SHIFT,
				    -1, tile);
	if (lock != above)
		spin_unlock(lock);
	spin_unlock(above);
	*start = addr - (before << PAGE_SHIFT);
	*end = addr + (behind << PAGE_SHIFT);
	return behind;
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_device_run);

/*
 * Returns whether pages of @vma can be anonymous, so that they can migrate. Shared
 * VMAs have none, private file mappings have those that were written.
 */
bool rust_hmm_vma_may_migrate(struct vm_area_struct *vma)
{
	if (vma->vm_flags & (VM_SPECIAL | VM_SHARED) ||
	    is_vm_hugetlb_page(vma) || vma_is_dax(vma))
		return false;
	return vma_is_anonymous(vma) || READ_ONCE(vma->anon_vma);
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_may_migrate);

/*
 * Returns the number of pages from @start on that are of the same kind for a
 * migration, and sets @kind. @tile identifies the device memory. @system: the
 * migration takes system memory, so that pages which KSM may merge have to stay.
 *
 * Page table locks are dropped before the return, so that pages may change. But with
 * @system, and while the mmap lock is held, a page of kind SYSTEM does not become a
 * KSM page soon: no VMA that maps it is mergeable now. If another process makes its
 * VMA mergeable after this, KSM merges a page only after it has scanned it twice.
 *
 * @start to @end must be in one PTE table. The caller holds the mmap lock or the
 * VMA lock.
 *
 * Sets @folios to the kind of folios that the pages belong to. The caller needs it
 * because migrate_vma_setup() waits for the lock of a large folio that it splits.
 */
unsigned long rust_hmm_vma_alike(struct vm_area_struct *vma,
				 unsigned long start, unsigned long end,
				 const void *tile, bool system,
				 enum rust_hmm_pages *kind,
				 enum rust_hmm_folios *folios)
{
	unsigned long count = (end - start) >> PAGE_SHIFT;

	*folios = RUST_HMM_FOLIOS_SMALL;
	if (vma->vm_flags & VM_SPECIAL || is_vm_hugetlb_page(vma) ||
	    vma_is_dax(vma)) {
		*kind = RUST_HMM_PAGES_REFUSED;
		return count;
	}
	if (!rust_hmm_vma_may_migrate(vma)) {
		*kind = RUST_HMM_PAGES_STAY;
		return count;
	}
	count = alike(vma, start, end, tile, kind, folios);
	if (system && *kind == RUST_HMM_PAGES_SYSTEM &&
	    may_merge(vma, start, start + (count << PAGE_SHIFT)))
		*kind = RUST_HMM_PAGES_STAY;
	return count;
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_alike);

/*
 * Returns whether @entry is a read-only device-private entry that can be made
 * writable: the page is PageAnonExclusive, so that a write needs no COW.
 */
static bool may_become_writable(softleaf_t entry)
{
	return softleaf_is_device_private(entry) &&
	       !softleaf_is_device_private_write(entry) &&
	       PageAnonExclusive(pfn_to_page(softleaf_to_pfn(entry)));
}

/*
 * Makes read-only device-private entries from @addr to @end writable again, within
 * one PTE table. They lost write access by an mprotect() that was reverted, or by
 * NUMA balancing. A CPU write fault would do the same, but only after a migration
 * to system memory.
 *
 * Returns whether the entry at @addr was made writable. It is not if the page is
 * shared since a fork, if @vma is not writable, or if userfaultfd is armed. The
 * caller holds the mmap lock.
 *
 * No TLB flush is needed, because CPUs do not cache non-present entries. No
 * notifier is called, because no access is removed. set_pte() suffices, because
 * non-present entries have neither tags nor cached instructions to synchronize.
 */
bool rust_hmm_vma_make_writable(struct vm_area_struct *vma, unsigned long addr,
				unsigned long end)
{
	pmd_t *pmdp = find_pmd(vma->vm_mm, addr);
	spinlock_t *above, *lock;
	unsigned long first = addr;
	bool done = false;
	softleaf_t entry;
	pte_t *ptep, pte;
	pmd_t pmd;

	if (!pmdp || !(vma->vm_flags & VM_WRITE) || userfaultfd_armed(vma))
		return false;
	above = pmd_lock(vma->vm_mm, pmdp);
	if (pmd_is_device_private_entry(*pmdp)) {
		entry = softleaf_from_pmd(*pmdp);
		done = may_become_writable(entry);
		if (done) {
			entry = make_writable_device_private_entry(swp_offset(entry));
			pmd = pmd_swp_mksoft_dirty(swp_entry_to_pmd(entry));
			set_pmd(pmdp, pmd);
		}
		spin_unlock(above);
		return done;
	}
	spin_unlock(above);
	ptep = lock_entry(vma->vm_mm, addr, &above, &lock);
	if (!ptep)
		return false;
	for (; addr < end; addr += PAGE_SIZE, ptep++) {
		pte = ptep_get(ptep);
		if (pte_none(pte) || pte_present(pte))
			continue;
		entry = softleaf_from_pte(pte);
		if (!may_become_writable(entry))
			continue;
		entry = make_writable_device_private_entry(swp_offset(entry));
		pte = pte_swp_mksoft_dirty(swp_entry_to_pte(entry));
		set_pte(ptep, pte);
		done |= addr == first;
	}
	if (lock != above)
		spin_unlock(lock);
	spin_unlock(above);
	return done;
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_make_writable);

void rust_hmm_pfn_get(unsigned long pfn)
{
	folio_get(page_folio(pfn_to_page(pfn)));
}
EXPORT_SYMBOL_GPL(rust_hmm_pfn_get);

void rust_hmm_pfn_put(unsigned long pfn)
{
	folio_put(page_folio(pfn_to_page(pfn)));
}
EXPORT_SYMBOL_GPL(rust_hmm_pfn_put);

void rust_hmm_pfn_unlock(unsigned long pfn)
{
	folio_unlock(page_folio(pfn_to_page(pfn)));
}
EXPORT_SYMBOL_GPL(rust_hmm_pfn_unlock);

struct page *rust_hmm_pfn_page(unsigned long pfn)
{
	return pfn_to_page(pfn);
}
EXPORT_SYMBOL_GPL(rust_hmm_pfn_page);

unsigned long rust_hmm_page_pfn(const struct page *page)
{
	return page_to_pfn(page);
}
EXPORT_SYMBOL_GPL(rust_hmm_page_pfn);

/*
 * Workaround for a bug of the core: huge device-private folios that are zapped
 * while they migrate back to system memory.
 *
 * zap_huge_pmd_folio() in mm/huge_memory.c (7.2 and 7.3) checks whether the folio
 * is device-private, instead of whether the entry is. For a migration entry of such
 * a folio it drops a reference and a mapcount that the entry does not have.
 *
 * Therefore such a folio is isolated whole only if it has one mapping, and with the
 * mmap lock held. Then the zap happens once at most, by MADV_DONTNEED or the OOM
 * reaper. An additional reference keeps the folio alive, and
 * rust_hmm_huge_settle() restores the counts after the migration.
 */

/* As in mm/internal.h: the amount that a PMD mapping adds to _nr_pages_mapped. */
#define ENTIRELY_MAPPED 0x800000

/*
 * Checks whether the PMD at @addr maps a huge device-private page of @tile that can
 * be isolated whole. If so, returns RUST_HMM_HUGE_HELD, sets @pfn and takes a
 * reference. If @locked is NULL, also locks the folio and takes a second reference;
 * otherwise the folio must be that of @locked, which the caller has locked. The
 * caller holds the mmap lock.
 */
enum rust_hmm_huge rust_hmm_huge_hold(struct vm_area_struct *vma,
				      unsigned long addr, const void *tile,
				      const struct page *locked,
				      unsigned long *pfn)
{
	pmd_t *pmd = find_pmd(vma->vm_mm, addr);
	enum rust_hmm_huge found = RUST_HMM_HUGE_OTHER;
	struct folio *folio;
	spinlock_t *lock;

	if (!pmd)
		return RUST_HMM_HUGE_HOLE;
	lock = pmd_lock(vma->vm_mm, pmd);
	if (pmd_none(*pmd)) {
		found = RUST_HMM_HUGE_HOLE;
		goto unlock;
	}
	if (!pmd_is_device_private_entry(*pmd))
		goto unlock;
	folio = softleaf_to_folio(softleaf_from_pmd(*pmd));
	/* Under the mmap lock, no other mapping can be added. */
	if (page_pgmap(&folio->page)->ops != tile ||
	    folio_mapcount(folio) != 1)
		goto unlock;
	if (!locked && !folio_trylock(folio)) {
		found = RUST_HMM_HUGE_BUSY;
		goto unlock;
	}
	if (locked && page_folio(locked) != folio)
		goto unlock;
	folio_ref_add(folio, locked ? 1 : 2);
	*pfn = folio_pfn(folio);
	found = RUST_HMM_HUGE_HELD;
unlock:
	spin_unlock(lock);
	return found;
}
EXPORT_SYMBOL_GPL(rust_hmm_huge_hold);

/*
 * Restores the counts that the core has dropped wrongly from the huge page at @pfn,
 * see above. The page was mapped at @addr only, and is isolated or was until now.
 * The caller has a reference.
 */
void rust_hmm_huge_settle(struct vm_area_struct *vma, unsigned long addr,
			  unsigned long pfn)
{
	struct folio *folio = page_folio(pfn_to_page(pfn));
	pmd_t *pmd = find_pmd(vma->vm_mm, addr);

	if (pmd) {
		/* A concurrent zap, which holds the PMD lock, has ended after this. */
		spinlock_t *lock = pmd_lock(vma->vm_mm, pmd);

		spin_unlock(lock);
	}
	if (!folio_test_large(folio) || folio_mapcount(folio) >= 0)
		return;
	/* The reverse of __folio_remove_rmap() with PGTABLE_LEVEL_PMD. */
	folio_ref_inc(folio);
	atomic_inc(&folio->_large_mapcount);
	atomic_inc(&folio->_entire_mapcount);
	if (!IS_ENABLED(CONFIG_NO_PAGE_MAPCOUNT)) {
		int mapped = atomic_fetch_add(ENTIRELY_MAPPED,
					      &folio->_nr_pages_mapped);

		lruvec_stat_mod_folio(folio, NR_ANON_MAPPED,
				      HPAGE_PMD_NR - mapped);
	}
	lruvec_stat_mod_folio(folio, NR_ANON_THPS, HPAGE_PMD_NR);
}
EXPORT_SYMBOL_GPL(rust_hmm_huge_settle);
