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
# Debian's flavour, for the targets that help lists with it.
ARCH ?= amd64
export HMM_CACHE
# Not empty if a kernel is named.
named := $(filter command line environment override,$(origin KERNEL))
KDIR ?= /lib/modules/$(shell uname -r)/build
# Options of the modules that the command line sets, see Kbuild.
options = $(foreach v,$(filter CONFIG_RUST_%,$(.VARIABLES)),$(if $(filter command line,$(origin $v)),$v=$($v)))

.DEFAULT_GOAL := modules
.PHONY: help modules programs setup run test hmm-tests kunit e2e lifecycle faultless test-qemu-gpu \
	torture torture-long oversubscribe inject coverage fuzz bench-lookup mutation model \
	interleavings properties litmus conformance real release check lint quick host-tests prose unsafe-report \
	compile-fail bench bench-wall bench-scaling bench-space bench-compare bench-gate \
	bench-baseline bench-overlap pictures doc install uninstall deb test-install test-tracing \
	test-in-tree patches rust-analyzer clean

help:
	$(info $(help_text))@:

define help_text
usage: make [TARGET]... [KERNEL=debian|test|debug|kcsan|rt] [SERIES=7.2|7.3] [V=1] [W=1]

Build
  modules          the modules (default): for the running kernel, with KDIR= for that of another
                   tree, with KERNEL= for a kernel that make setup has prepared
  programs         the programs, among them build/user/bin/hmmctl: top, map, trace, record, report
  setup            compilers, QEMU and the kernel KERNEL= in a root of their own, in the cache
  rust-analyzer    rust-project.json for editors
  clean            remove build/ (the cache stays)
Run
  run              set everything up, boot the stock kernel and show the demo
                   (ARCH=amd64|arm64|arm64-16k)
  pictures         the pictures of hmmctl in the README
Check, without a VM
  check            format, lints, documents, examples, compile-fail tests
  lint             types of the library and the sample drivers, in seconds
  host-tests       KUnit suites of pure code, as ordinary tests on this machine (T=)
  prose            share of comment and document lines in unusual terms, by folder (LIST=1)
  unsafe-report    every unsafe block with its SAFETY comment, in build/unsafe-report.rst
  compile-fail     programs that must not compile
  model            all interleavings of a model of the protocol, each rule kept and broken
  interleavings    lock-free code in all interleavings, each ordering kept and broken
  properties       data structures beside models, with random operations, kept and broken
  litmus           lock-free protocols in the memory model of the kernel
Test
  test             everything that CI runs; ends with "N passed, N failed, N skipped"
  hmm-tests        the hmm-tests of the kernel, on debian and test (ARCH=)
  quick            build, boot and run tests with T= in their names, within a minute
  kunit            KUnit suites of the modules
  e2e              own end-to-end tests, on debian and test (FILTER="mirror. thp.split")
  lifecycle        1,000 loads, kills, OOM, suspend, CPU hotplug (long)
  faultless        engines that read and write during migrations (FORMAT=, TABLES=)
  fuzz             hostile calls on the device nodes (CALLS=, SEED=)
  torture          random operations, compared with a model (SEED= OPS= DEVICES= PROCS= THREADS=
                   VRAM= SECONDS= REPLAY=FILE HW=1); torture-long: for hours, all kernels (PLAN=)
  oversubscribe    working sets larger than device memory: table and bounds (VRAM=)
  inject           fail each step of each operation once, then all mixed
  conformance      whether traces of the modules are paths of the model
  real             gcc, Python, Java, databases ... under constant migration (NAME=)
  mutation         break each rule on purpose: a test must fail
  coverage         lines that the tests do not execute, with the reasons
  test-qemu-gpu    hardware that QEMU models, behind an IOMMU, on debian and debug
  test-tracing     trace-cmd, perf and bpftrace as the documents show them (5 minutes)
  test-in-tree     as a part of a kernel tree, KUnit by kunit.py (15 minutes; ARCH=)
  test-install     install, use and remove the packages in a stock Debian system (20 minutes);
                   with ARCH=arm64 or arm64-16k build, install and load them (20 minutes)
Measure
  bench            instructions per page, against the C drivers (SIZES="1 32 1024 4096", WRITE=1,
                   ARCH=)
  bench-wall       the same in wall time, as ratios of paired runs (PAIRS=)
  bench-scaling    device faults with 1, 2 and 4 engines; lock_stat with KERNEL=debug
  bench-space      cost and memory of 64 MiB and 16 GiB of mirrored address space
  bench-compare    against the modules of another revision (BASE=)
  bench-gate       fails if a row is 2 % more expensive than the baseline (written by bench-baseline)
  bench-lookup     structures that find the region of an address
  bench-overlap    overlap of copies with the work of the CPU
Document, install, release
  doc              the book and the reference of the library, as HTML in build/doc
  install          modules and SDK for the running kernel (RELEASE=, DESTDIR=, KDIR=); uninstall
  deb              Debian packages, with DKMS, into build/deb (ARCH=arm64: build/deb-arm64)
  patches          rust/mm as patches for the kernel crate, into build/patches
  release          all long forms on one state of the sources, in any number of sittings (SECONDS=, STEPS=)

The cache is ~/.cache/rust-hmm, or HMM_CACHE=DIR. Parts of the library can be left out of
the modules: CONFIG_RUST_HMM_QUEUE=n and others (Documentation/install.rst).
A driver of your own: tools/driver --new NAME DIRECTORY (Documentation/first-device.rst)
A command in a VM:    tools/vm/run -- COMMAND; with a terminal: tools/vm/run --shell
endef

