/* SPDX-License-Identifier: GPL-2.0 */
/*
 * C interface of rust_hmm: mirrors, device memory, migration, range attributes, fences and queues.
 *
 * The guide is Documentation/c-guide.rst. These rules hold for every function unless its comment
 * says otherwise:
 *
 * - Context: a task that may sleep. The caller holds no lock that a page fault, reclaim or a
 *   callback of the driver takes. Functions that wait return -EDEADLK if they are called from a
 *   callback of the library, or between rust_hmm_table_lock() and rust_hmm_table_unlock().
 * - A range [start, end) is in bytes. It must be page-aligned and not empty, otherwise the function
 *   returns -EINVAL.
 * - Functions that return an int return 0 or a negative error number. Functions that return a
 *   pointer return ERR_PTR() on failure, never NULL.
 * - The driver owns each object that a *_create() function returns. It calls the *_destroy()
 *   function once, when nothing else uses the object. Tables of operations are copied and need not
 *   outlive the call. The driver also owns the object behind @data, which must stay valid until the
 *   destroy function has returned 0.
 * - Callbacks in a table of operations run in the context of any task, and several may run
 *   concurrently.
 *
 * The library exports these functions if CONFIG_RUST_HMM_CAPI is on, and those of fences and queues
 * if CONFIG_RUST_HMM_QUEUE is on, too.
 */
#ifndef _RUST_HMM_H
#define _RUST_HMM_H

#include <linux/compiler.h>
#include <linux/types.h>

/*
 * The library exports a symbol whose name contains a hash of this header. Each object file that
 * includes the header refers to that symbol, so that a module which was built with another version
 * of the header fails to load.
 */
#ifndef RUST_HMM_HEADER
#error "use $(rust_hmm_cflags) of sdk.mk, which defines RUST_HMM_HEADER"
#endif
#define RUST_HMM_HEADER_SYMBOL __PASTE(rust_hmm_header_, RUST_HMM_HEADER)
extern const char RUST_HMM_HEADER_SYMBOL;
static const char *const rust_hmm_header __used = &RUST_HMM_HEADER_SYMBOL;

struct dma_fence;
struct mm_struct;

struct rust_hmm_fence;
struct rust_hmm_memory;
struct rust_hmm_mirror;
struct rust_hmm_queue;
struct rust_hmm_stop;

/* Location of pages */

/**
 * enum rust_hmm_where - kind of a location
 * @RUST_HMM_NOWHERE: no page. As the source of a copy: fill the destination with zeros
 * @RUST_HMM_CPU: memory that the CPU can address, named by page frame numbers
 * @RUST_HMM_DEVICE: memory of the device, named by device page numbers, which count from 0
 */
enum rust_hmm_where {
	RUST_HMM_NOWHERE = 0,
	RUST_HMM_CPU = 1,
	RUST_HMM_DEVICE = 2,
};

/**
 * struct rust_hmm_place - location of consecutive pages
 * @kind: an enum rust_hmm_where
 * @reserved: 0
 * @first: page frame number or device page number of the first page
 * @pages: number of pages
 */
struct rust_hmm_place {
	u32 kind;
	u32 reserved;
	unsigned long first;
	unsigned long pages;
};

/* Device memory */

/**
 * struct rust_hmm_copy_job - one copy of a migration, carried out by the driver
 * @source: pages to read; with %RUST_HMM_NOWHERE the destination is filled with zeros
 * @destination: pages to write, as many as in @source: 1, or those of a PMD
 *
 * A driver that completes the job asynchronously keeps it by assigning the structure. It passes
 * either the original or the assigned structure to rust_hmm_copy_done(), exactly once.
 */
struct rust_hmm_copy_job {
	struct rust_hmm_place source;
	struct rust_hmm_place destination;
	/* private: */
	void *state;
	unsigned long index;
};

/**
 * struct rust_hmm_memory_ops - driver callbacks for device memory
 * @size: sizeof(struct rust_hmm_memory_ops); the library refuses drivers that were built with
 *	another version of the header
 * @copy: copy pages, or fill them with zeros, immediately or asynchronously, and then call
 *	rust_hmm_copy_done(), which may be called in any context. The migration waits until all of its jobs are completed: a job
 *	that is never completed blocks the migrating task for ever. The source is not written
 *	during the copy. Called with the mmap lock and the page locks held; may sleep. Neither this
 *	callback nor an asynchronous copy may take a table lock or a lock under which memory is
 *	allocated, and neither may allocate with reclaim (GFP_NOWAIT is allowed)
 * @ring_doorbell: start the queued copies: all jobs of a step have been passed to @copy. May be
 *	NULL. Called in the same context as @copy
 * @cancelled: complete jobs early, with an error, if rust_hmm_copy_cancelled() returns true for
 *	them: the task that waits for them was killed. May be NULL. Called in the same context as
 *	@copy
 * @freed: @pages device pages from @first on are about to be freed. May be NULL. Called in any
 *	context, including interrupt context; must not call the library
 */
