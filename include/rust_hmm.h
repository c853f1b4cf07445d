/* SPDX-License-Identifier: GPL-2.0 */
/*
 * rust_hmm for drivers in C: mirrors, device memory, migration, attributes, fences and queues.
 *
 * The guide is Documentation/c-guide.rst. What holds for all functions, unless theirs says otherwise:
 *
 * - Context: a task that may sleep, with no lock held that a page fault, reclaim or a callback of
 *   the driver takes. Within a callback of the library, and between rust_hmm_table_lock() and
 *   rust_hmm_table_unlock(), functions that wait fail with -EDEADLK.
 * - A range [start, end) is in bytes, page-aligned and not empty: else -EINVAL.
 * - Functions that return an int return 0 or a negative error number; functions that return a
 *   pointer return ERR_PTR() of one, never NULL.
 * - What a *_create() function has returned is the driver's until it calls the *_destroy()
 *   function, once, while nothing else uses it. Tables of operations are copied: they need not
 *   outlive the call. Whatever @data points to is the driver's, and must live until destroy has
 *   returned 0.
 * - The functions in a table of operations are called by any task, several at a time.
 */
#ifndef _RUST_HMM_H
#define _RUST_HMM_H

#include <linux/compiler.h>
#include <linux/types.h>

/*
 * The library exports a symbol that is named after the contents of its header. Each object that
 * includes this header needs it, so that a module that was built with another header does not load.
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

/* Where pages are */

/**
 * enum rust_hmm_where - what kind of place
 * @RUST_HMM_NOWHERE: nothing; as the source of a copy: the destination is to be filled with zeros
 * @RUST_HMM_CPU: memory that the CPU addresses, by its page frame numbers
 * @RUST_HMM_DEVICE: the device's memory, by its device page numbers, which count from 0
 */
enum rust_hmm_where {
	RUST_HMM_NOWHERE = 0,
	RUST_HMM_CPU = 1,
	RUST_HMM_DEVICE = 2,
};

/**
 * struct rust_hmm_place - consecutive pages
 * @kind: an enum rust_hmm_where
 * @reserved: 0
 * @first: number of the first page
 * @pages: how many
 */
struct rust_hmm_place {
	u32 kind;
	u32 reserved;
	unsigned long first;
	unsigned long pages;
};

/* The device's memory */

/**
 * struct rust_hmm_copy_job - a copy that the driver is to do
 * @source: where the contents come from; with %RUST_HMM_NOWHERE, zeros
 * @destination: where they go, of as many pages: 1 or 512
 *
 * A driver that does the copy later keeps the job by assigning the structure. Only one of the two is
 * then handed to rust_hmm_copy_done(), once.
 */
struct rust_hmm_copy_job {
	struct rust_hmm_place source;
	struct rust_hmm_place destination;
	/* private: */
	void *state;
	unsigned long index;
};

/**
 * struct rust_hmm_memory_ops - what a driver does for its memory
 * @size: sizeof(struct rust_hmm_memory_ops), so that a driver that was built with another header
 *	is refused
 * @copy: copy, or fill with zeros: at once, or later by any thread. Whoever does it calls
 *	rust_hmm_copy_done(). The migration waits until all of its jobs are done, and a job of which this
 *	is forgotten blocks its process for ever. Nobody changes the source meanwhile. Context: the
 *	mmap lock is held and the pages are locked; may sleep. Neither this nor who does the copy
 *	later may take a table lock, or a lock under which memory is allocated, or allocate with
 *	reclaim (GFP_NOWAIT is fine).
 * @kick: all jobs of a step were handed over: start what was queued. May be NULL. Context: as @copy
 * @cancelled: the task that waits was killed: jobs for which rust_hmm_copy_cancelled() is true should
 *	end now, with an error. May be NULL. Context: as @copy
 * @freed: @pages device pages from @first on are about to be free. May be NULL. Context: any, also
 *	interrupts; calls nothing of the library
 */
struct rust_hmm_memory_ops {
	size_t size;
	void (*copy)(void *data, struct rust_hmm_copy_job *job);
	void (*kick)(void *data);
	void (*cancelled)(void *data);
	void (*freed)(void *data, unsigned long first, unsigned long pages);
};

