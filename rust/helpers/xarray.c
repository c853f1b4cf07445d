// SPDX-License-Identifier: GPL-2.0
/* Insertions in XArrays. */
#include <linux/gfp.h>
#include <linux/xarray.h>

/* Calls xa_insert() with accounted memory. */
int rust_hmm_xa_insert(struct xarray *xa, unsigned long index, void *entry)
{
	return xa_insert(xa, index, entry, GFP_KERNEL_ACCOUNT);
}