setup:
	tools/kernel/prepare --kernel $(KERNEL) --series $(SERIES) --arch $(ARCH)

modules:
	$(if $(named),tools/build $(on),tools/kbuild '$(KDIR)') $(options)

programs:
	tools/build --user --arch $(ARCH)

run:
	tools/build --all $(run_on)
	tools/demo $(run_on)

test:
	@tests/run/all

# Without KERNEL=, run the kernel "test" if the series has no bootable Debian image.
bootable = $(or $(named),$(filter default,$(SERIES)),$(word 4,$(shell tools/kernel/prepare --series $(SERIES) --show)))
run_kernel = $(if $(bootable),$(KERNEL),test)
# Options that name the kernel.
of = --series $(SERIES) --arch $(ARCH)
on = --kernel $(KERNEL) $(of)
run_on = --kernel $(run_kernel) $(of)
# Only the kernel of KERNEL= on the command line, otherwise both.
kernels = $(if $(named),$(KERNEL),$(if $(bootable),debian) test)

hmm-tests:
	set -e; for k in $(kernels); do \
		tools/build --kernel $$k $(of); \
		tests/run/hmm-tests --kernel $$k $(of); \
		[ $$k = debian ] || tests/run/hmm-tests --kernel $$k $(of) --driver test_hmm; \
	done

kunit: K = $(if $(filter debug kcsan rt,$(KERNEL)),$(KERNEL),test)
kunit:
	tools/build --kernel $(K) $(of)
	tests/run/kunit --kernel $(K) $(of)

# FILTER= selects tests by parts of their names, on private memory
e2e:
	tools/build --user --arch $(ARCH)
	set -e; for k in $(kernels); do \
		tools/build --kernel $$k $(of); \
		tests/run/e2e --kernel $$k $(of) $(FILTER); \
		$(if $(FILTER),,tests/run/e2e --kernel $$k $(of) --coherent; \
			tests/run/e2e --kernel $$k $(of) --timed;) \
	done

lifecycle:
	tools/build --all $(run_on)
	tests/run/lifecycle $(run_on)

test-qemu-gpu:
	tools/build --user --arch $(ARCH)
	tools/build --kernel debian $(of)
	tools/build --kernel debug $(of)
	tests/run/hw --all $(of)

# FORMAT=radix4|radix5|lpae|lpae-one-size|lpae16k|gfx9 TABLES=plain|coherent|vram; lpae16k needs
# ARCH=arm64-16k
faultless:
	tools/build --all $(run_on)
	$(if $(filter radix5 lpae16k,$(FORMAT)),tools/build $(run_on) HMM_MOCK_FORMAT=$(FORMAT))
	tests/run/faultless $(run_on) $(if $(FORMAT),--format $(FORMAT)) $(if $(TABLES),--tables $(TABLES)) --full

# CALLS= SEED=
fuzz:
	tools/build --all $(run_on)
	tests/run/fuzz $(run_on) $(if $(CALLS),--calls $(CALLS)) $(if $(SEED),--seed $(SEED))

# SEED= OPS= DEVICES= PROCS= THREADS= VRAM= (MiB) SECONDS= REPLAY=FILE HW=1 (on qemu_gpu)
torture:
	tools/build --all $(run_on)
	tests/run/torture $(run_on) $(if $(VRAM),--vram $(VRAM)) \
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
	tools/build --all $(run_on)
	tests/run/inject $(run_on)

coverage:
	tests/run/coverage --series $(SERIES)

bench-lookup:
	tests/run/lookup --series $(SERIES) --write

# NAME= mutations, or rules of tests/model/names
mutation:
	tests/run/mutation $(NAME)

model:
	tests/model/run

interleavings properties:
	tests/$@/run --broken
	tests/$@/run --sanitize
	$(if $(filter interleavings,$@),tests/$@/run --random 20000)

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
lint_kernel = $(if $(named),$(KERNEL),test)
lint:
	tools/check/types --kernel $(lint_kernel) --series $(SERIES)

# T=PART of the names of KUnit and end-to-end tests
quick:
	@tests/run/quick --kernel $(lint_kernel) $(of) $(T)

# T=PART of the names of KUnit tests
host-tests:
	tests/properties/run --kunit $(T)

prose:
	tools/check/prose $(if $(LIST),--list)

unsafe-report:
	tools/check/unsafe-report --write

compile-fail:
	tools/build
	tools/check/compile-fail

# KERNEL on the command line, otherwise test; SIZES in MiB; WRITE=1 writes the tables to the
# documents
bench:
	tests/run/bench --kernel $(bench_kernel) --series $(SERIES) --arch $(ARCH) $(if $(SIZES),--sizes '$(SIZES)') $(if $(WRITE),--write)

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
	tools/install/$@ $(if $(RELEASE),--release $(RELEASE)) $(if $(DESTDIR),--destdir $(DESTDIR)) \
		$(if $(filter install%command,$@%$(firstword $(origin KDIR))),--headers '$(KDIR)')

deb:
	tools/install/deb --arch $(firstword $(subst -, ,$(ARCH)))

test-install:
	tests/run/install --series $(SERIES) --arch $(ARCH)

test-tracing:
	tools/build --all --kernel debian --series $(SERIES)
	tests/run/observe --series $(SERIES)

test-in-tree:
	tests/run/in-tree --series $(SERIES) --arch $(ARCH)

patches:
	tools/patches $(if $(filter-out default,$(SERIES)),--series $(SERIES))

rust-analyzer:
	tools/rust-analyzer --kernel $(KERNEL) --series $(SERIES)

bench-overlap:
	tests/run/overlap --series $(SERIES)

clean:
	rm -rf build
