// SPDX-License-Identifier: GPL-2.0
/* Memory of device page tables. */
#include <linux/export.h>
#include <linux/gfp.h>
#include <linux/mm.h>

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
