/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints, in tracefs below events/rust_hmm. All events of an address space
 * have these fields in common: @pid is the owner of the memory, not the current
 * task; @mirror and @device are numbers in the order of creation. Addresses are
 * virtual addresses of the owner. Numbers of pages count pages of PAGE_SIZE.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM rust_hmm

#if !defined(_RUST_HMM_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define _RUST_HMM_TRACE_H

#include <linux/tracepoint.h>

#define hmm_show_direction(to_device) \
	__print_symbolic(to_device, { 0, "to-system" }, { 1, "to-device" })

#define hmm_show_trigger(trigger) \
	__print_symbolic(trigger, { 0, "request" }, { 1, "close" },	\
			 { 2, "fault" }, { 3, "pull" })

#define hmm_show_need(need)				\
	__print_symbolic(need, { 0, "all" }, { 1, "room" })

#define hmm_show_verdict(stays)				\
	__print_symbolic(stays, { 0, "waits" }, { 1, "stays" })

/* The values of enum mmu_notifier_event that a mirror distinguishes */
#define hmm_show_event(event)				\
	__print_symbolic(event,				\
			 { 0, "unmap" },		\
			 { 1, "clear" },		\
			 { 2, "protection-vma" },	\
			 { 3, "protection-page" },	\
			 { 4, "soft-dirty" },		\
			 { 5, "release" },		\
			 { 6, "migrate" },		\
			 { 7, "exclusive" })

#define hmm_show_reason(reason)				\
	__print_symbolic(reason,			\
			 { 0, "invalidated" },		\
			 { 1, "migration" },		\
			 { 2, "busy" })

/* A device fault was handled, or has failed with @result. */
TRACE_EVENT(hmm_device_fault,
	TP_PROTO(int pid, unsigned int mirror, unsigned long start,
		 unsigned long pages, bool write, int result),
	TP_ARGS(pid, mirror, start, pages, write, result),
	TP_STRUCT__entry(
		__field(int, pid)
		__field(unsigned int, mirror)
		__field(unsigned long, start)
		__field(unsigned long, pages)
		__field(int, write)
		__field(int, result)
	),
	TP_fast_assign(
		__entry->pid = pid;
		__entry->mirror = mirror;
		__entry->start = start;
		__entry->pages = pages;
		__entry->write = write;
		__entry->result = result;
	),
	TP_printk("pid=%d mirror=%u start=0x%lx pages=%lu access=%s result=%d",
		  __entry->pid, __entry->mirror, __entry->start,
		  __entry->pages, __entry->write ? "write" : "read",
		  __entry->result)
);

/* CPU fault on device memory at @address; @moved pages were migrated to system memory. */
TRACE_EVENT(hmm_cpu_fault,
	TP_PROTO(int pid, unsigned int device, unsigned long address,
		 unsigned long moved, int result),
	TP_ARGS(pid, device, address, moved, result),
	TP_STRUCT__entry(
		__field(int, pid)
		__field(unsigned int, device)
		__field(unsigned long, address)
		__field(unsigned long, moved)
		__field(int, result)
	),
	TP_fast_assign(
		__entry->pid = pid;
		__entry->device = device;
		__entry->address = address;
		__entry->moved = moved;
		__entry->result = result;
	),
	TP_printk("pid=%d device=%u address=0x%lx moved=%lu result=%d",
		  __entry->pid, __entry->device, __entry->address,
		  __entry->moved, __entry->result)
);

TRACE_EVENT(hmm_migrate_begin,
	TP_PROTO(int pid, unsigned int mirror, unsigned long start,
		 unsigned long pages, bool to_device, int trigger),
	TP_ARGS(pid, mirror, start, pages, to_device, trigger),
	TP_STRUCT__entry(
		__field(int, pid)
		__field(unsigned int, mirror)
		__field(unsigned long, start)
		__field(unsigned long, pages)
		__field(int, to_device)
		__field(int, trigger)
	),
	TP_fast_assign(
		__entry->pid = pid;
		__entry->mirror = mirror;
		__entry->start = start;
		__entry->pages = pages;
		__entry->to_device = to_device;
		__entry->trigger = trigger;
	),
	TP_printk("pid=%d mirror=%u start=0x%lx pages=%lu %s trigger=%s",
		  __entry->pid, __entry->mirror, __entry->start,
		  __entry->pages, hmm_show_direction(__entry->to_device),
		  hmm_show_trigger(__entry->trigger))
);

/*
 * A migration has ended. @moved pages have moved. For @switched of them the device
 * PTE was replaced without being removed before. @stayed pages did not move.
 */
