// SPDX-License-Identifier: GPL-2.0
/* Pinned memory and DMA, see pin.h. */
#include <linux/device.h>
#include <linux/device/faux.h>
#include <linux/dma-mapping.h>
#include <linux/export.h>
#include <linux/mm.h>

#include "pin.h"

/* For writing, which breaks sharing, for long. With the mmap lock held. */
long rust_hmm_pin(struct mm_struct *mm, unsigned long start,
		  unsigned long npages, struct page **pages)
{
	return pin_user_pages_remote(mm, start, npages,
				     FOLL_WRITE | FOLL_LONGTERM, pages, NULL);
}
EXPORT_SYMBOL_GPL(rust_hmm_pin);

/* A device may have written them. */
void rust_hmm_unpin(struct page **pages, unsigned long npages)
{
	unpin_user_pages_dirty_lock(pages, npages, true);
}
EXPORT_SYMBOL_GPL(rust_hmm_unpin);

/* A device without a bus: it reaches all memory. NULL if it cannot be had. */
struct device *rust_hmm_dma_create(const char *name)
{
	struct faux_device *faux = faux_device_create(name, NULL, NULL);

	if (!faux)
		return NULL;
	if (dma_coerce_mask_and_coherent(&faux->dev, DMA_BIT_MASK(64))) {
		faux_device_destroy(faux);
		return NULL;
	}
	return &faux->dev;
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_create);

void rust_hmm_dma_destroy(struct device *dev)
{
	faux_device_destroy(to_faux_device(dev));
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_destroy);

bool rust_hmm_dma_needs_sync(struct device *dev)
{
	/*
	 * As dma_dev_need_sync(), but that one is always true with
	 * CONFIG_DMA_API_DEBUG, which wants to see each call.
	 */
#ifdef CONFIG_DMA_NEED_SYNC
	return !dev_dma_skip_sync(dev);
#else
	return false;
#endif
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_needs_sync);

/* @fail: there is to be no address (rust/inject.rs). */
int rust_hmm_dma_map(struct device *dev, unsigned long pfn, bool fail,
		     u64 *addr)
{
	dma_addr_t dma = DMA_MAPPING_ERROR;

	if (!fail)
		dma = dma_map_page(dev, pfn_to_page(pfn), 0, PAGE_SIZE,
				   DMA_BIDIRECTIONAL);
	if (dma_mapping_error(dev, dma))
		return -ENOMEM;
	*addr = dma;
	return 0;
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_map);

void rust_hmm_dma_unmap(struct device *dev, u64 addr)
{
	dma_unmap_page(dev, addr, PAGE_SIZE, DMA_BIDIRECTIONAL);
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_unmap);

void rust_hmm_dma_sync(struct device *dev, u64 addr, bool for_device)
{
	if (for_device)
		dma_sync_single_for_device(dev, addr, PAGE_SIZE,
					   DMA_BIDIRECTIONAL);
	else
		dma_sync_single_for_cpu(dev, addr, PAGE_SIZE,
					DMA_BIDIRECTIONAL);
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_sync);
