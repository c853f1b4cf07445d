#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# cargo for the programs of tools/user and for tools/hmmctl; to be sourced after common.sh.

# user_sources: copies below build/, where each finds the other as in tools/. A lock file that another cargo left beside the sources names other
# versions of the crates than the root has.
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

# user_crates FROM TO: copies what crates of others were built to. What says that one is built comes last, when the rest
# is on the disk: cargo believes it, and an empty file then is a crate that "can't be found".
user_crates() {
	local profile part fd
	for profile in {,x86_64-unknown-linux-gnu/}{release,debug}; do
		[ -d "$1/$profile" ] || continue
		mkdir -p "$HMM_BUILD/user/$profile"
		# Another cargo may be at work; this is its lock.
		exec {fd}>>"$HMM_BUILD/user/$profile/.cargo-lock"
		flock "$fd"
		for part in deps build .fingerprint; do
			[ -d "$1/$profile/$part" ] || continue
			mkdir -p "$2/$profile/$part"
			if [ "$part" = .fingerprint ]; then on_disk; fi
			in_root rsync -a --exclude '/hmm*' --exclude '/libhmm*' "$1/$profile/$part/" "$2/$profile/$part/"
		done
		exec {fd}>&-
	done
}

# user_cargo ARGUMENT...: offline; the crates are Debian's packages, so that nothing but a Debian mirror
# is needed. The cache keeps what they are built to, which is the same in all checkouts with these manifests.
user_cargo() {
	local kept manifests rc=0
	manifests=$(find "$HMM_TOP/tools/user" "$HMM_TOP/tools/hmmctl" -name Cargo.toml -print0 | sort -z | xargs -0 cat)
	kept=$HMM_CACHE/crates-$(hash_of "$("$HMM_TOP/tools/root/bootstrap" --path)" "$manifests" "$(hash_files "$HMM_TOP/tools/lib/user.sh")")
	if [ "$(cat "$HMM_BUILD/user/crates" 2>/dev/null)" != "$kept" ]; then
		locked crates user_crates "$kept" "$HMM_BUILD/user"
		printf '%s' "$kept" >"$HMM_BUILD/user/crates"
	fi
	user_cargo_plain "$@" || rc=$?
	((rc)) || locked crates user_crates "$HMM_BUILD/user" "$kept"
	return "$rc"
}

user_cargo_plain() {
	local home=$HMM_BUILD/user/cargo
	mkdir -p "$home"
	printf '[source.crates-io]\nreplace-with = "debian"\n[source.debian]\ndirectory = "/usr/share/cargo/registry"\n' \
		>"$home/config.toml"
	in_root env -C "$HMM_BUILD/user/src" CARGO_HOME="$home" RUSTFLAGS='-C target-feature=+crt-static' cargo "$@"
}
