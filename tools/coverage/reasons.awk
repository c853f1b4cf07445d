# SPDX-License-Identifier: GPL-2.0
#
# awk -f lines.awk -f reasons.awk REASONS UNREACHED: adds to each part the reason for which it is
# not executed, or "-".
# REASONS has lines @KEY<tab>REASON, and FILE<tab>N/M<tab>KEY<tab>LINE for all parts of a line (see
# lines.awk). "@KEY ?" is a reason for parts that a run may execute by chance.
# Variables: top, the directory of the sources; unused, a file for lines of REASONS whose parts were
# executed; chance, the same for parts that may be executed by chance; wanted, a file for lines to
# add to REASONS, without KEY.
BEGIN { FS = OFS = "\t" }

NR == FNR && /^@/ {
	split(substr($1, 2), key, " ")
	reason_of[key[1]] = $2
	sometimes[key[1]] = key[2] == "?"
	next
}

NR == FNR {
	if ($0 !~ /^#/ && NF == 4) {
		if (!($3 in reason_of)) {
			print "reasons: line " FNR ": no reason @" $3 >"/dev/stderr"
			exit 1
		}
		key_of[$1, $2, $4] = $3
		whole[++n] = $0
	}
	next
}

{
	name = $1 SUBSEP place($1, $2, $4) SUBSEP $4
	reason = "-"
	if (name in key_of) {
		reason = reason_of[key_of[name]]
		used[name] = 1
	} else if (wanted && $1 ~ /^rust\// && !(name in asked)) {
		asked[name] = 1
		print $1, place($1, $2, $4), "", $4 >wanted
	}
	print $1, $2, $3, $4, reason
}

END {
	for (i = 1; unused && i <= n; i++) {
		split(whole[i], field)
		if ((field[1], field[2], field[4]) in used)
			continue
		if (!sometimes[field[3]])
			print whole[i] >unused
		else if (chance)
			print whole[i] >chance
	}
}