/**
 * struct rust_hmm_usage - how full a device's memory is, in pages
 * @used: in use
 * @total: that there are by now: memory is registered with the kernel when it is needed
 * @limit: most that there can be
 */
struct rust_hmm_usage {
	unsigned long used;
	unsigned long total;
	unsigned long limit;
};

/**
 * rust_hmm_memory_create() - prepare memory that the CPU cannot address
 * @ops: what the driver does for it
 * @data: handed to @ops
 * @pages: most pages of 4 KiB that there can be, a multiple of 512: a device page number is below that
 *
 * The kernel's pages for it (MEMORY_DEVICE_PRIVATE) are made when they are needed.
 *
 * Return: the memory, or ERR_PTR(): -EINVAL if @pages is 0, no multiple of 512 or more than there are
 * physical addresses, @ops->size is wrong or @ops->copy is NULL; -ENOMEM.
 */
struct rust_hmm_memory *rust_hmm_memory_create(const struct rust_hmm_memory_ops *ops, void *data,
					       unsigned long pages);

/**
 * rust_hmm_memory_destroy() - bring all pages back to their processes, and end the memory
 * @memory: not used any more after a return of 0; NULL or ERR_PTR() is ignored
 *
 * Mirrors use the memory that they were made with: they are destroyed before. Calls @ops->copy until the
 * last page has gone, whatever signals come.
 *
 * Return: 0; -EBUSY if there is a mirror, -EDEADLK within a callback: then nothing has happened.
 */
int rust_hmm_memory_destroy(struct rust_hmm_memory *memory);

/**
 * rust_hmm_memory_evict() - bring all pages back, for example before the device sleeps
 * @memory: the memory
 *
 * Return: pages that stay, because somebody holds them or takes new ones; -EINTR if the task was killed;
 * -ENOMEM; -EDEADLK.
 */
long rust_hmm_memory_evict(struct rust_hmm_memory *memory);

/**
 * rust_hmm_memory_unplug() - the device is gone, or about to go
 * @memory: the memory
 *
 * All mirrors lose their entries, what can still be read is saved, and functions that need the device
 * fail with -ENODEV from now on. A CPU that touches what could not be saved gets SIGBUS. The memory and
 * its mirrors are still to be destroyed.
 *
 * Return: pages that were not saved; -ENODEV if it was called before; -ENOMEM; -EDEADLK.
 */
long rust_hmm_memory_unplug(struct rust_hmm_memory *memory);

/**
 * rust_hmm_memory_usage() - how full it is
 * @memory: the memory
 * @usage: where to write that
 *
 * Context: any.
 */
void rust_hmm_memory_usage(struct rust_hmm_memory *memory, struct rust_hmm_usage *usage);

/**
 * rust_hmm_copy_done() - a copy was done, or has failed
 * @job: the job, which is the library's again; the pages that it names are no longer the driver's to
 *	touch
 * @error: 0, or a negative error number: then the page stays where it is, with its contents
 *
 * 0 says that all of the destination was written. The library cannot check that: if it was not, the process reads what
 * the new page held before, which may be another process's data.
 *
 * Context: a task; takes no lock but one that is only held for moments.
 *
 * Return: 0; -EINVAL if this very structure was handed over before.
 */
int rust_hmm_copy_done(struct rust_hmm_copy_job *job, int error);

/**
 * rust_hmm_copy_cancelled() - whether nobody needs the copy any more
 * @job: a job that is not done
 *
 * The job is to be ended all the same.
 *
 * Context: any.
 *
 * Return: true if it was cancelled.
 */
bool rust_hmm_copy_cancelled(const struct rust_hmm_copy_job *job);

/* Mirrors */

/* Flags of struct rust_hmm_mirror_ops. */
#define RUST_HMM_FLUSH_SLEEPS	1U

/**
 * struct rust_hmm_mirror_ops - what a driver does for a mirror
 * @size: sizeof(struct rust_hmm_mirror_ops), so that a driver that was built with another header
 *	is refused
 * @flags: %RUST_HMM_FLUSH_SLEEPS if @flush_wait may sleep: then the OOM reaper, which must not wait, leaves
 *	what is mirrored to the process itself
 * @reserved: 0
 * @flush_start: entries of the range were removed or write-protected: have the device forget what its TLBs
 *	hold of it. Returns what @flush_wait is to get. NULL if there is no TLB. Context: the table lock
 *	is held; must not allocate with reclaim, nor wait for the mmap lock
 * @flush_wait: wait until the device uses nothing of that any more. Called once for each @flush_start, by the
 *	same or another task. NULL if there is nothing to wait for. Context: with or without the table
 *	lock; as @flush_start, and sleeps only with %RUST_HMM_FLUSH_SLEEPS
 */
