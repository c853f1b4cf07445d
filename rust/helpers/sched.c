// SPDX-License-Identifier: GPL-2.0
/* Sleeps, and signals of the current task. */
#include <linux/export.h>
#include <linux/hrtimer.h>
#include <linux/preempt.h>
#include <linux/sched/signal.h>

bool rust_hmm_fatal_signal_pending(void)
{
	return fatal_signal_pending(current);
}
EXPORT_SYMBOL_GPL(rust_hmm_fatal_signal_pending);

/*
 * Sleeps for @ms, and returns whether the task was killed.
 * schedule_timeout_killable() would return early: after any wake-up, including
 * a delayed one from an earlier wait, and when jiffies catch up after late
 * ticks.
 */
bool rust_hmm_sleep_killable(unsigned int ms)
{
	ktime_t end = ktime_add_ms(ktime_get(), ms);

	while (ktime_before(ktime_get(), end) && !fatal_signal_pending(current)) {
		set_current_state(TASK_KILLABLE);
		schedule_hrtimeout(&end, HRTIMER_MODE_ABS);
	}
	return fatal_signal_pending(current);
}
EXPORT_SYMBOL_GPL(rust_hmm_sleep_killable);

/*
 * Returns whether the current task may sleep. Without CONFIG_PREEMPT_COUNT, a
 * section with preemption disabled is not detected here, only by lockdep.
 */
bool rust_hmm_may_sleep(void)
{
	return in_task() && !rcu_preempt_depth() &&
	       (!IS_ENABLED(CONFIG_PREEMPT_COUNT) || preemptible());
}
EXPORT_SYMBOL_GPL(rust_hmm_may_sleep);
