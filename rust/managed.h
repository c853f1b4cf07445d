/* SPDX-License-Identifier: GPL-2.0 */
/* Managed allocations: the C side of rust/mm/anon.rs. */
#ifndef _RUST_HMM_MANAGED_H
#define _RUST_HMM_MANAGED_H

#include <linux/types.h>

struct file;
struct mm_struct;
struct vm_area_struct;

void rust_hmm_vma_set_anonymous(struct vm_area_struct *vma, bool huge);
unsigned long rust_hmm_vma_offset(const struct vm_area_struct *vma);
unsigned long rust_hmm_vma_anonymous_offset(const struct vm_area_struct *vma);
bool rust_hmm_vma_is_shared(const struct vm_area_struct *vma);
long rust_hmm_mmap(struct file *file, unsigned long len, unsigned long offset);
int rust_hmm_munmap(struct mm_struct *mm, unsigned long addr,
		    unsigned long len);

#endif /* _RUST_HMM_MANAGED_H */
