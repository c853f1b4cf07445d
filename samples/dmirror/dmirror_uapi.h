/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Extensions of the mock device beyond the ioctls of the kernel's
 * lib/test_hmm_uapi.h. Numbers start at 0x40.
 *
 * Every structure begins with @size, the bytes that the caller has room for.
 * A size below the structure of version 1 (its size when it appeared) is
 * -EINVAL; a larger one is accepted if what the kernel does not know is zero and
 * not more than a page, else -E2BIG. The kernel writes back at most @size bytes,
 * and in @size how many. A bad pointer is -EFAULT; unknown flags and nonzero
 * reserved fields are -EINVAL. The size in an ioctl's number does not matter.
 *
 * Addresses are virtual addresses of the process that opened the file; those
 * of commands must be multiples of 8, those of migrations of 4096.
 */
#ifndef _DMIRROR_UAPI_H
#define _DMIRROR_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define DMIRROR_ABI_VERSION 3

/**
 * struct dmirror_info - what the device is
 * @size: see above, at least 40
 * @version: out: DMIRROR_ABI_VERSION
 * @engines: out: number of engines
 * @tlb_entries: out: entries of each engine's TLB
 * @copy_threads: out: threads of the copy engine
 * @coherent: out: 1 if the CPU can address the memory, else 0
 * @vram_bytes: out: most bytes of device memory that there can be
 * @queue_depth: out: commands that one engine holds at most
 */
struct dmirror_info {
	__u32 size;
	__u32 version;
	__u32 engines;
	__u32 tlb_entries;
	__u32 copy_threads;
	__u32 coherent;
	__u64 vram_bytes;
	__u64 queue_depth;
};

#define DMIRROR_INFO	_IOWR('H', 0x40, struct dmirror_info)

/**
 * struct dmirror_counters - what happened so far
 * @size: see above, at least 16
 * @version: out: DMIRROR_ABI_VERSION
 * @faults_read: rounds of device faults for reading
 * @faults_write: rounds of device faults for writing
 * @pages_mapped: entries that device faults installed
 * @invalidations: invalidation callbacks
 * @invalidated_pages: entries that were removed or write-protected
 * @migrated_to_device: pages moved to the device
 * @migrated_to_system: pages moved back by request
 * @cpu_faults: CPU faults on pages of this device
 * @cpu_fault_pages: pages that they brought back
 * @evicted_pages: pages evicted from this device
 * @retries: device faults that collided with an invalidation
 * @migrate_skipped: pages that could not migrate
 * @device_pages_used: pages of device memory in use now
 * @device_pages_total: pages of device memory that there are now
 * @accesses: accesses by engines; one that faulted counts again when it is
 *	repeated
 * @tlb_hits: of these, those for which the TLB was enough
 * @tlb_misses: of these, all others: they walked the page table
 * @engine_faults_read: of these, reads that had to fault
 * @engine_faults_write: of these, writes and atomics that had to fault
 * @stalls_read: reads that waited for their page, for whatever reason
 * @stalls_write: writes and atomics that waited for their page
 * @stall_ns_read: how long these reads waited, in sum
 * @stall_ns_write: how long these writes waited, in sum
 * @stall_ns_max: the longest wait
 * @bytes_read: bytes that engines read
 * @bytes_written: bytes that engines wrote
 * @stale_hits: uses of a translation after the flush that should have
 *	removed it; anything but 0 is a bug
 * @switched_pages: pages that migrated under a valid device entry, which was
 *	switched without a fault
 * @bytes_copied: bytes that the copy engine copied
 * @copy_failures: copies that failed
 * @faults_coalesced: faults that found their page already in the fault buffer
 * @fault_batches: batches in which the fault buffer was served
 *
 * Pages are of 4 KiB. cpu_faults, cpu_fault_pages, evicted_pages,
 * device_pages_*, bytes_copied, copy_failures, faults_coalesced and
 * fault_batches are of the device, the others of the open file.
 */
struct dmirror_counters {
	__u32 size;
	__u32 version;
	__u64 faults_read;
	__u64 faults_write;
	__u64 pages_mapped;
	__u64 invalidations;
	__u64 invalidated_pages;
	__u64 migrated_to_device;
	__u64 migrated_to_system;
	__u64 cpu_faults;
	__u64 cpu_fault_pages;
	__u64 evicted_pages;
	__u64 retries;
	__u64 migrate_skipped;
	__u64 device_pages_used;
	__u64 device_pages_total;
	__u64 accesses;
	__u64 tlb_hits;
	__u64 tlb_misses;
	__u64 engine_faults_read;
	__u64 engine_faults_write;
	__u64 stalls_read;
	__u64 stalls_write;
	__u64 stall_ns_read;
	__u64 stall_ns_write;
	__u64 stall_ns_max;
	__u64 bytes_read;
	__u64 bytes_written;
	__u64 stale_hits;
	__u64 switched_pages;
	__u64 bytes_copied;
	__u64 copy_failures;
	__u64 faults_coalesced;
	__u64 fault_batches;
};

