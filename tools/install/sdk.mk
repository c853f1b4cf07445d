# SPDX-License-Identifier: GPL-2.0
#
# For the Kbuild file of a driver that is built on rust_hmm. With
#
#     include /usr/lib/rust-hmm/$(KERNELRELEASE)/sdk.mk
#     obj-m += my_driver.o
#     RUSTFLAGS_my_driver.o := $(rust_hmm_flags)
#
# a driver in Rust can say "use rust_hmm::...;". One in C says
#
#     CFLAGS_my_driver.o := $(rust_hmm_cflags)
#
# and #include <rust_hmm.h>.
rust_hmm_sdk := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
rust_hmm_flags := -L $(rust_hmm_sdk) --extern rust_hmm --cfg hmm_series_$(VERSION)_$(PATCHLEVEL)
# Names a symbol that only the library with the same header has.
rust_hmm_cflags := -I$(rust_hmm_sdk)/include \
	-DRUST_HMM_HEADER=$(shell sha1sum < $(rust_hmm_sdk)/include/rust_hmm.h | cut -c1-16)
KBUILD_EXTRA_SYMBOLS += $(rust_hmm_sdk)/Module.symvers
