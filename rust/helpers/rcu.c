// SPDX-License-Identifier: GPL-2.0
/* Objects that are freed after a grace period. */
#include <linux/export.h>
#include <linux/rcupdate.h>

/* Frees an object from kmalloc() after a grace period. May sleep. */
void rust_hmm_free_rcu(void *object)
{
	kvfree_rcu_mightsleep(object);
}
EXPORT_SYMBOL_GPL(rust_hmm_free_rcu);
