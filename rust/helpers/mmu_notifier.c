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

bool rust_hmm_interval_read_retry(struct mmu_interval_notifier *sub,
				  unsigned long seq)
{
	return mmu_interval_read_retry(sub, seq);
}
EXPORT_SYMBOL_GPL(rust_hmm_interval_read_retry);

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
