// SPDX-License-Identifier: GPL-2.0
/*
 * Wrappers of the tracepoints of trace.h for Rust. Events report whole
 * operations and not single pages, so that the cost of the calls is negligible.
 */
#include <linux/export.h>
#include <linux/mm_types.h>
#include <linux/pid.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>

#ifndef __BINDGEN__
#define CREATE_TRACE_POINTS
#endif
#include "trace.h"

/* Returns the pid (tgid) of the process that owns @mm; 0 if it has no owner. */
int rust_hmm_mm_pid(struct mm_struct *mm)
{
#ifdef CONFIG_MEMCG
	struct task_struct *task;
	int pid;

	rcu_read_lock();
	task = rcu_dereference(mm->owner);
	pid = task ? task_tgid_nr(task) : 0;
	rcu_read_unlock();
	return pid;
#else
	return current->mm == mm ? task_tgid_nr(current) : 0;
#endif
}
EXPORT_SYMBOL_GPL(rust_hmm_mm_pid);

void rust_hmm_trace_device_fault(int pid, unsigned int mirror,
				 unsigned long start, unsigned long pages,
				 bool write, int result)
{
	trace_hmm_device_fault(pid, mirror, start, pages, write, result);
}
EXPORT_SYMBOL_GPL(rust_hmm_trace_device_fault);

void rust_hmm_trace_cpu_fault(unsigned int device, unsigned long address,
			      unsigned long moved, int result)
{
	trace_hmm_cpu_fault(task_tgid_nr(current), device, address, moved,
			    result);
}
EXPORT_SYMBOL_GPL(rust_hmm_trace_cpu_fault);

void rust_hmm_trace_migrate_begin(int pid, unsigned int mirror,
				  unsigned long start, unsigned long pages,
				  bool to_device, int trigger)
{
	trace_hmm_migrate_begin(pid, mirror, start, pages, to_device, trigger);
}
EXPORT_SYMBOL_GPL(rust_hmm_trace_migrate_begin);

void rust_hmm_trace_migrate_end(int pid, unsigned int mirror, bool to_device,
				int trigger, unsigned long moved,
				unsigned long switched, unsigned long stayed,
				int result)
{
	trace_hmm_migrate_end(pid, mirror, to_device, trigger, moved, switched,
			      stayed, result);
}
EXPORT_SYMBOL_GPL(rust_hmm_trace_migrate_end);

void rust_hmm_trace_evict(unsigned int device, int need, unsigned long moved,
			  unsigned long left)
{
	trace_hmm_evict(device, need, moved, left);
}
EXPORT_SYMBOL_GPL(rust_hmm_trace_evict);

void rust_hmm_trace_thrash(int pid, unsigned int mirror, unsigned long start,
			   unsigned long pages, bool stays, unsigned long ms)
{
	trace_hmm_thrash(pid, mirror, start, pages, stays, ms);
}
EXPORT_SYMBOL_GPL(rust_hmm_trace_thrash);

void rust_hmm_trace_invalidate(int pid, unsigned int mirror,
			       unsigned long start, unsigned long pages,
			       int event, unsigned long changed)
{
	trace_hmm_invalidate(pid, mirror, start, pages, event, changed);
}
EXPORT_SYMBOL_GPL(rust_hmm_trace_invalidate);

void rust_hmm_trace_retry(int pid, unsigned int mirror, unsigned long start,
			  unsigned long pages, int reason)
{
	trace_hmm_retry(pid, mirror, start, pages, reason);
}
EXPORT_SYMBOL_GPL(rust_hmm_trace_retry);