struct rust_hmm_mirror_ops {
	size_t size;
	u32 flags;
	u32 reserved;
	unsigned long (*flush_start)(void *data, unsigned long start, unsigned long end);
	void (*flush_wait)(void *data, unsigned long flush);
};

/**
 * rust_hmm_mirror_create() - have a device page table follow an address space
 * @mm: the address space, such as current->mm; a user of it must be held during the call only
 * @ops: what the driver does for the mirror
 * @data: handed to @ops
 * @memory: the device's memory, which is destroyed after the mirror, or NULL if it has none
 *
 * The mirror does not keep the address space in use: when the process has ended, functions that need it
 * fail with -EFAULT.
 *
 * Return: the mirror, or ERR_PTR(): -EINVAL if @mm is NULL (a kernel thread), or @ops->size, flags or
 * reserved are wrong; -ENOMEM; -EINTR if the task was killed; -EDEADLK.
 */
struct rust_hmm_mirror *rust_hmm_mirror_create(struct mm_struct *mm,
					       const struct rust_hmm_mirror_ops *ops, void *data,
					       struct rust_hmm_memory *memory);

/**
 * rust_hmm_mirror_destroy() - end a mirror
 * @mirror: not used any more after a return of 0; NULL or ERR_PTR() is ignored
 *
 * Waits for callbacks that run, and flushes what the device still has; none of @ops is called after.
 *
 * Return: 0; -EDEADLK within a callback, or if the task holds the table lock: then nothing has happened.
 */
int rust_hmm_mirror_destroy(struct rust_hmm_mirror *mirror);

/**
 * rust_hmm_mirror_alive() - whether the address space is still in use; it may end right after
 * @mirror: the mirror
 *
 * Context: any.
 *
 * Return: true if it is.
 */
bool rust_hmm_mirror_alive(struct rust_hmm_mirror *mirror);

/* Flags of rust_hmm_fault() and rust_hmm_serve(). */
#define RUST_HMM_WRITE		1U

/**
 * rust_hmm_fault() - make a range accessible to the device, as an access of a CPU would
 * @mirror: the mirror
 * @start: first address
 * @end: first address behind the range
 * @flags: %RUST_HMM_WRITE, or 0 to read
 *
 * Pages are mapped where they are, each with the rights that it has. What was installed may be gone again
 * when the function returns: access goes by rust_hmm_table_lookup(), and after -ENOENT by another fault.
 *
 * Return: 0; -EFAULT if something is not mapped, not readable, special (VM_IO, VM_PFNMAP), lost by the
 * device, or the process is gone; -EPERM if not writable; -ERANGE if it is beyond the 48 bits that the
 * addresses of the device's table have; -EBUSY if it kept changing for a second and 100 tries; -EINTR if
 * the task was killed; -ENODEV after rust_hmm_memory_unplug(); -ENOMEM; -EINVAL; -EDEADLK. What was
 * installed before stays.
 */
int rust_hmm_fault(struct rust_hmm_mirror *mirror, unsigned long start, unsigned long end,
		   u32 flags);

/**
 * enum rust_hmm_policy - what rust_hmm_serve() moves
 * @RUST_HMM_ATTRIBUTES: what attributes want in the device's memory, nothing else
 * @RUST_HMM_TOUCHED: what was touched
 * @RUST_HMM_DENSITY: what was touched, and more of what is used densely; memory that bounces stays
 *	where it is for a while
 */
enum rust_hmm_policy {
	RUST_HMM_ATTRIBUTES = 0,
	RUST_HMM_TOUCHED = 1,
	RUST_HMM_DENSITY = 2,
};

/**
 * struct rust_hmm_served - what became of a fault
 * @moved: pages that moved to the device
 * @in_place: 1 if memory was left where it is on purpose
 */
