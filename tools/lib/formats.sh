# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Page-table formats that the mock GPU can walk, by the names that --format accepts.

# format_modules NAME [PLACE]: sets the options of tools/vm/run that load the mock with page tables
# of this format, in memory of that kind. radix5 and lpae16k are in modules that
# tools/build HMM_MOCK_FORMAT=NAME builds.
# shellcheck disable=SC2034 # of who sources this
format_modules() {
	local number place
	case $1 in
	radix4) number=0 ;;
	lpae) number=1 ;;
	gfx9) number=2 ;;
	tree) number=3 ;;
	lpae-one-size) number=4 ;;
	radix5) number=5 ;;
	lpae16k) number=6 ;;
	*) die "unknown format $1: radix4, radix5, lpae, lpae-one-size, lpae16k, gfx9, or tree for none" ;;
	esac
	if [ "$1" = lpae16k ] && [ "${arch-}" != arm64-16k ]; then
		die "lpae16k has no entry for a page of 4 KiB: it needs --arch arm64-16k"
	fi
	with_format=()
	case $1 in radix5 | lpae16k) with_format+=(--variant "$1") ;; esac
	case ${2:-plain} in
	plain) place=0 ;;
	coherent) place=1 ;;
	# The BAR is that of an ivshmem-plain.
	vram) place=2 with_format+=(--hw qemu-gpu) ;;
	*) die "unknown place of page tables $2: plain, coherent or vram" ;;
	esac
	with_format+=(--module rust_hmm --module "rust_dmirror format=$number tables=$place")
}
