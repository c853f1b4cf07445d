// SPDX-License-Identifier: GPL-2.0
/*
 * First object of an instrumented module. hmm_coverage.ko finds the table by
 * the module parameter, which cannot be set or read.
 */
#include <linux/moduleparam.h>

#include "coverage.h"

HMM_COVERAGE_LABELS("begin");

extern char hmm_coverage_data_begin[], hmm_coverage_data_end[];
extern char hmm_coverage_cnts_begin[], hmm_coverage_cnts_end[];
extern char hmm_coverage_names_begin[], hmm_coverage_names_end[];

static struct hmm_coverage table = {
	.begin = { hmm_coverage_data_begin, hmm_coverage_cnts_begin,
		   hmm_coverage_names_begin },
	.end = { hmm_coverage_data_end, hmm_coverage_cnts_end,
		 hmm_coverage_names_end },
};

static const struct kernel_param_ops table_ops = {};

module_param_cb(hmm_coverage, &table_ops, &table, 0);