struct rust_hmm_served {
	unsigned long moved;
	unsigned long in_place;
};

/**
 * rust_hmm_serve() - serve a device fault as attributes and a policy want it
 * @mirror: the mirror
 * @start: first address
 * @end: first address behind the range
 * @flags: %RUST_HMM_WRITE, or 0 to read
 * @policy: an enum rust_hmm_policy
 * @served: where to write what became of it, or NULL
 *
 * Moves memory to the device or not, and then does what rust_hmm_fault() does. Moving is best effort: what
 * cannot move is mapped where it is. The longer it takes, the likelier it is that others have taken pages away
 * again when it returns: who finds the first page missing then asks for fewer.
 *
 * Return: as rust_hmm_fault(); -EINVAL for an unknown policy.
 */
int rust_hmm_serve(struct rust_hmm_mirror *mirror, unsigned long start, unsigned long end,
		   u32 flags, u32 policy, struct rust_hmm_served *served);

/**
 * rust_hmm_discard() - the device no longer needs a range
 * @mirror: the mirror
 * @start: first address
 * @end: first address behind the range
 *
 * Removes the entries and waits for the flush. Pages in the device's memory stay there.
 *
 * Return: 0; -EINVAL; -EDEADLK.
 */
int rust_hmm_discard(struct rust_hmm_mirror *mirror, unsigned long start, unsigned long end);

/**
 * rust_hmm_table_lock() - hold the table lock: what entries name stays until it is released
 * @mirror: the mirror
 *
 * While it is held: user memory is not accessed, no memory is allocated with reclaim, and no function
 * that waits is called.
 *
 * Return: 0; -EDEADLK within a callback, or if the task holds this table lock or another one.
 */
int rust_hmm_table_lock(struct rust_hmm_mirror *mirror);

/**
 * rust_hmm_table_unlock() - release it
 * @mirror: the mirror
 *
 * Context: the task that has locked it.
 *
 * Return: 0; -EPERM if the task does not hold the lock: then nothing has happened.
 */
int rust_hmm_table_unlock(struct rust_hmm_mirror *mirror);

/**
 * rust_hmm_table_lookup() - where the page at an address is, if the device may access it
 * @mirror: the mirror, whose table lock the task holds
 * @addr: the address
 * @flags: %RUST_HMM_WRITE, or 0 to read
 * @place: where to write that: one page, %RUST_HMM_CPU or %RUST_HMM_DEVICE. It is the caller's to
 *	access until the lock is released, and to write only if it was asked for with %RUST_HMM_WRITE. No
 *	reference is taken, and none is needed
 *
 * Context: the table lock is held.
 *
 * Return: 0; -ENOENT if there is no such entry: release the lock and fault; -EPERM if the task does not
 * hold the lock; -EINVAL for an unknown flag.
 */
int rust_hmm_table_lookup(struct rust_hmm_mirror *mirror, unsigned long addr, u32 flags,
			  struct rust_hmm_place *place);

/**
 * enum rust_hmm_location - where the CPU's page table says that a page is
 * @RUST_HMM_IS_NONE: there is nothing, or memory of another device
 * @RUST_HMM_IS_SYSTEM: in system memory
 * @RUST_HMM_IS_ZERO: the zero page
 * @RUST_HMM_IS_DEVICE: in this device's memory
 * @RUST_HMM_IS_REMOTE: in coherent memory of another device
 * @RUST_HMM_IS_ERROR: it cannot be accessed
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
 * struct rust_hmm_residency - what the CPU's page table says of a page
 * @location: an enum rust_hmm_location
 * @writable: 1 if the CPU may write it without a fault
 * @order: order of the CPU's mapping
 * @reserved: 0
 */
struct rust_hmm_residency {
	u8 location;
	u8 writable;
	u8 order;
	u8 reserved;
};

/**
 * rust_hmm_snapshot() - where the pages of a range are, without faulting anything in
 * @mirror: the mirror
 * @start: first address
 * @end: first address behind the range
 * @pages: kernel memory for one structure for each page, all of which are written
 *
 * Return: 0; -EFAULT if the process is gone; -EBUSY, -EINTR, -ENOMEM, -EINVAL, -EDEADLK as
 * rust_hmm_fault(): then what was written so far is true, and the rest is %RUST_HMM_IS_NONE.
 */
