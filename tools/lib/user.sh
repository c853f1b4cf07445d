#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# cargo for the programs of tools/user and for tools/hmmctl; to be sourced after common.sh.

# shellcheck source=tools/lib/archive.sh
. "$HMM_TOP/tools/lib/archive.sh"

# Static; GNU ld takes several times as long as lld.
user_flags='-C target-feature=+crt-static -C link-arg=-fuse-ld=lld'

# user_sources: copies below build/, where each finds the other as in tools/. A lock file that another cargo left beside
# the sources names other versions of the crates than the root has.
user_sources() {
	local manifest

	mkdir -p "$HMM_BUILD/user/src"
	in_root rsync -a --delete --exclude /target --exclude /Cargo.lock "$HMM_TOP/tools/user/" "$HMM_BUILD/user/src/"
	in_root rsync -a --delete --exclude /target --exclude /Cargo.toml "$HMM_TOP/tools/hmmctl/" "$HMM_BUILD/user/hmmctl/"
	# The workspace has another name there. An unchanged file keeps its time.
	manifest=$(sed 's|"../user"|"../src"|' "$HMM_TOP/tools/hmmctl/Cargo.toml")
	if [ "$(cat "$HMM_BUILD/user/hmmctl/Cargo.toml" 2>/dev/null)" != "$manifest" ]; then
		printf '%s\n' "$manifest" >"$HMM_BUILD/user/hmmctl/Cargo.toml"
	fi
}

# user_cargo COMMAND ARGUMENT...: offline; the crates are Debian's packages, so that nothing but a Debian mirror
# is needed. Each command has a target directory of its own, so that none waits for another. The cache keeps what the
# crates of others are built to, which is the same in all checkouts with these manifests: one archive for each command.
user_cargo() {
	local command=$1 target=$HMM_BUILD/user/$1 archive manifests
	shift
	manifests=$(find "$HMM_TOP/tools/user" "$HMM_TOP/tools/hmmctl" -name Cargo.toml -print0 | sort -z | xargs -0 cat)
	archive=$HMM_CACHE/crates-$command-$(hash_of "$("$HMM_TOP/tools/root/bootstrap" --path)" "$user_flags" "$manifests").tar.zst
	if [ ! -e "$target" ] && [ -e "$archive" ]; then locked crates unpack "$archive" "$target" || :; fi
	user_cargo_plain "$command" --offline --target x86_64-unknown-linux-gnu --target-dir "$target" "$@" || return
	if [ ! -e "$archive" ]; then
		locked crates pack "$target" "$archive" --exclude 'hmm*' --exclude 'libhmm*' --exclude incremental
	fi
}

user_cargo_plain() {
	local home=$HMM_BUILD/user/cargo
	mkdir -p "$home"
	printf '[source.crates-io]\nreplace-with = "debian"\n[source.debian]\ndirectory = "/usr/share/cargo/registry"\n' \
		>"$home/config.toml"
	in_root env -C "$HMM_BUILD/user/src" CARGO_HOME="$home" RUSTFLAGS="$user_flags" cargo "$@"
}
