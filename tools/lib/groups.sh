# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Groups of end-to-end tests to which it makes a difference how the CPU sees the device's memory.
# shellcheck disable=SC2034 # of who sources this
coherent_groups=(mirror fork kinds sharing migrate thp layout life bad race extension engine faultless attributes connect
	replica queue managed trace)
