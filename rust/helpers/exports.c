// SPDX-License-Identifier: GPL-2.0
/*
 * Exports the Rust symbols of the library, so that generic and inlined code
 * in drivers links against it. The list is generated from the object file.
 */
#include <linux/export.h>

#define EXPORT_SYMBOL_RUST_GPL(sym) extern int sym; EXPORT_SYMBOL_GPL(sym)

#include "exports_generated.h"
