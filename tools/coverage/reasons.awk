# SPDX-License-Identifier: GPL-2.0
#
# awk -f reasons.awk REASONS UNREACHED: adds to each part why it is not executed, or "-".
# REASONS has lines @KEY<tab>REASON, and FILE<tab>TEXT<tab>KEY: for parts of lines of FILE that, with the line before, contain
# TEXT. TEXT "*" is for the whole file. FILE "*" is any: there TEXT is an expression for how the line ends where the part does,
# most often at a "?", or at its end. Variable: unused, a file for the lines of REASONS that no part needed.
BEGIN { FS = OFS = "\t" }

NR == FNR && /^@/ {
	reason_of[substr($1, 2)] = $2
	next
}

NR == FNR {
	if ($0 !~ /^#/ && NF == 3) {
		if (!($3 in reason_of)) {
			print "reasons: line " FNR ": no reason @" $3 >"/dev/stderr"
			exit 1
		}
		n++
		file[n] = $1
		text[n] = $2
		why[n] = reason_of[$3]
		whole[n] = $0
	}
	next
}

function fits(i) {
	if (file[i] == "*")
		return match($3 ? $6 : $4, "(" text[i] ")$")
	return file[i] == $1 && (text[i] == "*" || index($5, text[i]))
}

{
	reason = "-"
	for (i = 1; i <= n && reason == "-"; i++)
		if (fits(i)) {
			reason = why[i]
			used[i] = 1
		}
	print $1, $2, $3, $4, reason
}

END {
	for (i = 1; unused && i <= n; i++)
		if (!used[i])
			print whole[i] >unused
}