struct rust_hmm_memory_ops {
	size_t size;
	void (*copy)(void *data, struct rust_hmm_copy_job *job);
	void (*ring_doorbell)(void *data);
	void (*cancelled)(void *data);
	void (*freed)(void *data, unsigned long first, unsigned long pages);
};

/**
 * struct rust_hmm_usage - use of device memory, in pages
 * @used: pages in use
 * @total: pages that have a struct page so far; chunks are registered with the kernel on demand
 * @limit: maximum number of pages
 */
struct rust_hmm_usage {
	unsigned long used;
	unsigned long total;
	unsigned long limit;
};

/**
 * rust_hmm_memory_create() - create device memory that the CPU cannot address
 * @ops: driver callbacks for the memory
 * @data: passed to the callbacks
 * @pages: maximum number of pages; device page numbers are below it
 *
 * The struct pages (MEMORY_DEVICE_PRIVATE) are allocated on demand.
 *
 * Return: the memory, or ERR_PTR():
 *
 * * -EINVAL: @pages is 0 or larger than the physical address space; @ops->size is wrong; or
 *   @ops->copy is NULL
 * * -ENOMEM
 */
struct rust_hmm_memory *rust_hmm_memory_create(const struct rust_hmm_memory_ops *ops, void *data,
					       unsigned long pages);

/**
 * rust_hmm_memory_destroy() - migrate all pages back to system memory and destroy the memory
 * @memory: the memory, invalid after a return of 0; NULL and ERR_PTR() are ignored
 *
 * All mirrors that were created with @memory must have been destroyed. Calls @ops->copy until the
 * last page has been migrated; signals do not end it early.
 *
 * Return:
 * * 0: the memory was destroyed
 * * -EBUSY: a mirror still uses the memory; nothing was changed
 * * -EDEADLK: called from a callback; nothing was changed
 */
int rust_hmm_memory_destroy(struct rust_hmm_memory *memory);

/**
 * rust_hmm_memory_evict() - migrate all pages back, for example before the device is suspended
 * @memory: the memory
 *
 * Return: the number of pages that remain, because they are pinned or were allocated concurrently;
 * or:
 *
 * * -EINTR: the task was killed
 * * -ENOMEM
 * * -EDEADLK
 */
long rust_hmm_memory_evict(struct rust_hmm_memory *memory);

/**
 * rust_hmm_memory_unplug() - handle the removal of the device
 * @memory: the memory
 *
 * Call it before the device is removed, or after it has disappeared. The library removes the
 * entries of all mirrors and migrates all pages back that the driver can still copy. From then on
 * functions that need the device return -ENODEV. A CPU access to a page that could not be migrated
 * raises SIGBUS. The driver must still destroy the mirrors and the memory.
 *
 * After -EINTR and -ENOMEM, pages are left that can be saved. The driver must not stop its copy
 * engine, and calls the function again. A call that returns -EINTR has slept, so that a driver
 * whose removal cannot fail may repeat it in a loop.
 *
 * Return: the number of pages whose contents are lost; or:
 *
 * * -ENODEV: another call does the same, or has done it
 * * -EINTR: the task was killed, and the mmap lock of a process that maps pages of the memory is
 *   contended; all other pages were saved
 * * -ENOMEM: no page was saved
 * * -EDEADLK
 */
long rust_hmm_memory_unplug(struct rust_hmm_memory *memory);

/**
 * rust_hmm_memory_usage() - report the use of device memory
 * @memory: the memory
 * @usage: filled with the numbers of pages
 *
 * Context: any.
 */
void rust_hmm_memory_usage(struct rust_hmm_memory *memory, struct rust_hmm_usage *usage);

/**
 * rust_hmm_copy_done() - complete a copy job
 * @job: the job. The library owns it again, and the driver must no longer access its pages
 * @error: 0, or a negative error number; after an error the page is not migrated and keeps its
 *	contents
 *
 * With @error 0 the driver states that the whole destination was written. The library cannot check
 * this: if it was not, the process reads the previous contents of the new page, which may be data
 * of another process.
 *
 * Context: any but NMI. May be called in hard interrupts, in the callback of a fence, and with
 * interrupts disabled. Allocates and frees no memory.
 *
 * Return: 0, or -EINVAL if this structure was passed before.
 */
int rust_hmm_copy_done(struct rust_hmm_copy_job *job, int error);

/**
 * rust_hmm_copy_cancelled() - check whether the task that waits for a copy was killed
 * @job: a job that is not completed
 *
 * The driver must complete a cancelled job too, with any error.
 *
 * Context: any.
 *
 * Return: true if the job was cancelled.
 */
bool rust_hmm_copy_cancelled(const struct rust_hmm_copy_job *job);

/* Mirrors */

/* Flags of struct rust_hmm_mirror_ops. */
#define RUST_HMM_FLUSH_SLEEPS	1U

