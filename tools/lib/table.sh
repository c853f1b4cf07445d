#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Tables with measurements in documents; to be sourced after common.sh and sources.sh.
# tests/run/tables.tsv has a line for each table: the document, the mark, the commit and kernel of
# the measurement, the hash of the relevant sources, and these sources. tools/check/tables compares
# the hashes.

HMM_TABLES=${HMM_TABLES:-$HMM_TOP/tests/run/tables.tsv}

# write_table DOCUMENT MARK FILE KERNEL: replaces the lines between ".. table of MARK" and the next
# ".. end of the table" in the document by FILE, and records commit and sources. Does nothing if the
# sources differ from the commit, because the figures would belong to no commit.
write_table() {
	local document=$HMM_TOP/Documentation/$1 mark=".. table of $2" file=$3 kernel=$4 commit sources hash
	grep -qxF "$mark" "$document" || die "$document has no line \"$mark\""
	sources=$(awk -F '\t' -v document="$1" -v mark="$2" '$1 == document && $2 == mark { print $6 }' "$HMM_TABLES")
	[ -n "$sources" ] || die "$HMM_TABLES has no line for the table of $2 in $1"
	# shellcheck disable=SC2086 # words
	hash=$(hash_code $sources)
	commit=$(commit_now)
	if [[ $commit = *+ ]]; then
		say "    Documentation/$1 keeps its table of $2: the sources differ from commit ${commit%+}; commit first"
		return 0
	fi
	awk -v mark="$mark" -v file="$file" -v measured="Measured on $kernel at commit $commit." '
		$0 == ".. end of the table" { skip = 0 }
		!skip { print }
		$0 == mark {
			skip = 1
			print ""
			while ((getline line < file) > 0) print line
			print ""
			print measured
			print ""
		}' "$document" >"$document.tmp"
	mv "$document.tmp" "$document"
	awk -F '\t' -v OFS='\t' -v document="$1" -v mark="$2" -v commit="$commit" -v kernel="$kernel" -v hash="$hash" '
		$1 == document && $2 == mark { $3 = commit; $4 = kernel; $5 = hash }
		{ print }' "$HMM_TABLES" >"$HMM_TABLES.tmp"
	mv "$HMM_TABLES.tmp" "$HMM_TABLES"
	say "    table: Documentation/$1"
}

# measured_kernel KERNEL SERIES [ARCH]: kernel and release, as tables name them.
measured_kernel() {
	local release arch=${3:-amd64}
	read -r _ release _ <<<"$("$HMM_TOP/tools/kernel/prepare" --kernel "$1" --series "$2" --arch "$arch" --show)"
	[ "$arch" = amd64 ] || arch=-$arch
	printf '%s%s %s\n' "$1" "${arch#amd64}" "$release"
}

# rst_table: converts lines with tabs, of which the first one is the header, to a simple table in
# reStructuredText. The first column is left-aligned, the others are right-aligned.
rst_table() {
	awk -F '\t' '
		{ for (i = 1; i <= NF; i++) { cell[NR, i] = $i; if (length($i) > width[i]) width[i] = length($i) } columns = NF }
		function border(  i, n) {
			for (i = 1; i <= columns; i++) {
				if (i > 1) printf "  "
				for (n = 0; n < width[i]; n++) printf "="
			}
			print ""
		}
		END {
			border()
			for (r = 1; r <= NR; r++) {
				line = sprintf("%-*s", width[1], cell[r, 1])
				for (i = 2; i <= columns; i++) line = line sprintf("  %*s", width[i], cell[r, i])
				sub(/ +$/, "", line)
				print line
				if (r == 1) border()
			}
			border()
		}'
}