#define DMIRROR_COUNTERS	_IOWR('H', 0x41, struct dmirror_counters)

/* Streams over [addr, addr + bytes); the result is the sum of its 64-bit words. */
#define DMIRROR_OP_READ		0
/* Writes value + n to the n-th 64-bit word. */
#define DMIRROR_OP_WRITE	1
/* Writes value to every 64-bit word. */
#define DMIRROR_OP_FILL		2
/* Adds value atomically to the 64-bit word at each multiple of stride. */
#define DMIRROR_OP_ATOMIC_ADD	3
/* Copies bytes from src to addr; the ranges must not overlap. */
#define DMIRROR_OP_MEMCPY	4
/*
 * The result is the checksum of the range: h = 0; for each 64-bit word w:
 * h = rotate_left(h, 5) ^ w, times 0x9e3779b97f4a7c15, modulo 2^64. A mismatch
 * with value, if DMIRROR_SUBMIT_VERIFY is given, fails the command with -EILSEQ.
 */
#define DMIRROR_OP_CHECKSUM	5
/* Reads the 64-bit word at each multiple of stride; the result is their sum. */
#define DMIRROR_OP_STRIDED	6
/*
 * Follows a chain: the 64-bit word at an address is the next address, from addr
 * on, for bytes / 8 hops. The result is the address reached.
 */
#define DMIRROR_OP_CHASE	7

/* Compare the result of each round with value (READ, CHECKSUM, STRIDED). */
#define DMIRROR_SUBMIT_VERIFY	(1u << 0)
/* Any engine: the one with the fewest commands. */
#define DMIRROR_ENGINE_ANY	(~0u)

/**
 * struct dmirror_submit - gives a command to an engine
 * @size: see above, at least 80
 * @flags: DMIRROR_SUBMIT_*
 * @engine: number of the engine, or DMIRROR_ENGINE_ANY
 * @op: DMIRROR_OP_*
 * @addr: start of the range
 * @bytes: length of the range, a multiple of 8, not 0
 * @src: source of MEMCPY, else 0
 * @value: see the operations
 * @stride: of ATOMIC_ADD and STRIDED, a multiple of 8, not 0; else 0
 * @rounds: how often to do it; 0: until stopped
 * @think_ns: pause after each round, at most 1 s
 * @id: out: name of the command in this file, never 0
 *
 * -EINVAL: a field is invalid. -EBUSY: the engine's queue is full, or the file
 * has 1024 commands that were not waited for. -ENOMEM. -EFAULT: also if @id could
 * not be written; the command is stopped then, but may have done something.
 * Returns at once; the command runs in the background. Closing the last file
 * descriptor stops all commands.
 */
struct dmirror_submit {
	__u32 size;
	__u32 flags;
	__u32 engine;
	__u32 op;
	__u64 addr;
	__u64 bytes;
	__u64 src;
	__u64 value;
	__u64 stride;
	__u64 rounds;
	__u64 think_ns;
	__u64 id;
};

#define DMIRROR_SUBMIT	_IOWR('H', 0x42, struct dmirror_submit)

/**
 * struct dmirror_wait - waits for a command and forgets it
 * @size: see above, at least 72
 * @flags: 0
 * @id: the command
 * @timeout_ns: how long to wait at most, as a relative time; 0: only look;
 *	~0: for ever
 * @status: out: 0 or the negative errno with which the command ended: -EFAULT,
 *	-EPERM, -EILSEQ, -ECANCELED if it was stopped before its last round was
 *	complete, -EBUSY if its page kept changing, -ENOMEM
 * @reserved: 0
 * @result: out: of the last complete round, see the operations
 * @rounds: out: complete rounds
 * @faults: out: accesses of this command that faulted
 * @stalls: out: accesses of this command that waited
 * @stall_ns: out: how long they waited
 *
 * -ETIMEDOUT: it still runs (the outputs show how far it is, and it is not
 * forgotten). -ENOENT: no such command. -EINTR: a signal came. A command with
 * @rounds 0 that was stopped has status 0.
 */
struct dmirror_wait {
	__u32 size;
	__u32 flags;
	__u64 id;
	__u64 timeout_ns;
	__s32 status;
	__u32 reserved;
	__u64 result;
	__u64 rounds;
	__u64 faults;
	__u64 stalls;
	__u64 stall_ns;
};

#define DMIRROR_WAIT	_IOWR('H', 0x43, struct dmirror_wait)

/**
 * struct dmirror_stop - stops a command; DMIRROR_WAIT tells when it has ended
 * @size: see above, at least 16
 * @flags: 0
 * @id: the command
 *
 * -ENOENT: no such command. It need not run any more.
 */
struct dmirror_stop {
	__u32 size;
	__u32 flags;
	__u64 id;
};

#define DMIRROR_STOP	_IOWR('H', 0x44, struct dmirror_stop)

