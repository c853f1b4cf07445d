// SPDX-License-Identifier: GPL-2.0
/* Reference counts. */
#include <linux/refcount.h>

bool rust_hmm_refcount_inc_not_zero(refcount_t *count)
{
	return refcount_inc_not_zero(count);
}
