/* SPDX-License-Identifier: GPL-2.0 */
/* Fences: the C side of rust/mm/fence.rs. */
#ifndef _RUST_HMM_FENCE_H
#define _RUST_HMM_FENCE_H

#include <linux/types.h>

struct completion;
struct dma_fence;
struct file;

struct dma_fence *rust_hmm_fence_alloc(void);
void rust_hmm_fence_free(struct dma_fence *fence);
void rust_hmm_fence_init(struct dma_fence *fence, const void *type,
			 u64 context, u64 seqno);
void rust_hmm_fence_set_by_driver(struct dma_fence *fence);
void rust_hmm_fence_signal(struct dma_fence *fence, int error);
int rust_hmm_fence_signal_ours(struct dma_fence *fence, int error);
const void *rust_hmm_fence_type(struct dma_fence *fence);
void rust_hmm_fence_get(struct dma_fence *fence);
void rust_hmm_fence_put(struct dma_fence *fence);
bool rust_hmm_fence_begin_signalling(void);
void rust_hmm_fence_end_signalling(bool cookie);
int rust_hmm_fence_wait(struct dma_fence *fence, struct completion *bell,
			unsigned long timeout, bool killable);

/* Sync files */
int rust_hmm_fence_export(struct dma_fence *fence, s64 limit,
			  struct file **file);
void rust_hmm_fence_install(int fd, struct file *file);
void rust_hmm_fence_forget(int fd, struct file *file);
struct dma_fence *rust_hmm_fence_import(int fd);
void rust_hmm_fence_exit(void);

#endif /* _RUST_HMM_FENCE_H */
