/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints, in tracefs below events/rust_hmm. The format is the same for all
 * events of an address space: @pid is the process whose memory it is, whoever
 * runs; @mirror and @device are numbers in the order of creation. Addresses are
 * virtual ones of that process, pages of 4 KiB.
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

/* enum mmu_notifier_event, as far as a mirror tells them apart */
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

/* A device fault was served, or failed with @result. */
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

/* A CPU has touched device memory at @address; @moved pages came back. */
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
 * @moved pages have moved, @switched of them under a device entry that stayed
 * valid; @stayed were left where they were.
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

/* Pages of a device were moved to the system by physical page. */
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
 * A device wants memory that bounces: it waits for @ms milliseconds, or the
 * memory stays where it is.
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

/* The kernel has announced a change; @changed pages lost rights in the device. */
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

/* A device fault has to try again. */
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
