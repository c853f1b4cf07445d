# SPDX-License-Identifier: GPL-2.0
#
# awk -f reasons.awk REASONS UNREACHED: adds to each part why it is not executed, or "-".
# REASONS has lines FILE<tab>TEXT<tab>REASON: for parts of lines of FILE that, with the line before, contain
# TEXT. TEXT "*" is for the whole file.
BEGIN { FS = OFS = "\t" }

NR == FNR {
	if ($0 !~ /^#/ && NF == 3) {
		n++
		file[n] = $1
		text[n] = $2
		why[n] = $3
	}
	next
}

{
	reason = "-"
	for (i = 1; i <= n; i++)
		if ($1 == file[i] && (text[i] == "*" || index($5, text[i]))) {
			reason = why[i]
			break
		}
	print $1, $2, $3, $4, reason
}
