/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Ioctls of the mock device beyond those of the kernel's lib/test_hmm_uapi.h.
 * Their numbers start at 0x40.
 *
 * Every structure begins with @size, the number of bytes in the caller's
 * buffer. The kernel returns -EINVAL if @size is smaller than version 1 of the
 * structure. It returns -E2BIG if the part that this kernel does not implement
 * is not zero or longer than a page. It writes back at most @size bytes, and
 * their number in @size. A bad pointer is -EFAULT. Unknown flags and nonzero
 * reserved fields are -EINVAL. The size that is encoded in the ioctl number is
 * ignored.
 *
 * Addresses are virtual addresses of the process that opened the file. Those of
 * commands must be multiples of 8, those of migrations multiples of the
 * page size. Numbers of pages count pages of the CPU.
 */
#ifndef _DMIRROR_UAPI_H
#define _DMIRROR_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define DMIRROR_ABI_VERSION 3

/**
 * struct dmirror_info - properties of the device
 * @size: see above, at least 40
 * @version: out: DMIRROR_ABI_VERSION
 * @engines: out: number of engines
 * @tlb_entries: out: entries of each engine's TLB
 * @copy_threads: out: threads of the copy engine
 * @coherent: out: 1 if the CPU can address device memory, else 0
 * @vram_bytes: out: maximum size of device memory
 * @queue_depth: out: maximum number of commands in one engine
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
 * struct dmirror_counters - counters of the open file and of the device
 * @size: see above, at least 16
 * @version: out: DMIRROR_ABI_VERSION
 * @faults_read: attempts of device faults for reading
 * @faults_write: attempts of device faults for writing
 * @pages_mapped: entries that device faults installed
 * @invalidations: invalidation callbacks
 * @invalidated_pages: entries that were removed or write-protected
 * @migrated_to_device: pages migrated to the device
 * @migrated_to_system: pages migrated back by request
 * @cpu_faults: CPU faults on pages of this device
 * @cpu_fault_pages: pages that these faults migrated back
 * @evicted_pages: pages evicted from this device
 * @retries: attempts of device faults that were repeated because of a
 *	concurrent invalidation
 * @migrate_skipped: pages that could not be migrated
 * @device_pages_used: pages of device memory in use
 * @device_pages_total: pages of device memory that are registered
 * @accesses: accesses by engines; an access that is repeated after a fault
 *	counts again
 * @tlb_hits: accesses that hit in the TLB
 * @tlb_misses: accesses that walked the page table
 * @engine_faults_read: reads that faulted
 * @engine_faults_write: writes and atomics that faulted
 * @stalls_read: reads that waited for their page, for any reason
 * @stalls_write: writes and atomics that waited for their page
 * @stall_ns_read: total waiting time of reads
 * @stall_ns_write: total waiting time of writes and atomics
 * @stall_ns_max: longest wait
 * @bytes_read: bytes read by engines
 * @bytes_written: bytes written by engines
 * @stale_hits: uses of a translation after the flush that should have removed
 *	it; any value but 0 is a bug
 * @switched_pages: pages migrated under a valid device entry, which was
 *	replaced without a fault
 * @bytes_copied: bytes copied by the copy engine
 * @copy_failures: copies that failed
 * @faults_coalesced: faults whose page was already in the fault buffer
 * @fault_batches: batches of faults taken from the fault buffer
 *
 * cpu_faults, cpu_fault_pages, evicted_pages, device_pages_*,
 * bytes_copied, copy_failures, faults_coalesced and fault_batches belong to the
 * device, the others to the open file.
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

/* Reads [addr, addr + bytes); the result is the sum of its 64-bit words. */
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
 * The result is the checksum of the range: h = 0; for each 64-bit word w: h =
 * rotate_left(h, 5) ^ w, times 0x9e3779b97f4a7c15, modulo 2^64. With
 * DMIRROR_SUBMIT_VERIFY, a result that differs from value fails the command
 * with -EILSEQ.
 */
