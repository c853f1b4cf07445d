# SPDX-License-Identifier: GPL-2.0
#
# For reasons.awk and check.awk (awk -f lines.awk -f ...): lines of sources as tools/coverage/reasons names them, by their
# whole text without indentation and by which of the lines of the file with that text it is, "N/M". Such a name stays right
# when lines above it come or go, and becomes wrong when the line changes or another one like it comes.
# Variable: top, the directory of the sources.

function trim(s) {
	gsub(/^[ \t]+|[ \t]+$/, "", s)
	gsub(/\t/, " ", s)
	return s
}

# Reads a file once. same[file, text] is how many lines have a text, nth[file, number] which of them a line is.
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

# "N/M" of line NUMBER, which has TEXT.
function place(file, number, text) {
	read_source(file)
	return nth[file, number] "/" same[file, text]
}
