// SPDX-License-Identifier: GPL-2.0
/* Managed allocations, see managed.h. */
#include <linux/err.h>
#include <linux/export.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/mman.h>
#include <linux/sched.h>

#include "managed.h"

/*
 * A private mapping of a device file that is being set up becomes anonymous
 * memory, as one of /dev/zero does.
 */
void rust_hmm_vma_set_anonymous(struct vm_area_struct *vma, bool huge)
{
	vma_set_anonymous(vma);
	if (huge && IS_ENABLED(CONFIG_TRANSPARENT_HUGEPAGE))
		vm_flags_set(vma, VM_HUGEPAGE);
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_set_anonymous);

/* Where in its file it was mapped, in pages. */
unsigned long rust_hmm_vma_offset(const struct vm_area_struct *vma)
{
	return vma->vm_pgoff;
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_offset);

/* The same of anonymous memory that was mapped from a file; else 0. */
unsigned long rust_hmm_vma_anonymous_offset(const struct vm_area_struct *vma)
{
	return vma->vm_file && vma_is_anonymous((struct vm_area_struct *)vma) ?
		       vma->vm_pgoff : 0;
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_anonymous_offset);

bool rust_hmm_vma_is_shared(const struct vm_area_struct *vma)
{
	return vma->vm_flags & VM_SHARED;
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_is_shared);

/* Into the current process: an address or -errno. */
long rust_hmm_mmap(struct file *file, unsigned long len, unsigned long offset)
{
	return vm_mmap(file, 0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE,
		       offset);
}
EXPORT_SYMBOL_GPL(rust_hmm_mmap);

/* From a process in use: the current one, or by a kernel thread. */
int rust_hmm_munmap(struct mm_struct *mm, unsigned long addr,
		    unsigned long len)
{
	bool borrow = current->flags & PF_KTHREAD;
	int ret;

	if (!borrow && current->mm != mm)
		return -EINVAL;
	if (borrow)
		kthread_use_mm(mm);
	ret = vm_munmap(addr, len);
	if (borrow)
		kthread_unuse_mm(mm);
	return ret;
}
EXPORT_SYMBOL_GPL(rust_hmm_munmap);
