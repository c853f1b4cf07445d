# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# What more than one command runs of the end-to-end tests.
# shellcheck disable=SC2034 # of who sources this

# Groups to which it makes a difference how the CPU sees the device's memory.
coherent_groups=(mirror fork kinds sharing migrate thp layout life bad race extension engine faultless attributes connect
	queue managed trace)

# The tests of sh -c "$hidden_failures" sh ARGUMENT..., with what must make no difference to a program, all at once:
# collections that are out of date, mirrors that are in use, too many migrations, and pages that do not become exclusive.
# Two tests check what `peer` prevents: that a CPU fault keeps the entries of a mirror.
hidden_failures='cd /sys/kernel/debug/rust_hmm/inject
echo 5 every >retry; echo 2 every >peer; echo 3 every >exclusive
cd /root; exec hmm-e2e --scale 8 --except faultless.h14_cpu_fault_keeps \
	--except migrate.half_of_a_block_is_resident "$@"'
