/* SPDX-License-Identifier: GPL-2.0 */
/* Pinned memory and DMA: the C side of rust/mm/pin.rs and rust/mm/dma.rs. */
#ifndef _RUST_HMM_PIN_H
#define _RUST_HMM_PIN_H

#include <linux/types.h>

struct device;
struct mm_struct;
struct page;

long rust_hmm_pin(struct mm_struct *mm, unsigned long start,
		  unsigned long npages, struct page **pages);
void rust_hmm_unpin(struct page **pages, unsigned long npages);
struct device *rust_hmm_dma_create(const char *name);
void rust_hmm_dma_destroy(struct device *dev);
void rust_hmm_dma_bounce(struct device *dev);
bool rust_hmm_dma_bounces(struct device *dev);
bool rust_hmm_dma_is_coherent(struct device *dev);
int rust_hmm_dma_map(struct device *dev, unsigned long pfn, bool coherent,
		     bool fail, u64 *addr);
void rust_hmm_dma_unmap(struct device *dev, u64 addr, bool coherent);
void rust_hmm_dma_sync(struct device *dev, u64 addr, bool for_device);

#endif /* _RUST_HMM_PIN_H */
