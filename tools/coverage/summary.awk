# SPDX-License-Identifier: GPL-2.0
#
# awk -f summary.awk SUMMARY: the table of Documentation/coverage.rst, one line for each folder of
# the library, separated by tabs.
BEGIN { OFS = "\t" }

$1 ~ /^rust\// {
	folder = $1
	sub(/\.(rs|c)$/, "", folder)
	count = split(folder, part, "/")
	names[++n] = count > 2 ? "rust/" part[2] : "rust"
	# rust/mirror.rs belongs to rust/mirror/, if that exists.
	if (count == 2)
		own[n] = folder
	else
		is_folder["rust/" part[2]] = 1
	lines[n] = $2
	left[n] = $3
	parts[n] = $4
}

END {
	print "folder", "files", "lines", "not executed", "parts of other lines"
	for (i = 1; i <= n; i++) {
		name = names[i]
		if (own[i] in is_folder)
			name = own[i]
		if (!(name in files))
			order[++folders] = name
		files[name]++
		sum[name] += lines[i]
		sum_left[name] += left[i]
		sum_parts[name] += parts[i]
		all++
		all_lines += lines[i]
		all_left += left[i]
		all_parts += parts[i]
	}
	for (i = 1; i <= folders; i++) {
		name = order[i]
		print name, files[name], sum[name], sum_left[name], sum_parts[name]
	}
	print "all", all, all_lines, all_left, all_parts
}
