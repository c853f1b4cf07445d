// SPDX-License-Identifier: GPL-2.0
/* CPU faults on device memory. */
#include <linux/export.h>
#include <linux/mm.h>
#include <linux/pagemap.h>

struct vm_area_struct *rust_hmm_vmf_vma(const struct vm_fault *vmf)
{
	return vmf->vma;
}
EXPORT_SYMBOL_GPL(rust_hmm_vmf_vma);

unsigned long rust_hmm_vmf_address(const struct vm_fault *vmf)
{
	return vmf->address;
}
EXPORT_SYMBOL_GPL(rust_hmm_vmf_address);

bool rust_hmm_vmf_is_pte(const struct vm_fault *vmf)
{
	return vmf->pte;
}
EXPORT_SYMBOL_GPL(rust_hmm_vmf_is_pte);

struct page *rust_hmm_vmf_page(const struct vm_fault *vmf)
{
	return vmf->page;
}
EXPORT_SYMBOL_GPL(rust_hmm_vmf_page);

/* The fault holds the folio lock, so that no other task can split the folio. */
bool rust_hmm_vmf_folio_is_large(const struct vm_fault *vmf)
{
	return folio_test_large(page_folio(vmf->page));
}
EXPORT_SYMBOL_GPL(rust_hmm_vmf_folio_is_large);

/* Returns whether the fault may drop the mmap lock and be retried. */
bool rust_hmm_vmf_can_retry(const struct vm_fault *vmf)
{
	return (vmf->flags & FAULT_FLAG_ALLOW_RETRY) &&
	       !(vmf->flags & FAULT_FLAG_VMA_LOCK);
}
EXPORT_SYMBOL_GPL(rust_hmm_vmf_can_retry);

/*
 * Returns whether the fault came from user mode, so that the task repeats the
 * instruction after the fault.
 */
bool rust_hmm_vmf_is_user(const struct vm_fault *vmf)
{
	return vmf->flags & FAULT_FLAG_USER;
}
EXPORT_SYMBOL_GPL(rust_hmm_vmf_is_user);

/*
 * Drops the mmap lock and returns VM_FAULT_RETRY, as folio_lock_or_retry() does;
 * the VMA is not valid afterwards. With FAULT_FLAG_RETRY_NOWAIT the lock stays
 * held. Returns 0 if the fault cannot be retried.
 */
vm_fault_t rust_hmm_vmf_retry(struct vm_fault *vmf)
{
	if (!rust_hmm_vmf_can_retry(vmf))
		return 0;
	if (!(vmf->flags & FAULT_FLAG_RETRY_NOWAIT))
		mmap_read_unlock(vmf->vma->vm_mm);
	return VM_FAULT_RETRY;
}
EXPORT_SYMBOL_GPL(rust_hmm_vmf_retry);
