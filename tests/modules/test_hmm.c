// SPDX-License-Identifier: GPL-2.0
/* Builds the kernel's test_hmm driver, unmodified, for kernels that were configured without it. */
#include <test_hmm.c>