/**
 * struct dmirror_engine - counters of one engine, for all files
 * @size: see above, at least 16
 * @engine: number of the engine; -EINVAL if there is none
 * @version: out: DMIRROR_ABI_VERSION
 * @reserved: 0
 * @commands: commands taken
 * @accesses: as in struct dmirror_counters, and so on
 * @busy_ns: time in which it ran commands
 * @idle_ns: time in which it had no command at all
 * @wait_ns: time in which all its commands waited for pages or for think_ns
 * @set_aside: commands set aside because their page was missing
 */
struct dmirror_engine {
	__u32 size;
	__u32 engine;
	__u32 version;
	__u32 reserved;
	__u64 commands;
	__u64 accesses;
	__u64 tlb_hits;
	__u64 tlb_misses;
	__u64 faults_read;
	__u64 faults_write;
	__u64 stalls_read;
	__u64 stalls_write;
	__u64 stall_ns_read;
	__u64 stall_ns_write;
	__u64 stall_ns_max;
	__u64 bytes_read;
	__u64 bytes_written;
	__u64 stale_hits;
	__u64 busy_ns;
	__u64 idle_ns;
	__u64 wait_ns;
	__u64 set_aside;
};

#define DMIRROR_ENGINE	_IOWR('H', 0x45, struct dmirror_engine)

/* Towards system memory; else towards the device. */
#define DMIRROR_MIGRATE_TO_SYSTEM	(1u << 0)
/* Remove device entries before the copy, as other managers do. */
#define DMIRROR_MIGRATE_ORDINARY	(1u << 1)

/* Outcome of one page: it is where it was, and why. */
#define DMIRROR_PAGE_NONE	0	/* nothing to move there */
#define DMIRROR_PAGE_SKIPPED	1	/* pinned, of a file, merged, changed meanwhile */
#define DMIRROR_PAGE_NO_MEMORY	2	/* no memory at the destination */
#define DMIRROR_PAGE_COPY	3	/* the copy failed */
/* It moved: */
#define DMIRROR_PAGE_MOVED	4	/* and the device had no entry for it */
#define DMIRROR_PAGE_SWITCHED	5	/* and its device entry was switched */
#define DMIRROR_PAGE_LOST	6	/* and its device entry was lost: it faults next */

/**
 * struct dmirror_migrate - moves pages, best effort
 * @size: see above, at least 80
 * @flags: DMIRROR_MIGRATE_*
 * @addr: start, a multiple of 4096
 * @npages: pages of 4096 bytes, not 0
 * @outcomes: user pointer to @npages bytes, which receive DMIRROR_PAGE_* for
 *	each page, or 0
 * @moved: out: pages that moved
 * @switched: out: of these, those whose device entry was switched
 * @skipped: out: pages that could not move
 * @no_memory: out: pages that had no memory at the destination
 * @copy_failed: out: pages whose copy failed
 * @ns: out: how long it took
 *
 * Errors as DMIRROR_MIGRATE_TO_DEV of test_hmm, but that pages that stay are no
 * error here.
 */
struct dmirror_migrate {
	__u32 size;
	__u32 flags;
	__u64 addr;
	__u64 npages;
	__u64 outcomes;
	__u64 moved;
	__u64 switched;
	__u64 skipped;
	__u64 no_memory;
	__u64 copy_failed;
	__u64 ns;
};

#define DMIRROR_MIGRATE	_IOWR('H', 0x46, struct dmirror_migrate)

/* How long each copy takes at least, in ns; at most 1 s. */
#define DMIRROR_SET_COPY_DELAY	0
/* So many copies succeed before one fails; ~0: none fails. */
#define DMIRROR_SET_COPY_FAIL	1
/* So many flushes are skipped from now on: for the stale detector's test. */
#define DMIRROR_SET_SKIP_FLUSH	2
/* 1: a faultless migration does not write-protect and flush first (mutation). */
#define DMIRROR_SET_KEEP_WRITE	3
/* Delay of each flush, in ns; at most 10 s. */
#define DMIRROR_SET_FLUSH_DELAY	4
/* Best connection to other devices, DMIRROR_CONNECTION_*; 2 at first. */
#define DMIRROR_SET_CONNECTION	5

/**
 * struct dmirror_set - sets a test parameter of the device, for all files
 * @size: see above, at least 32
 * @flags: 0
 * @what: DMIRROR_SET_*
 * @reserved: 0
 * @value: new value
 * @old: out: value before
 *
 * -EINVAL: unknown, or out of range. The last close of the device sets all back
 * to the values of the module parameters.
 */
struct dmirror_set {
	__u32 size;
	__u32 flags;
	__u32 what;
	__u32 reserved;
	__u64 value;
	__u64 old;
};

#define DMIRROR_SET	_IOWR('H', 0x47, struct dmirror_set)

