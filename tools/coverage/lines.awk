# SPDX-License-Identifier: GPL-2.0
#
# Common functions of reasons.awk and check.awk (awk -f lines.awk -f ...). tools/coverage/reasons
# names a source line by its text without indentation and by its position "N/M" among the lines of
# the file with this text. Such a name stays valid when other lines are added or removed, and
# becomes invalid when the line changes or another line with the same text is added.
# Variable: top, the directory of the sources.

function trim(s) {
	gsub(/^[ \t]+|[ \t]+$/, "", s)
	gsub(/\t/, " ", s)
	return s
}

# Reads a file once. same[file, text] counts the lines with a text; nth[file, number] is the
# position of a line among them.
function read_source(file,  number, line, text) {
	if (file in lines_of)
		return
	lines_of[file] = 0
	while ((getline line <(top "/" file)) > 0) {
		text = trim(line)
		nth[file, ++number] = ++same[file, text]
	}
	close(top "/" file)
	lines_of[file] = number + 0
}

# Returns "N/M" for line NUMBER with TEXT.
function place(file, number, text) {
	read_source(file)
	return nth[file, number] "/" same[file, text]
}
