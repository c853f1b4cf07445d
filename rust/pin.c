// SPDX-License-Identifier: GPL-2.0
/* Pinned memory and DMA, see pin.h. */
#include <linux/device.h>
#include <linux/device/faux.h>
#include <linux/dma-map-ops.h>
#include <linux/dma-mapping.h>
#include <linux/export.h>
#include <linux/iommu-dma.h>
#include <linux/mm.h>
#include <linux/swiotlb.h>

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

/* Whether memory is copied for each access of the device. Behind an IOMMU whole pages are not. */
bool rust_hmm_dma_bounces(struct device *dev)
{
	return is_swiotlb_force_bounce(dev) && !use_dma_iommu(dev);
}

#if IS_BUILTIN(CONFIG_KUNIT)
/* For tests: from now on all DMA of @dev is bounced, and for lack of room for that fails. */
void rust_hmm_dma_bounce(struct device *dev)
{
#ifdef CONFIG_SWIOTLB
	static struct io_tlb_mem pool = { .force_bounce = true };

	dev->dma_io_tlb_mem = &pool;
#endif
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_bounce);
#endif

/* Whether device and CPU see what the other one writes into a page that is mapped. */
bool rust_hmm_dma_is_coherent(struct device *dev)
{
	/*
	 * As dma_dev_need_sync(), but that one is always true with
	 * CONFIG_DMA_API_DEBUG, which wants to see each call. It is optimistic
	 * until the first page was bounced.
	 */
#ifdef CONFIG_DMA_NEED_SYNC
	if (!dev_dma_skip_sync(dev))
		return false;
#endif
	return dev_is_dma_coherent(dev) && !rust_hmm_dma_bounces(dev);
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_is_coherent);

/*
 * With @coherent fails where the page would be bounced, or the device does not
 * see the CPU's caches. @fail: there is to be no address (rust/inject.rs).
 */
int rust_hmm_dma_map(struct device *dev, unsigned long pfn, bool coherent,
		     bool fail, u64 *addr)
{
	dma_addr_t dma = DMA_MAPPING_ERROR;

	if (!fail)
		dma = dma_map_page_attrs(dev, pfn_to_page(pfn), 0, PAGE_SIZE,
					 DMA_BIDIRECTIONAL,
					 coherent ? DMA_ATTR_REQUIRE_COHERENT : 0);
	if (dma_mapping_error(dev, dma))
		return -ENOMEM;
	*addr = dma;
	return 0;
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_map);

/*
 * @coherent: as it was mapped. What the device wrote was made visible by
 * rust_hmm_dma_sync(). To do it here again could undo what the CPU has written
 * since: the process goes on to use its pages while they are mapped.
 */
void rust_hmm_dma_unmap(struct device *dev, u64 addr, bool coherent)
{
	dma_unmap_page_attrs(dev, addr, PAGE_SIZE, DMA_BIDIRECTIONAL,
			     coherent ? DMA_ATTR_REQUIRE_COHERENT :
					DMA_ATTR_SKIP_CPU_SYNC);
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
