// SPDX-License-Identifier: GPL-2.0
/* Maple trees with numbers as values. */
#include <linux/export.h>
#include <linux/maple_tree.h>
#include <linux/xarray.h>

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
