// SPDX-License-Identifier: GPL-2.0
/* Interval notifiers. */
#include <linux/export.h>
#include <linux/mmap_lock.h>
#include <linux/mmu_notifier.h>

void rust_hmm_interval_set_seq(struct mmu_interval_notifier *sub,
			       unsigned long seq)
{
	mmu_interval_set_seq(sub, seq);
}
EXPORT_SYMBOL_GPL(rust_hmm_interval_set_seq);

/* Returns the sequence that was set last. */
unsigned long rust_hmm_interval_seq(struct mmu_interval_notifier *sub)
{
	return READ_ONCE(sub->invalidate_seq);
}
EXPORT_SYMBOL_GPL(rust_hmm_interval_seq);

/*
 * Returns whether the core has put @sub into its tree of notifiers. It does so
 * at the insertion, or, if events of notifiers are active then, when no event
 * is left. See __mmu_interval_notifier_insert() and mn_itree_inv_end().
 *
 * The core exports no such function. The node of @sub is written with the
 * spinlock of the mm's subscriptions held, which is private to it. The state
 * that is read here is stable without that lock. mmu_interval_notifier_insert()
 * has emptied the node before it returned to the caller: it points to itself.
 * The insertion into the tree lets it point to its parent or to none. Other
 * insertions and removals change the parent, never back to the node itself.
 * Only the removal of @sub, which excludes this call, ends that. A value that
 * is read too early only means a wait that was not needed.
 *
 * The acquire orders accesses after this after those of the events. They
 * precede the store, because their tasks have released page table locks before
 * they took the spinlock.
 */
bool rust_hmm_interval_is_in_tree(struct mmu_interval_notifier *sub)
{
	struct rb_node *node = &sub->interval_tree.rb;

	/* Pairs with the unlock of page tables before the store, see above. */
	return smp_load_acquire(&node->__rb_parent_color) != (unsigned long)node;
}
EXPORT_SYMBOL_GPL(rust_hmm_interval_is_in_tree);

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
