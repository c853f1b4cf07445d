// SPDX-License-Identifier: GPL-2.0
/*
 * The kernel's own page table code for 64-bit Arm, as a module: kernels for other machines do not have it. It is
 * compiled from the kernel's source as it is, for the tests.
 */
#include <io-pgtable-arm.c>
#include <io-pgtable.c>
#include <linux/module.h>

MODULE_DESCRIPTION("The kernel's io-pgtable with ARM LPAE, for tests");
MODULE_LICENSE("GPL");
