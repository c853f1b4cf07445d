#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Shared by all tools: paths, progress lines, logs and locks.
# Source it first; it enables strict mode. With -h or --help, it prints the head of the calling tool
# and exits.

set -euo pipefail
export LC_ALL=C

case ${1-} in
-h | --help)
	# Print the comment lines after the licence, up to the first other line.
	sed -n '3,${/^#/!q; /^#$/!s/^# //; s/^#$//; /./,$p}' "$0" | sed '/./,$!d; /^shellcheck /d'
	exit 0
	;;
esac

HMM_TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
HMM_CACHE=${HMM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/rust-hmm}
mkdir -p "$HMM_CACHE"
HMM_CACHE=$(cd "$HMM_CACHE" && pwd -P)
export HMM_TOP HMM_CACHE

# Inside the root the cache has this fixed name in addition to its own, so that absolute paths
# recorded by Kbuild stay valid when the cache is moved.
HMM_ALIAS=/hmm-cache

HMM_BUILD=$HMM_TOP/build
# Tools that fill the cache write their logs to the cache.
HMM_LOGS=${HMM_LOGS:-$HMM_BUILD/log}
export HMM_ALIAS HMM_BUILD HMM_LOGS

say()  { printf '%s\n' "$*" >&2; }
die()  { printf 'error: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

elapsed() {
	local s=$1

	if ((s < 60)); then printf '%ds' "$s"; else printf '%dm%02ds' $((s / 60)) $((s % 60)); fi
}

# programs_of ARCH: prints the directory of the programs for guests of an architecture.
programs_of() {
	case $1 in
	amd64) printf '%s\n' "$HMM_BUILD/user/bin" ;;
	*) printf '%s\n' "$HMM_BUILD/user-$1/bin" ;;
	esac
}

# step LABEL COMMAND...: runs COMMAND with a progress line and with its output in a log. Prints the
# end of the log on a failure. With V=1 prints the output while COMMAND runs.
step() {
	local label=$1 log start=$SECONDS rc
	shift
	mkdir -p "$HMM_LOGS"
	log=$HMM_LOGS/$(printf '%s' "$label" | tr -cs 'A-Za-z0-9._\n-' '-').log
	printf '  %-58s' "$label" >&2
	# Not "|| rc=$?", which would disable errexit inside the step.
	set +e
	if [ "${V-}" = 1 ]; then
		printf '\n' >&2
		( set -e; "$@" ) 2>&1 </dev/null | tee "$log" >&2
		rc=${PIPESTATUS[0]}
	else
		( set -e; "$@" ) >"$log" 2>&1 </dev/null
		rc=$?
	fi
	set -e
	if ((rc)); then
		printf ' FAILED after %s\n' "$(elapsed $((SECONDS - start)))" >&2
		tail -n "${HMM_TAIL:-30}" "$log" | sed 's/^/    | /' >&2
		say "error: $label failed (status $rc); full log: $log"
		return "$rc"
	fi
	printf ' %s\n' "$(elapsed $((SECONDS - start)))" >&2
}

# locked NAME COMMAND...: runs COMMAND while holding the cache's lock NAME, and reports that it
# waits. COMMAND may be a shell function. The lock is released when the process ends in any way.
locked() {
	local name=$1 fd rc
	shift
	mkdir -p "$HMM_CACHE/lock"
	exec {fd}>"$HMM_CACHE/lock/$name"
	if ! flock -n "$fd"; then
		say "  waiting for another run that holds the cache's lock '$name'"
		flock "$fd"
	fi
	set +e
	( set -e; "$@" )
	rc=$?
	set -e
	exec {fd}>&-
	return "$rc"
}

# on_disk: waits until the cache was written to disk. Called before a file is renamed or a mark is
# set, because after a crash the mark could exist while the files are empty.
on_disk() {
	sync -f "$HMM_CACHE"
}

# hash_of TEXT...: short name for a set of inputs.
hash_of() {
	printf '%s\n' "$@" | sha256sum | cut -c1-12
}

# hash_files FILE...: short name for the contents of files.
hash_files() {
	cat -- "$@" | sha256sum | cut -c1-12
}

in_root() {
	"$HMM_TOP/tools/root/enter" "$@"
}

jobs_n() {
	printf '%s' "${HMM_JOBS:-$(nproc)}"
}
