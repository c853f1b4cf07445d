// SPDX-License-Identifier: GPL-2.0
/*
 * For KUnit: the C arithmetic for comparison, a user address space, and the
 * contexts and signals of a task.
 */
#include <kunit/test-bug.h>
#include <kunit/test.h>
#include <linux/anon_inodes.h>
#include <linux/device.h>
#include <linux/dma-fence.h>
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/hmm.h>
#include <linux/irqflags.h>
#include <linux/kdev_t.h>
#include <linux/kmemleak.h>
#include <linux/kmsg_dump.h>
#include <linux/major.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/mman.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/preempt.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/signal.h>
#include <linux/string.h>

unsigned int rust_hmm_kunit_map_order(unsigned long hmm_pfn)
{
	return hmm_pfn_to_map_order(hmm_pfn);
}

unsigned long rust_hmm_kunit_migrate_pfn(unsigned long pfn)
{
	return migrate_pfn(pfn);
}

bool rust_hmm_kunit_is_dirty(unsigned long pfn)
{
	return folio_test_dirty(page_folio(pfn_to_page(pfn)));
}

/*
 * Flags that a migration may have set. In the second page of a large folio, two
 * of them have other meanings: PG_has_hwpoisoned and PG_partially_mapped.
 */
#define STALE (BIT(PG_active) | BIT(PG_reclaim) | BIT(PG_unevictable))

void rust_hmm_kunit_set_stale_flags(unsigned long pfn)
{
	pfn_to_page(pfn)->flags.f |= STALE;
}

bool rust_hmm_kunit_has_stale_flags(unsigned long pfn)
{
	return pfn_to_page(pfn)->flags.f & STALE;
}

/*
 * Maps anonymous memory in an address space of the test; 0 on failure. A test
 * may map more memory than the machine has and use a part of it, because the
 * machines of kunit.py are small.
 */
unsigned long rust_hmm_kunit_mmap(unsigned long len)
{
	if (!current->mm) {
		if (kunit_attach_mm())
			return 0;
		/*
		 * The reference of kthread_use_mm(), which nothing else drops:
		 * the thread does not call kthread_unuse_mm(). Its exit drops
		 * the one of mm_alloc(), which covers the time until then.
		 */
		mmdrop(current->mm);
	}
	return kunit_vm_mmap(kunit_get_current_test(), NULL, 0, len,
			     PROT_READ | PROT_WRITE,
			     MAP_ANONYMOUS | MAP_PRIVATE | MAP_NORESERVE, 0);
}

/* mm_alloc() is exported for KUnit only. */
MODULE_IMPORT_NS("EXPORTED_FOR_KUNIT_TESTING");

/* A new address space without mappings, which mmput() frees; NULL on failure. */
struct mm_struct *rust_hmm_kunit_mm_alloc(void)
{
	return mm_alloc();
}

/* As madvise(MADV_HUGEPAGE) for the mapping at @addr, which is not exported. */
int rust_hmm_kunit_advise_huge(unsigned long addr)
{
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma;

	mmap_write_lock(mm);
	vma = find_vma(mm, addr);
	if (vma)
		vm_flags_set(vma, VM_HUGEPAGE);
	mmap_write_unlock(mm);
	return vma ? 0 : -EFAULT;
}

int rust_hmm_kunit_munmap(unsigned long addr, unsigned long len)
{
	return vm_munmap(addr, len);
}

/*
 * Opens the misc device of @minor, with misc_mtx held as in an open of its
 * device node. The thread of a test has no root directory with the node.
 */
struct file *rust_hmm_kunit_open_misc(unsigned int minor)
{
	static const struct file_operations none;
	struct file *file;
	struct inode *inode;
	int ret;

