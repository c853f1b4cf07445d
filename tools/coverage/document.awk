# SPDX-License-Identifier: GPL-2.0
#
# awk -f document.awk SUMMARY UNREACHED: the list that make doc includes in
# Documentation/coverage.rst.
function clean(text) {
	gsub(/^[ \t]+|[ \t]+$/, "", text)
	gsub(/\\/, "\\\\", text)
	gsub(/`/, "'", text)
	return text
}

function row(a, b, c, d) {
	printf "   * - %s\n     - %s\n     - %s\n     - %s\n", a, b, c, d
}

FILENAME != last {
	last = FILENAME
	part++
	if (part == 1) {
		print ".. list-table::\n   :header-rows: 1\n"
		row("file", "lines", "not executed", "parts of other lines")
	}
}

part == 1 && $1 ~ /^rust\// { row($1, $2, $3, $4) }

part == 2 {
	split($0, field, "\t")
	if (field[1] !~ /^rust\//)
		next
	reason = field[5]
	if (!(reason in text)) {
		order[++reasons] = reason
	}
	where = field[1] ":" field[2]
	# Consecutive lines are one place.
	if (field[1] == file && field[2] == line + 1 && reason == before)
		text[reason] = text[reason]
	else
		text[reason] = text[reason] "\n\n   ``" where "``  ``" clean(field[4]) "``"
	file = field[1]
	line = field[2]
	before = reason
}

END {
	print ""
	for (i = 1; i <= reasons; i++)
		printf "%s%s\n\n", order[i] == "-" ? "No reason" : order[i], text[order[i]]
}
