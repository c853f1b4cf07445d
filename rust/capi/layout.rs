// SPDX-License-Identifier: GPL-2.0

//! Layout of the structures that `include/rust_hmm.h` defines, in bytes.
//! `rust/helpers/capi.c` asserts the same in C. If only one side is changed, the build fails.

use crate::bindings;
use core::mem::offset_of;

/// Asserts the size of a structure, and the offset of each field.
macro_rules! layout {
    ($($name:ident: $size:literal { $($field:ident: $offset:literal),* $(,)? })*) => {
        $(const _: () = {
            assert!(size_of::<bindings::$name>() == $size);
            $(assert!(offset_of!(bindings::$name, $field) == $offset);)*
            // Fails to compile if a field is not listed.
            let _ = |all: bindings::$name| {
                let bindings::$name { $($field: _),* } = all;
            };
        };)*
    };
}

layout! {
    rust_hmm_place: 24 { kind: 0, reserved: 4, first: 8, pages: 16 }
    rust_hmm_copy_job: 64 { source: 0, destination: 24, state: 48, index: 56 }
    rust_hmm_memory_ops: 40 { size: 0, copy: 8, ring_doorbell: 16, cancelled: 24, freed: 32 }
    rust_hmm_usage: 24 { used: 0, total: 8, limit: 16 }
    rust_hmm_mirror_ops: 32 { size: 0, flags: 8, reserved: 12, flush_start: 16, flush_wait: 24 }
    rust_hmm_served: 16 { moved: 0, in_place: 8 }
    rust_hmm_residency: 4 { location: 0, writable: 1, order: 2, reserved: 3 }
    rust_hmm_migration: 32 { target: 0, flags: 4, pages: 8, npages: 16, stop: 24 }
    rust_hmm_outcome: 48 {
        moved: 0, switched: 8, entries: 16, skipped: 24, no_memory: 32, copy_failed: 40,
    }
    rust_hmm_attributes: 12 {
        valid: 0, preferred: 4, accessed_by: 5, read_mostly: 6, never_migrate: 7, granularity: 8,
        reserved: 9,
    }
}
