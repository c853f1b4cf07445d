#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Checks as tests of a suite; to be sourced after common.sh and tally.sh.

# check LABEL COMMAND...: a test of the suite.
check() {
	local label=$1
	shift
	if step "$label" "$@"; then pass "$label"; else flunk "$label"; fi
}
# once LABEL HASH COMMAND...: checks it, unless it has passed before and what the function HASH prints, of all that the
# check depends on, is the same.
once() {
	local label=$1 hash=$2 mark
	mark=$HMM_CACHE/passed-$(tr -cs 'A-Za-z0-9\n' '-' <<<"$label")-$("$hash")
	shift 2
	if [ -n "${HMM_KEEP-}" ] && [ -e "$mark" ]; then
		say "  $label: passed before, on the same sources"
		touch "$mark"
		pass "$label"
		return
	fi
	if step "$label" "$@"; then
		pass "$label"
		# What was edited meanwhile may not be what was checked.
		[ "${mark##*-}" = "$("$hash")" ] || return 0
		# The last ten of each name.
		touch "$mark"
		find "$HMM_CACHE" -maxdepth 1 -name "$(basename "${mark%-*}")-*" -printf '%T@ %p\n' |
			sort -rn | tail -n +11 | cut -d' ' -f2- | xargs -r rm -f
	else
		flunk "$label"
	fi
}
