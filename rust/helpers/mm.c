// SPDX-License-Identifier: GPL-2.0
/* The mmap lock, VMAs, and mappings of files. */
#include <linux/export.h>
#include <linux/mm.h>
#include <linux/mman.h>
#include <linux/mm_inline.h>
#include <linux/mmap_lock.h>
#include <linux/swapops.h>

int rust_hmm_mmap_read_lock_killable(struct mm_struct *mm)
{
	return mmap_read_lock_killable(mm);
}
EXPORT_SYMBOL_GPL(rust_hmm_mmap_read_lock_killable);

bool rust_hmm_mmap_read_trylock(struct mm_struct *mm)
{
	return mmap_read_trylock(mm);
}
EXPORT_SYMBOL_GPL(rust_hmm_mmap_read_trylock);

bool rust_hmm_mmap_is_contended(struct mm_struct *mm)
{
	return mmap_lock_is_contended(mm);
}
EXPORT_SYMBOL_GPL(rust_hmm_mmap_is_contended);

void rust_hmm_mmap_read_unlock(struct mm_struct *mm)
{
	mmap_read_unlock(mm);
}
EXPORT_SYMBOL_GPL(rust_hmm_mmap_read_unlock);

struct vm_area_struct *rust_hmm_vma_lookup(struct mm_struct *mm,
					   unsigned long addr)
{
	struct vm_area_struct *vma = find_vma(mm, addr);

	return vma && vma->vm_start <= addr ? vma : NULL;
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_lookup);

/*
 * Returns whether a walk of folio_referenced() damages device-exclusive entries.
 * It clears their accessed bit, too, without pte_present(); on arm64 that bit is
 * part of the type of a swap entry. See "Exclusive access and reclaim" in
 * Documentation/kernel-bugs.rst.
 */
bool rust_hmm_reclaim_damages_exclusive(void)
{
	pte_t pte = swp_entry_to_pte(make_device_exclusive_entry(0));

	return !pte_same(pte_mkold(pte), pte);
}
EXPORT_SYMBOL_GPL(rust_hmm_reclaim_damages_exclusive);

/*
 * Returns whether folio_referenced() walks the PTEs of @vma. The mmap lock of
 * the VMA is held.
 */
bool rust_hmm_vma_has_recency(const struct vm_area_struct *vma)
{
	return vma_has_recency(vma);
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_has_recency);

/*
 * Lets folio_referenced() pass over the VMA at @addr, if there is one, as after
 * madvise(MADV_RANDOM). Returns 0, or -EINTR if the task was killed.
 */
int rust_hmm_vma_drop_recency(struct mm_struct *mm, unsigned long addr)
{
	struct vm_area_struct *vma;
	int ret = mmap_write_lock_killable(mm);

	if (ret)
		return ret;
	vma = rust_hmm_vma_lookup(mm, addr);
	if (vma)
		vm_flags_set(vma, VM_RAND_READ);
	mmap_write_unlock(mm);
	return 0;
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_drop_recency);

/*
 * Returns the page offset at which the anonymous pages of @vma begin. Pages
 * keep their offset when they are moved, also by mremap(). Before 7.3, private
 * copies of file pages had the offset of the file.
 */
unsigned long rust_hmm_vma_anon_offset(const struct vm_area_struct *vma)
{
#ifdef RUST_HMM_SERIES_7_3
	return vma_start_anon_pgoff(vma);
#else
	return vma->vm_pgoff;
#endif
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_anon_offset);

/*
 * Returns whether @vma contains page offset @pgoff, see
 * rust_hmm_vma_anon_offset().
 */
bool rust_hmm_vma_has_offset(const struct vm_area_struct *vma,
			     unsigned long pgoff)
{
	/* Unsigned: an offset below the first one becomes a huge number. */
	return pgoff - rust_hmm_vma_anon_offset(vma) < vma_pages(vma);
}

/*
 * Returns the first VMA with an anon_vma that ends behind @from and contains
 * page offset @pgoff, or NULL. The mmap lock must be held.
 */
struct vm_area_struct *rust_hmm_vma_of_offset(struct mm_struct *mm,
					      unsigned long from,
					      unsigned long pgoff)
{
	struct vm_area_struct *vma;

	for (vma = find_vma(mm, from); vma; vma = find_vma(mm, vma->vm_end))
		if (READ_ONCE(vma->anon_vma) &&
		    rust_hmm_vma_has_offset(vma, pgoff))
			break;
	return vma;
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_of_offset);

/* Identifies the anon_vma of @vma; 0 if it never had anonymous pages. */
unsigned long rust_hmm_vma_anon(const struct vm_area_struct *vma)
{
	return (unsigned long)READ_ONCE(vma->anon_vma);
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_anon);

bool rust_hmm_vma_is_anonymous(struct vm_area_struct *vma)
{
	return vma_is_anonymous(vma);
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_is_anonymous);

struct mm_struct *rust_hmm_vma_mm(const struct vm_area_struct *vma)
{
	return vma->vm_mm;
}
EXPORT_SYMBOL_GPL(rust_hmm_vma_mm);

/*
 * Returns whether @mm has users. Takes no reference, because dropping the last
 * one would tear down the address space here.
 */
bool rust_hmm_mm_in_use(const struct mm_struct *mm)
{
	return atomic_read(&mm->mm_users) != 0;
}
EXPORT_SYMBOL_GPL(rust_hmm_mm_in_use);

/*
 * Maps @file privately into the current process. Returns the address or -errno.
 */
long rust_hmm_mmap(struct file *file, unsigned long len, unsigned long offset)
{
	return vm_mmap(file, 0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE,
		       offset);
}
EXPORT_SYMBOL_GPL(rust_hmm_mmap);
