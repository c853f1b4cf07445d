# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The record of tools/test/mutation, and how it judges a run; tools/check/summary tests these functions.

# turn HASH NAME...: the tenth of the NAMEs that the commit HASH selects; their order, too, depends on it, since there may
# be time for the first one only.
turn() {
	local number=$((16#${1:0:8})) i parts mine=()
	shift
	# Of fewer than ten mutations, one.
	parts=$(($# < 10 ? $# : 10))
	for ((i = parts ? number % parts : 0; i < $#; i += parts)); do mine+=("${@:i + 1:1}"); done
	for ((i = 0; i < ${#mine[@]}; i++)); do printf '%s\n' "${mine[(i + number / 10) % ${#mine[@]}]}"; done
}

# noticed_on RECORD NAME SOURCES: whether NAME was noticed on the sources with that hash.
noticed_on() {
	[ -e "$1" ] && awk -F '\t' -v name="$2" -v sources="$3" '
		$1 == name && $2 == sources { found = 1 }
		END { exit !found }' "$1"
}

# record_of RECORD NAME: the line to show.
record_of() {
	local line=''
	[ ! -e "$1" ] || line=$(awk -F '\t' -v name="$2" '$1 == name { print name ": commit " $3 ", noticed by " $4 }' "$1")
	printf '%s\n' "${line:-$2: not recorded}"
}

# recorded RECORD NAME...: those of the NAMEs that RECORD has.
recorded() {
	local record=$1 name
	shift
	for name; do
		if [ -e "$record" ] && grep -qE "^$name"$'\t' "$record"; then printf '%s\n' "$name"; fi
	done
}

# keep RECORD NAME SOURCES COMMIT TESTS: records that TESTS noticed NAME, in place of its line before. Runs beside each
# other wait for each other.
keep() {
	(
		flock 9
		{
			printf '%s\n%s\n' '# SPDX-License-Identifier: GPL-2.0' \
				'# Written by tools/test/mutation: mutation, hash of the sources, commit, tests that noticed it.'
			{
				[ ! -e "$1" ] || awk -F '\t' -v name="$2" '!/^#/ && $1 != name' "$1"
				printf '%s\t%s\t%s\t%s\n' "$2" "$3" "$4" "$5"
			} | sort
		} >"$1.tmp"
		mv "$1.tmp" "$1"
	) 9>"$HMM_BUILD/.lock-mutation-record"
}

# signs RESULTS TAP HANG: what noticed the mutation in a run that failed, a line each: tests that failed, and what the
# kernel or the library reported. A time-out is a sign only where HANG is "hang": on a slow machine every mutant has one.
signs() {
	local name
	{
		while read -r name; do
			if [ "$3" = hang ] || ! tr -d '\r' <"$2" | grep -qE "^ *not ok [0-9]+ (- )?$name # no end"; then printf '%s\n' "$name"; fi
		done < <(sed -nE 's/^not ok ([^ ]+)$/\1/p' "$1" 2>/dev/null)
		sed -nE "s/^not ok (.*: )?the VM's run ended with status ([0-9]+)$/\2/p" "$1" 2>/dev/null |
			awk -v hang="$3" '($1 >= 214 && $1 <= 224) || ($1 == 212 && hang == "hang") { print "status-" $1 }'
	} | awk '!seen[$0]++'
}
