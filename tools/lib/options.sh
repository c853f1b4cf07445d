# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Optional parts of the library: CONFIG_RUST_HMM_<PART> of the file Kconfig. To be sourced.

# shellcheck disable=SC2034 # used by the tools that source this
optional_parts=(CAPI QUEUE MANAGED HOST_LOCK FAULT_INJECTION)