#define DMIRROR_OP_CHECKSUM	5
/* Reads the 64-bit word at each multiple of stride; the result is their sum. */
#define DMIRROR_OP_STRIDED	6
/*
 * Follows a chain: the 64-bit word at an address is the next address. Starts at
 * addr and takes bytes / 8 hops. The result is the last address.
 */
#define DMIRROR_OP_CHASE	7

/* Compare the result of each round with value (READ, CHECKSUM, STRIDED). */
#define DMIRROR_SUBMIT_VERIFY	(1u << 0)
/* Any engine: the one with the fewest commands. */
#define DMIRROR_ENGINE_ANY	(~0u)

/**
 * struct dmirror_submit - submits a command to an engine
 * @size: see above, at least 80
 * @flags: DMIRROR_SUBMIT_*
 * @engine: number of the engine, or DMIRROR_ENGINE_ANY
 * @op: DMIRROR_OP_*
 * @addr: start of the range
 * @bytes: length of the range, a multiple of 8, not 0
 * @src: source of MEMCPY, else 0
 * @value: see the operations
 * @stride: of ATOMIC_ADD and STRIDED, a multiple of 8, not 0; else 0
 * @rounds: number of repetitions; 0: until stopped
 * @think_ns: pause after each round, at most 1 s
 * @id: out: number of the command in this file, never 0
 *
 * Does not block; the command runs asynchronously. Closing the last file
 * descriptor stops all commands.
 *
 * -EINVAL: a field is invalid. -EBUSY: the engine's queue is full, or the file
 * has 1024 commands that were not waited for. -ENOMEM. -EFAULT: bad pointer; if
 * @id could not be written, the command was started and is stopped again.
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
 * struct dmirror_wait - waits for a command and releases its number
 * @size: see above, at least 72
 * @flags: 0
 * @id: the command
 * @timeout_ns: relative timeout; 0: do not wait; ~0: no timeout
 * @status: out: 0 or the negative errno with which the command ended: -EFAULT,
 *	-EPERM, -EILSEQ, -ECANCELED if it was stopped before its last round was
 *	complete, -EBUSY if its page was invalidated again and again, -ENOMEM
 * @reserved: 0
 * @result: out: result of the last complete round, see the operations
 * @rounds: out: complete rounds
 * @faults: out: accesses of this command that faulted
 * @stalls: out: accesses of this command that waited
 * @stall_ns: out: total waiting time
 *
 * -ETIMEDOUT: the command still runs; the outputs show its progress, and the
 * number stays valid. -ENOENT: no such command. -EINTR: interrupted by a
 * signal. A command with @rounds 0 that was stopped has status 0.
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
 * struct dmirror_stop - requests a command to stop; DMIRROR_WAIT waits for its
 * end
 * @size: see above, at least 16
 * @flags: 0
 * @id: the command
 *
 * Succeeds also if the command has already ended. -ENOENT: no such command.
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
 * @commands: commands taken from the queue
 * @accesses: as in struct dmirror_counters, and so on
 * @busy_ns: time in which the engine executed commands
 * @idle_ns: time in which the engine had no command
 * @wait_ns: time in which all commands waited for pages or for think_ns
 * @set_aside: commands suspended because their page was missing
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

/* Migrate to system memory; without the flag, to the device. */
#define DMIRROR_MIGRATE_TO_SYSTEM	(1u << 0)
/* Remove device entries before the copy, as other managers do. */
#define DMIRROR_MIGRATE_ORDINARY	(1u << 1)

/* Outcome of one page. Not migrated: */
#define DMIRROR_PAGE_NONE	0	/* no page, or already there */
#define DMIRROR_PAGE_SKIPPED	1	/* pinned, file-backed, merged, changed concurrently */
#define DMIRROR_PAGE_NO_MEMORY	2	/* no memory at the destination */
#define DMIRROR_PAGE_COPY	3	/* the copy failed */
/* Migrated: */
#define DMIRROR_PAGE_MOVED	4	/* the device had no entry for it */
#define DMIRROR_PAGE_SWITCHED	5	/* its device entry was replaced without a fault */
#define DMIRROR_PAGE_LOST	6	/* its device entry was removed: the next access faults */