/**
 * struct rust_hmm_mirror_ops - driver callbacks for a mirror
 * @size: sizeof(struct rust_hmm_mirror_ops); the library refuses drivers that were built with
 *	another version of the header
 * @flags: %RUST_HMM_FLUSH_SLEEPS if @flush_wait may sleep. The OOM reaper cannot wait, so it then
 *	skips mirrored ranges; the process frees them itself when it exits
 * @reserved: 0
 * @flush_start: start to invalidate the device's TLBs for the range, after entries were removed or
 *	write-protected. The return value is passed to @flush_wait. NULL if the device has no TLB.
 *	Called with the table lock held; must not allocate with reclaim, nor wait for the mmap lock
 * @flush_wait: wait until the device uses no invalidated translation. Called once for each
 *	@flush_start, by the same task or by another one. NULL if there is nothing to wait for.
 *	Called with or without the table lock; the restrictions of @flush_start apply; may sleep
 *	only with %RUST_HMM_FLUSH_SLEEPS
 */
struct rust_hmm_mirror_ops {
	size_t size;
	u32 flags;
	u32 reserved;
	unsigned long (*flush_start)(void *data, unsigned long start, unsigned long end);
	void (*flush_wait)(void *data, unsigned long flush);
};

/**
 * rust_hmm_mirror_create() - mirror an address space into a device page table
 * @mm: the address space, such as current->mm. The caller holds a reference to its users (mmget())
 *	for the duration of the call only
 * @ops: driver callbacks for the mirror
 * @data: passed to the callbacks
 * @memory: the device's memory, which must be destroyed after the mirror; NULL if the device has
 *	none
 *
 * The mirror holds no reference to the users of @mm. After the process has exited, functions that
 * need the address space return -EFAULT.
 *
 * Return: the mirror, or ERR_PTR():
 *
 * * -EINVAL: @mm is NULL (a kernel thread), or @ops->size, flags or reserved are wrong
 * * -ENOMEM
 * * -EINTR: the task was killed
 * * -EDEADLK
 */
struct rust_hmm_mirror *rust_hmm_mirror_create(struct mm_struct *mm,
					       const struct rust_hmm_mirror_ops *ops, void *data,
					       struct rust_hmm_memory *memory);

/**
 * rust_hmm_mirror_destroy() - destroy a mirror
 * @mirror: the mirror, invalid after a return of 0; NULL and ERR_PTR() are ignored
 *
 * Waits for running callbacks, then removes and flushes the remaining entries. No callback in @ops
 * is called after it returns.
 *
 * Return: 0, or -EDEADLK if it is called from a callback or the task holds the table lock; then
 * nothing was changed.
 */
int rust_hmm_mirror_destroy(struct rust_hmm_mirror *mirror);

/**
 * rust_hmm_mirror_alive() - check whether the address space still has users
 * @mirror: the mirror
 *
 * The process may exit right after the check.
 *
 * Context: any.
 *
 * Return: true if the address space has users.
 */
bool rust_hmm_mirror_alive(struct rust_hmm_mirror *mirror);

/* Flags of rust_hmm_fault() and rust_hmm_serve(). */
#define RUST_HMM_WRITE		1U

/**
 * rust_hmm_fault() - handle a device fault: map a range as a CPU access would
 * @mirror: the mirror
 * @start: start address
 * @end: end address (exclusive)
 * @flags: %RUST_HMM_WRITE, or 0 for a read access
 *
 * Maps each page where it is, with the access rights of its CPU PTE. A concurrent invalidation may
 * remove the entries before this function returns. A driver therefore looks them up with
 * rust_hmm_table_lookup() under the table lock, and faults again after -ENOENT.
 *
 * Return: 0, or one of these errors, after which entries that were installed before remain:
 *
 * * -EFAULT: an address is not mapped, not readable, in a special mapping (VM_IO, VM_PFNMAP), or
 *   its contents were lost with the device; or the process has exited
 * * -EPERM: an address is not writable
 * * -ERANGE: the range exceeds the 48-bit addresses of the device page table
 * * -EBUSY: the range was invalidated concurrently for more than 1 s and 100 attempts
 * * -EINTR: the task was killed
 * * -ENODEV: rust_hmm_memory_unplug() was called
 * * -ENOMEM, -EINVAL, -EDEADLK
 */
int rust_hmm_fault(struct rust_hmm_mirror *mirror, unsigned long start, unsigned long end,
		   u32 flags);

/**
 * enum rust_hmm_policy - selects the pages that rust_hmm_serve() migrates to the device
 * @RUST_HMM_ATTRIBUTES: only pages whose attributes request device memory
 * @RUST_HMM_TOUCHED: the faulting pages
 * @RUST_HMM_DENSITY: the faulting pages and their neighbours in densely used regions; pages that
 *	thrash remain in place for some time
 */
enum rust_hmm_policy {
	RUST_HMM_ATTRIBUTES = 0,
	RUST_HMM_TOUCHED = 1,
	RUST_HMM_DENSITY = 2,
};

/**
 * struct rust_hmm_served - outcome of rust_hmm_serve()
 * @moved: pages that were migrated to the device
 * @in_place: 1 if the policy mapped pages in place although they could be migrated
 */
struct rust_hmm_served {
	unsigned long moved;
	unsigned long in_place;
};

