# SPDX-License-Identifier: GPL-2.0
#
# Commands for developers and CI. Kbuild builds the modules, see the file Kbuild:
# "make -C KDIR M=$PWD modules" does not need this file.

# Kbuild reads Kbuild, not this file, and sets KERNELRELEASE: define nothing then.
KERNEL ?= debian
ifeq ($(KCSAN),1)
override KERNEL := kcsan
endif
SERIES ?= default
export HMM_CACHE

.DEFAULT_GOAL := help
.PHONY: help help-all setup kernel modules user run test hmm-tests kunit e2e lifecycle faultless hw-test torture torture-long oversubscribe inject coverage fuzz lookup mutation model interleavings properties litmus conformance real release check prose unsafe-report compile-fail bench bench-wall bench-scaling bench-space bench-compare bench-gate bench-baseline overlap pictures doc install uninstall deb install-test observe-test in-tree-test patches rust-analyzer clean

help:
	@echo 'make run        set everything up, boot the stock kernel and show the demo'
	@echo 'make test       everything that CI runs; ends with "N passed, N failed, N skipped"'
	@echo 'make user       the programs, among them build/user/bin/hmmctl: top, map, trace, record, report'
	@echo 'make e2e        own end-to-end tests (KERNEL=debian|test FILTER=GROUP)'
	@echo 'make check      format, lints, documents, compile-fail tests'
	@echo 'make doc        the book and the reference of the library, as HTML in build/doc'
	@echo 'make install    modules and SDK for the running kernel; make deb: Debian packages'
	@echo 'make help-all   all commands'
	@echo
	@echo 'A driver of your own: tools/driver --new NAME DIRECTORY (Documentation/first-device.rst)'
	@echo 'A command in a VM:    tools/vm/run -- COMMAND; with a terminal: tools/vm/run --shell'

help-all:
	@echo 'make run        set everything up, boot the stock kernel and show the demo'
	@echo 'make test       everything that CI runs; ends with "N passed, N failed, N skipped"'
	@echo
	@echo 'make setup      hermetic root and kernel (KERNEL) into the cache'
	@echo 'make kernel     the same, for KERNEL=debian|test|debug|kcsan|rt'
	@echo 'make modules    rust_hmm.ko and rust_dmirror.ko for KERNEL into build/'
	@echo 'make hmm-tests  the kernel'"'"'s own hmm-tests, on debian and test'
	@echo 'make kunit      KUnit suites of the modules'
	@echo 'make e2e        own end-to-end tests, on debian and test (KERNEL=, FILTER="mirror. thp.split")'
	@echo 'make lifecycle  1,000 loads, kills, OOM, suspend, CPU hotplug (long)'
	@echo 'make hw-test    QEMU'"'"'s own hardware behind an IOMMU, on debian and debug; counts IOMMU faults'
	@echo 'make faultless  engines that read and write during migrations, also while other things happen (FORMAT=)'
	@echo 'make fuzz       hostile calls on the device nodes (CALLS=, SEED=)'
	@echo 'make torture    random operations, compared with a model'
	@echo 'make torture-long  the same for hours, on all kernels (PLAN=debian|debug|test-new)'
	@echo 'make oversubscribe  working sets larger than device memory: table and bounds (VRAM=)'
	@echo 'make inject     fail each step of each operation once, then all mixed (KERNEL)'
	@echo 'make coverage   what the tests do not execute, and why'
	@echo 'make lookup     compare structures that find the region of an address'
	@echo 'make model      all interleavings of a model of the protocol, each rule kept and broken'
	@echo 'make interleavings  lock-free code in all interleavings, each ordering kept and broken'
	@echo 'make properties data structures beside models, with random operations, kept and broken'
	@echo 'make litmus     lock-free protocols in the memory model of the kernel'
	@echo 'make conformance  whether what the modules do is a path of the model (KERNEL)'
	@echo 'make real       gcc, Python, Java, databases ... under constant migration (KERNEL= NAME=)'
	@echo 'make mutation   break each rule on purpose: a test must notice'
	@echo 'make release    all long forms on one commit, in any number of sittings (SECONDS=, STEPS=); writes all tables'
	@echo 'make check      format, lints, documents, compile-fail tests'
	@echo 'make prose      share of comment and document lines that are not in standard terms, by folder (LIST=1)'
	@echo 'make unsafe-report  every unsafe block of the modules, with what it relies on'
	@echo 'make bench      instructions per page, against the C drivers (KERNEL=test|debian, SIZES="1 32 1024 4096")'
	@echo 'make bench-wall the same in wall time, as ratios of paired runs (PAIRS=)'
	@echo 'make bench-scaling  device faults with 1, 2 and 4 engines; lock_stat with KERNEL=debug'
	@echo 'make bench-space  cost and memory of 64 MiB and 16 GiB of mirrored address space'
	@echo 'make bench-compare  against the modules of another revision (BASE=)'
	@echo 'make bench-gate fails if a row is 5 % dearer than in tests/bench/baseline (bench-baseline writes that)'
	@echo 'make overlap    how copies overlap with the work of the CPU'
	@echo 'make user       the programs, among them build/user/bin/hmmctl: top, map, trace, record, report'
	@echo 'make pictures   the pictures of hmmctl in the README'
	@echo 'make doc        the book and the reference of the library, as HTML in build/doc'
	@echo 'make install    modules and SDK for the running kernel (RELEASE=, DESTDIR=); make uninstall'
	@echo 'make deb        Debian packages, with DKMS, into build/deb'
	@echo 'make install-test  install, use and remove them in a stock Debian system (more than an hour)'
	@echo 'make observe-test  trace-cmd, perf and bpftrace as the documents show them (5 minutes)'
	@echo 'make in-tree-test  as a part of a kernel tree (tools/into-tree), KUnit by kunit.py (15 minutes)'
	@echo 'make patches    rust/mm as patches for the kernel crate, into build/patches'
	@echo 'make rust-analyzer rust-project.json for editors'
	@echo 'make clean      remove build/ (the cache stays)'
	@echo
	@echo 'Torture:   SEED= OPS= DEVICES= PROCS= THREADS= VRAM= SECONDS= REPLAY=FILE HW=1'
	@echo 'Variables: KERNEL=debian|test|debug|kcsan|rt (or KCSAN=1)  SERIES=7.2|7.3|default  HMM_CACHE=DIR'

