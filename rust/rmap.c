// SPDX-License-Identifier: GPL-2.0
/*
 * From a page to who maps it, and from who maps it to the page: what the core
 * does for itself, of which it exports nothing.
 */
#include <linux/export.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/rmap.h>
#include <linux/sched/mm.h>

#include "helpers.h"

/*
 * The address space of number @nth that may map the anonymous folio at @pfn,
 * with a reference that is the caller's, and the folio's offset; NULL if there
 * is none, or if the folio is locked by others. The frame has to be there.
 */
struct mm_struct *rust_hmm_pfn_user(unsigned long pfn, unsigned int nth,
				    unsigned long *offset)
{
	struct folio *folio = page_folio(pfn_to_page(pfn));
	struct mm_struct *mm = NULL;
	struct anon_vma *anon_vma;
	struct rb_node *node;

	if (!folio_try_get(folio))
		return NULL;
	if (page_folio(pfn_to_page(pfn)) != folio || !folio_trylock(folio))
		goto put;
	if (!folio_test_anon(folio) || folio_test_ksm(folio) ||
	    !folio_mapped(folio))
		goto unlock;
	/* Locked and mapped: it keeps its reverse mapping. */
	anon_vma = (void *)((unsigned long)folio->mapping &
			    ~(unsigned long)FOLIO_MAPPING_FLAGS);
	*offset = folio->index;
	down_read(&anon_vma->root->rwsem);
	for (node = rb_first_cached(&anon_vma->rb_root); node;
	     node = rb_next(node)) {
		struct vm_area_struct *vma =
			rb_entry(node, struct anon_vma_chain, rb)->vma;

		if (folio->index < vma->vm_pgoff ||
		    folio->index - vma->vm_pgoff >= vma_pages(vma))
			continue;
		/* A process that ends unmaps it soon. */
		if (!mmget_not_zero(vma->vm_mm))
			continue;
		if (!nth--) {
			mm = vma->vm_mm;
			break;
		}
		mmput_async(vma->vm_mm);
	}
	up_read(&anon_vma->root->rwsem);
unlock:
	folio_unlock(folio);
put:
	folio_put(folio);
	return mm;
}
EXPORT_SYMBOL_GPL(rust_hmm_pfn_user);
