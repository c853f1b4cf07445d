// SPDX-License-Identifier: GPL-2.0
/*
 * Splits a huge page of private device memory for the CPU fault that holds it.
 *
 * do_huge_pmd_device_private() calls migrate_to_ram() with the folio locked and
 * one reference of its own. migrate_vma_setup() without
 * MIGRATE_VMA_SELECT_COMPOUND splits a huge entry, but
 * migrate_vma_collect_huge_pmd() takes another reference for that, also of the
 * folio of fault_page. split_folio() expects one reference besides those of the
 * mappings and finds two: -EAGAIN, always. So the fault lends its reference: it is
 * dropped before migrate_vma_setup() and taken again after it. The folio lock
 * stays with the fault all the time.
 *
 * The fault's page is the first one of the folio. A split keeps the lock and the
 * reference of migrate_vma_collect_huge_pmd() there, so that the struct page that
 * the core unlocks and puts after the fault is the one that it has locked.
 *
 * While the reference is lent, these hold others:
 *
 * - The mappings, until they are zapped. MADV_DONTNEED, the OOM reaper, and other
 *   processes that map the page and unmap it, exit or exec, take no folio lock.
 * - migrate_vma_setup(): one while it splits, one of the first page from when it
 *   has collected it until it is finalized or restored.
 * - Another task that isolates the page and finds it locked: for a moment. The
 *   split fails then, nothing is isolated, and the CPU faults again.
 *
 * A fault does not lend its reference of a folio to which others have one already, and
 * rust_hmm_get_unless_lent() takes none of one that is lent. The reason is a huge
 * entry that becomes small ones meanwhile, as by MADV_DONTNEED of a part. For small
 * entries the core takes no reference of its own, because that of the fault is
 * enough. Without it the split fails before it begins. With one that somebody has for
 * a moment it would begin, and lose the page when that reference is dropped. What
 * is left are three events in a few microseconds: the part is dropped after the
 * reference is lent, and a third task is in migrate_vma_collect_huge_pmd() for the
 * same folio between its folio_get() and its folio_put(), or in the fork of another
 * process that maps it.
 *
 * So the last reference may be put in three states, by any CPU: the folio is
 * whole; it is split and its first page is not collected yet; or nothing is mapped
 * any more and the lender itself puts it. What is freed is the folio or its first
 * page, as a free page that is locked. No other page is freed while it is locked:
 * whoever locks a device page has a reference until it has unlocked it. Pages of
 * the folio behind the first one are unlocked by the split and freed as others.
 *
 * A page that is freed while it is lent must not be used anew, because the core
 * will unlock and put it. rust_hmm_freed_while_lent(), which folio_free() calls
 * first, keeps it: it stays allocated, of the order that it had. The lender
 * then finds the reference count zero, waits until the page has been freed, and
 * becomes its owner again, with the references of the pagemap that
 * free_zone_device_folio() drops. The put of the core frees it a second time,
 * unlocked, and for good. Of what free_zone_device_folio() does twice, the second
 * time does nothing: the page is not charged, not anonymous, and has no mapping.
 *
 * The wait is short: from the last put to folio_free() nothing sleeps.
 * The reference count cannot rise from zero meanwhile, because only the allocator
 * and the lender set it. The pagemap stays, because its memory is in use until
 * the last put: it is removed only when all pages are free.
 */
#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/export.h>
#include <linux/list.h>
#include <linux/memremap.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/spinlock.h>

#include "helpers.h"

/* Milliseconds for which an injected delay leaves the reference lent. */
#define LENT_DELAY 100

/* A folio whose fault has lent its reference. */
struct lent {
	struct list_head list;
	struct folio *folio;
	struct completion freed;
};

static LIST_HEAD(lents);
/* Of @lents. Taken in folio_free(), which may be called in any context. */
static DEFINE_SPINLOCK(lents_lock);

/*
 * Whether @folio, whose last reference was put, is lent: then it must not be
 * given back, and the caller must not use it any more. Context: any.
 */
bool rust_hmm_freed_while_lent(struct folio *folio)
{
	struct lent *lent;
	unsigned long flags;
	bool found = false;

	if (likely(!folio_test_locked(folio)))
		return false;
	spin_lock_irqsave(&lents_lock, flags);
	list_for_each_entry(lent, &lents, list) {
		if (lent->folio == folio) {
			/* Under the lock: the lender's stack frame is there until it has that. */
			complete(&lent->freed);
			found = true;
			break;
		}
	}
	spin_unlock_irqrestore(&lents_lock, flags);
	return found;
}
EXPORT_SYMBOL_GPL(rust_hmm_freed_while_lent);

/*
 * Takes a reference of @folio, which is found by its page frame number, unless it
 * is free or lent. Context: any.
 */
bool rust_hmm_get_unless_lent(struct folio *folio)
{
	struct lent *lent;
	unsigned long flags;
	bool taken = true;

	spin_lock_irqsave(&lents_lock, flags);
	list_for_each_entry(lent, &lents, list)
		taken &= lent->folio != folio;
	taken = taken && folio_try_get(folio);
	spin_unlock_irqrestore(&lents_lock, flags);
	return taken;
}
EXPORT_SYMBOL_GPL(rust_hmm_get_unless_lent);

/*
 * As migrate_vma_setup() without MIGRATE_VMA_SELECT_COMPOUND, for a fault on a
 * huge entry: @args->fault_page is the first page of a folio that the fault has
 * locked, and of which it has one reference. @delay: lend it for a while before.
 * May sleep.
 */
int rust_hmm_setup_split(struct migrate_vma *args, bool delay)
{
	struct folio *folio = page_folio(args->fault_page);
	struct lent lent = {
		.folio = folio,
		.freed = COMPLETION_INITIALIZER_ONSTACK(lent.freed),
	};
	bool lend;
	int ret;

	spin_lock_irq(&lents_lock);
	list_add(&lent.list, &lents);
	spin_unlock_irq(&lents_lock);

	lend = folio_ref_count(folio) == folio_expected_ref_count(folio) + 1;
	if (lend)
		folio_put(folio);
	if (unlikely(delay))
		msleep(LENT_DELAY);
	ret = migrate_vma_setup(args);
	if (lend && !folio_try_get(folio)) {
		wait_for_completion(&lent.freed);
		percpu_ref_get_many(&folio->pgmap->ref, folio_nr_pages(folio));
		folio_ref_unfreeze(folio, 1);
	}

	spin_lock_irq(&lents_lock);
	list_del(&lent.list);
	spin_unlock_irq(&lents_lock);
	return ret;
}
EXPORT_SYMBOL_GPL(rust_hmm_setup_split);