int rust_hmm_snapshot(struct rust_hmm_mirror *mirror, unsigned long start, unsigned long end,
		      struct rust_hmm_residency *pages);

/**
 * enum rust_hmm_counter - what is counted, in pages of 4 KiB where it is pages
 * @RUST_HMM_MAPPED_PAGES: entries that device faults installed or changed
 * @RUST_HMM_INVALIDATIONS: invalidation callbacks
 * @RUST_HMM_INVALIDATED_PAGES: entries that were removed or write-protected
 * @RUST_HMM_TO_DEVICE: pages that moved to the device
 * @RUST_HMM_TO_SYSTEM: pages that moved to system memory at the driver's request
 * @RUST_HMM_SKIPPED: pages that a migration had to leave where they were
 * @RUST_HMM_RETRIES: tries of a fault that collided with an invalidation
 * @RUST_HMM_SWITCHED: pages that moved under a valid entry, which was switched without a fault
 * @RUST_HMM_CPU_FAULTS: of a memory: CPU faults on it that were served
 * @RUST_HMM_CPU_FAULT_PAGES: of a memory: pages that they brought back
 * @RUST_HMM_EVICTED: of a memory: pages that were evicted
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
 * rust_hmm_mirror_counter() - a counter of a mirror
 * @mirror: the mirror
 * @counter: an enum rust_hmm_counter
 *
 * Context: any.
 *
 * Return: its value; 0 for one that is not known.
 */
u64 rust_hmm_mirror_counter(struct rust_hmm_mirror *mirror, u32 counter);

/**
 * rust_hmm_memory_counter() - a counter of a memory
 * @memory: the memory
 * @counter: an enum rust_hmm_counter
 *
 * Context: any.
 *
 * Return: its value; 0 for one that is not known.
 */
u64 rust_hmm_memory_counter(struct rust_hmm_memory *memory, u32 counter);

/* Migration */

/**
 * enum rust_hmm_target - where pages are to go
 * @RUST_HMM_TO_THE_DEVICE: to the device's memory: anonymous memory, holes included
 * @RUST_HMM_TO_THE_SYSTEM: from this device's memory to system memory
 */
enum rust_hmm_target {
	RUST_HMM_TO_THE_DEVICE = 0,
	RUST_HMM_TO_THE_SYSTEM = 1,
};

/* Flags of struct rust_hmm_migration. */
/* Remove the device's entries before pages are copied, instead of letting it read on. */
#define RUST_HMM_ORDINARY	1U
/* Nothing else leaves the device to make room. */
#define RUST_HMM_NO_EVICTION	2U

/**
 * enum rust_hmm_page_outcome - what became of one page
 * @RUST_HMM_PAGE_NONE: there was nothing to move: it is there already, or nowhere
 * @RUST_HMM_PAGE_SKIPPED: it could not move: pinned, shared, of a file, merged, or changed meanwhile
 * @RUST_HMM_PAGE_NO_MEMORY: there was no memory at the destination
 * @RUST_HMM_PAGE_COPY_FAILED: its copy failed
 * @RUST_HMM_PAGE_MOVED: it moved, and the device had no entry for it
 * @RUST_HMM_PAGE_SWITCHED: it moved, and the device's entry was switched: the device noticed nothing
 * @RUST_HMM_PAGE_LOST: it moved, and the device lost its entry
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
 * struct rust_hmm_migration - how to migrate
 * @target: an enum rust_hmm_target
 * @flags: %RUST_HMM_ORDINARY, %RUST_HMM_NO_EVICTION
 * @pages: kernel memory for the outcome of each page, an enum rust_hmm_page_outcome in a byte, or NULL
 * @npages: how many of @pages there are; what the range has beyond that is not reported
 * @stop: that of the queued operation that this is a part of, or NULL: with it, copies that have not begun are
 *	cancelled when the queue goes away
 */
struct rust_hmm_migration {
	u32 target;
	u32 flags;
	u8 *pages;
	unsigned long npages;
	const struct rust_hmm_stop *stop;
};

