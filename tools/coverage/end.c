// SPDX-License-Identifier: GPL-2.0
/* Last object of an instrumented module. */
#include "coverage.h"

HMM_COVERAGE_LABEL("__llvm_prf_data", "aw", "hmm_coverage_data_end");
HMM_COVERAGE_LABEL("__llvm_prf_cnts", "aw", "hmm_coverage_cnts_end");
HMM_COVERAGE_LABEL("__llvm_prf_names", "a", "hmm_coverage_names_end");
