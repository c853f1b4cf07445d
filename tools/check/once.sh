#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Checks as tests of a suite; to be sourced after common.sh and tally.sh.

# check LABEL COMMAND...: runs COMMAND as a test of the suite.
check() {
	local label=$1
	shift
	if step "$label" "$@"; then pass "$label"; else flunk "$label"; fi
}
# once LABEL HASH COMMAND...: like check, unless COMMAND has passed before with the same output of
# the function HASH, which covers all its inputs.
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
		# Do not record the result if an input was edited during the check.
		[ "${mark##*-}" = "$("$hash")" ] || return 0
		# Keep the last ten of each name.
		touch "$mark"
		find "$HMM_CACHE" -maxdepth 1 -name "$(basename "${mark%-*}")-*" -printf '%T@ %p\n' |
			sort -rn | tail -n +11 | cut -d' ' -f2- | xargs -r rm -f
	else
		flunk "$label"
	fi
}
