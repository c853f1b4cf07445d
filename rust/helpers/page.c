// SPDX-License-Identifier: GPL-2.0
/* Pages and folios, named by page frame number. */
#include <linux/export.h>
#include <linux/gfp.h>
#include <linux/huge_mm.h>
#include <linux/mempolicy.h>
#include <linux/memremap.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/string.h>

/*
 * Returns the folio of a mapped page. Most pages are a folio, and the test
 * costs less than page_folio().
 */
static __always_inline struct folio *mapped_page_folio(struct page *page)
{
	/*
	 * The race with an addition to an LRU list is harmless: lru.next shares
	 * the word of compound_head, and its bit 0 is clear.
	 */
	if (likely(!data_race(PageTail(page))))
		return (struct folio *)page;
	/* The same race. */
	return data_race(page_folio(page));
}

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

	if (!folio_test_anon(folio))
		folio_mark_dirty(folio);
	/* A folio without PG_swapcache is not in the swap cache. */
	else if (!(flags & (BIT(PG_swapcache) | BIT(PG_dirty))))
		folio_set_dirty(folio);
	else if (flags & BIT(PG_swapcache))
		folio_mark_dirty(folio);
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
	struct folio *folio;
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
		 * A folio of one page. No other task has a reference, so that its
		 * lock is free.
		 */
		folio = (struct folio *)pages[next++];
		__folio_set_locked(folio);
		folio_set_dirty(folio);
		dst[i] = migrate_pfn(folio_pfn(folio));
	}
	return all;
}
EXPORT_SYMBOL_GPL(rust_hmm_fill_marked);
