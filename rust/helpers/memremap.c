// SPDX-License-Identifier: GPL-2.0
/* Folios of device memory. */
#include <linux/export.h>
#include <linux/memremap.h>
#include <linux/mm.h>

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