/**
 * struct dmirror_migrate - migrates a range, best effort
 * @size: see above, at least 80
 * @flags: DMIRROR_MIGRATE_*
 * @addr: start, a multiple of the page size
 * @npages: number of pages, not 0
 * @outcomes: user pointer to @npages bytes, which receive DMIRROR_PAGE_* for
 *	each page, or 0
 * @moved: out: migrated pages
 * @switched: out: those of @moved whose device entry was replaced
 * @skipped: out: pages that could not be migrated
 * @no_memory: out: pages without memory at the destination
 * @copy_failed: out: pages whose copy failed
 * @ns: out: duration
 *
 * Errors as for DMIRROR_MIGRATE_TO_DEV of test_hmm, except that pages which
 * could not be migrated are not an error.
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

/* Minimum duration of each copy, in ns; at most 1 s. */
#define DMIRROR_SET_COPY_DELAY	0
/* Number of copies that succeed before one fails; ~0: none fails. */
#define DMIRROR_SET_COPY_FAIL	1
/*
 * Number of flushes to skip from now on, to test the detection of stale hits.
 */
#define DMIRROR_SET_SKIP_FLUSH	2
/*
 * 1: skip write-protection and flush in faultless migrations, to test the
 * tests.
 */
#define DMIRROR_SET_KEEP_WRITE	3
/* Delay of each flush, in ns; at most 10 s. */
#define DMIRROR_SET_FLUSH_DELAY	4
/* Best connection to other devices, DMIRROR_CONNECTION_*; initially 2. */
#define DMIRROR_SET_CONNECTION	5

/**
 * struct dmirror_set - sets a test parameter of the device, for all files
 * @size: see above, at least 32
 * @flags: 0
 * @what: DMIRROR_SET_*
 * @reserved: 0
 * @value: new value
 * @old: out: previous value
 *
 * -EINVAL: unknown parameter, or value out of range. Closing the last file of
 * the device resets all of them to the module parameters.
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
 * @addr: start, a multiple of the page size
 * @npages: number of pages, not 0
 *
 * Pages keep their contents and are not migrated.
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
/* Get only: the preferred location is another device of the process */
#define DMIRROR_ON_OTHER	3

/**
 * struct dmirror_attributes - sets or reads attributes of a range
 * @size: see above, at least 40
 * @flags: 0
 * @addr: start, a multiple of the page size
 * @npages: number of pages, not 0
 * @what: set: attributes to change; get, out: attributes that are equal in the
 *	whole range
 * @preferred: preferred location
 * @values: DMIRROR_ATTR_ACCESSED_BY: the device maps pages as soon as they
 *	exist; READ_MOSTLY: read faults of the device map pages in place and do
 *	not migrate them, write faults may; NEVER_MIGRATE: pages are not
 *	migrated to the device, not even on request
 * @granularity: 0: the policy decides; else 1 plus the order of the blocks that
 *	faults migrate, up to 10
 *
 * Attributes belong to the process and are shared by all its files of any
 * device. DMIRROR_ON_DEVICE and DMIRROR_ATTR_ACCESSED_BY refer to the device of
 * this file, and hold until the process closes the last file of that device.
 * Attributes are removed with the mapping, follow mremap(), and are not
 * inherited across fork().
 *
 * Set: -EINVAL: invalid value; -EFAULT: a part is not mapped (the part before
 * it was changed); -ENOSPC: the process has too many different sets of
 * attributes; -ENOMEM. Get: addresses that are not mapped have the defaults,
 * all 0.
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
 * struct dmirror_placement - counters of policies and of device memory
 * @size: see above, at least 64
 * @flags: 0
 * @faults: engine faults of this file
 * @moved: pages that these faults migrated to the device
 * @in_place: those of @faults for which the policy mapped pages in place
 * @evicted_for_room: pages evicted to make room in device memory
 * @pieces: chunks of 256 MiB of device memory
 * @pieces_idle: those of @pieces without a page in use
 * @chosen: folios that were allocated at the device page suggested by the
 *	device
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

/* Faults do not migrate. */
#define DMIRROR_POLICY_NONE	0
/* The default policy of the library. */
#define DMIRROR_POLICY_DEFAULT	1
/* Each fault migrates the faulting page. */
#define DMIRROR_POLICY_ONE_PAGE	2

