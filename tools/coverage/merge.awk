# SPDX-License-Identifier: GPL-2.0
#
# awk -f merge.awk UNREACHED UNREACHED: merges the outputs of unreached.awk for two builds, and
# prints the parts that neither build executed. A line that only one build contains is taken from
# that build. Variable: summary, a file for the number of lines, lines not executed, and partly
# executed lines of each source.
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

# Whether a build did not execute the part of a line at column at.
function is_left(b, line, at) {
	return !((b, line) in known) || (b, line, at) in left || (b, line, 0) in left
}

END {
	for (i = 1; i <= n; i++) {
		split(order[i], f)
		if (!is_left(1, f[1] FS f[2], f[3]) || !is_left(2, f[1] FS f[2], f[3]))
			continue
		# Skip a part of a line that was not executed at all in either build.
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
