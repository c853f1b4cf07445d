# SPDX-License-Identifier: GPL-2.0
#
# awk -f lines.awk -f check.awk REASONS: checks that each line named in REASONS exists, is unique
# and has a reason. Variable: top, the directory of the sources.
BEGIN { FS = "\t" }

function wrong(what) {
	print "tools/coverage/reasons:" FNR ": " what
	bad = 1
}

/^#/ { next }

/^@/ {
	if (NF != 2 || $2 == "")
		wrong("want @KEY<tab>REASON")
	sub(/ \?$/, "", $1)
	reason_of[substr($1, 2)] = $2
	next
}

NF != 4 {
	wrong("want FILE<tab>N/M<tab>KEY<tab>LINE")
	next
}

{
	if (!($3 in reason_of))
		wrong("no reason @" $3)
	needed[$3] = 1
	if (($1, $2, $4) in seen)
		wrong("the same line again")
	seen[$1, $2, $4] = 1
	read_source($1)
	split($2, number, "/")
	if (!(($1, $4) in same))
		wrong($1 " has no line '" $4 "'")
	else if (same[$1, $4] != number[2] || number[1] < 1 || number[1] + 0 > number[2] + 0)
		wrong($1 " has " same[$1, $4] " lines '" $4 "', and " $2 " is named")
}

END {
	for (key in reason_of)
		if (!(key in needed)) {
			print "tools/coverage/reasons: no line has the reason @" key
			bad = 1
		}
	exit bad
}
