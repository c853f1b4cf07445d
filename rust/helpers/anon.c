// SPDX-License-Identifier: GPL-2.0
/* Anonymous memory that is mapped from a device file. */
#include <linux/export.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/sched.h>

/*
 * Makes a private mapping of a device file anonymous memory, like one of
 * /dev/zero. Called by the mmap operation of the file, while @vma is set up.
 */
void rust_hmm_vma_set_anonymous(struct vm_area_struct *vma, bool huge)
{
	vma_set_anonymous(vma);
	if (huge && IS_ENABLED(CONFIG_TRANSPARENT_HUGEPAGE))
		vm_flags_set(vma, VM_HUGEPAGE);
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_set_anonymous);

/* Returns the offset of @vma in its file, in pages. */
unsigned long rust_hmm_vma_offset(const struct vm_area_struct *vma)
{
	return vma->vm_pgoff;
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_offset);

/*
 * Returns the offset of anonymous memory that was mapped from a file; 0 for
 * other mappings.
 */
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

/*
 * Unmaps a range of @mm, which the caller keeps in use. @mm must be that of the
 * current process, unless the caller is a kernel thread.
 */
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