/**
 * struct dmirror_discard - removes device entries that are no longer needed
 * @size: see above, at least 24
 * @flags: 0
 * @addr: start, a multiple of 4096
 * @npages: pages of 4096 bytes, not 0
 *
 * Contents stay as they are, where they are.
 */
struct dmirror_discard {
	__u32 size;
	__u32 flags;
	__u64 addr;
	__u64 npages;
};

#define DMIRROR_DISCARD	_IOWR('H', 0x48, struct dmirror_discard)

/* Attributes: bits of @what and @values */
#define DMIRROR_ATTR_PREFERRED		(1u << 0)
#define DMIRROR_ATTR_ACCESSED_BY	(1u << 1)
#define DMIRROR_ATTR_READ_MOSTLY	(1u << 2)
#define DMIRROR_ATTR_NEVER_MIGRATE	(1u << 3)
#define DMIRROR_ATTR_GRANULARITY	(1u << 4)

/* Preferred locations */
#define DMIRROR_ANYWHERE	0
#define DMIRROR_ON_DEVICE	1
#define DMIRROR_IN_SYSTEM	2
/* Get only: another device of the process prefers to have it */
#define DMIRROR_ON_OTHER	3

/**
 * struct dmirror_attributes - sets attributes of a range, or asks for them
 * @size: see above, at least 40
 * @flags: 0
 * @addr: start, a multiple of 4096
 * @npages: pages of 4096 bytes, not 0
 * @what: set: which ones to change; get, out: which ones are the same in the
 *	whole range
 * @preferred: where the memory should be
 * @values: DMIRROR_ATTR_ACCESSED_BY: the device has it mapped as soon as it is
 *	there; READ_MOSTLY: a device that reads it maps it where it is, and
 *	moves nothing, a fault of a write may; NEVER_MIGRATE: it does not
 *	move to the device, on request neither
 * @granularity: 0: the policy decides; else 1 plus the order of the blocks in
 *	which faults move it, up to 10
 *
 * They belong to the process. All its files have the same ones, of any device;
 * DMIRROR_ON_DEVICE and DMIRROR_ATTR_ACCESSED_BY are about the device of this
 * file, and hold until the process closes the last file of that device. Unmapped
 * memory loses its attributes, mremap takes them along, a child of fork has none.
 * Set: -EINVAL: a value makes no sense; -EFAULT: a part is not mapped (what comes
 * before has changed); -ENOSPC: the process has too many different ones;
 * -ENOMEM. Get: what is not mapped has the defaults, all 0.
 */
struct dmirror_attributes {
	__u32 size;
	__u32 flags;
	__u64 addr;
	__u64 npages;
	__u32 what;
	__u32 preferred;
	__u32 values;
	__u32 granularity;
};

#define DMIRROR_SET_ATTRIBUTES	_IOWR('H', 0x50, struct dmirror_attributes)
#define DMIRROR_GET_ATTRIBUTES	_IOWR('H', 0x51, struct dmirror_attributes)

/**
 * struct dmirror_placement - what policies did, and the amount of memory
 * @size: see above, at least 64
 * @flags: 0
 * @faults: faults of engines, of this file
 * @moved: pages that they moved to the device
 * @in_place: of these faults, those that left memory where it is on purpose
 * @evicted_for_room: pages that left the device to make room for others
 * @pieces: pieces of 256 MiB of device memory that there are
 * @pieces_idle: of these, those of which nothing is in use
 * @chosen: folios that were used where the device's own allocator chose
 */
struct dmirror_placement {
	__u32 size;
	__u32 flags;
	__u64 faults;
	__u64 moved;
	__u64 in_place;
	__u64 evicted_for_room;
	__u64 pieces;
	__u64 pieces_idle;
	__u64 chosen;
};

#define DMIRROR_PLACEMENT	_IOWR('H', 0x52, struct dmirror_placement)

/* Nothing moves by itself. */
#define DMIRROR_POLICY_NONE	0
/* The default policy of the library. */
#define DMIRROR_POLICY_DEFAULT	1
/* Each fault moves what was touched. */
#define DMIRROR_POLICY_ONE_PAGE	2

/**
 * struct dmirror_policy - who decides about faults of engines, for this file
 * @size: see above, at least 16
 * @flags: 0
 * @policy: DMIRROR_POLICY_*; else -EINVAL
 * @old: out: what it was
 */
struct dmirror_policy {
	__u32 size;
	__u32 flags;
	__u32 policy;
	__u32 old;
};

#define DMIRROR_POLICY	_IOWR('H', 0x53, struct dmirror_policy)

/* Bring pages back into use; else take them out. */
#define DMIRROR_MEMORY_RESTORE	(1u << 0)

/**
 * struct dmirror_memory - takes device pages out of use and back, at run time
 * @size: see above, at least 32
 * @flags: DMIRROR_MEMORY_*
 * @first: number of the first device page
 * @count: pages, not 0
 * @left: out: pages that are still in use and could not be moved now; they go
 *	when they are freed
 *
 * -EINVAL: there are no such pages. -ENOMEM. The last close of the device brings
 * all of them back.
 */