setup kernel:
	tools/kernel/prepare --kernel $(KERNEL) --series $(SERIES)

modules:
	tools/build --kernel $(KERNEL) --series $(SERIES)

user:
	tools/build --user

run:
	tools/build --all --kernel $(run_kernel) --series $(SERIES)
	tools/demo --kernel $(run_kernel) --series $(SERIES)

test:
	@tests/run/all

# Without KERNEL=, run the kernel "test" if the series has no bootable Debian image.
named := $(filter command line environment override,$(origin KERNEL))
bootable = $(or $(named),$(filter default,$(SERIES)),$(word 4,$(shell tools/kernel/prepare --series $(SERIES) --show)))
run_kernel = $(if $(bootable),$(KERNEL),test)
# Only the kernel of KERNEL= on the command line, otherwise both.
kernels = $(if $(named),$(KERNEL),$(if $(bootable),debian) test)

hmm-tests:
	set -e; for k in $(kernels); do \
		tools/build --kernel $$k --series $(SERIES); \
		tests/run/hmm-tests --kernel $$k --series $(SERIES); \
		[ $$k = debian ] || tests/run/hmm-tests --kernel $$k --series $(SERIES) --driver test_hmm; \
	done

kunit: K = $(if $(filter debug kcsan rt,$(KERNEL)),$(KERNEL),test)
kunit:
	tools/build --kernel $(K) --series $(SERIES)
	tests/run/kunit --kernel $(K) --series $(SERIES)

# FILTER= selects tests by parts of their names, on private memory
e2e:
	tools/build --user
	set -e; for k in $(kernels); do \
		tools/build --kernel $$k --series $(SERIES); \
		tests/run/e2e --kernel $$k --series $(SERIES) $(FILTER); \
		$(if $(FILTER),,tests/run/e2e --kernel $$k --series $(SERIES) --coherent; \
			tests/run/e2e --kernel $$k --series $(SERIES) --timed;) \
	done

lifecycle:
	tools/build --all --kernel $(run_kernel) --series $(SERIES)
	tests/run/lifecycle --kernel $(run_kernel) --series $(SERIES)

hw-test:
	tools/build --user
	tools/build --kernel debian --series $(SERIES)
	tools/build --kernel debug --series $(SERIES)
	tests/run/hw --all --series $(SERIES)

# FORMAT=radix4|lpae|gfx9
faultless:
	tools/build --all --kernel $(run_kernel) --series $(SERIES)
	tests/run/faultless --kernel $(run_kernel) --series $(SERIES) $(if $(FORMAT),--format $(FORMAT)) --full

# CALLS= SEED=
fuzz:
	tools/build --all --kernel $(run_kernel) --series $(SERIES)
	tests/run/fuzz --kernel $(run_kernel) --series $(SERIES) $(if $(CALLS),--calls $(CALLS)) $(if $(SEED),--seed $(SEED))