/**
 * struct dmirror_policy - sets the policy for engine faults of this file
 * @size: see above, at least 16
 * @flags: 0
 * @policy: DMIRROR_POLICY_*; else -EINVAL
 * @old: out: previous policy
 */
struct dmirror_policy {
	__u32 size;
	__u32 flags;
	__u32 policy;
	__u32 old;
};

#define DMIRROR_POLICY	_IOWR('H', 0x53, struct dmirror_policy)

/* Bring pages back online; without the flag, take them offline. */
#define DMIRROR_MEMORY_RESTORE	(1u << 0)

/**
 * struct dmirror_memory - takes device pages offline and online at run time
 * @size: see above, at least 32
 * @flags: DMIRROR_MEMORY_*
 * @first: number of the first device page
 * @count: pages, not 0
 * @left: out: pages that are in use and could not be migrated now; they go
 *	offline when they are freed
 *
 * -EINVAL: no such pages. -ENOMEM. Closing the last file of the device brings
 * all pages back online.
 */
struct dmirror_memory {
	__u32 size;
	__u32 flags;
	__u64 first;
	__u64 count;
	__u64 left;
};

#define DMIRROR_MEMORY	_IOWR('H', 0x54, struct dmirror_memory)

/* Required flag, so that a device is not unplugged by accident. */
#define DMIRROR_UNPLUG_SURE	0x676f6e65

/**
 * struct dmirror_unplug - simulates surprise removal of the device
 * @size: see above, at least 40
 * @flags: DMIRROR_UNPLUG_SURE; else -EINVAL
 * @addr: start of a range whose device pages are lost, a multiple of the
 *	page size
 * @npages: its pages, at most 1024 on the device; 0: none
 * @saved: out: pages migrated to system memory
 * @lost: out: pages whose contents are lost: an access raises SIGBUS
 *
 * Afterwards all ioctls of the device return -ENODEV, except those that only
 * report past events, and engines end their commands with -ENODEV. The device
 * returns when the module is reloaded.
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
 * Queues and fences. A queue runs operations in order, each after the fences it
 * depends on. Numbers of queues and fences belong to the open file;
 * DMIRROR_FENCE_IMPORT makes a fence available to another open device.
 *
 * An operation of a queue may fault, take an mmap lock or wait for a fence that
 * the host signals. Its duration is not bounded, so its fence is not a DMA
 * fence and cannot be exported as a sync file: DMIRROR_FENCE_NOTIFY reports its
 * end. The fence of DMIRROR_BLIT is a DMA fence.
 *
 * An operation that depends on a failed fence does not run, and fails with the
 * same error. After a failed DMIRROR_QUEUE_WAIT this holds for all operations
 * up to the next record. The fence of a record fails with the first error since
 * the previous record.
 */
/* Migrates pages to the device, best effort. */
#define DMIRROR_QUEUE_MIGRATE	0
/* Migrates likewise, then installs device entries. */
#define DMIRROR_QUEUE_PREFETCH	1
/* Migrates pages to system memory. */
#define DMIRROR_QUEUE_EVICT	2
/* Copies @bytes from @src to @addr by an engine. */
#define DMIRROR_QUEUE_COPY	3
/* Added to DMIRROR_OP_*: a command of an engine. */
#define DMIRROR_QUEUE_ENGINE	16

