/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Where the counters of an instrumented module are. begin.c and end.c are the
 * first and the last object of each module, so that their labels enclose the
 * sections which the compilers fill.
 */
#ifndef _HMM_COVERAGE_H
#define _HMM_COVERAGE_H

#include <linux/types.h>

enum hmm_coverage_section {
	HMM_COVERAGE_DATA,	/* a record for each function */
	HMM_COVERAGE_COUNTERS,	/* 64 bits each */
	HMM_COVERAGE_NAMES,
	HMM_COVERAGE_SECTIONS,
};

struct hmm_coverage {
	char *begin[HMM_COVERAGE_SECTIONS];
	char *end[HMM_COVERAGE_SECTIONS];
};

#define HMM_COVERAGE_LABEL(section, flags, label)			\
	asm(".pushsection " section ", \"" flags "\", @progbits\n"	\
	    ".globl " label "\n" label ":\n"				\
	    ".popsection\n")

extern char hmm_coverage_data_begin[], hmm_coverage_data_end[];
extern char hmm_coverage_cnts_begin[], hmm_coverage_cnts_end[];
extern char hmm_coverage_names_begin[], hmm_coverage_names_end[];

#endif /* _HMM_COVERAGE_H */
