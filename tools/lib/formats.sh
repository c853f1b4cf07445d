# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Page-table formats that the mock GPU can walk, by the names that --format accepts.

# format_modules NAME: sets the options of tools/vm/run that load the mock with page tables of this
# format.
# shellcheck disable=SC2034 # of who sources this
format_modules() {
	local number
	case $1 in
	radix4) number=0 ;;
	lpae) number=1 ;;
	gfx9) number=2 ;;
	tree) number=3 ;;
	lpae-one-size) number=4 ;;
	*) die "unknown format $1: radix4, lpae, lpae-one-size, gfx9, or tree for none" ;;
	esac
	with_format=(--module rust_hmm --module "rust_dmirror format=$number")
}