struct dmirror_memory {
	__u32 size;
	__u32 flags;
	__u64 first;
	__u64 count;
	__u64 left;
};

#define DMIRROR_MEMORY	_IOWR('H', 0x54, struct dmirror_memory)

/* Nobody unplugs a device by chance. */
#define DMIRROR_UNPLUG_SURE	0x676f6e65

/**
 * struct dmirror_unplug - takes the device away while it is in use
 * @size: see above, at least 40
 * @flags: DMIRROR_UNPLUG_SURE; else -EINVAL
 * @addr: start of a range whose device pages are lost, a multiple of 4096
 * @npages: its pages, at most 1024 on the device; 0: none
 * @saved: out: pages that were saved to system memory
 * @lost: out: pages that were lost: to touch them is a SIGBUS
 *
 * From then on all commands on the device are -ENODEV, but for those that only
 * tell what was, and engines end their commands with -ENODEV. It comes back
 * when the module is loaded anew.
 */
struct dmirror_unplug {
	__u32 size;
	__u32 flags;
	__u64 addr;
	__u64 npages;
	__u64 saved;
	__u64 lost;
};

#define DMIRROR_UNPLUG	_IOWR('H', 0x55, struct dmirror_unplug)
/*
 * Queues and fences. A queue runs operations one after the other, each after
 * the fences it depends on. Numbers of queues and fences are those of the open
 * file; another open device gets a fence by DMIRROR_FENCE_IMPORT.
 *
 * An operation of a queue may fault, take an mmap lock or wait for a fence that
 * the host signals. Nothing bounds its time, so its fence is no DMA fence and
 * does not leave as a sync file: DMIRROR_FENCE_NOTIFY reports its end. A fence
 * of DMIRROR_BLIT is a DMA fence.
 *
 * An operation that depends on a fence which failed does not run, and fails
 * with the same error; after a failed DMIRROR_QUEUE_WAIT all do, until the next
 * record. The fence of a record fails with the first error since the last one.
 */
/* Moves pages to the device, best effort. */
#define DMIRROR_QUEUE_MIGRATE	0
/* The same; then the device has entries for them. */
#define DMIRROR_QUEUE_PREFETCH	1
/* Moves pages to system memory. */
#define DMIRROR_QUEUE_EVICT	2
/* Has the device copy @bytes from @src to @addr. */
#define DMIRROR_QUEUE_COPY	3
/* Added to DMIRROR_OP_*: a command of an engine. */
#define DMIRROR_QUEUE_ENGINE	16

/**
 * struct dmirror_queue - a queue, and an operation of it
 * @size: see above, at least 96
 * @flags: 0
 * @queue: number of the queue; out: of DMIRROR_QUEUE_CREATE
 * @op: DMIRROR_QUEUE_*
 * @addr: start; for what is not a command of an engine a multiple of 4096.
 *	Out, of DMIRROR_QUEUE_WAITS: waits for fences of the same type of device
 * @bytes: length, likewise. Out: waits for other fences
 * @src: source of a copy, else 0. Out: looks at such
 * @value: as in struct dmirror_submit. Out: sleeps after looks in vain
 * @stride: as in struct dmirror_submit
 * @reserved: 0
 * @after: user pointer to numbers of fences, __u64 each
 * @nafter: how many, up to 64
 * @rounds: of a command of an engine; 0 is 1
 * @fence: out: fence of the operation or of the record; in for
 *	DMIRROR_QUEUE_WAIT
 *
 * -ENOENT: no such queue or fence. -EBUSY: the queue is full. -EMFILE: too many
 * queues (16) or fences (4096).
 */
struct dmirror_queue {
	__u32 size;
	__u32 flags;
	__u32 queue;
	__u32 op;
	__u64 addr;
	__u64 bytes;
	__u64 src;
	__u64 value;
	__u64 stride;
	__u64 reserved;
	__u64 after;
	__u64 nafter;
	__u64 rounds;
	__u64 fence;
};

#define DMIRROR_QUEUE_CREATE	_IOWR('H', 0x60, struct dmirror_queue)
/* Asks the running operation to end, waits for it, cancels the rest. */
#define DMIRROR_QUEUE_DESTROY	_IOWR('H', 0x61, struct dmirror_queue)
#define DMIRROR_QUEUE_SUBMIT	_IOWR('H', 0x62, struct dmirror_queue)
/* A fence that signals when all that was queued before is done. */
#define DMIRROR_QUEUE_RECORD	_IOWR('H', 0x63, struct dmirror_queue)
/* What is queued later starts only after @fence. Waits for nothing. */
#define DMIRROR_QUEUE_WAIT	_IOWR('H', 0x64, struct dmirror_queue)
#define DMIRROR_QUEUE_WAITS	_IOWR('H', 0x65, struct dmirror_queue)

