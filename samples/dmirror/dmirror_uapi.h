/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Extensions of the mock device beyond the ioctls of the kernel's
 * lib/test_hmm_uapi.h. Numbers start at 0x40.
 */
#ifndef _DMIRROR_UAPI_H
#define _DMIRROR_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define DMIRROR_COUNTERS_VERSION 1

/**
 * struct dmirror_counters - what happened so far
 * @size: in: bytes that there is room for, at least 16; out: bytes written
 * @version: out: DMIRROR_COUNTERS_VERSION
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
 *
 * Pages are of 4 KiB. cpu_faults, cpu_fault_pages, evicted_pages and
 * device_pages_* are of the device, the others of the open file.
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
};

/*
 * Reads the counters. -EINVAL: @size is below 16. -EFAULT: bad pointer.
 */
#define DMIRROR_COUNTERS	_IOWR('H', 0x41, struct dmirror_counters)

#endif /* _DMIRROR_UAPI_H */
