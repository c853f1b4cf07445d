# SPDX-License-Identifier: GPL-2.0
#
# awk -f merge.awk UNREACHED UNREACHED: what was executed in neither of two builds, from the outputs of unreached.awk for each.
# A line that one build does not have is judged by the other. Variable: summary, a file that gets for each source its lines,
# how many were not executed, and how many parts of other lines.
BEGIN { FS = OFS = "\t" }

FNR == 1 { build++ }

{
	line = $1 FS $2
	if (!((build, line) in known)) {
		known[build, line] = 1
		if (!((3 - build, line) in known))
			lines[$1]++
	}
}

$3 >= 0 {
	left[build, line, $3] = 1
	key = line FS $3
	if (!(key in text)) {
		order[++n] = key
		text[key] = $0
	}
}

# Whether the part in column at of a line was not executed in a build.
function is_left(b, line, at) {
	return !((b, line) in known) || (b, line, at) in left || (b, line, 0) in left
}

END {
	for (i = 1; i <= n; i++) {
		split(order[i], f)
		if (!is_left(1, f[1] FS f[2], f[3]) || !is_left(2, f[1] FS f[2], f[3]))
			continue
		# The part of a line that all is left of.
		if (f[3] > 0 && is_left(1, f[1] FS f[2], 0) && is_left(2, f[1] FS f[2], 0))
			continue
		print text[order[i]]
		if (f[3] > 0)
			parts[f[1]]++
		else
			whole[f[1]]++
	}
	for (file in lines)
		print file, lines[file], whole[file] + 0, parts[file] + 0 >summary
}