#define DMIRROR_FENCE_NOT_DONE	0
#define DMIRROR_FENCE_DONE	1
#define DMIRROR_FENCE_FAILED	2

/**
 * struct dmirror_fence - a fence
 * @size: see above, at least 80
 * @flags: 0; of DMIRROR_FENCE_IMPORT: DMIRROR_FENCE_OF_FILE
 * @fence: its number; out for DMIRROR_FENCE_CREATE and DMIRROR_FENCE_IMPORT
 * @timeout_ns: of DMIRROR_FENCE_SYNC, ~0 is for ever; of DMIRROR_FENCE_EXPORT
 *	0, else -EINVAL
 * @error: -errno of the failure, or 0; in for DMIRROR_FENCE_SIGNAL
 * @fd: sync file: out for DMIRROR_FENCE_EXPORT, in for DMIRROR_FENCE_IMPORT; of
 *	DMIRROR_FENCE_NOTIFY: an eventfd, or DMIRROR_FENCE_BY_POLL
 * @state: out: DMIRROR_FENCE_*
 * @result: out: what the command of an engine found
 * @moved: out: pages that a migration moved
 * @stayed: out: pages that had to stay
 * @began_ns: out: when the operation began, by CLOCK_MONOTONIC; 0: it did not
 * @ended_ns: out: when it ended
 *
 * -ENOENT: no such fence.
 */
struct dmirror_fence {
	__u32 size;
	__u32 flags;
	__u64 fence;
	__u64 timeout_ns;
	__s32 error;
	__s32 fd;
	__u64 state;
	__u64 result;
	__u64 moved;
	__u64 stayed;
	__u64 began_ns;
	__u64 ended_ns;
};

/* A fence that the host signals. */
#define DMIRROR_FENCE_CREATE	_IOWR('H', 0x66, struct dmirror_fence)
/* -EINVAL if it is not the host's, or was signalled before. */
#define DMIRROR_FENCE_SIGNAL	_IOWR('H', 0x67, struct dmirror_fence)
#define DMIRROR_FENCE_CHECK	_IOWR('H', 0x68, struct dmirror_fence)
/*
 * Waits. Only a signal that kills the task ends it, with -EINTR. -ETIMEDOUT. How
 * the fence ended is in @state and @error.
 */
#define DMIRROR_FENCE_SYNC	_IOWR('H', 0x69, struct dmirror_fence)
/* Forgets the number. A fence of the host's that was not signalled fails. */
#define DMIRROR_FENCE_RELEASE	_IOWR('H', 0x6a, struct dmirror_fence)
/*
 * A sync file of a DMA fence: of DMIRROR_BLIT, or one that was imported as a sync
 * file. -EOPNOTSUPP for every other fence.
 */
#define DMIRROR_FENCE_EXPORT	_IOWR('H', 0x6b, struct dmirror_fence)

/* @fd is another open device, and @fence a number there; else @fd is a sync file. */
#define DMIRROR_FENCE_OF_FILE	(1u << 0)

/* -EBADF if @fd is neither. */
#define DMIRROR_FENCE_IMPORT	_IOWR('H', 0x6c, struct dmirror_fence)

/* Value of @fd. */
#define DMIRROR_FENCE_BY_POLL	(-1)

/*
 * Reports the end of a fence: adds 1 to the eventfd @fd; or, with
 * DMIRROR_FENCE_BY_POLL, poll() of the file says POLLPRI from then on until
 * DMIRROR_FENCE_CHECK or DMIRROR_FENCE_SYNC has told the end, or the number is
 * released. At once if the fence has ended. -EBADF: no descriptor. -EINVAL: no
 * eventfd. -EBUSY: the fence has four eventfds.
 */
#define DMIRROR_FENCE_NOTIFY	_IOWR('H', 0x6d, struct dmirror_fence)

/*
 * Copies @bytes of locked memory from @src to @addr, both device addresses of
 * DMIRROR_LOCK with fine grain, whole pages. @queue, @op, @value, @stride and
 * @rounds are 0. Everything is allocated and pinned before; a unit of its own
 * copies, within 10 s of the last fence of @after. @fence is a DMA fence.
 *
 * -EFAULT: not locked for this device. -EOPNOTSUPP: locked coarse, or a fence of
 * @after is no DMA fence. -EINVAL: the two overlap. -EBUSY: 64 are under way.
 */
#define DMIRROR_BLIT	_IOWR('H', 0x6e, struct dmirror_queue)

/* Fine grain: device and host see each other's writes while commands run. */
#define DMIRROR_LOCK_FINE	(1u << 0)