/**
 * struct dmirror_queue - a queue, or an operation of a queue
 * @size: see above, at least 96
 * @flags: 0
 * @queue: number of the queue; out for DMIRROR_QUEUE_CREATE
 * @op: DMIRROR_QUEUE_*
 * @addr: start; a multiple of the page size unless @op is a command of an engine.
 *	DMIRROR_QUEUE_WAITS, out: waits for fences of the same type of device
 * @bytes: length, with the same alignment. DMIRROR_QUEUE_WAITS, out: waits for
 *	other fences
 * @src: source of a copy, else 0. DMIRROR_QUEUE_WAITS, out: polls of fences of
 *	the same type of device
 * @value: as in struct dmirror_submit. DMIRROR_QUEUE_WAITS, out: sleeps after
 *	unsuccessful polls
 * @stride: as in struct dmirror_submit
 * @reserved: 0
 * @after: user pointer to numbers of fences, __u64 each
 * @nafter: number of fences, up to 64
 * @rounds: repetitions of a command of an engine; 0 counts as 1
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
/* Stops the running operation, waits for it, and cancels the queued ones. */
#define DMIRROR_QUEUE_DESTROY	_IOWR('H', 0x61, struct dmirror_queue)
#define DMIRROR_QUEUE_SUBMIT	_IOWR('H', 0x62, struct dmirror_queue)
/*
 * Returns a fence that is signalled when all earlier operations are completed.
 */
#define DMIRROR_QUEUE_RECORD	_IOWR('H', 0x63, struct dmirror_queue)
/* Makes later operations depend on @fence. Does not block. */
#define DMIRROR_QUEUE_WAIT	_IOWR('H', 0x64, struct dmirror_queue)
#define DMIRROR_QUEUE_WAITS	_IOWR('H', 0x65, struct dmirror_queue)

#define DMIRROR_FENCE_NOT_DONE	0
#define DMIRROR_FENCE_DONE	1
#define DMIRROR_FENCE_FAILED	2

/**
 * struct dmirror_fence - a fence
 * @size: see above, at least 80
 * @flags: 0; for DMIRROR_FENCE_IMPORT: DMIRROR_FENCE_OF_FILE
 * @fence: its number; out for DMIRROR_FENCE_CREATE and DMIRROR_FENCE_IMPORT
 * @timeout_ns: for DMIRROR_FENCE_SYNC, ~0: no timeout; for DMIRROR_FENCE_EXPORT
 *	0, else -EINVAL
 * @error: -errno of the failure, or 0; in for DMIRROR_FENCE_SIGNAL
 * @fd: sync file: out for DMIRROR_FENCE_EXPORT, in for DMIRROR_FENCE_IMPORT;
 *	for DMIRROR_FENCE_NOTIFY: an eventfd, or DMIRROR_FENCE_BY_POLL
 * @state: out: DMIRROR_FENCE_*
 * @result: out: result of an engine's command
 * @moved: out: migrated pages
 * @stayed: out: pages that could not be migrated
 * @began_ns: out: start of the operation by CLOCK_MONOTONIC; 0: not started
 * @ended_ns: out: its end
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

/* Creates a fence that the host signals. */
#define DMIRROR_FENCE_CREATE	_IOWR('H', 0x66, struct dmirror_fence)
/* -EINVAL if the host did not create it, or it was already signalled. */
#define DMIRROR_FENCE_SIGNAL	_IOWR('H', 0x67, struct dmirror_fence)
#define DMIRROR_FENCE_CHECK	_IOWR('H', 0x68, struct dmirror_fence)
/*
 * Waits for a fence; its outcome is in @state and @error. Only fatal signals
 * interrupt the wait: -EINTR. -ETIMEDOUT.
 */
#define DMIRROR_FENCE_SYNC	_IOWR('H', 0x69, struct dmirror_fence)
/* Releases the number. A host's fence that was not signalled fails. */
#define DMIRROR_FENCE_RELEASE	_IOWR('H', 0x6a, struct dmirror_fence)
/*
 * Exports a DMA fence as a sync file: the fence of DMIRROR_BLIT, or one that
 * was imported from a sync file. -EOPNOTSUPP for every other fence.
 */
#define DMIRROR_FENCE_EXPORT	_IOWR('H', 0x6b, struct dmirror_fence)

/* @fd is another open device, and @fence a number there; else @fd is a sync file. */
#define DMIRROR_FENCE_OF_FILE	(1u << 0)

