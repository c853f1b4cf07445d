// SPDX-License-Identifier: GPL-2.0
/* DMA mappings of the pages of a process. */
#include <linux/device.h>
#include <linux/device/faux.h>
#include <linux/dma-map-ops.h>
#include <linux/dma-mapping.h>
#include <linux/export.h>
#include <linux/hmm.h>
#include <linux/hmm-dma.h>
#include <linux/iommu-dma.h>
#include <linux/pci-p2pdma.h>
#include <linux/slab.h>
#include <linux/swiotlb.h>

/*
 * Creates a faux device with a DMA mask of 64 bits. It is DMA-coherent, because code that runs on
 * the CPU performs its accesses, through the CPU's caches. Returns NULL if that fails.
 */
struct device *rust_hmm_dma_create(const char *name)
{
	struct faux_device *faux = faux_device_create(name, NULL, NULL);

	if (!faux)
		return NULL;
	/* Before the mask is set, which determines whether pages need a sync. */
	dev_set_dma_coherent(&faux->dev);
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

#ifdef CONFIG_RUST_HMM_KUNIT_TEST
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

/*
 * DMA addresses of the pages of a process that one PMD covers. Behind an IOMMU, one range of IOVA
 * is allocated for all of them, into which pages are linked one by one. Without an IOMMU each page
 * has an address of its own.
 */
struct rust_hmm_dma_window {
	struct hmm_dma_map map;
};

/* Refuses devices that a page table of DMA addresses does not support. */
int rust_hmm_dma_adopt(struct device *dev, unsigned int bits)
{
	int err;

	if (bits < 1 || bits > 64)
		return -EINVAL;
	err = dma_set_mask_and_coherent(dev, DMA_BIT_MASK(bits));
	if (err) {
		dev_err(dev, "rust_hmm: refused: no DMA with %u bits of address\n", bits);
		return err;
	}
	if (!dev_is_dma_coherent(dev)) {
		dev_err(dev, "rust_hmm: refused: the device is not DMA-coherent, so it would not see CPU writes\n");
		return -EOPNOTSUPP;
	}
	if (rust_hmm_dma_bounces(dev)) {
		dev_err(dev, "rust_hmm: refused: the kernel bounces its DMA (swiotlb=force, or an encrypted guest): it would see copies\n");
		return -EOPNOTSUPP;
	}
	/*
	 * Pages stay mapped for the device as long as the process has them. So there is no time at
	 * which they could be copied to memory that a device with fewer address bits reaches.
	 */
	if (dma_addressing_limited(dev)) {
		dev_err(dev, "rust_hmm: refused: the device reaches %u bits of address, the memory needs %u; bouncing is not possible\n",
			bits, fls64(dma_get_required_mask(dev)));
		return -EOPNOTSUPP;
	}
	get_device(dev);
	return 0;
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_adopt);

void rust_hmm_dma_release(struct device *dev)
{
	put_device(dev);
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_release);

struct rust_hmm_dma_window *rust_hmm_dma_window_alloc(struct device *dev,
						      int *error)
{
	struct rust_hmm_dma_window *window;

	window = kzalloc_obj(*window);
	if (!window) {
		*error = -ENOMEM;
		return NULL;
	}
	*error = hmm_dma_map_alloc(dev, &window->map, PTRS_PER_PTE, PAGE_SIZE);
	if (*error) {
		kfree(window);
		return NULL;
	}
	return window;
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_window_alloc);

void rust_hmm_dma_window_free(struct device *dev,
			      struct rust_hmm_dma_window *window)
{
	hmm_dma_map_free(dev, &window->map);
	kfree(window);
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_window_free);

/*
 * Maps the page at @index of the window. With @fresh, no page is mapped there; otherwise this same
 * page is. Does not sleep. @fail: injects a failure of the mapping, see rust/inject.rs.
 */
int rust_hmm_dma_window_map(struct device *dev,
			    struct rust_hmm_dma_window *window,
			    unsigned int index, unsigned long pfn, bool fresh,
			    bool fail, u64 *addr)
{
	struct pci_p2pdma_map_state p2p = {};
	dma_addr_t dma;

	if (fresh)
		window->map.pfn_list[index] = pfn | HMM_PFN_VALID | HMM_PFN_WRITE;
	dma = fail ? DMA_MAPPING_ERROR :
		     hmm_dma_map_pfn(dev, &window->map, index, &p2p);
	if (dma_mapping_error(dev, dma)) {
		if (fresh)
			window->map.pfn_list[index] = 0;
		return -ENOMEM;
	}
	*addr = dma;
	return 0;
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_window_map);

/* Unmaps @count pages, all of which must be mapped. Does not sleep. */
void rust_hmm_dma_window_unmap(struct device *dev,
			       struct rust_hmm_dma_window *window,
			       unsigned int first, unsigned int count)
{
	unsigned long *pfns = window->map.pfn_list;
	unsigned long peers = 0;
	unsigned int i;

	for (i = first; i < first + count; i++)
		peers |= pfns[i] & (HMM_PFN_P2PDMA | HMM_PFN_P2PDMA_BUS);
	if (dma_use_iova(&window->map.state) && !peers)
		/* One flush of the IOTLB for all pages. */
		dma_iova_unlink(dev, &window->map.state, (size_t)first << PAGE_SHIFT,
				(size_t)count << PAGE_SHIFT, DMA_BIDIRECTIONAL,
				DMA_ATTR_REQUIRE_COHERENT);
	else
		for (i = first; i < first + count; i++)
			hmm_dma_unmap_pfn(dev, &window->map, i);
	memset(&pfns[first], 0, count * sizeof(*pfns));
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_window_unmap);

static const enum dma_data_direction directions[] = {
	DMA_BIDIRECTIONAL, DMA_TO_DEVICE, DMA_FROM_DEVICE,
};

/*
 * Maps @npages contiguous pages for a copy. @coherent: fail if the pages would
 * be bounced; see rust_hmm_dma_map(). @fail: injects a failure.
 */
int rust_hmm_dma_map_run(struct device *dev, unsigned long pfn,
			 unsigned long npages, int direction, bool coherent,
			 bool fail, u64 *addr)
{
	dma_addr_t dma = DMA_MAPPING_ERROR;

	if (!fail)
		dma = dma_map_phys(dev, PFN_PHYS(pfn), npages << PAGE_SHIFT,
				   directions[direction],
				   coherent ? DMA_ATTR_REQUIRE_COHERENT : 0);
	if (dma_mapping_error(dev, dma))
		return -ENOMEM;
	*addr = dma;
	return 0;
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_map_run);

void rust_hmm_dma_unmap_run(struct device *dev, u64 addr, unsigned long npages,
			    int direction, bool coherent)
{
	dma_unmap_phys(dev, addr, npages << PAGE_SHIFT, directions[direction],
		       coherent ? DMA_ATTR_REQUIRE_COHERENT : 0);
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_unmap_run);

/* Allocates zeroed memory that is coherent between device and CPU. */
void *rust_hmm_dma_buffer(struct device *dev, size_t size, u64 *addr)
{
	dma_addr_t dma = 0;
	void *cpu = dma_alloc_coherent(dev, size, &dma, GFP_KERNEL);

	*addr = dma;
	return cpu;
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_buffer);

void rust_hmm_dma_buffer_free(struct device *dev, size_t size, void *cpu,
			      u64 addr)
{
	dma_free_coherent(dev, size, cpu, addr);
}
EXPORT_SYMBOL_GPL(rust_hmm_dma_buffer_free);