/**
 * struct dmirror_lock - memory that stays in place, for devices to access
 * @size: see above, at least 72
 * @flags: of DMIRROR_LOCK: DMIRROR_LOCK_FINE; else coarse: what a command
 *	reads is what was there when it began, and what it writes is seen when it
 *	has ended
 * @addr: start; whole pages are locked. Out, of DMIRROR_LOCKED: of the range
 * @bytes: length, not 0. Out, of DMIRROR_LOCKED: of the range
 * @agents: bit n: /dev/hmm_dmirror<n> may access it; not 0
 * @device_addr: out, of DMIRROR_LOCK: address for commands of those devices,
 *	submitted to this file; in, for DMIRROR_UNLOCK
 * @fine: out: 1 if it is fine-grained
 * @users: out, of DMIRROR_LOCKED: locks that hold it
 * @ns: out, of DMIRROR_LOCKED: how long the looks took
 * @looks: of DMIRROR_LOCKED: how often to look, up to 1048576; 0 is once
 *
 * A range inside a locked one shares it, and gets its grain. -EEXIST: it would
 * extend a locked range, or overlaps one in part. -EOPNOTSUPP: fine grain of a
 * range that is locked coarse. -ESTALE: something else is mapped there than
 * what was locked. -ENODEV: no such agent. -ENOMEM: RLIMIT_MEMLOCK. -EFAULT: not
 * mapped, or not writable. -ENOENT: not locked.
 */
struct dmirror_lock {
	__u32 size;
	__u32 flags;
	__u64 addr;
	__u64 bytes;
	__u64 agents;
	__u64 device_addr;
	__u64 fine;
	__u64 users;
	__u64 ns;
	__u64 looks;
};

#define DMIRROR_LOCK	_IOWR('H', 0x70, struct dmirror_lock)
/* Undoes one lock that returned @device_addr. */
#define DMIRROR_UNLOCK	_IOWR('H', 0x71, struct dmirror_lock)
/* The locked range that holds @addr, one of the process or of devices. */
#define DMIRROR_LOCKED	_IOWR('H', 0x72, struct dmirror_lock)

/* Through system memory. */
#define DMIRROR_CONNECTION_NONE		0
/* Directly, by a copy of the source's engine. */
#define DMIRROR_CONNECTION_MIGRATABLE	1
/* Used in place: coherent memory. */
#define DMIRROR_CONNECTION_UNIFIED	2

/* Only tell the connection. */
#define DMIRROR_PULL_ASK	(1u << 0)

/**
 * struct dmirror_pull - moves pages from another device of the process to this
 * @size: see above, at least 72
 * @flags: DMIRROR_PULL_ASK
 * @fd: the other device
 * @reserved: 0
 * @addr: start, a multiple of 4096
 * @npages: pages of 4096 bytes, not 0
 * @connection: out: DMIRROR_CONNECTION_*, the lesser of what both devices can
 * @moved: out: pages that moved to this device
 * @switched: out: of these, those whose entry of this device was switched
 * @no_memory: out: pages that had no memory here
 * @copy_failed: out: pages whose copy failed; they stay where they are
 *
 * -EBADF: no open device. -EINVAL: one of another process.
 */
struct dmirror_pull {
	__u32 size;
	__u32 flags;
	__s32 fd;
	__u32 reserved;
	__u64 addr;
	__u64 npages;
	__u64 connection;
	__u64 moved;
	__u64 switched;
	__u64 no_memory;
	__u64 copy_failed;
};

#define DMIRROR_PULL	_IOWR('H', 0x78, struct dmirror_pull)

/*
 * Managed memory: CPU and devices use it, and it moves by itself to who touches
 * it. It is private memory, mapped from the device file at an offset that holds
 * flags; the file says for which device it is meant. What the offset has below
 * the flags tells allocations from each other, and may be anything.
 */
#define DMIRROR_MANAGED			(1ull << 48)
/* A device that faults on it maps it where it is. */
#define DMIRROR_MANAGED_HOST_SHARED	(1ull << 49)
/* All of it moves when the device first faults on it. */
#define DMIRROR_MANAGED_POPULATE	(1ull << 50)
/* Huge pages are preferred. */
#define DMIRROR_MANAGED_HUGE		(1ull << 51)

/* The same as flags of DMIRROR_ALLOC; this populates at once. */
#define DMIRROR_ALLOC_HOST_SHARED	(1u << 0)
#define DMIRROR_ALLOC_POPULATE		(1u << 1)
#define DMIRROR_ALLOC_HUGE		(1u << 2)

/**
 * struct dmirror_alloc - allocates managed memory
 * @size: see above, at least 40
 * @flags: DMIRROR_ALLOC_*
 * @fd: the descriptor of this very file
 * @queue: queue that populates the memory, or 0
 * @bytes: rounded up to pages, or to huge pages if these are preferred
 * @addr: out: where it is; to be freed with munmap
 * @fence: out: with a queue: signals when it is populated
 *
 * -ENOMEM: it cannot be populated; then nothing is mapped. With a queue the
 * fence fails with that, and the memory may be used before: who touches it waits
 * or faults. -EBADF: another file.
 */
struct dmirror_alloc {
	__u32 size;
	__u32 flags;
	__s32 fd;
	__u32 queue;
	__u64 bytes;
	__u64 addr;
	__u64 fence;
};

