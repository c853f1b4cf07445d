#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Archives in the cache. Build results are packed and unpacked as a whole, so that all files are of
# one build. zstd's checksum detects a damaged archive. To be sourced after common.sh.

# unpack ARCHIVE DIRECTORY: replaces DIRECTORY by the contents of ARCHIVE. A damaged archive is
# deleted.
unpack() {
	rm -rf "$2.part"
	mkdir -p "$2.part"
	if ! in_root tar -C "$2.part" -I zstd -xf "$1"; then
		say "an archive of the cache is damaged; its contents are built again: $1"
		rm -rf "$2.part" "$1"
		return 1
	fi
	rm -rf "$2"
	mv "$2.part" "$2"
}

# pack DIRECTORY ARCHIVE [TAR-OPTION]...: creates ARCHIVE, unless it exists.
pack() {
	local directory=$1 archive=$2
	shift 2
	[ ! -e "$archive" ] || return 0
	in_root tar -C "$directory" "$@" --format posix -I 'zstd -1' -cf "$archive.part" .
	on_disk
	mv "$archive.part" "$archive"
}

# rename_checkout DIRECTORY: makes the commands that Kbuild saved in DIRECTORY refer to this
# checkout. Modules in the cache were built in another checkout, which may have been deleted, and
# tools/rustc-again runs the saved commands.
rename_checkout() {
	local old
	old=$(sed -n 's/^export KBUILD_EXTMOD = //p' "$1/Makefile")
	[ -n "$old" ] || die "$1/Makefile does not say for which checkout it was made"
	[ "$old" != "$HMM_TOP" ] || return 0
	find "$1" \( -name '.*.cmd' -o -name Makefile -o -name '*.mod' -o -name modules.order \) -type f -print0 |
		in_root env OLD="$old" NEW="$HMM_TOP" xargs -0 -r perl -pi -e 's{\Q$ENV{OLD}\E(?![\w.-])}{$ENV{NEW}}g'
}