/**
 * struct rust_hmm_outcome - what a migration did, in pages of 4 KiB
 * @moved: that moved
 * @switched: of these, whose device entry was switched
 * @entries: entries that moved and had contents; a huge page counts once
 * @skipped: that could not move: pinned, shared, of a file, merged, or changed meanwhile
 * @no_memory: that could not move for lack of memory at the destination
 * @copy_failed: whose copy failed
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
 * rust_hmm_migrate() - move memory to the device or back, best effort
 * @mirror: the mirror, which has memory
 * @start: first address
 * @end: first address behind the range
 * @migration: how
 * @outcome: where to write what it did, or NULL; zeros after an error
 *
 * Partial success is success. Calls @copy of the memory's operations, and waits for the jobs.
 *
 * Return: 0; -EFAULT if the process is gone; -EINVAL if something is not mapped, not readable, hugetlb or
 * special, or for an unknown target or flag; -ERANGE to the device, beyond the 48 bits that the addresses
 * of its table have; -ENODEV if the mirror has no memory, or after rust_hmm_memory_unplug(); -EBUSY if it
 * kept changing; -EINTR if the task was killed; -ENOMEM if there is no memory for the migration itself;
 * -EDEADLK. After an error, what came before has moved.
 */
int rust_hmm_migrate(struct rust_hmm_mirror *mirror, unsigned long start, unsigned long end,
		     const struct rust_hmm_migration *migration, struct rust_hmm_outcome *outcome);

/* Attributes: what a program says of ranges of its memory; rust_hmm_serve() goes by them. */

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
 * @valid: RUST_HMM_HAS_* of those that are to be set; or, when they are asked for, that are the same
 *	in all of the range. The others are not looked at, and 0 when asked for
 * @preferred: where it should be: RUST_HMM_PREFER_*
 * @accessed_by: 1 if the device should always have it mapped, wherever it is
 * @read_mostly: 1 if it is mostly read: a device that reads it maps it where it is, and moves nothing;
 *	for a fault of a write the policy decides
 * @never_migrate: 1 if it never moves to the device
 * @granularity: order of the folios in which it moves on faults, 0 to 9; -1: the policy decides
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
 * rust_hmm_attributes_set() - set some attributes of a range, all of which must be mapped
 * @mirror: the mirror
 * @start: first address
 * @end: first address behind the range
 * @attributes: those to set; the others stay as they are
 *
 * They belong to the process: all its mirrors, of any device, have the same ones. RUST_HMM_PREFER_DEVICE and
 * @accessed_by are about the device of @mirror; what was said of another device's access stays. What was said
 * of a device holds until its last mirror in the process is gone. They follow the mapping when it is moved, and
 * go when it is unmapped; a child of fork() has none.
 *
 * Return: 0; -EINVAL if a value makes no sense; -EFAULT if a part is not mapped, or the process is gone: what
 * comes before has changed; -ENOSPC if the process has more than 1023 different sets of attributes, or more than
 * 64 devices that it prefers or that access its memory: a part may have changed; -ENOMEM; -EINTR; -EDEADLK.
 */
int rust_hmm_attributes_set(struct rust_hmm_mirror *mirror, unsigned long start, unsigned long end,
			    const struct rust_hmm_attributes *attributes);

/**
 * rust_hmm_attributes_clear() - give a range the attributes of memory of which nothing was said
 * @mirror: the mirror
 * @start: first address
 * @end: first address behind the range
 *
 * Return: as rust_hmm_attributes_set().
 */
int rust_hmm_attributes_clear(struct rust_hmm_mirror *mirror, unsigned long start,
			      unsigned long end);

/**
 * rust_hmm_attributes_get() - what holds for all of a range
 * @mirror: the mirror
 * @start: first address
 * @end: first address behind the range
 * @attributes: where to write that
 *
 * What is not mapped has no attributes but the default ones.
 *
 * Return: 0; -EINVAL; -EFAULT if the process is gone; -EINTR; -EDEADLK.
 */
int rust_hmm_attributes_get(struct rust_hmm_mirror *mirror, unsigned long start, unsigned long end,
			    struct rust_hmm_attributes *attributes);

/*
 * Fences: of operations that may fault, take an mmap lock or wait for user space. They are no DMA fences, and there is
 * no function that makes a struct dma_fence or a sync file of one (Documentation/driver-api/dma-buf.rst, "Indefinite
 * DMA Fences"). A driver whose hardware works on pinned memory makes its DMA fences by dma_fence_init().
 */