/**
 * rust_hmm_serve() - handle a device fault according to range attributes and a policy
 * @mirror: the mirror
 * @start: start address
 * @end: end address (exclusive)
 * @flags: %RUST_HMM_WRITE, or 0 for a read access
 * @policy: an enum rust_hmm_policy
 * @served: filled with the outcome, or NULL
 *
 * Migrates pages to the device if the attributes or the policy request it, then maps the range as
 * rust_hmm_fault() does. The migration is best effort: pages that cannot be migrated are mapped in
 * place. The longer the call takes, the more likely a concurrent invalidation has removed entries
 * when it returns. A caller that finds the first page missing should therefore retry with a smaller
 * range.
 *
 * Return: as rust_hmm_fault(); -EINVAL also for an unknown policy.
 */
int rust_hmm_serve(struct rust_hmm_mirror *mirror, unsigned long start, unsigned long end,
		   u32 flags, u32 policy, struct rust_hmm_served *served);

/**
 * rust_hmm_discard() - unmap a range from the device
 * @mirror: the mirror
 * @start: start address
 * @end: end address (exclusive)
 *
 * Removes the entries and waits for the flush. Pages in device memory are not migrated.
 *
 * Return: 0; -EINVAL; -EDEADLK.
 */
int rust_hmm_discard(struct rust_hmm_mirror *mirror, unsigned long start, unsigned long end);

/**
 * rust_hmm_table_lock() - take the table lock, which keeps entries and their pages stable
 * @mirror: the mirror
 *
 * While it holds the lock, the task must not access user memory, allocate memory with reclaim, or
 * call a function that waits.
 *
 * Return: 0, or -EDEADLK if it is called from a callback or the task already holds a table lock.
 */
int rust_hmm_table_lock(struct rust_hmm_mirror *mirror);

/**
 * rust_hmm_table_unlock() - release the table lock
 * @mirror: the mirror
 *
 * Context: the task that took the lock.
 *
 * Return: 0, or -EPERM if the task does not hold the lock; then nothing was changed.
 */
int rust_hmm_table_unlock(struct rust_hmm_mirror *mirror);

/**
 * rust_hmm_table_lookup() - look up the entry of an address in the device page table
 * @mirror: the mirror, whose table lock the task holds
 * @addr: the address
 * @flags: %RUST_HMM_WRITE, or 0 for a read access
 * @place: filled with the location of one page, %RUST_HMM_CPU or %RUST_HMM_DEVICE. The caller may
 *	access it until it releases the lock, and may write to it only if it passed
 *	%RUST_HMM_WRITE. The table lock protects the page, so no reference is taken
 *
 * Context: the table lock is held.
 *
 * Return:
 * * 0: @place is valid
 * * -ENOENT: no entry permits the access; release the lock and fault
 * * -EPERM: the task does not hold the lock
 * * -EINVAL: unknown flag
 */
int rust_hmm_table_lookup(struct rust_hmm_mirror *mirror, unsigned long addr, u32 flags,
			  struct rust_hmm_place *place);

/**
 * enum rust_hmm_location - location of a page according to its CPU PTE
 * @RUST_HMM_IS_NONE: no page is mapped, or it is private memory of another device
 * @RUST_HMM_IS_SYSTEM: system memory
 * @RUST_HMM_IS_ZERO: the zero page
 * @RUST_HMM_IS_DEVICE: memory of this device
 * @RUST_HMM_IS_REMOTE: coherent memory of another device
 * @RUST_HMM_IS_ERROR: the page cannot be accessed
 */
enum rust_hmm_location {
	RUST_HMM_IS_NONE = 0,
	RUST_HMM_IS_SYSTEM = 1,
	RUST_HMM_IS_ZERO = 2,
	RUST_HMM_IS_DEVICE = 3,
	RUST_HMM_IS_REMOTE = 4,
	RUST_HMM_IS_ERROR = 5,
};

/**
 * struct rust_hmm_residency - CPU mapping of a page
 * @location: an enum rust_hmm_location
 * @writable: 1 if the CPU can write to it without a fault
 * @order: order of the CPU mapping
 * @reserved: 0
 */
struct rust_hmm_residency {
	u8 location;
	u8 writable;
	u8 order;
	u8 reserved;
};

/**
 * rust_hmm_snapshot() - report the locations of the pages of a range, without faulting them in
 * @mirror: the mirror
 * @start: start address
 * @end: end address (exclusive)
 * @pages: array in kernel memory with one element for each page of the range; all are written
 *
 * Return: 0; -EFAULT if the process has exited; or -EBUSY, -EINTR, -ENOMEM, -EINVAL, -EDEADLK as
 * for rust_hmm_fault(). After an error the elements that were filled before are valid, and the
 * others are %RUST_HMM_IS_NONE.
 */
int rust_hmm_snapshot(struct rust_hmm_mirror *mirror, unsigned long start, unsigned long end,
		      struct rust_hmm_residency *pages);

