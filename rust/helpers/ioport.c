// SPDX-License-Identifier: GPL-2.0
/* Regions of physical addresses. */
#include <linux/err.h>
#include <linux/export.h>
#include <linux/ioport.h>

int rust_hmm_request_region(u64 start, u64 size, const char *name)
{
	if (request_mem_region(start, size, name))
		return 0;
	/* request_mem_region() does not distinguish -EBUSY and -ENOMEM. */
	if (region_intersects(start, size, IORESOURCE_MEM | IORESOURCE_BUSY,
			      IORES_DESC_NONE) == REGION_DISJOINT)
		return -ENOMEM;
	return -EBUSY;
}
EXPORT_SYMBOL_GPL(rust_hmm_request_region);

int rust_hmm_request_free_region(u64 size, const char *name, u64 *start)
{
	struct resource *res;

	res = request_free_mem_region(&iomem_resource, size, name);
	if (IS_ERR(res))
		return PTR_ERR(res);
	*start = res->start;
	return 0;
}
EXPORT_SYMBOL_GPL(rust_hmm_request_free_region);

void rust_hmm_release_region(u64 start, u64 size)
{
	release_mem_region(start, size);
}
EXPORT_SYMBOL_GPL(rust_hmm_release_region);