TRACE_EVENT(hmm_migrate_end,
	TP_PROTO(int pid, unsigned int mirror, bool to_device, int trigger,
		 unsigned long moved, unsigned long switched,
		 unsigned long stayed, int result),
	TP_ARGS(pid, mirror, to_device, trigger, moved, switched, stayed,
		result),
	TP_STRUCT__entry(
		__field(int, pid)
		__field(unsigned int, mirror)
		__field(int, to_device)
		__field(int, trigger)
		__field(unsigned long, moved)
		__field(unsigned long, switched)
		__field(unsigned long, stayed)
		__field(int, result)
	),
	TP_fast_assign(
		__entry->pid = pid;
		__entry->mirror = mirror;
		__entry->to_device = to_device;
		__entry->trigger = trigger;
		__entry->moved = moved;
		__entry->switched = switched;
		__entry->stayed = stayed;
		__entry->result = result;
	),
	TP_printk("pid=%d mirror=%u %s trigger=%s moved=%lu switched=%lu stayed=%lu result=%d",
		  __entry->pid, __entry->mirror,
		  hmm_show_direction(__entry->to_device),
		  hmm_show_trigger(__entry->trigger), __entry->moved,
		  __entry->switched, __entry->stayed, __entry->result)
);

/* @moved device pages were evicted to system memory; @left pages are still in use. */
TRACE_EVENT(hmm_evict,
	TP_PROTO(unsigned int device, int need, unsigned long moved,
		 unsigned long left),
	TP_ARGS(device, need, moved, left),
	TP_STRUCT__entry(
		__field(unsigned int, device)
		__field(int, need)
		__field(unsigned long, moved)
		__field(unsigned long, left)
	),
	TP_fast_assign(
		__entry->device = device;
		__entry->need = need;
		__entry->moved = moved;
		__entry->left = left;
	),
	TP_printk("device=%u need=%s moved=%lu left=%lu", __entry->device,
		  hmm_show_need(__entry->need), __entry->moved, __entry->left)
);

/*
 * Device fault on thrashing memory: it is retried after @ms milliseconds, or with
 * @stays the memory is mapped in place.
 */
TRACE_EVENT(hmm_thrash,
	TP_PROTO(int pid, unsigned int mirror, unsigned long start,
		 unsigned long pages, bool stays, unsigned long ms),
	TP_ARGS(pid, mirror, start, pages, stays, ms),
	TP_STRUCT__entry(
		__field(int, pid)
		__field(unsigned int, mirror)
		__field(unsigned long, start)
		__field(unsigned long, pages)
		__field(int, stays)
		__field(unsigned long, ms)
	),
	TP_fast_assign(
		__entry->pid = pid;
		__entry->mirror = mirror;
		__entry->start = start;
		__entry->pages = pages;
		__entry->stays = stays;
		__entry->ms = ms;
	),
	TP_printk("pid=%d mirror=%u start=0x%lx pages=%lu verdict=%s ms=%lu",
		  __entry->pid, __entry->mirror, __entry->start,
		  __entry->pages, hmm_show_verdict(__entry->stays),
		  __entry->ms)
);

/* A notifier event has removed or write-protected the device PTEs of @changed pages. */
TRACE_EVENT(hmm_invalidate,
	TP_PROTO(int pid, unsigned int mirror, unsigned long start,
		 unsigned long pages, int event, unsigned long changed),
	TP_ARGS(pid, mirror, start, pages, event, changed),
	TP_STRUCT__entry(
		__field(int, pid)
		__field(unsigned int, mirror)
		__field(unsigned long, start)
		__field(unsigned long, pages)
		__field(int, event)
		__field(unsigned long, changed)
	),
	TP_fast_assign(
		__entry->pid = pid;
		__entry->mirror = mirror;
		__entry->start = start;
		__entry->pages = pages;
		__entry->event = event;
		__entry->changed = changed;
	),
	TP_printk("pid=%d mirror=%u start=0x%lx pages=%lu event=%s changed=%lu",
		  __entry->pid, __entry->mirror, __entry->start,
		  __entry->pages, hmm_show_event(__entry->event),
		  __entry->changed)
);

/* A device fault is retried. */
TRACE_EVENT(hmm_retry,
	TP_PROTO(int pid, unsigned int mirror, unsigned long start,
		 unsigned long pages, int reason),
	TP_ARGS(pid, mirror, start, pages, reason),
	TP_STRUCT__entry(
		__field(int, pid)
		__field(unsigned int, mirror)
		__field(unsigned long, start)
		__field(unsigned long, pages)
		__field(int, reason)
	),
	TP_fast_assign(
		__entry->pid = pid;
		__entry->mirror = mirror;
		__entry->start = start;
		__entry->pages = pages;
		__entry->reason = reason;
	),
	TP_printk("pid=%d mirror=%u start=0x%lx pages=%lu reason=%s",
		  __entry->pid, __entry->mirror, __entry->start,
		  __entry->pages, hmm_show_reason(__entry->reason))
);

#endif /* _RUST_HMM_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
