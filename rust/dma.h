/* SPDX-License-Identifier: GPL-2.0 */
/* Page tables of DMA addresses: the C side of rust/mm/dma and rust/mm/pci.rs. */
#ifndef _RUST_HMM_DMA_H
#define _RUST_HMM_DMA_H

#include <linux/types.h>

struct device;
struct pci_dev;
struct rust_hmm_dma_window;
struct rust_hmm_interrupt;

int rust_hmm_dma_adopt(struct device *dev, unsigned int bits);
void rust_hmm_dma_release(struct device *dev);

struct rust_hmm_dma_window *rust_hmm_dma_window_alloc(struct device *dev,
						      int *error);
void rust_hmm_dma_window_free(struct device *dev,
			      struct rust_hmm_dma_window *window);
int rust_hmm_dma_window_map(struct device *dev,
			    struct rust_hmm_dma_window *window,
			    unsigned int index, unsigned long pfn, bool fresh,
			    bool fail, u64 *addr);
void rust_hmm_dma_window_unmap(struct device *dev,
			       struct rust_hmm_dma_window *window,
			       unsigned int first, unsigned int count);

int rust_hmm_dma_map_run(struct device *dev, unsigned long pfn,
			 unsigned long npages, int direction, bool coherent,
			 bool fail, u64 *addr);
void rust_hmm_dma_unmap_run(struct device *dev, u64 addr, unsigned long npages,
			    int direction, bool coherent);
void *rust_hmm_dma_buffer(struct device *dev, size_t size, u64 *addr);
void rust_hmm_dma_buffer_free(struct device *dev, size_t size, void *cpu,
			      u64 addr);

struct pci_dev *rust_hmm_pci_function(struct pci_dev *pdev,
				      unsigned int function, int *error);
void rust_hmm_pci_function_put(struct pci_dev *pdev);
int rust_hmm_pci_claim(struct pci_dev *pdev, int bar, u64 *start, u64 *size);
void rust_hmm_pci_unclaim(struct pci_dev *pdev, int bar);
int rust_hmm_pci_distance(struct pci_dev *provider, struct device *client);
int rust_hmm_peer_map(struct device *dev, u64 start, u64 size, bool fail,
		      u64 *addr);
void rust_hmm_peer_unmap(struct device *dev, u64 addr, u64 size);
void *rust_hmm_bar_map(u64 start, size_t size);
void rust_hmm_bar_unmap(void *bar);
void rust_hmm_bar_clear(void *bar, size_t size);
void rust_hmm_bar_write32(void *bar, u32 value);
void rust_hmm_bar_write64(void *bar, u64 value);
u64 rust_hmm_bar_read64(void *bar);

struct rust_hmm_interrupt *
rust_hmm_interrupt_new(struct pci_dev *pdev, void (*handle)(const void *data),
		       const void *data, const char *name, int *error);
void rust_hmm_interrupt_free(struct rust_hmm_interrupt *interrupt);

#endif /* _RUST_HMM_DMA_H */