/**
 * enum rust_hmm_counter - statistics counters; in pages of the CPU
 * @RUST_HMM_MAPPED_PAGES: entries that device faults installed or changed
 * @RUST_HMM_INVALIDATIONS: invalidation callbacks
 * @RUST_HMM_INVALIDATED_PAGES: entries that were removed or write-protected
 * @RUST_HMM_TO_DEVICE: pages that were migrated to the device
 * @RUST_HMM_TO_SYSTEM: pages that were migrated to system memory at the driver's request
 * @RUST_HMM_SKIPPED: pages that could not be migrated
 * @RUST_HMM_RETRIES: attempts of a fault that had to be repeated because of a concurrent
 *	invalidation
 * @RUST_HMM_SWITCHED: pages that were migrated under a valid entry, which was replaced without a
 *	fault
 * @RUST_HMM_CPU_FAULTS: CPU faults on device memory (memory only)
 * @RUST_HMM_CPU_FAULT_PAGES: pages that CPU faults migrated back (memory only)
 * @RUST_HMM_EVICTED: evicted pages (memory only)
 */
enum rust_hmm_counter {
	RUST_HMM_MAPPED_PAGES = 0,
	RUST_HMM_INVALIDATIONS = 1,
	RUST_HMM_INVALIDATED_PAGES = 2,
	RUST_HMM_TO_DEVICE = 3,
	RUST_HMM_TO_SYSTEM = 4,
	RUST_HMM_SKIPPED = 5,
	RUST_HMM_RETRIES = 6,
	RUST_HMM_SWITCHED = 7,
	RUST_HMM_CPU_FAULTS = 8,
	RUST_HMM_CPU_FAULT_PAGES = 9,
	RUST_HMM_EVICTED = 10,
};

/**
 * rust_hmm_mirror_counter() - read a counter of a mirror
 * @mirror: the mirror
 * @counter: an enum rust_hmm_counter
 *
 * Context: any.
 *
 * Return: the value, or 0 for an unknown counter.
 */
u64 rust_hmm_mirror_counter(struct rust_hmm_mirror *mirror, u32 counter);

/**
 * rust_hmm_memory_counter() - read a counter of a memory
 * @memory: the memory
 * @counter: an enum rust_hmm_counter
 *
 * Context: any.
 *
 * Return: the value, or 0 for an unknown counter.
 */
u64 rust_hmm_memory_counter(struct rust_hmm_memory *memory, u32 counter);

/* Migration */

/**
 * enum rust_hmm_target - destination of a migration
 * @RUST_HMM_TO_THE_DEVICE: device memory; the source is anonymous memory, including holes
 * @RUST_HMM_TO_THE_SYSTEM: system memory; the source is memory of this device
 */
enum rust_hmm_target {
	RUST_HMM_TO_THE_DEVICE = 0,
	RUST_HMM_TO_THE_SYSTEM = 1,
};

/* Flags of struct rust_hmm_migration. */
/* Remove device entries before the copy. By default the device can still read during the copy. */
#define RUST_HMM_ORDINARY	1U
/* Do not evict other pages to make room in device memory. */
#define RUST_HMM_NO_EVICTION	2U

/**
 * enum rust_hmm_page_outcome - outcome of a migration for one page
 * @RUST_HMM_PAGE_NONE: nothing to migrate: no page is mapped, or it is already at the destination
 * @RUST_HMM_PAGE_SKIPPED: not migrated: pinned, shared, file-backed, merged by KSM, or changed
 *	concurrently
 * @RUST_HMM_PAGE_NO_MEMORY: not migrated: no memory at the destination
 * @RUST_HMM_PAGE_COPY_FAILED: not migrated: the copy failed
 * @RUST_HMM_PAGE_MOVED: migrated; the device had no entry for it
 * @RUST_HMM_PAGE_SWITCHED: migrated; the device's entry was replaced without a fault
 * @RUST_HMM_PAGE_LOST: migrated; the device's entry was removed, so that its next access faults
 */
enum rust_hmm_page_outcome {
	RUST_HMM_PAGE_NONE = 0,
	RUST_HMM_PAGE_SKIPPED = 1,
	RUST_HMM_PAGE_NO_MEMORY = 2,
	RUST_HMM_PAGE_COPY_FAILED = 3,
	RUST_HMM_PAGE_MOVED = 4,
	RUST_HMM_PAGE_SWITCHED = 5,
	RUST_HMM_PAGE_LOST = 6,
};

/**
 * struct rust_hmm_migration - parameters of rust_hmm_migrate()
 * @target: an enum rust_hmm_target
 * @flags: %RUST_HMM_ORDINARY, %RUST_HMM_NO_EVICTION
 * @pages: array in kernel memory for the outcome of each page, an enum rust_hmm_page_outcome in a
 *	byte; or NULL
 * @npages: number of elements in @pages; the outcome of further pages in the range is not reported
 * @stop: cancellation token of the queued operation that calls rust_hmm_migrate(), or NULL. Copies
 *	that have not started are cancelled when the queue is destroyed
 */
struct rust_hmm_migration {
	u32 target;
	u32 flags;
	u8 *pages;
	unsigned long npages;
	const struct rust_hmm_stop *stop;
};

