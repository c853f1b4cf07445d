// SPDX-License-Identifier: GPL-2.0
/* PCI devices: functions, BARs, peer-to-peer mappings and interrupts. */
#include <linux/dma-mapping.h>
#include <linux/export.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/pci.h>
#include <linux/pci-p2pdma.h>
#include <linux/slab.h>

/*
 * Returns function @function in the slot of @pdev with a reference. @pdev is being probed. The
 * returned function is bound to the same driver, and a device link keeps it bound until @pdev is
 * unbound.
 */
struct pci_dev *rust_hmm_pci_function(struct pci_dev *pdev,
				      unsigned int function, int *error)
{
	struct pci_dev *other;
	struct device_link *link;

	if (function == PCI_FUNC(pdev->devfn))
		return pci_dev_get(pdev);
	*error = -ENODEV;
	other = pci_get_slot(pdev->bus, PCI_DEVFN(PCI_SLOT(pdev->devfn), function));
	if (!other)
		return NULL;
	*error = -EPROBE_DEFER;
	if (!READ_ONCE(other->dev.driver))
		goto put;
	*error = -EBUSY;
	if (READ_ONCE(other->dev.driver) != pdev->dev.driver)
		goto put;
	/* The driver core unbinds the consumer first, and removes the link after that. */
	*error = -ENOMEM;
	link = device_link_add(&pdev->dev, &other->dev, DL_FLAG_AUTOREMOVE_CONSUMER);
	if (!link)
		goto put;
	/* In other states @pdev is being unbound, or its probe has failed since the check. */
	*error = -EPROBE_DEFER;
	if (READ_ONCE(link->status) != DL_STATE_CONSUMER_PROBE)
		goto put;
	return other;
put:
	pci_dev_put(other);
	return NULL;
}
EXPORT_SYMBOL_GPL(rust_hmm_pci_function);

void rust_hmm_pci_function_put(struct pci_dev *pdev)
{
	pci_dev_put(pdev);
}
EXPORT_SYMBOL_GPL(rust_hmm_pci_function_put);

/*
 * Claims @bar of a bound function: enables its memory decoding, and requests the region for
 * exclusive use.
 */
int rust_hmm_pci_claim(struct pci_dev *pdev, unsigned int bar, u64 *start,
		       u64 *size)
{
	int err;

	if (bar >= PCI_STD_NUM_BARS)
		return -EINVAL;
	if (!(pci_resource_flags(pdev, bar) & IORESOURCE_MEM) ||
	    !pci_resource_len(pdev, bar))
		return -ENXIO;
	err = pci_enable_device_mem(pdev);
	if (err)
		return err;
	err = pci_request_region(pdev, bar, "rust_hmm");
	if (err) {
		pci_disable_device(pdev);
		return err;
	}
	*start = pci_resource_start(pdev, bar);
	*size = pci_resource_len(pdev, bar);
	return 0;
}
EXPORT_SYMBOL_GPL(rust_hmm_pci_claim);

#ifdef CONFIG_RUST_HMM_KUNIT_TEST
static void rust_hmm_kunit_pci_release(struct device *dev)
{
	kfree(to_pci_dev(dev));
}

/*
 * A PCI device that is on no bus and has no BARs, with one reference, which the
 * caller drops by rust_hmm_pci_function_put(); NULL on failure.
 */
struct pci_dev *rust_hmm_kunit_pci_device(void)
{
	struct pci_dev *pdev = pci_alloc_dev(NULL);

	if (!pdev)
		return NULL;
	device_initialize(&pdev->dev);
	pdev->dev.release = rust_hmm_kunit_pci_release;
	return pdev;
}

unsigned int rust_hmm_kunit_pci_references(struct pci_dev *pdev)
{
	return kref_read(&pdev->dev.kobj.kref);
}
#endif

void rust_hmm_pci_unclaim(struct pci_dev *pdev, unsigned int bar)
{
	pci_release_region(pdev, bar);
	pci_disable_device(pdev);
}
EXPORT_SYMBOL_GPL(rust_hmm_pci_unclaim);

/* Returns the PCI distance of @client from @provider; negative if it cannot access its memory. */
int rust_hmm_pci_distance(struct pci_dev *provider, struct device *client)
{
	return pci_p2pdma_distance_many(provider, &client, 1, true);
}
EXPORT_SYMBOL_GPL(rust_hmm_pci_distance);

