// SPDX-License-Identifier: GPL-2.0
/*
 * The kernel's C driver, for kernels that are built without it. It is compiled from the
 * kernel's source as it is.
 */
#include <test_hmm.c>