/* -EBADF if @fd is neither. */
#define DMIRROR_FENCE_IMPORT	_IOWR('H', 0x6c, struct dmirror_fence)

/* Value of @fd. */
#define DMIRROR_FENCE_BY_POLL	(-1)

/*
 * Reports the end of a fence, immediately if it has already ended. Adds 1 to
 * the eventfd @fd. With DMIRROR_FENCE_BY_POLL, poll() of the file reports
 * POLLPRI from then on, until DMIRROR_FENCE_CHECK or DMIRROR_FENCE_SYNC has
 * returned the outcome or the number is released. -EBADF: @fd is not open.
 * -EINVAL: not an eventfd. -EBUSY: the fence has four eventfds.
 */
#define DMIRROR_FENCE_NOTIFY	_IOWR('H', 0x6d, struct dmirror_fence)

/*
 * Copies @bytes of locked memory from @src to @addr. Both are device addresses
 * of DMIRROR_LOCK with fine grain, and whole pages. @queue, @op, @value,
 * @stride and @rounds are 0. All memory is allocated and pinned in advance. A
 * separate copy unit executes the blit within 10 s of the last fence in @after,
 * so that @fence can be a DMA fence.
 *
 * -EFAULT: not locked for this device. -EOPNOTSUPP: locked coarse, or a fence
 * in @after is not a DMA fence. -EINVAL: the ranges overlap. -EBUSY: 64 blits
 * are in flight.
 */
#define DMIRROR_BLIT	_IOWR('H', 0x6e, struct dmirror_queue)

/* Fine grain: device and host see each other's writes while commands run. */
#define DMIRROR_LOCK_FINE	(1u << 0)

/**
 * struct dmirror_lock - memory pinned for access by devices
 * @size: see above, at least 72
 * @flags: for DMIRROR_LOCK: DMIRROR_LOCK_FINE; without it the grain is coarse:
 *	a command reads the contents at its start, and its writes become
 *	visible at its end
 * @addr: start; whole pages are locked. DMIRROR_LOCKED, out: start of the range
 * @bytes: length, not 0. DMIRROR_LOCKED, out: length of the range
 * @agents: bit n: /dev/hmm_dmirror<n> may access it; not 0
 * @device_addr: out for DMIRROR_LOCK: address for commands of those devices,
 *	submitted to this file; in for DMIRROR_UNLOCK
 * @fine: out: 1 if it is fine-grained
 * @users: out for DMIRROR_LOCKED: number of locks on the range
 * @ns: out for DMIRROR_LOCKED: duration of the lookups
 * @looks: for DMIRROR_LOCKED: number of lookups, up to 1048576; 0 counts as 1
 *
 * A range inside a locked range shares it and its grain. -EEXIST: it would
 * extend a locked range, or overlaps one partly. -EOPNOTSUPP: fine grain of a
 * range that is locked coarse. -ESTALE: the mapping has changed since the range
 * was locked. -ENODEV: no such agent. -ENOMEM: RLIMIT_MEMLOCK. -EFAULT: not
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
/* Releases one lock that returned @device_addr. */
#define DMIRROR_UNLOCK	_IOWR('H', 0x71, struct dmirror_lock)
/* Looks up the locked range of @addr, a process or a device address. */
#define DMIRROR_LOCKED	_IOWR('H', 0x72, struct dmirror_lock)

/* Through system memory. */
#define DMIRROR_CONNECTION_NONE		0
/* Directly, by a copy of the source's engine. */
#define DMIRROR_CONNECTION_MIGRATABLE	1
/* Used in place: coherent memory. */
#define DMIRROR_CONNECTION_UNIFIED	2

/* Report the connection only; do not migrate. */
#define DMIRROR_PULL_ASK	(1u << 0)