/**
 * struct rust_hmm_outcome - summary of a migration, in pages of the CPU
 * @moved: pages that were migrated
 * @switched: those of @moved whose device entry was replaced without a fault
 * @entries: CPU PTEs and PMDs that were migrated and had contents; a huge page counts once
 * @skipped: pages that could not be migrated: pinned, shared, file-backed, merged, or changed
 *	concurrently
 * @no_memory: pages that were not migrated for lack of memory at the destination
 * @copy_failed: pages whose copy failed
 */
struct rust_hmm_outcome {
	unsigned long moved;
	unsigned long switched;
	unsigned long entries;
	unsigned long skipped;
	unsigned long no_memory;
	unsigned long copy_failed;
};

/**
 * rust_hmm_migrate() - migrate a range to device memory or to system memory, best effort
 * @mirror: the mirror, which must have memory
 * @start: start address
 * @end: end address (exclusive)
 * @migration: parameters
 * @outcome: filled with the summary, or NULL; all fields are 0 after an error
 *
 * Returns 0 even if only some or none of the pages were migrated. Calls @copy of the memory's
 * operations and waits for the jobs.
 *
 * Return: 0, or one of these errors, after which preceding parts of the range may have been
 * migrated:
 *
 * * -EFAULT: the process has exited
 * * -EINVAL: an address is not mapped, not readable, or in a hugetlb or special mapping; unknown
 *   target or flag
 * * -ERANGE: for a migration to the device: the range exceeds the 48-bit addresses of its table
 * * -ENODEV: the mirror has no memory, or rust_hmm_memory_unplug() was called
 * * -EBUSY: the range kept changing concurrently
 * * -EINTR: the task was killed
 * * -ENOMEM: no memory for the migration itself
 * * -EDEADLK
 */
int rust_hmm_migrate(struct rust_hmm_mirror *mirror, unsigned long start, unsigned long end,
		     const struct rust_hmm_migration *migration, struct rust_hmm_outcome *outcome);

/* Range attributes, set by programs; rust_hmm_serve() places memory according to them. */

#define RUST_HMM_HAS_PREFERRED		1U
#define RUST_HMM_HAS_ACCESSED_BY	2U
#define RUST_HMM_HAS_READ_MOSTLY	4U
#define RUST_HMM_HAS_NEVER_MIGRATE	8U
#define RUST_HMM_HAS_GRANULARITY	16U

/* Values of @preferred. */
#define RUST_HMM_PREFER_ANY	0
#define RUST_HMM_PREFER_DEVICE	1
#define RUST_HMM_PREFER_SYSTEM	2
#define RUST_HMM_PREFER_OTHER	3	/* another device of the process; cannot be set */

/**
 * struct rust_hmm_attributes - attributes of a range
 * @valid: RUST_HMM_HAS_* flags. For set: the attributes to change; the other fields are ignored.
 *	For get: the attributes that are equal in the whole range; the other fields are 0
 * @preferred: preferred location, one of RUST_HMM_PREFER_*
 * @accessed_by: 1 if the device should keep the range mapped, wherever its pages are
 * @read_mostly: 1 if the range is mostly read: a read fault of the device maps pages in place and
 *	does not migrate them; on a write fault the policy decides
 * @never_migrate: 1 if the range must not be migrated to the device
 * @granularity: order of the folios that faults migrate, 0 to that of a PMD (9 with
 *	pages of 4 KiB, 11 with 16 KiB); -1 if the policy decides
 * @reserved: 0
 */
struct rust_hmm_attributes {
	u32 valid;
	u8 preferred;
	u8 accessed_by;
	u8 read_mostly;
	u8 never_migrate;
	s8 granularity;
	u8 reserved[3];
};

/**
 * rust_hmm_attributes_set() - change attributes of a range
 * @mirror: the mirror
 * @start: start address
 * @end: end address (exclusive)
 * @attributes: attributes to change, as selected by @valid
 *
 * The whole range must be mapped. Attributes belong to the process: all mirrors of the address
 * space share them, also mirrors of other devices. RUST_HMM_PREFER_DEVICE and @accessed_by refer to
 * the device of @mirror and do not change @accessed_by of other devices. Settings that refer to a
 * device are dropped when its last mirror of the process is destroyed. Attributes follow a mapping
 * that is moved by mremap(), are removed when it is unmapped, and are not inherited across fork().
 *
 * Return:
 * * 0: all attributes were changed
 * * -EINVAL: a value is invalid
 * * -EFAULT: a part of the range is not mapped, or the process has exited; the part before it was
 *   changed
 * * -ENOSPC: the process has more than 1023 different sets of attributes, or refers to more than 64
 *   devices; a part of the range may have been changed
 * * -ENOMEM, -EINTR, -EDEADLK
 */
int rust_hmm_attributes_set(struct rust_hmm_mirror *mirror, unsigned long start, unsigned long end,
			    const struct rust_hmm_attributes *attributes);

/**
 * rust_hmm_attributes_clear() - reset all attributes of a range to their defaults
 * @mirror: the mirror
 * @start: start address
 * @end: end address (exclusive)
 *
 * Return: as rust_hmm_attributes_set().
 */
