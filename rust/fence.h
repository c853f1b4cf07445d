/* SPDX-License-Identifier: GPL-2.0 */
/* Fences: the C side of rust/kernel/fence.rs, rust/kernel/dma_fence.rs and rust/kernel/sync_file.rs. */
#ifndef _RUST_HMM_FENCE_H
#define _RUST_HMM_FENCE_H

#include <linux/types.h>

struct completion;
struct dma_fence;
struct file;
struct rust_hmm_fence;

struct rust_hmm_fence *rust_hmm_fence_alloc(const void *kind, bool by_driver);
void rust_hmm_fence_follow(struct rust_hmm_fence *fence, struct dma_fence *dma);
bool rust_hmm_fence_signal(struct rust_hmm_fence *fence, int error);
bool rust_hmm_fence_by_driver(const struct rust_hmm_fence *fence);
int rust_hmm_fence_status(const struct rust_hmm_fence *fence);
const void *rust_hmm_fence_kind(const struct rust_hmm_fence *fence);
int rust_hmm_fence_wait(struct rust_hmm_fence *fence, struct completion *bell,
			unsigned long timeout, bool killable);
unsigned int rust_hmm_fence_longest_lot(void);

/* DMA fences */
struct dma_fence *rust_hmm_dma_fence_alloc(void);
void rust_hmm_dma_fence_free(struct dma_fence *fence);
void rust_hmm_dma_fence_init(struct dma_fence *fence, const void *kind,
			     u64 context, u64 seqno);
void rust_hmm_dma_fence_signal(struct dma_fence *fence, int error);
const void *rust_hmm_dma_fence_kind(struct dma_fence *fence);
void rust_hmm_dma_fence_get(struct dma_fence *fence);
void rust_hmm_dma_fence_put(struct dma_fence *fence);
bool rust_hmm_dma_fence_begin_signalling(void);
void rust_hmm_dma_fence_end_signalling(bool cookie);

/* Sync files */
int rust_hmm_sync_file_reserve(struct dma_fence *fence, struct file **file);
void rust_hmm_sync_file_install(int fd, struct file *file);
void rust_hmm_sync_file_forget(int fd, struct file *file);
struct dma_fence *rust_hmm_sync_file_fence(int fd);

#endif /* _RUST_HMM_FENCE_H */
