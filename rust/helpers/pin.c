// SPDX-License-Identifier: GPL-2.0
/* Pins of user memory. */
#include <linux/export.h>
#include <linux/mm.h>

/* Pins pages long-term for writing, which breaks COW. The caller holds the mmap lock. */
long rust_hmm_pin(struct mm_struct *mm, unsigned long start,
		  unsigned long npages, struct page **pages)
{
	return pin_user_pages_remote(mm, start, npages,
				     FOLL_WRITE | FOLL_LONGTERM, pages, NULL);
}
EXPORT_SYMBOL_GPL(rust_hmm_pin);

/* Unpins pages, and marks them dirty because the device may have written to them. */
void rust_hmm_unpin(struct page **pages, unsigned long npages)
{
	unpin_user_pages_dirty_lock(pages, npages, true);
}
EXPORT_SYMBOL_GPL(rust_hmm_unpin);