int rust_hmm_attributes_clear(struct rust_hmm_mirror *mirror, unsigned long start,
			      unsigned long end);

/**
 * rust_hmm_attributes_get() - read the attributes that are equal in a whole range
 * @mirror: the mirror
 * @start: start address
 * @end: end address (exclusive)
 * @attributes: filled with the attributes
 *
 * Addresses that are not mapped have the default attributes.
 *
 * Return: 0; -EINVAL; -EFAULT if the process has exited; -EINTR; -EDEADLK.
 */
int rust_hmm_attributes_get(struct rust_hmm_mirror *mirror, unsigned long start, unsigned long end,
			    struct rust_hmm_attributes *attributes);

/*
 * Fences of operations that may fault, take an mmap lock or wait for user space. They are not DMA
 * fences, and no function converts one to a struct dma_fence or a sync file
 * (Documentation/driver-api/dma-buf.rst, "Indefinite DMA Fences"). A driver whose hardware works on
 * pinned memory creates its DMA fences with dma_fence_init().
 */

/**
 * rust_hmm_fence_create() - create a fence that the driver signals
 * @kind: identifies the type of device that signals the fence: the address of an object of the
 *	driver, such as a static variable, which is never dereferenced; or NULL
 *
 * The caller owns a reference. It must ensure that rust_hmm_fence_signal_once() is called, also if
 * the operation behind the fence is abandoned.
 *
 * Return: the fence, or ERR_PTR(-ENOMEM).
 */
struct rust_hmm_fence *rust_hmm_fence_create(const void *kind);

/**
 * rust_hmm_fence_get() - take a reference to a fence
 * @fence: the fence
 *
 * Context: any.
 */
void rust_hmm_fence_get(struct rust_hmm_fence *fence);

/**
 * rust_hmm_fence_put() - drop a reference to a fence
 * @fence: the fence; NULL and ERR_PTR() are ignored
 *
 * Context: any, including interrupt context.
 */
void rust_hmm_fence_put(struct rust_hmm_fence *fence);

/**
 * rust_hmm_fence_signal_once() - signal a fence of rust_hmm_fence_create()
 * @fence: the fence; the caller keeps its reference
 * @error: 0, or the negative error number with which the operation failed
 *
 * Context: any, including interrupt context. If several callers race, only one of them gets 0.
 *
 * Return:
 * * 0: the fence was signalled by this call
 * * -EPERM: the fence was not created by rust_hmm_fence_create(): it belongs to an operation of a
 *   queue, or wraps a DMA fence
 * * -EINVAL: @fence is NULL or already signalled, or @error is not an error number
 */
int rust_hmm_fence_signal_once(struct rust_hmm_fence *fence, int error);

/**
 * rust_hmm_fence_wait_for() - wait until a fence is signalled
 * @fence: the fence; NULL counts as signalled
 * @ms: timeout in ms; a negative value waits without a timeout
 *
 * Context: may sleep. The caller must not hold a lock that is taken before the fence is signalled.
 * Only fatal signals interrupt the wait.
 *
 * Return: 0; the error of the fence; -ETIMEDOUT; -EINTR if the task was killed; -EDEADLK; -ENOMEM.
 */
int rust_hmm_fence_wait_for(struct rust_hmm_fence *fence, long ms);

/**
 * rust_hmm_fence_eventfd() - signal an eventfd when a fence is signalled
 * @fence: the fence
 * @fd: file descriptor of the eventfd in the current process
 *
 * Adds 1 to the eventfd when the fence is signalled, or immediately if it already is. The library
 * holds a reference to the eventfd until the last reference to the fence is dropped. The fence may
 * be observed as signalled shortly before the eventfd is: wait for the eventfd with poll().
 *
 * Return: 0; -EBADF if @fd is not open; -EINVAL if it is not an eventfd, or @fence is NULL; -EBUSY
 * if the fence already has four eventfds.
 */
int rust_hmm_fence_eventfd(struct rust_hmm_fence *fence, int fd);

/**
 * struct rust_hmm_fence_watch - callback for the signalling of a fence
 * @entry: private to the library
 * @signalled: the callback. Called in any context, possibly with interrupts disabled, and with a
 *	lock of the fence held. It may wake tasks, as wake_up() does. It must not call functions on
 *	this fence
 * @data: argument of the callback
 *
 * For drivers whose device node reports fences through poll(), or that have a callback mechanism of
 * their own.
 */
struct rust_hmm_fence_watch {
	struct list_head entry;
	void (*signalled)(void *data);
	void *data;
};

/**
 * rust_hmm_fence_watch() - register a callback for the signalling of a fence
 * @fence: the fence; the caller keeps a reference until it calls rust_hmm_fence_unwatch()
 * @watch: with @signalled and @data set; must stay valid and in place until
 *	rust_hmm_fence_unwatch()
 *
 * The callback runs once: immediately if the fence is signalled, otherwise from the signalling
 * context or shortly afterwards in a worker.
 *
 * Context: any, including interrupt context.
 */
