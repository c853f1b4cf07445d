/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The C interfaces for which the kernel crate has no bindings.
 *
 * Everything that `kernel::bindings` already has is left out (see the
 * allow list in Kbuild), so that types such as `struct vm_area_struct` are
 * those of the kernel crate.
 */
#include <linux/hmm.h>
#include <linux/migrate.h>
#include <linux/memremap.h>
#include <linux/mmu_notifier.h>
#include <linux/huge_mm.h>
#include <linux/rmap.h>

#include "../include/rust_hmm.h"
/* The functions and types of the C helpers. */
#include "helpers/helpers.c"

/* Macros of which bindgen does not find the value. */
enum { RUST_HMM_PMD_ORDER = PMD_ORDER };