#define DMIRROR_ALLOC	_IOWR('H', 0x79, struct dmirror_alloc)

/* Types of events; bit n of a mask is type n. */
#define DMIRROR_EVENT_FAULT_BEGIN	0	/* @detail: 1 if for writing */
#define DMIRROR_EVENT_FAULT_END		1	/* the same, and @error */
#define DMIRROR_EVENT_CPU_FAULT		2	/* at @addr; @moved, @error */
#define DMIRROR_EVENT_MIGRATE_BEGIN	3	/* @detail: DMIRROR_TRIGGER_* */
#define DMIRROR_EVENT_MIGRATE_END	4	/* the same, @moved ... @error */
#define DMIRROR_EVENT_EVICT		5	/* @moved; @detail: DMIRROR_NEED_* */
#define DMIRROR_EVENT_INVALIDATE	6	/* @moved entries changed; DMIRROR_CAUSE_* */
#define DMIRROR_EVENT_RETRY		7	/* @detail: DMIRROR_RETRY_* */
#define DMIRROR_EVENT_THRASH		8	/* @detail: 1 if it stays; else @stayed ms */
#define DMIRROR_EVENT_TYPES		9

#define DMIRROR_TRIGGER_REQUEST		0
#define DMIRROR_TRIGGER_CLOSE		1
#define DMIRROR_TRIGGER_FAULT		2
#define DMIRROR_TRIGGER_PULL		3

#define DMIRROR_NEED_ALL		0
#define DMIRROR_NEED_ROOM		1

#define DMIRROR_CAUSE_UNMAP		0
#define DMIRROR_CAUSE_CLEAR		1
#define DMIRROR_CAUSE_PROTECTION_VMA	2
#define DMIRROR_CAUSE_PROTECTION_PAGE	3
#define DMIRROR_CAUSE_SOFT_DIRTY	4
#define DMIRROR_CAUSE_RELEASE		5
#define DMIRROR_CAUSE_MIGRATE		6
#define DMIRROR_CAUSE_EXCLUSIVE		7

#define DMIRROR_RETRY_INVALIDATED	0
#define DMIRROR_RETRY_MIGRATION		1
#define DMIRROR_RETRY_BUSY		2

#define DMIRROR_EVENT_VERSION		1

/**
 * struct dmirror_event - a record of the event stream, as read() gives it
 * @version: DMIRROR_EVENT_VERSION; with another one the size may be another
 * @type: DMIRROR_EVENT_*
 * @error: -errno of the operation, or 0
 * @time_ns: when, by CLOCK_MONOTONIC
 * @sequence: number of the event in this stream, from 0; lost ones count
 * @lost: events of this stream that were lost before this one
 * @addr: first address, or 0 for types without a range
 * @npages: pages of 4 KiB
 * @mirror: number of the mirror, as in tracepoints; ~0 for CPU faults, which
 *	are of the address space
 * @detail: see the types
 * @to_device: of migrations: 1 to the device, 0 to the system
 * @reserved: 0
 * @moved: pages
 * @switched: pages of these that moved under a valid entry
 * @stayed: pages that could not move
 */
struct dmirror_event {
	__u16 version;
	__u16 type;
	__s32 error;
	__u64 time_ns;
	__u64 sequence;
	__u64 lost;
	__u64 addr;
	__u64 npages;
	__u32 mirror;
	__u32 detail;
	__u32 to_device;
	__u32 reserved;
	__u64 moved;
	__u64 switched;
	__u64 stayed;
};

/* Events of all mirrors of the device, of whatever process: CAP_SYS_ADMIN. */
#define DMIRROR_EVENTS_ALL	(1u << 0)

/**
 * struct dmirror_events - which events are to be told to who reads the file
 * @size: see above, at least 40
 * @flags: DMIRROR_EVENTS_ALL, or 0: only those of this file's own mirror, and
 *	CPU faults of its address space on this device's memory
 * @mask: one bit for each type; 0: none from now on
 * @old: out: the mask before
 * @waiting: out: records that can be read now
 * @lost: out: events that were lost so far, because nobody read in time
 *
 * read() of the file then gives whole records, in order, and waits for one unless
 * the file is O_NONBLOCK (-EAGAIN). -EINVAL: no room for a record, or no events
 * were ever asked for. poll() says POLLIN when there is one; POLLERR when none
 * were ever asked for. There is room for 1024 records; further events are lost,
 * and counted. -EPERM: DMIRROR_EVENTS_ALL without the right. -EBUSY: 256 files
 * of the device have asked already.
 */
struct dmirror_events {
	__u32 size;
	__u32 flags;
	__u64 mask;
	__u64 old;
	__u64 waiting;
	__u64 lost;
};

#define DMIRROR_EVENTS	_IOWR('H', 0x7a, struct dmirror_events)

#endif /* _DMIRROR_UAPI_H */
