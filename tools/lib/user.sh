#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# cargo for the programs of the workspace in Cargo.toml; to be sourced after common.sh.

# shellcheck source=tools/lib/archive.sh
. "$HMM_TOP/tools/lib/archive.sh"
# shellcheck source=tools/lib/sources.sh
. "$HMM_TOP/tools/lib/sources.sh"

# user_arch ARCH: sets the variables of a build for guests of an architecture.
user_arch() {
	# Static. lld, because GNU ld is several times slower.
	user_flags='-C target-feature=+crt-static -C link-arg=-fuse-ld=lld' user_env=()
	case $1 in
	amd64) user_target=x86_64-unknown-linux-gnu user_dir=$HMM_BUILD/user ;;
	*)
		user_target=aarch64-unknown-linux-gnu user_dir=$HMM_BUILD/user-$1
		user_flags+=' -C linker=aarch64-linux-gnu-gcc-14'
		;;
	esac
	# Programs use the page size as a constant.
	[ "$1" != arm64-16k ] || user_env=(HMM_PAGES_16K=1)
}
user_arch amd64

# user_sources: copies the sources below build/, without the lock file that another cargo may have
# left beside Cargo.toml: it names other crate versions than those of the root. Unchanged files keep
# their modification time.
user_sources() {
	mkdir -p "$user_dir/src"
	in_root env -C "$HMM_TOP" rsync -a --delete --relative --exclude target/ "${program_sources[@]}" "$user_dir/src/"
}

# user_cargo COMMAND ARGUMENT...: runs cargo offline. The crates are Debian packages, so that only a
# Debian mirror is needed. Each command has its own target directory, so that commands do not wait
# for each other. The cache keeps the builds of third-party crates, in one archive for each command;
# they are the same in all checkouts with these manifests.
user_cargo() {
	local command=$1 target=$user_dir/$1 archive manifests
	shift
	manifests=$(cd "$HMM_TOP" && find "${program_sources[@]}" -name Cargo.toml -print0 | sort -z | xargs -0 cat)
	archive=$HMM_CACHE/crates-$command-$(hash_of "$("$HMM_TOP/tools/root/bootstrap" --path)" "$user_flags" "$manifests").tar.zst
	if [ ! -e "$target" ] && [ -e "$archive" ]; then locked crates unpack "$archive" "$target" || :; fi
	user_cargo_plain "$command" --offline --target "$user_target" --target-dir "$target" "$@" || return
	if [ ! -e "$archive" ]; then
		locked crates pack "$target" "$archive" --exclude 'hmm*' --exclude 'libhmm*' --exclude incremental
	fi
}

user_cargo_plain() {
	local home=$user_dir/cargo verbose=''
	[ "${V-}" != 1 ] || verbose=1
	mkdir -p "$home"
	printf '[source.crates-io]\nreplace-with = "debian"\n[source.debian]\ndirectory = "/usr/share/cargo/registry"\n' \
		>"$home/config.toml"
	in_root env -C "$user_dir/src" CARGO_HOME="$home" RUSTFLAGS="$user_flags" "${user_env[@]}" cargo ${verbose:+-v} "$@"
}
