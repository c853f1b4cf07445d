// SPDX-License-Identifier: GPL-2.0
/* Memory cgroups to which allocations are charged. */
#include <linux/export.h>
#include <linux/memcontrol.h>
#include <linux/sched/mm.h>

/*
 * Charges allocations of this task with __GFP_ACCOUNT to the memory cgroup of
 * @mm, until rust_hmm_charge_end(). Returns the previous cgroup.
 */
struct mem_cgroup *rust_hmm_charge_to(struct mm_struct *mm)
{
	return set_active_memcg(get_mem_cgroup_from_mm(mm));
}
EXPORT_SYMBOL_GPL(rust_hmm_charge_to);

void rust_hmm_charge_end(struct mem_cgroup *old)
{
	mem_cgroup_put(set_active_memcg(old));
}
EXPORT_SYMBOL_GPL(rust_hmm_charge_end);
