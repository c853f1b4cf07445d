// SPDX-License-Identifier: GPL-2.0
/*
 * First object of an instrumented module. hmm_coverage.ko finds the table by
 * the module parameter, which cannot be set or read.
 */
#include <linux/moduleparam.h>

#include "coverage.h"

HMM_COVERAGE_LABEL("__llvm_prf_data", "aw", "hmm_coverage_data_begin");
HMM_COVERAGE_LABEL("__llvm_prf_cnts", "aw", "hmm_coverage_cnts_begin");
HMM_COVERAGE_LABEL("__llvm_prf_names", "a", "hmm_coverage_names_begin");

static struct hmm_coverage table = {
	.begin = { hmm_coverage_data_begin, hmm_coverage_cnts_begin,
		   hmm_coverage_names_begin },
	.end = { hmm_coverage_data_end, hmm_coverage_cnts_end,
		 hmm_coverage_names_end },
};

static const struct kernel_param_ops table_ops = {};

module_param_cb(hmm_coverage, &table_ops, &table, 0);
