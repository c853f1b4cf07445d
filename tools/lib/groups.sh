# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Selections of end-to-end tests that several commands run.
# shellcheck disable=SC2034 # of who sources this

# Groups whose code paths depend on whether the CPU can access device memory.
coherent_groups=(mirror fork vma_types sharing migrate thp vma_changes file_lifetime invalid_args race
	engine faultless attributes p2p queue managed trace)

# Runs the tests of sh -c "$hidden_failures" sh ARGUMENT... with injected failures that must be
# transparent to programs: stale collections, busy mirrors, excess migrations, and pages that cannot
# be made exclusive. Three tests are excluded because `peer` prevents the entries that they check:
# those of mirrors that join a migration or a CPU fault.
hidden_failures='cd /sys/kernel/debug/rust_hmm/inject
echo 5 every >retry; echo 2 every >peer; echo 3 every >exclusive
cd /root; exec hmm-e2e --scale 8 --except faultless.h14_cpu_fault_keeps_the_entry \
	--except faultless.h09_second_mirror_keeps_write_access \
	--except migrate.half_resident_block_migrates_the_other_half "$@"'
