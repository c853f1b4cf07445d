#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Hashes of the sources of builds and measurements; to be sourced after common.sh.
#
# A successful build leaves the hash of its sources in the file .sources beside its output. A build
# removes this file when it begins, so that output older than the sources is never run, for instance
# after a failed build. Measurements are kept with such a hash, too, because it does not change when
# a commit is rewritten.

# Sources of the programs, which are a workspace of cargo, and the drivers among samples/.
program_sources=(Cargo.toml samples/demo tests/bench/{Cargo.toml,src} tests/{e2e,fuzz,lib,stress,rustfmt.toml}
	tools/{audit,hmmctl,rustfmt.toml})
driver_sources() { (cd "$HMM_TOP" && printf '%s\n' samples/* | grep -vx samples/demo); }
# source_of PROGRAM: the directory of the sources of PROGRAM, without the crate in tests/lib.
source_of() {
	case $1 in
	hmm-demo) echo samples/demo ;;
	hmm-bench) echo tests/bench ;;
	hmm-e2e | hmm-fuzz | hmm-stress) echo "tests/${1#hmm-}" ;;
	hmm-audit | hmmctl) echo "tools/${1#hmm-}" ;;
	esac
}

# hash_paths PATH...: short hash of the names and contents of the files below PATHs of the checkout,
# without build output and records, which tests write.
hash_paths() {
	(
		cd "$HMM_TOP" || exit
		files_below "$@" | xargs -0r sha256sum
	) | sha256sum | cut -c1-16
}
files_below() {
	find "$@" -type f ! -name '.*' ! -name '*.o' ! -name '*.ko' ! -name '*.a' ! -name '*.mod' ! -name '*.mod.c' \
		! -name '*.rmeta' ! -name '*.order' ! -name '*.symvers' ! -name '*.tsv' ! -name tables-stale \
		! -name Cargo.lock ! -path '*/target/*' ! -path '*/__pycache__/*' -print0 | sort -z
}

# hash_code PATH...: the same without lines of Rust that are empty or only a comment. They do not
# reach the compiler, so that measurements and results of tests stay valid if they change.
hash_code() {
	(
		cd "$HMM_TOP" || exit
		files_below "$@" | grep -zv '\.rs$' | xargs -0r sha256sum
		files_below "$@" | grep -z '\.rs$' | LC_ALL=C xargs -0r grep -aHvE '^[[:space:]]*(//|$)' || :
	) | sha256sum | cut -c1-16
}

# Tools that neither build modules nor start a VM: a test has only those that it names (tests_of).
named_tools='coverage|demo|doc|driver|install|into-tree|lib/mutation\.sh|patches|pictures|rust-analyzer|rust-analyzer\.py|rustc-again|rustdoc|upstream'

# sources_of KIND: the hash of the sources of the "modules", of the "programs", or of the code that
# is "tested": the modules with all that builds, installs and runs them, but without the tools that
# start tests, check sources, judge results or write tables, and without the programs and
# named_tools, of which a test has only those that it runs (tests_of).
sources_of() {
	case $1 in
	modules)
		# shellcheck disable=SC2046 # Names without spaces.
		hash_paths Kbuild rust $(driver_sources) tests/modules include tools/coverage
		;;
	programs) hash_paths "${program_sources[@]}" ;;
	tested)
		# shellcheck disable=SC2046 # Names without spaces.
		hash_code Kbuild Kconfig Cargo.toml dkms.conf debian rust $(driver_sources) include \
			tests/{lib,modules} $(
				cd "$HMM_TOP" || exit
				printf '%s\n' tools/* tools/lib/* |
					grep -vxE "tools/(audit|check|hmmctl|lib|rustfmt\.toml|$named_tools)|tools/lib/(sources|groups|table)\.sh"
			)
		;;
	*) die "sources_of $1: want modules, programs or tested" ;;
	esac
}

# tests_of TEXT...: the hash of the parts of tests/run that the TEXTs name, and of those that these
# name in turn, including tools/lib/groups.sh and named_tools, but without the tools that start all
# of them; and of the sources of the programs that any of them names.
tests_of() {
	local found
	mapfile -t found < <(parts_of "$@")
	if ((${#found[@]})); then hash_code "${found[@]}"; else echo none; fi
}
parts_of() {
	local text=$* found=() name new
	while :; do
		new=()
		while read -r name; do
			name=$(source_of "$name")
			[[ -z $name || " ${found[*]} " == *" $name "* ]] || found+=("$name")
		done < <(grep -oE 'hmm-[a-z0-9]+|hmmctl' <<<"$text" | sort -u)
		while read -r name; do
			[ -e "$HMM_TOP/$name" ] || continue
			case $name in tests/run/all | tests/run/release | tests/run/release.steps | tests/run/skips) continue ;; esac
			[[ " ${found[*]} " == *" $name "* ]] || new+=("$name")
		done < <(grep -oE 'tests/(run/[a-z0-9]+([.-][a-z0-9]+)*|[a-z]+/run)|tools/lib/groups\.sh|tools/'"($named_tools)\\b" <<<"$text" | sort -u)
		((${#new[@]})) || break
		found+=("${new[@]}")
		text=''
		for name in "${new[@]}"; do
			if [ -f "$HMM_TOP/$name" ]; then text+=$(<"$HMM_TOP/$name"); fi
			# The files of a tool name each other, and other tools.
			if [[ $name =~ ^tools/($named_tools)$ && -d $HMM_TOP/$name ]]; then text+=$(cat "$HMM_TOP/$name"/*); fi
		done
	done
	if ((${#found[@]})); then printf '%s\n' "${found[@]}"; fi
}

# built_from DIRECTORY HASH: records that DIRECTORY was built from sources with HASH.
built_from() { printf '%s\n' "$2" >"$1/.sources"; }

# is_current KIND DIRECTORY: whether DIRECTORY was built from the current sources.
is_current() { [ -s "$2/.sources" ] && [ "$(<"$2/.sources")" = "$(sources_of "$1")" ]; }

# commit_now: the commit of the checkout, followed by "+" if files differ from it; "-" without git.
commit_now() {
	local commit
	commit=$(git -C "$HMM_TOP" rev-parse --short=10 HEAD 2>/dev/null) || { printf -- '-\n'; return; }
	# Exclude records and tables, which measurements write.
	if [ -n "$(git -C "$HMM_TOP" status --porcelain -- Kbuild Kconfig Makefile Cargo.toml dkms.conf debian rust samples include tests tools ':!*.tsv' ':!*tables-stale')" ]; then
		commit+=+
	fi
	printf '%s\n' "$commit"
}