/*
 * Maps memory of another device or function for DMA of @dev. @fail: injects a failure of the
 * mapping, see rust/inject.rs.
 */
int rust_hmm_peer_map(struct device *dev, u64 start, u64 size, bool fail,
		      u64 *addr)
{
	dma_addr_t dma = DMA_MAPPING_ERROR;

	if (!fail)
		dma = dma_map_resource(dev, start, size, DMA_BIDIRECTIONAL, 0);
	if (dma_mapping_error(dev, dma))
		return -ENOMEM;
	*addr = dma;
	return 0;
}
EXPORT_SYMBOL_GPL(rust_hmm_peer_map);

void rust_hmm_peer_unmap(struct device *dev, u64 addr, u64 size)
{
	dma_unmap_resource(dev, addr, size, DMA_BIDIRECTIONAL, 0);
}
EXPORT_SYMBOL_GPL(rust_hmm_peer_unmap);

/* Maps memory of a device uncached, so that writes reach the device in program order. */
void *rust_hmm_bar_map(u64 start, size_t size)
{
	return (void __force *)ioremap(start, size);
}
EXPORT_SYMBOL_GPL(rust_hmm_bar_map);

void rust_hmm_bar_unmap(void *bar)
{
	iounmap((void __iomem __force *)bar);
}
EXPORT_SYMBOL_GPL(rust_hmm_bar_unmap);

void rust_hmm_bar_clear(void *bar, size_t size)
{
	memset_io((void __iomem __force *)bar, 0, size);
}
EXPORT_SYMBOL_GPL(rust_hmm_bar_clear);

void rust_hmm_bar_write32(void *bar, u32 value)
{
	writel(value, (void __iomem __force *)bar);
}
EXPORT_SYMBOL_GPL(rust_hmm_bar_write32);

void rust_hmm_bar_write64(void *bar, u64 value)
{
	writeq(value, (void __iomem __force *)bar);
}
EXPORT_SYMBOL_GPL(rust_hmm_bar_write64);

/* Reads from the device. Previous posted writes have arrived when this returns. */
u64 rust_hmm_bar_read64(void *bar)
{
	return readq((void __iomem __force *)bar);
}
EXPORT_SYMBOL_GPL(rust_hmm_bar_read64);

struct rust_hmm_interrupt {
	struct pci_dev *pdev;
	void (*handle)(const void *data);
	const void *data;
};

static irqreturn_t interrupt_handler(int irq, void *cookie)
{
	struct rust_hmm_interrupt *interrupt = cookie;

	interrupt->handle(interrupt->data);
	return IRQ_HANDLED;
}

/*
 * Allocates one message-signalled interrupt and enables bus mastering. @handle is called in
 * interrupt context until the interrupt is freed.
 */
struct rust_hmm_interrupt *
rust_hmm_interrupt_new(struct pci_dev *pdev, void (*handle)(const void *data),
		       const void *data, const char *name, int *error)
{
	struct rust_hmm_interrupt *interrupt;
	int err;

	*error = -ENOMEM;
	interrupt = kzalloc_obj(*interrupt);
	if (!interrupt)
		return NULL;
	interrupt->pdev = pci_dev_get(pdev);
	interrupt->handle = handle;
	interrupt->data = data;
	err = pci_alloc_irq_vectors(pdev, 1, 1, PCI_IRQ_MSI | PCI_IRQ_MSIX);
	if (err < 0)
		goto free;
	pci_set_master(pdev);
	err = request_irq(pci_irq_vector(pdev, 0), interrupt_handler, 0, name,
			  interrupt);
	if (err)
		goto vectors;
	return interrupt;
vectors:
	pci_clear_master(pdev);
	pci_free_irq_vectors(pdev);
free:
	pci_dev_put(pdev);
	kfree(interrupt);
	*error = err;
	return NULL;
}
EXPORT_SYMBOL_GPL(rust_hmm_interrupt_new);

/*
 * Disables bus mastering, so that the device no longer accesses memory, and waits for the handler.
 */
void rust_hmm_interrupt_free(struct rust_hmm_interrupt *interrupt)
{
	struct pci_dev *pdev = interrupt->pdev;

	pci_clear_master(pdev);
	free_irq(pci_irq_vector(pdev, 0), interrupt);
	pci_free_irq_vectors(pdev);
	pci_dev_put(pdev);
	kfree(interrupt);
}
EXPORT_SYMBOL_GPL(rust_hmm_interrupt_free);
