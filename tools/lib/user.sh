#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# cargo for the programs of tools/user; to be sourced after common.sh.

# user_sources: a copy below build/. A lock file that another cargo left beside the sources names other
# versions of the crates than the root has.
user_sources() {
	mkdir -p "$HMM_BUILD/user/src"
	in_root rsync -a --delete --exclude /target --exclude /Cargo.lock "$HMM_TOP/tools/user/" "$HMM_BUILD/user/src/"
}

# user_cargo ARGUMENT...: offline; the crates are Debian's packages, so that nothing but a Debian mirror
# is needed.
user_cargo() {
	local home=$HMM_BUILD/user/cargo
	mkdir -p "$home"
	printf '[source.crates-io]\nreplace-with = "debian"\n[source.debian]\ndirectory = "/usr/share/cargo/registry"\n' \
		>"$home/config.toml"
	in_root env -C "$HMM_BUILD/user/src" CARGO_HOME="$home" RUSTFLAGS='-C target-feature=+crt-static' cargo "$@"
}
