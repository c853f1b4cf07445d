// SPDX-License-Identifier: GPL-2.0
/* Last object of an instrumented module. */
#include "coverage.h"

HMM_COVERAGE_LABELS("end");
