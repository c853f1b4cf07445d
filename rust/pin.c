// SPDX-License-Identifier: GPL-2.0
/* Pins of user memory and its DMA mappings, see pin.h. */
#include <linux/device.h>
#include <linux/device/faux.h>
#include <linux/dma-map-ops.h>
#include <linux/dma-mapping.h>
#include <linux/export.h>
#include <linux/iommu-dma.h>
#include <linux/mm.h>
#include <linux/swiotlb.h>

#include "pin.h"

/* Pins pages long-term for writing, which breaks COW. The caller holds the mmap lock. */
long rust_hmm_pin(struct mm_struct *mm, unsigned long start,
		  unsigned long npages, struct page **pages)
{
	return pin_user_pages_remote(mm, start, npages,
				     FOLL_WRITE | FOLL_LONGTERM, pages, NULL);
}
EXPORT_SYMBOL_GPL(rust_hmm_pin);

/* Unpins pages, and marks them dirty because the device may have written to them. */
void rust_hmm_unpin(struct page **pages, unsigned long npages)
{
	unpin_user_pages_dirty_lock(pages, npages, true);
}
EXPORT_SYMBOL_GPL(rust_hmm_unpin);

/* Creates a faux device with a DMA mask of 64 bits. Returns NULL if that fails. */
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

/* Returns whether DMA of @dev is bounced. Behind an IOMMU, whole pages are not bounced. */
bool rust_hmm_dma_bounces(struct device *dev)
{
	return is_swiotlb_force_bounce(dev) && !use_dma_iommu(dev);
}

#if IS_BUILTIN(CONFIG_KUNIT)
/*
 * For tests: forces all further DMA of @dev to be bounced. Mappings fail, because there are no
 * bounce buffers.
 */
void rust_hmm_dma_bounce(struct device *dev)
{
#ifdef CONFIG_SWIOTLB
	static struct io_tlb_mem pool = { .force_bounce = true };

	dev->dma_io_tlb_mem = &pool;
#endif
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_bounce);
#endif

/*
 * Returns whether mapped pages are coherent between @dev and the CPU without
 * rust_hmm_dma_sync().
 */
bool rust_hmm_dma_is_coherent(struct device *dev)
{
	/*
	 * Like dma_dev_need_sync(), which always returns true with
	 * CONFIG_DMA_API_DEBUG, in order to check each call. The flag is true
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
 * Maps a page for DMA. @coherent: fail if the page would be bounced or the
 * device is not cache-coherent. @fail: injects a failure, see rust/inject.rs.
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
 * Unmaps a page that was mapped with the same @coherent. Without it, the CPU
 * sync is skipped: rust_hmm_dma_sync() was called after writes of the device.
 * The process uses its pages while they are mapped, so that another sync could
 * overwrite later writes of the CPU with old contents of the bounce buffer.
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