# SEED= OPS= DEVICES= PROCS= THREADS= VRAM= (MiB) SECONDS= REPLAY=FILE HW=1 (on qemu_gpu)
torture:
	tools/build --all --kernel $(run_kernel) --series $(SERIES)
	tests/run/torture --kernel $(run_kernel) --series $(SERIES) $(if $(VRAM),--vram $(VRAM)) \
		$(if $(DEVICES),--devices $(DEVICES)) $(if $(SEED),--seed $(SEED)) $(if $(OPS),--ops $(OPS)) \
		$(if $(PROCS),--procs $(PROCS)) $(if $(THREADS),--threads $(THREADS)) \
		$(if $(SECONDS),--seconds $(SECONDS)) $(if $(REPLAY),--replay $(REPLAY)) $(if $(HW),--hw)

torture-long:
	tests/run/torture-long --series $(SERIES) $(PLAN)

# VRAM= (MiB)
oversubscribe:
	tools/build --all --kernel $(run_kernel) --series $(SERIES)
	tests/run/oversubscribe --kernel $(run_kernel) --series $(SERIES) $(if $(VRAM),--vram $(VRAM))

inject:
	tools/build --all --kernel $(run_kernel) --series $(SERIES)
	tests/run/inject --kernel $(run_kernel) --series $(SERIES)

coverage:
	tests/run/coverage --series $(SERIES)

lookup:
	tests/run/lookup --series $(SERIES) --write

mutation:
	tests/run/mutation

model:
	tests/model/run

interleavings properties:
	tests/$@/run --broken
	tests/$@/run --sanitize

litmus:
	tests/litmus/run

conformance:
	tools/build --all --kernel $(run_kernel) --series $(SERIES)
	tests/conformance/run --kernel $(run_kernel)

# NAME= programs
real:
	set -e; for k in $(if $(named),$(KERNEL),debian debug); do \
		tools/build --all --kernel $$k --series $(SERIES); \
		tests/real/run --kernel $$k --series $(SERIES) $(NAME); \
	done

# SECONDS= STEPS=
release:
	tests/run/release $(if $(SECONDS),--seconds $(SECONDS)) $(STEPS)

check:
	tools/check/all

# LIST=1 prints the lines
prose:
	tools/check/prose $(if $(LIST),--list)

unsafe-report:
	tools/check/unsafe-report

compile-fail:
	tools/build
	tools/check/compile-fail

# KERNEL on the command line, otherwise test; SIZES in MiB; WRITE=1 writes the tables to the
# documents
bench:
	tests/run/bench --kernel $(bench_kernel) --series $(SERIES) $(if $(SIZES),--sizes '$(SIZES)') $(if $(WRITE),--write)

bench_kernel = $(if $(filter command line environment override,$(origin KERNEL)),$(KERNEL),test)

bench-wall:
	tests/run/bench --series $(SERIES) --pairs $(or $(PAIRS),5)

bench-scaling:
	tests/run/bench-scaling --kernel $(if $(filter command line environment override,$(origin KERNEL)),$(KERNEL),debug) --series $(SERIES)

bench-space:
	tests/run/bench-space --kernel $(bench_kernel) --series $(SERIES)

bench-compare:
	tests/run/bench-compare --base '$(BASE)' --kernel $(bench_kernel) --series $(SERIES)

bench-gate bench-baseline:
	tools/build --all --kernel test --series $(SERIES)
	tests/run/bench-gate --series $(SERIES) $(if $(filter bench-baseline,$@),--write)

pictures:
	tools/build --all --kernel $(run_kernel) --series $(SERIES)
	tools/pictures --kernel $(run_kernel) --series $(SERIES)

doc:
	tools/doc
	tools/rustdoc --kernel $(KERNEL) --series $(SERIES)

install uninstall:
	tools/install/$@ $(if $(RELEASE),--release $(RELEASE)) $(if $(DESTDIR),--destdir $(DESTDIR))

deb:
	tools/install/deb

install-test:
	tests/run/install --series $(SERIES)

observe-test:
	tools/build --all --kernel debian --series $(SERIES)
	tests/run/observe --series $(SERIES)

in-tree-test:
	tests/run/in-tree --series $(SERIES)

patches:
	tools/patches $(if $(filter-out default,$(SERIES)),--series $(SERIES))

rust-analyzer:
	tools/rust-analyzer --kernel $(KERNEL) --series $(SERIES)

overlap:
	tests/run/overlap --series $(SERIES)

clean:
	rm -rf build