/**
 * struct dmirror_pull - migrates pages from another device of the process to
 * this
 * @size: see above, at least 72
 * @flags: DMIRROR_PULL_ASK
 * @fd: the other device
 * @reserved: 0
 * @addr: start, a multiple of the page size
 * @npages: number of pages, not 0
 * @connection: out: DMIRROR_CONNECTION_*, the best that both devices support
 * @moved: out: pages migrated to this device
 * @switched: out: those of @moved whose entry of this device was replaced
 * @no_memory: out: pages without memory at the destination
 * @copy_failed: out: pages whose copy failed; they are not migrated
 *
 * -EBADF: @fd is not an open device. -EINVAL: it belongs to another process.
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
 * Managed memory, shared by CPU and devices. Faults migrate it to the processor
 * that accesses it. It is private memory, mapped from the device file at an
 * offset that holds flags; the file selects the device. The offset bits below
 * the flags distinguish allocations and are not interpreted.
 */
#define DMIRROR_MANAGED			(1ull << 48)
/* Device faults map it in place. */
#define DMIRROR_MANAGED_HOST_SHARED	(1ull << 49)
/* The first device fault migrates all of it. */
#define DMIRROR_MANAGED_POPULATE	(1ull << 50)
/* Huge pages are preferred. */
#define DMIRROR_MANAGED_HUGE		(1ull << 51)

/* The same as flags of DMIRROR_ALLOC, which populates immediately. */
#define DMIRROR_ALLOC_HOST_SHARED	(1u << 0)
#define DMIRROR_ALLOC_POPULATE		(1u << 1)
#define DMIRROR_ALLOC_HUGE		(1u << 2)

/**
 * struct dmirror_alloc - allocates managed memory
 * @size: see above, at least 40
 * @flags: DMIRROR_ALLOC_*
 * @fd: the descriptor of this file
 * @queue: queue that populates the memory, or 0
 * @bytes: rounded up to pages, or to huge pages if these are preferred
 * @addr: out: address of the memory, to be freed with munmap()
 * @fence: out: with a queue: signalled when the memory is populated
 *
 * -ENOMEM: it cannot be populated; then nothing is mapped. With a queue the
 * fence fails with that error instead, and the memory may be used before the
 * fence is signalled. -EBADF: @fd is another file.
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
#define DMIRROR_EVENT_THRASH		8	/* @detail: 1 if mapped in place; else @stayed ms */
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
 * struct dmirror_event - a record of the event stream, as read() returns it
 * @version: DMIRROR_EVENT_VERSION; another version may have another size
 * @type: DMIRROR_EVENT_*
 * @error: -errno of the operation, or 0
 * @time_ns: time by CLOCK_MONOTONIC
 * @sequence: number of the event in this stream, from 0; lost events count
 * @lost: events of this stream that were lost before this one
 * @addr: start address, or 0 for types without a range
 * @npages: number of pages
 * @mirror: number of the mirror, as in tracepoints; ~0 for CPU faults, which
 *	belong to the address space
 * @detail: see the types
 * @to_device: for migrations: 1 to the device, 0 to system memory
 * @reserved: 0
 * @moved: pages
 * @switched: those of @moved that were migrated under a valid entry
 * @stayed: pages that could not be migrated
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

/* Events of all mirrors of the device, in any process. Needs CAP_SYS_ADMIN. */
#define DMIRROR_EVENTS_ALL	(1u << 0)

/**
 * struct dmirror_events - selects the events of the file's stream
 * @size: see above, at least 40
 * @flags: DMIRROR_EVENTS_ALL, or 0: only events of this file's mirror, and CPU
 *	faults of its address space on this device's memory
 * @mask: one bit for each type; 0: no further events
 * @old: out: previous mask
 * @waiting: out: records that can be read now
 * @lost: out: events lost so far because the reader was too slow
 *
 * read() of the file returns whole records, in order, and waits for one unless
 * the file is O_NONBLOCK (-EAGAIN). It returns -EINVAL if the buffer is smaller
 * than a record, or if no events were ever selected. poll() reports POLLIN when
 * a record can be read, and POLLERR if no events were ever selected. The ring
 * holds 1024 records; further events are counted as lost. -EPERM:
 * DMIRROR_EVENTS_ALL without CAP_SYS_ADMIN. -EBUSY: 256 files of the device
 * already have a stream.
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