/**
 * rust_hmm_fence_create() - make a fence that the driver will signal
 * @kind: names the type of device that signals it: the address of something of the driver, such as a
 *	static, which is never looked at; or NULL
 *
 * The caller owns a reference, and sees to it that rust_hmm_fence_signal_once() is called, also when what the fence
 * stands for was given up.
 *
 * Return: the fence, or ERR_PTR(-ENOMEM).
 */
struct rust_hmm_fence *rust_hmm_fence_create(const void *kind);

/**
 * rust_hmm_fence_get() - take a reference
 * @fence: the fence
 *
 * Context: any.
 */
void rust_hmm_fence_get(struct rust_hmm_fence *fence);

/**
 * rust_hmm_fence_put() - give a reference back
 * @fence: the fence; NULL or ERR_PTR() is ignored
 *
 * Context: any, also interrupts.
 */
void rust_hmm_fence_put(struct rust_hmm_fence *fence);

/**
 * rust_hmm_fence_signal_once() - signal a fence of rust_hmm_fence_create()
 * @fence: the fence; the caller's reference stays the caller's
 * @error: 0, or the negative error number with which it failed
 *
 * Context: any, also interrupts. Of several that call it one succeeds.
 *
 * Return: 0; -EPERM if it was not made by rust_hmm_fence_create(): the fence of an operation of a queue, or one that
 * stands for a DMA fence; -EINVAL if it is NULL, is signalled, or @error is no error number.
 */
int rust_hmm_fence_signal_once(struct rust_hmm_fence *fence, int error);

/**
 * rust_hmm_fence_wait_for() - wait until a fence is signalled
 * @fence: the fence; NULL counts as one that is
 * @ms: limit in ms; a negative one: for ever
 *
 * Context: may sleep; no lock is held that is taken before the fence is signalled. Signals that do not kill the task
 * do not end the wait.
 *
 * Return: 0; the error of the fence; -ETIMEDOUT; -EINTR if the task was killed; -EDEADLK; -ENOMEM.
 */
int rust_hmm_fence_wait_for(struct rust_hmm_fence *fence, long ms);

/**
 * rust_hmm_fence_eventfd() - signal an eventfd when a fence is signalled
 * @fence: the fence
 * @fd: descriptor of the eventfd in the current process
 *
 * Adds 1 to it, at once if the fence is signalled. The eventfd stays in use until the last reference of the fence is
 * given back. The fence can be seen signalled shortly before that: wait for the eventfd by poll().
 *
 * Return: 0; -EBADF if there is no such descriptor; -EINVAL if it is no eventfd, or @fence is NULL; -EBUSY if the fence
 * has four of them.
 */
int rust_hmm_fence_eventfd(struct rust_hmm_fence *fence, int fd);

/**
 * struct rust_hmm_fence_watch - a function to call when a fence is signalled
 * @entry: the library's
 * @signalled: the function. Context: any, possibly with interrupts off, and under a lock of the fence: it may wake tasks,
 *	as wake_up() does, and may not call functions on this fence
 * @data: its argument
 *
 * For a driver whose node reports fences by poll(), or that has a callback of its own.
 */
struct rust_hmm_fence_watch {
	struct list_head entry;
	void (*signalled)(void *data);
	void *data;
};

/**
 * rust_hmm_fence_watch() - have a function called when a fence is signalled
 * @fence: the fence, of which the caller keeps a reference until rust_hmm_fence_unwatch()
 * @watch: with @signalled and @data set; stays where it is until rust_hmm_fence_unwatch()
 *
 * The function is called once: at once if the fence is signalled, else by the signal, or soon after it by a worker.
 *
 * Context: any, also interrupts.
 */
void rust_hmm_fence_watch(struct rust_hmm_fence *fence, struct rust_hmm_fence_watch *watch);

/**
 * rust_hmm_fence_unwatch() - call it no more
 * @fence: the fence
 * @watch: the watch
 *
 * After this the function neither runs nor will run.
 *
 * Context: any, also interrupts, but not within the function.
 */
void rust_hmm_fence_unwatch(struct rust_hmm_fence *fence, struct rust_hmm_fence_watch *watch);

