#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Measured tables in documents; to be sourced after common.sh.

# write_table DOCUMENT MARK FILE: puts FILE between the line ".. table of MARK" of the document and the next
# ".. end of the table".
write_table() {
	local document=$HMM_TOP/Documentation/$1 mark=".. table of $2" file=$3
	grep -qxF "$mark" "$document" || die "$document has no line \"$mark\""
	awk -v mark="$mark" -v file="$file" '
		$0 == ".. end of the table" { skip = 0 }
		!skip { print }
		$0 == mark {
			skip = 1
			print ""
			while ((getline line < file) > 0) print line
			print ""
		}' "$document" >"$document.tmp"
	mv "$document.tmp" "$document"
	say "    table: Documentation/$1"
}
