#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Counts test results; to be sourced after common.sh. Each suite writes to build/results/SUITE one
# line "ok NAME", "not ok NAME" or "skip NAME # REASON" for each test, which tests/run/all adds up.
# A suite that ends early leaves at least one "not ok". A skip that tests/run/skips does not list
# counts as a failure.

HMM_RESULTS=$HMM_BUILD/results
# List of permitted skips.
HMM_SKIPS=${HMM_SKIPS:-$HMM_TOP/tests/run/skips}

# suite NAME: starts a suite; until its "finish" the result is a failure.
suite() {
	HMM_SUITE=$1
	HMM_RESULT=$HMM_RESULTS/$1
	HMM_OMITTED=''
	mkdir -p "$HMM_RESULTS" "$HMM_BUILD/log"
	# Two runs of a suite in one checkout would write the same files. The lock is released on
	# exit.
	local fd
	exec {fd}>"$HMM_BUILD/.lock-suite-$1"
	if ! flock -n "$fd"; then
		say "  waiting for another run of $1 in this checkout"
		flock "$fd"
	fi
	: >"$HMM_RESULT"
	# Otherwise a VM would consume the input of a loop that starts it.
	exec </dev/null
	# tests/run/all may run a suite as part of another one with its own log.
	if [ -n "${HMM_SUITE_LOG-}" ] && [ ! -e "$HMM_BUILD/log/suite-$1.log" ]; then
		ln -sf "$HMM_SUITE_LOG" "$HMM_BUILD/log/suite-$1.log"
	fi
	trap 'printf "not ok %s: ended early\n" "$HMM_SUITE" >>"$HMM_RESULT"' EXIT
}

pass()  { printf 'ok %s\n' "$*" >>"$HMM_RESULT"; }
flunk() { printf 'not ok %s\n' "$*" >>"$HMM_RESULT"; say "    FAILED: $*"; }
skip()  { printf 'skip %s\n' "$*" >>"$HMM_RESULT"; }
# omit NAME # REASON: skips all tests of the suite, as one. tests/run/skips must permit it.
omit()  { skip "$*"; HMM_OMITTED=1; }

# take_tap FILE STATUS [leaves] [PREFIX]: adds the results of a program that printed TAP to FILE and
# ended with STATUS. A program that crashed, ended early or did not run its whole plan has failed,
# even if its tests passed.
take_tap() {
	local file=$1 status=$2 leaves=${3-} prefix=${4-} line
	tap_results "$file" "$leaves" | sed -E "s/^(ok|not ok|skip) /&$prefix/" >>"$HMM_RESULT"
	say_failed "$file"
	while read -r line; do flunk "$prefix$line"; done < <(tap_plan "$file")
	if ((status >= 200)); then
		flunk "${prefix}the VM's run ended with status $status"
	elif ((status)) && ! tr -d '\r' <"$file" | grep -aqE '^ *not ok '; then
		flunk "${prefix}the program ended with status $status, although no test failed"
	fi
}

# tap_plan FILE: prints errors in the numbering of TAP or KTAP, one in each line. At each level, a
# plan "1..N" precedes or follows its tests, and another plan begins another list. There must be at
# least one plan.
tap_plan() {
	tr -d '\r' <"$1" | awk '
		# ends LEVEL: the list at LEVEL is complete.
		function ends(level) {
			if (!(level in plan)) print "tests without a plan: " n[level] " results"
			else if (plan[level] != n[level]) print "the plan has " plan[level] " tests, " n[level] + 0 " reported"
			delete plan[level]
			delete n[level]
			delete closed[level]
		}
		/^ *1\.\.[0-9]+/ {
			level = match($0, /[^ ]/)
			number = $0
			sub(/^ *1\.\./, "", number)
			number += 0
			plans++
			for (l in n) if (l + 0 > level) ends(l)
			for (l in plan) if (l + 0 > level) ends(l)
			# A plan after its tests.
			if (level in n && !(level in plan)) {
				plan[level] = number
				ends(level)
				next
			}
			if (level in plan) ends(level)
			plan[level] = number
			next
		}
		/^ *(not )?ok [0-9]+/ {
			level = match($0, /[^ ]/)
			for (l in n) if (l + 0 > level) ends(l)
			for (l in plan) if (l + 0 > level) ends(l)
			n[level]++
			number = $0
			sub(/^ *(not )?ok /, "", number)
			if (number + 0 != n[level]) { print "test " number + 0 " reported as number " n[level]; n[level] = number + 0 }
		}
		/^ *Bail out!/ { print "it gave up: " $0 }
		END {
			for (l in plan) if (!(l in n)) n[l] = 0
			for (l in n) ends(l)
			if (!plans) print "no plan was reported"
		}'
}

