# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The record of tests/run/mutation, and its judgement of a run. tools/check/summary tests these
# functions.

# turn_hash: the hash for turn(): that of the commit, or of the day if there is no git.
turn_hash() { git -C "$HMM_TOP" rev-parse HEAD 2>/dev/null || date +%j | sha1sum; }

# turn HASH NAME...: selects the tenth of the NAMEs that is due for commit HASH. Their order also
# depends on HASH, because there may be time for the first one only.
turn() {
	local number=$((16#${1:0:8})) i parts mine=()
	shift
	# With fewer than ten mutations, select one.
	parts=$(($# < 10 ? $# : 10))
	for ((i = parts ? number % parts : 0; i < $#; i += parts)); do mine+=("${@:i + 1:1}"); done
	for ((i = 0; i < ${#mine[@]}; i++)); do printf '%s\n' "${mine[(i + number / 10) % ${#mine[@]}]}"; done
}

# noticed_on RECORD NAME SOURCES: whether NAME was detected on the sources with this hash.
noticed_on() {
	[ -e "$1" ] && awk -F '\t' -v name="$2" -v sources="$3" '
		$1 == name && $2 == sources { found = 1 }
		END { exit !found }' "$1"
}

# record_of RECORD NAME: formats the record of NAME.
record_of() {
	local line=''
	[ ! -e "$1" ] || line=$(awk -F '\t' -v name="$2" '$1 == name { print name ": commit " $3 ", noticed by " $4 }' "$1")
	printf '%s\n' "${line:-$2: not recorded}"
}

# recorded RECORD NAME...: prints the NAMEs that have a record.
recorded() {
	local record=$1 name
	shift
	for name; do
		if [ -e "$record" ] && grep -qE "^$name"$'\t' "$record"; then printf '%s\n' "$name"; fi
	done
}

# keep RECORD NAME SOURCES COMMIT TESTS: records that TESTS detected NAME, replacing a previous
# record. Concurrent runs are serialized by a lock.
keep() {
	(
		flock 9
		{
			printf '%s\n%s\n' '# SPDX-License-Identifier: GPL-2.0' \
				'# Written by tests/run/mutation: mutation, hash of the sources, commit, tests that noticed it.'
			{
				[ ! -e "$1" ] || awk -F '\t' -v name="$2" '!/^#/ && $1 != name' "$1"
				printf '%s\t%s\t%s\t%s\n' "$2" "$3" "$4" "$5"
			} | sort
		} >"$1.tmp"
		mv "$1.tmp" "$1"
	) 9>"$HMM_BUILD/.lock-mutation-record"
}

# signs RESULTS TAP HANG: prints the failed tests and the reports of the kernel or the library,
# which detect the mutation. A time-out counts only if HANG is "hang", because on a slow machine
# each mutant may time out.
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
