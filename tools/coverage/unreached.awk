# SPDX-License-Identifier: GPL-2.0
#
# Reads the text of "llvm-cov show" and prints the parts that were not executed, without tests:
#   FILE<tab>LINE<tab>COLUMN<tab>source line
# COLUMN is 0 for a whole line, the column for a part of a line (usually the "?" of an error that
# did not occur), and -1 for each executed line. Lines with only punctuation are skipped, because
# they count with the block that they close.
# Variable: top, the directory to remove from names.

function trim(s) {
	gsub(/^[ \t]+|[ \t]+$/, "", s)
	gsub(/\t/, " ", s)
	return s
}

function tell(column) {
	if (text !~ /[[:alnum:]]/)
		return
	printf "%s\t%d\t%d\t%s\n", file, line, column, trim(text)
}

function flush_line(  i, n, at) {
	if (file == "" || line == 0)
		return
	if (!in_tests) {
		if (count != "")
			tell(count == "0" ? 0 : -1)
		n = count == "0" ? 0 : split(marks, at, " ")
		for (i = 1; i <= n; i++)
			tell(at[i] - width)
	}
}

/^\/.*:$/ {
	flush_line()
	file = substr($0, 1, length($0) - 1)
	if (index(file, top "/") == 1)
		file = substr(file, length(top) + 2)
	line = 0
	in_tests = file ~ /\/tests(\/[a-z_]+)?\.rs$/
	next
}

# "  12|   34|source", or a line after it with marks "^0".
match($0, /^ *[0-9]+\| *[0-9.kMG]*\|/) {
	flush_line()
	width = RLENGTH
	split(substr($0, 1, RLENGTH), part, "|")
	line = part[1] + 0
	count = part[2]
	gsub(/ /, "", count)
	text = substr($0, RLENGTH + 1)
	marks = ""
	if (text ~ /^mod tests \{/ || text ~ /^#\[kunit_tests/)
		in_tests = 1
	next
}

/\^0/ {
	rest = $0
	done = 0
	while (match(rest, /\^0([^0-9.]|$)/)) {
		marks = marks " " (done + RSTART)
		done += RSTART
		rest = substr(rest, RSTART + 1)
	}
}

END { flush_line() }