void rust_hmm_fence_watch(struct rust_hmm_fence *fence, struct rust_hmm_fence_watch *watch);

/**
 * rust_hmm_fence_unwatch() - unregister a callback
 * @fence: the fence
 * @watch: the registered structure
 *
 * After it returns, the callback is not running and will not be called.
 *
 * Context: any, including interrupt context, but not from the callback.
 */
void rust_hmm_fence_unwatch(struct rust_hmm_fence *fence, struct rust_hmm_fence_watch *watch);

/**
 * rust_hmm_fence_from_dma() - create a fence that is signalled when a DMA fence is
 * @dma: DMA fence of any driver; the library takes a reference
 *
 * Return: the fence, to which the caller owns a reference, or ERR_PTR(): -EINVAL if @dma is NULL;
 * -ENOMEM.
 */
struct rust_hmm_fence *rust_hmm_fence_from_dma(struct dma_fence *dma);

/**
 * rust_hmm_fence_from_file() - create a fence that is signalled when the fence of a sync file is
 * @fd: file descriptor of the sync file in the current process
 *
 * Return: the fence, to which the caller owns a reference, or ERR_PTR(): -EBADF if @fd is not a
 * sync file; -ENOMEM.
 */
struct rust_hmm_fence *rust_hmm_fence_from_file(int fd);

/* Queues: a thread of the queue runs operations in order, each after the fences it depends on. */

/**
 * rust_hmm_queue_create() - create a queue
 * @kind: as for rust_hmm_fence_create(); applies to the fences of the queue
 * @depth: maximum number of queued items
 *
 * Return: the queue, or ERR_PTR(): -EINVAL if @depth is 0 or more than 65536; -ENOMEM; -EINTR.
 */
struct rust_hmm_queue *rust_hmm_queue_create(const void *kind, unsigned int depth);

/**
 * rust_hmm_queue_destroy() - destroy a queue
 * @queue: the queue, invalid after a return of 0; NULL and ERR_PTR() are ignored
 *
 * Requests the running operation to stop (rust_hmm_stopped()), waits for it, and cancels the queued
 * ones: their fences fail with -ECANCELED. Destroy queues before the mirrors that their operations
 * use.
 *
 * Return: 0, or -EDEADLK if it is called from a callback or from an operation of this queue; then
 * nothing was changed.
 */
int rust_hmm_queue_destroy(struct rust_hmm_queue *queue);

/**
 * rust_hmm_queue_submit() - queue an operation that depends on fences
 * @queue: the queue
 * @after: fences to wait for; the library takes references, and skips NULL elements
 * @count: number of elements in @after
 * @run: the operation. Returns 0 or a negative error number, with which the fence is signalled. It
 *	polls @stop and returns -ECANCELED when rust_hmm_stopped() is true. Called in a thread of
 *	the queue; may sleep, and may call every function of this header except
 *	rust_hmm_queue_destroy() for this queue
 * @release: frees @data. Called once, whether @run was called or not, before the fence is
 *	signalled; may sleep. May be NULL
 * @data: passed to @run and @release. The library owns it from the call on, also if the call fails:
 *	then @release has been called before it returns
 *
 * The operation runs after all operations that were queued before. If a fence in @after fails, @run
 * is not called, and the returned fence fails with the same error.
 *
 * Return: a fence that is signalled when the operation is completed, to which the caller owns a
 * reference, or ERR_PTR(): -EBUSY if the queue is full; -EINVAL if @run is NULL; -ENOMEM.
 */
struct rust_hmm_fence *rust_hmm_queue_submit(struct rust_hmm_queue *queue,
					     struct rust_hmm_fence *const *after,
					     unsigned int count,
					     int (*run)(void *data, const struct rust_hmm_stop *stop),
					     void (*release)(void *data), void *data);

/**
 * rust_hmm_queue_record() - create a fence for all operations that were queued before
 * @queue: the queue
 *
 * The fence is signalled when these operations are completed. It fails with the first error since
 * the previous record.
 *
 * Return: the fence, to which the caller owns a reference, or ERR_PTR(): -EBUSY if the queue is
 * full; -ENOMEM.
 */
struct rust_hmm_fence *rust_hmm_queue_record(struct rust_hmm_queue *queue);

/**
 * rust_hmm_queue_wait() - delay operations that are queued later until a fence is signalled
 * @queue: the queue
 * @fence: the fence; the library takes a reference. If it fails, so do all operations up to the
 *	next record
 *
 * Does not block the caller.
 *
 * Return: 0, or -EBUSY if the queue is full.
 */
int rust_hmm_queue_wait(struct rust_hmm_queue *queue, struct rust_hmm_fence *fence);

/**
 * rust_hmm_stopped() - check whether an operation should stop because its queue is being destroyed
 * @stop: the token that was passed to @run; valid while @run executes
 *
 * Context: any.
 *
 * Return: true if the operation should stop.
 */
bool rust_hmm_stopped(const struct rust_hmm_stop *stop);

#endif /* _RUST_HMM_H */
