// SPDX-License-Identifier: GPL-2.0
/*
 * C helpers, one file for each subject: inline functions and macros of the
 * kernel, and code on memory that devices and CPUs access concurrently, which
 * must not be in Rust. Bindings are generated from this file. Therefore the
 * functions have no other prototypes.
 *
 * All that generic or inlined Rust code calls is exported, because such code is
 * compiled into the driver's module.
 */
#include <linux/kconfig.h>

#ifdef CONFIG_RUST_HMM_MANAGED
#include "anon.c"
#endif
#include "deferred.c"
#include "dma.c"
#ifdef CONFIG_RUST_HMM_QUEUE
#include "dma_fence.c"
#endif
#include "fault.c"
#ifdef CONFIG_RUST_HMM_QUEUE
#include "fence.c"
#endif
#include "ioport.c"
#include "kthread.c"
#ifdef CONFIG_RUST_HMM_KUNIT_TEST
#include "kunit.c"
#endif
#include "maple_tree.c"
#include "memcontrol.c"
#include "memremap.c"
#include "mm.c"
#include "mmu_notifier.c"
#include "page.c"
#include "page_copy.c"
#include "page_table.c"
#ifdef CONFIG_PCI
#include "pci.c"
#endif
#include "pin.c"
#include "rcu.c"
#include "refcount.c"
#include "rmap.c"
#include "sched.c"
#include "shrinker.c"
#include "task_work.c"
#include "trace.c"
#include "xarray.c"