/**
 * rust_hmm_fence_from_dma() - make a fence that signals when a DMA fence does
 * @dma: the DMA fence, of any driver, of which the library takes a reference of its own
 *
 * Return: the fence, of which the caller owns a reference, or ERR_PTR(): -EINVAL if @dma is NULL; -ENOMEM.
 */
struct rust_hmm_fence *rust_hmm_fence_from_dma(struct dma_fence *dma);

/**
 * rust_hmm_fence_from_file() - the same for the DMA fence of a sync file
 * @fd: its descriptor in the current process
 *
 * Return: the fence, of which the caller owns a reference, or ERR_PTR(): -EBADF if @fd is no sync file; -ENOMEM.
 */
struct rust_hmm_fence *rust_hmm_fence_from_file(int fd);

/* Queues: operations that run one after the other, in a thread of the queue, and depend on fences. */

/**
 * rust_hmm_queue_create() - make a queue
 * @kind: as for rust_hmm_fence_create(): the queue's fences carry it
 * @depth: most items that wait in it
 *
 * Return: the queue, or ERR_PTR(): -EINVAL if @depth is 0 or more than 65536; -ENOMEM; -EINTR.
 */
struct rust_hmm_queue *rust_hmm_queue_create(const void *kind, unsigned int depth);

/**
 * rust_hmm_queue_destroy() - end a queue
 * @queue: not used any more after a return of 0; NULL or ERR_PTR() is ignored
 *
 * Asks the operation that runs to end (rust_hmm_stopped()), waits for it, and cancels the rest: their
 * fences fail with -ECANCELED. Queues go before the mirrors that their operations use.
 *
 * Return: 0; -EDEADLK within a callback, or within an operation of this queue: then nothing has happened.
 */
int rust_hmm_queue_destroy(struct rust_hmm_queue *queue);

/**
 * rust_hmm_queue_submit() - have something done after some fences, and all that was queued before
 * @queue: the queue
 * @after: the fences, of which the library takes references of its own; NULL is skipped
 * @count: how many
 * @run: does it, and returns 0 or a negative error number, with which the fence signals. It looks at @stop from
 *	time to time and returns -ECANCELED if it is set. Context: a thread of the queue; may sleep, and may
 *	call all functions of this header but rust_hmm_queue_destroy() of this queue
 * @release: called once when @data is not needed any more, whether it was run or not, before the fence signals;
 *	or NULL. Context: may sleep
 * @data: handed to @run and @release. It is the library's from the call on, also if that fails: then
 *	@release was called before it returns
 *
 * If one of @after fails, it does not run, and its fence fails with the same error.
 *
 * Return: a fence that signals when it is done, of which the caller owns a reference, or ERR_PTR(): -EBUSY if
 * the queue is full; -EINVAL if @run is NULL; -ENOMEM.
 */
struct rust_hmm_fence *rust_hmm_queue_submit(struct rust_hmm_queue *queue,
					     struct rust_hmm_fence *const *after,
					     unsigned int count,
					     int (*run)(void *data, const struct rust_hmm_stop *stop),
					     void (*release)(void *data), void *data);

/**
 * rust_hmm_queue_record() - a fence that signals when all that was queued before is done
 * @queue: the queue
 *
 * It fails with the first error since the last record.
 *
 * Return: the fence, of which the caller owns a reference, or ERR_PTR(): -EBUSY if the queue is full; -ENOMEM.
 */
struct rust_hmm_fence *rust_hmm_queue_record(struct rust_hmm_queue *queue);

/**
 * rust_hmm_queue_wait() - let what is queued later start only after a fence; waits for nothing itself
 * @queue: the queue
 * @fence: the fence, of which the library takes a reference of its own. If it fails, so does all that
 *	follows until the next record
 *
 * Return: 0; -EBUSY if the queue is full.
 */
int rust_hmm_queue_wait(struct rust_hmm_queue *queue, struct rust_hmm_fence *fence);

/**
 * rust_hmm_stopped() - whether an operation should end, for its queue goes away
 * @stop: what @run got; valid as long as it runs
 *
 * Context: any.
 *
 * Return: true if it should.
 */
bool rust_hmm_stopped(const struct rust_hmm_stop *stop);

#endif /* _RUST_HMM_H */