	file = anon_inode_create_getfile("[hmm_kunit]", &none, NULL, O_RDWR, NULL);
	if (IS_ERR(file))
		return file;
	inode = file_inode(file);
	init_special_inode(inode, S_IFCHR | 0600, MKDEV(MISC_MAJOR, minor));
	ret = inode->i_fop->open(inode, file);
	/*
	 * On error the file is leaked, because only the VFS can undo a partial
	 * open.
	 */
	return ret ? ERR_PTR(ret) : file;
}

/* Makes @dev a device whose DMA is not coherent, if the architecture has such devices. */
void rust_hmm_kunit_set_incoherent(struct device *dev)
{
	dev_clear_dma_coherent(dev);
}

/* Number of lines of the kernel log that contain both texts. */
unsigned int rust_hmm_kunit_log_lines(const char *text, const char *other)
{
	static char line[1024];
	struct kmsg_dump_iter log;
	unsigned int count = 0;
	size_t len;

	kmsg_dump_rewind(&log);
	while (kmsg_dump_get_line(&log, false, line, sizeof(line) - 1, &len)) {
		line[len] = 0;
		if (strstr(line, text) && strstr(line, other))
			count++;
	}
	return count;
}

/* A callback of a DMA fence, which calls a function of a test. */
struct rust_hmm_kunit_fence_callback {
	struct dma_fence_cb cb;
	void (*run)(void *data);
	void *data;
};

static void kunit_fence_signalled(struct dma_fence *fence, struct dma_fence_cb *cb)
{
	struct rust_hmm_kunit_fence_callback *callback =
		container_of(cb, struct rust_hmm_kunit_fence_callback, cb);

	callback->run(callback->data);
}

/* @callback must exist until rust_hmm_kunit_fence_remove(), also after an error. */
int rust_hmm_kunit_fence_add(struct dma_fence *fence,
			     struct rust_hmm_kunit_fence_callback *callback,
			     void (*run)(void *data), void *data)
{
	callback->run = run;
	callback->data = data;
	return dma_fence_add_callback(fence, &callback->cb, kunit_fence_signalled);
}

/* After this the callback neither runs nor can run, because it runs under the lock of @fence. */
void rust_hmm_kunit_fence_remove(struct dma_fence *fence,
				 struct rust_hmm_kunit_fence_callback *callback)
{
	dma_fence_remove_callback(fence, &callback->cb);
}

static unsigned long long kunit_coherent;
module_param(kunit_coherent, ullong, 0444);
MODULE_PARM_DESC(kunit_coherent,
		 "Physical start of 512 MiB that the kernel does not use, for KUnit tests");

/* The parameter. If it is not set, the test of the caller is reported as skipped. */
u64 rust_hmm_kunit_coherent(void)
{
	if (!kunit_coherent)
		kunit_mark_skipped(kunit_get_current_test(),
				   "kunit_coherent names no memory");
	return kunit_coherent;
}

/* Whether the caller is in a hard interrupt. */
bool rust_hmm_kunit_in_hardirq(void)
{
	return in_hardirq();
}

unsigned long rust_hmm_kunit_irq_save(void)
{
	unsigned long flags;

	local_irq_save(flags);
	return flags;
}

void rust_hmm_kunit_irq_restore(unsigned long flags)
{
	local_irq_restore(flags);
}

/* Sends SIGKILL to the thread of the test, which continues to run. */
void rust_hmm_kunit_kill_current(void)
{
	allow_signal(SIGKILL);
	send_sig(SIGKILL, current, 1);
}

void rust_hmm_kunit_revive_current(void)
{
	disallow_signal(SIGKILL);
	flush_signals(current);
}

/* Makes kmemleak ignore @object, which the test leaks on purpose. */
void rust_hmm_kunit_expect_leak(const void *object)
{
	kmemleak_ignore(object);
}

void rust_hmm_kunit_mmap_write_lock(struct mm_struct *mm)
{
	mmap_write_lock(mm);
}

void rust_hmm_kunit_mmap_write_unlock(struct mm_struct *mm)
{
	mmap_write_unlock(mm);
}