# tap_results FILE: prints "ok NAME", "not ok NAME" or "skip NAME # REASON" for each test of TAP or
# KTAP. With "leaves" as second argument, only the innermost level of KTAP, where each suite ends
# with a line of its own.
tap_results() {
	tr -d '\r' <"$1" | awk -v leaves="${2-}" '
		match($0, /^ *(not )?ok [0-9]+ /) {
			line = $0
			indent = match(line, /[^ ]/)
			sub(/^ */, "", line)
			# A line that ends a nested list is a summary of it.
			if (leaves && last > indent) { last = indent; next }
			last = indent
			bad = line ~ /^not ok/
			sub(/^(not )?ok [0-9]+ (- )?/, "", line)
			skipped = !bad && line ~ /# *SKIP/
			reason = ""
			if (skipped) { reason = line; sub(/.*# *SKIP:? */, "", reason); reason = " # " reason }
			sub(/ *#.*/, "", line)
			print (skipped ? "skip " : bad ? "not ok " : "ok ") line reason
		}'
}

# kunit_suites FILE: checks that each suite in the sources has run.
kunit_suites() {
	local name
	# If the machine did not boot, that was already reported.
	grep -aq '# Subtest: ' "$1" || return 0
	while read -r name; do
		grep -aqE "# Subtest: $name"$'\r?$' "$1" || flunk "the suite $name of the sources did not run"
	done < <(cd "$HMM_TOP" && grep -rhoE --include '*.rs' 'kunit_tests\([a-z0-9_]+' rust samples | sed 's/.*(//' | sort -u)
}

# say_failed FILE: prints the TAP or KTAP lines of failed tests, which contain the reason.
say_failed() {
	tr -d '\r' <"$1" | grep -aE '^ *not ok ' | sed 's/^ *//' | cut -c1-400 | sed 's/^/    /' >&2 || :
}

count() { grep -c "^$1 " "$2" || [ $? -eq 1 ]; }

# detail: prints its input, except if several suites run in sequence and only their totals are
# wanted (HMM_BRIEF=1). The log contains it in either case.
detail() {
	if [ "${HMM_BRIEF-}" = 1 ]; then cat >/dev/null; else sed -u 's/^/    /' >&2; fi
}

# failures DIRECTORY LOGS: for each failed suite with results in DIRECTORY, prints the failed tests
# (at most 40) and the end of its log LOGS/suite-NAME.log.
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

# check_skips SUITE FILE: compares the results in FILE with the list of skips. A line of the list
# has a pattern of suites, the test, and the beginning of the reason. Prints a line
# "unlisted NAME # REASON" for each skipped test that is not listed, and "ran NAME" for each listed
# test of this suite that ran.
check_skips() {
	local suite=$1 pattern name reason line got result
	local -A listed=()
	while IFS='|' read -r pattern name reason; do
		read -r pattern <<<"$pattern"
		read -r name <<<"$name"
		read -r reason <<<"$reason"
		[[ -n $pattern && $pattern != '#'* ]] || continue
		# shellcheck disable=SC2053 # a pattern
		[[ $suite == $pattern ]] || continue
		listed[$name]=$reason
	done <"$HMM_SKIPS"
	while read -r line; do
		case $line in
		'skip '*)
			result=${line#skip }
			name=${result%% #*}
			got=''
			[[ $result != *' # '* ]] || got=${result#* # }
			if [ -z "${listed[$name]+yes}" ] || [[ $got != "${listed[$name]}"* ]]; then printf 'unlisted %s\n' "$result"; fi
			;;
		'ok '*)
			name=${line#ok }
			if [ -n "${listed[$name]+yes}" ]; then printf 'ran %s\n' "$name"; fi
			;;
		esac
	done <"$2"
}

# finish: prints the totals of the suite. Fails if a test failed, or if none ran and the suite did
# not omit all.
finish() {
	local p f s kind what

	trap - EXIT
	while read -r kind what; do
		case $kind in
		unlisted) flunk "skipped, and not listed in ${HMM_SKIPS#"$HMM_TOP/"}: $what" ;;
		ran) say "    $what ran, although ${HMM_SKIPS#"$HMM_TOP/"} lists it as skipped: remove it from the list" ;;
		esac
	done < <(check_skips "$HMM_SUITE" "$HMM_RESULT")
	p=$(count ok "$HMM_RESULT")
	f=$(count 'not ok' "$HMM_RESULT")
	s=$(count skip "$HMM_RESULT")
	if ((p + f == 0)) && [ -z "${HMM_OMITTED-}" ]; then
		flunk "$HMM_SUITE: no test ran"
		f=1
	fi
	say "$(printf '  %-40s %3d passed, %d failed, %d skipped' "$HMM_SUITE" "$p" "$f" "$s")"
	((f == 0))
}
