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
	# One suite may be a part of what tools/test/all runs under another name.
	if [ -n "${HMM_SUITE_LOG-}" ] && [ ! -e "$HMM_BUILD/log/suite-$1.log" ]; then
		ln -sf "$HMM_SUITE_LOG" "$HMM_BUILD/log/suite-$1.log"
	fi
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

# say_failed FILE: the lines of TAP or KTAP of the tests that failed, which say why.
say_failed() {
	tr -d '\r' <"$1" | grep -aE '^ *not ok ' | sed 's/^ *//' | cut -c1-400 | sed 's/^/    /' >&2 || :
}

count() { grep -c "^$1 " "$2" || [ $? -eq 1 ]; }

# detail: prints what it reads, unless many suites run one after the other (HMM_BRIEF=1) and only their sums
# are wanted. Logs have it anyway.
detail() {
	if [ "${HMM_BRIEF-}" = 1 ]; then cat >/dev/null; else sed -u 's/^/    /' >&2; fi
}

# failures DIRECTORY LOGS: of each suite with results in DIRECTORY that has failed the tests that did (at
# most 40), and the end of its log LOGS/suite-NAME.log.
failures() {
	local f name log n
	for f in "$1"/*; do
		if [ ! -e "$f" ] || ! grep -q '^not ok ' "$f"; then continue; fi
		name=$(basename "$f")
		n=$(count 'not ok' "$f")
		printf '%s: %d failed\n' "$name" "$n"
		grep -m 40 '^not ok ' "$f" | sed 's/^/  /'
		if ((n > 40)); then printf '  and %d more: %s\n' $((n - 40)) "$f"; fi
		log=$2/suite-$name.log
		[ -s "$log" ] || continue
		printf '  the end of its log, %s:\n' "$log"
		tail -n 15 "$log" | tr -d '\r' | sed 's/^/  | /'
	done
}

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
