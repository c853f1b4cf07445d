// SPDX-License-Identifier: GPL-2.0
/*
 * Exports the Rust symbols of the library, so that generic and inlined code
 * in drivers links against it. The list is generated from the object file.
 */
#include <linux/export.h>
#include <linux/module.h>

#include "../../include/rust_hmm.h"

/* The macro module! of the kernel crate has no key for it. */
MODULE_VERSION("0.2.0");

/*
 * The object whose name identifies the contents of the header for drivers in C;
 * see there. Helpers include the header, too, so that it exists without the C
 * interface.
 */
const char RUST_HMM_HEADER_SYMBOL;
EXPORT_SYMBOL_GPL(RUST_HMM_HEADER_SYMBOL);

#define EXPORT_SYMBOL_RUST_GPL(sym) extern int sym; EXPORT_SYMBOL_GPL(sym)

#include "exports_generated.h"
