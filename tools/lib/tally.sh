#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Counting test results; to be sourced after common.sh. Every suite leaves build/results/SUITE with a
# line "ok NAME", "not ok NAME" or "skip NAME" per test, so that tools/test/all can add them up. A
# suite that ends early leaves at least one "not ok".

HMM_RESULTS=$HMM_BUILD/results

# suite NAME: starts a suite; until its "finish" the result is a failure.
suite() {
	HMM_SUITE=$1
	HMM_RESULT=$HMM_RESULTS/$1
	mkdir -p "$HMM_RESULTS" "$HMM_BUILD/log"
	# Two runs of one suite in one checkout would write into the same files; the lock goes away with us.
	local fd
	exec {fd}>"$HMM_BUILD/.lock-suite-$1"
	if ! flock -n "$fd"; then
		say "  waiting for another run of $1 in this checkout"
		flock "$fd"
	fi
	: >"$HMM_RESULT"
	trap 'printf "not ok %s: ended early\n" "$HMM_SUITE" >>"$HMM_RESULT"' EXIT
}

pass()  { printf 'ok %s\n' "$*" >>"$HMM_RESULT"; }
flunk() { printf 'not ok %s\n' "$*" >>"$HMM_RESULT"; say "    FAILED: $*"; }
skip()  { printf 'skip %s\n' "$*" >>"$HMM_RESULT"; }

# tap_results FILE: "ok|not ok|skip NAME" for each test line of TAP or KTAP; with "leaves" as the second argument
# only the innermost level of KTAP, in which every suite ends in a line of its own.
tap_results() {
	tr -d '\r' <"$1" | awk -v leaves="${2-}" '
		match($0, /^ *(not )?ok [0-9]+ /) {
			line = $0
			indent = match(line, /[^ ]/)
			sub(/^ */, "", line)
			# A line that closes deeper results is their sum.
			if (leaves && last > indent) { last = indent; next }
			last = indent
			bad = line ~ /^not ok/
			sub(/^(not )?ok [0-9]+ (- )?/, "", line)
			skipped = line ~ /# *SKIP/
			sub(/ *#.*/, "", line)
			print (skipped ? "skip " : bad ? "not ok " : "ok ") line
		}'
}

count() { grep -c "^$1 " "$2" || [ $? -eq 1 ]; }

# finish: prints the suite's sum; fails when a test failed or none ran.
finish() {
	local p f s

	trap - EXIT
	p=$(count ok "$HMM_RESULT")
	f=$(count 'not ok' "$HMM_RESULT")
	s=$(count skip "$HMM_RESULT")
	if ((p + f == 0)); then
		flunk "$HMM_SUITE: no test ran"
		f=1
	fi
	say "$(printf '  %-40s %3d passed, %d failed, %d skipped' "$HMM_SUITE" "$p" "$f" "$s")"
	((f == 0))
}
