#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# AddressSanitizer for programs in Rust; to be sourced after common.sh and tally.sh. Debian's Rust
# compiler does not include its runtime. GCC's runtime has the same functions, and must be the first
# library that is loaded.

# shellcheck disable=SC2034 # For who sources it.
sanitizer_target=x86_64-unknown-linux-gnu
# shellcheck disable=SC2034
sanitizer_flags='-Zsanitizer=address -Zexternal-clangrt -Clink-arg=-lasan'

# sanitized BINARY: replaces BINARY by a script that runs the program with the runtime. Leaks are
# not errors.
sanitized() {
	mv "$1" "$1.program"
	# shellcheck disable=SC2016
	printf '%s\n' '#!/bin/sh' 'export ASAN_OPTIONS=detect_leaks=0' \
		'exec env LD_PRELOAD="$(gcc -print-file-name=libasan.so)" "$0.program" "$@"' >"$1"
	chmod +x "$1"
}

# sanitizer_works BINARY: tests that a use after free is detected, with --use-after-free.
sanitizer_works() {
	if [[ $(in_root "$1" --use-after-free 2>&1) == *'AddressSanitizer: heap-use-after-free'* ]]; then
		pass "the sanitizer works"
	else
		flunk "the sanitizer does not notice memory that is used after it was freed"
	fi
}
