// SPDX-License-Identifier: GPL-2.0
//! Counters of a device and of its engines.

use crate::abi::iowr;

/// Defines a structure of numbers of 64 bits behind a head, and lists them by their names.
macro_rules! counters {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            head { $($head:tt)* }
            $($(#[$doc:meta])* $field:ident,)*
        }
    ) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($head)*
            $($(#[$doc])* pub $field: u64,)*
        }

        impl $name {
            /// Names and values in the order of the structure.
            pub fn fields(&self) -> [(&'static str, u64); [$(stringify!($field)),*].len()] {
                [$((stringify!($field), self.$field)),*]
            }
        }
    };
}

counters! {
    /// Counters of `rust_dmirror`, ioctl 0x41.
    ///
    /// Counters of the mirror are per open file; `cpu_fault*`, `evicted_pages` and
    /// `device_pages_*` are per device.
    pub struct Counters {
        head {
            /// In: size of the caller's structure in bytes, at least 16. Out: bytes written.
            pub size: u32,
            /// Out: [`ABI_VERSION`].
            pub version: u32,
        }
        /// Device fault rounds for reading.
        faults_read,
        /// Device fault rounds for writing.
        faults_write,
        /// Entries that faults installed.
        pages_mapped,
        /// Invalidation callbacks.
        invalidations,
        /// Entries that invalidations removed or downgraded.
        invalidated_pages,
        /// Base pages migrated to the device.
        migrated_to_device,
        /// Base pages migrated back by request.
        migrated_to_system,
        /// CPU faults served for the device.
        cpu_faults,
        /// Base pages that CPU faults brought back.
        cpu_fault_pages,
        /// Base pages evicted.
        evicted_pages,
        /// Collect-and-validate rounds that had to be repeated.
        retries,
        /// Pages that could not migrate.
        migrate_skipped,
        /// Base pages of device memory in use now.
        device_pages_used,
        /// Base pages of device memory in all.
        device_pages_total,
        /// Accesses by engines.
        accesses,
        /// Accesses served by the TLB.
        tlb_hits,
        /// Accesses that walked the page table.
        tlb_misses,
        /// Reads that faulted.
        engine_faults_read,
        /// Writes and atomics that faulted.
        engine_faults_write,
        /// Reads that waited for their page.
        stalls_read,
        /// Writes and atomics that waited for their page.
        stalls_write,
        /// Total time of the waits of reads in ns.
        stall_ns_read,
        /// Total time of the waits of writes and atomics in ns.
        stall_ns_write,
        /// The longest wait.
        stall_ns_max,
        /// Bytes that engines read.
        bytes_read,
        /// Bytes that engines wrote.
        bytes_written,
        /// Uses of a translation after its flush: a bug if not 0.
        stale_hits,
        /// Pages that migrated under a valid device entry.
        switched_pages,
        /// Bytes that the copy engine copied.
        bytes_copied,
        /// Copies that failed.
        copy_failures,
        /// Faults that found their page in the fault buffer.
        faults_coalesced,
        /// Batches in which the fault buffer was served.
        fault_batches,
    }
}

impl Counters {
    /// The ioctl request number.
    pub const REQUEST: u64 = iowr(0x41, size_of::<Counters>());
}

counters! {
    /// Counters of one engine.
    pub struct EngineCounters {
        head {
            pub(crate) size: u32,
            pub(crate) engine: u32,
            /// [`crate::abi::ABI_VERSION`].
            pub version: u32,
            pub(crate) reserved: u32,
        }
        /// Commands taken.
        commands,
        /// As in [`crate::Counters`], and so on.
        accesses,
        /// TLB hits.
        tlb_hits,
        /// TLB misses.
        tlb_misses,
        /// Reads that faulted.
        faults_read,
        /// Writes that faulted.
        faults_write,
        /// Reads that waited.
        stalls_read,
        /// Writes that waited.
        stalls_write,
        /// Total time of the waits of reads in ns.
        stall_ns_read,
        /// Total time of the waits of writes in ns.
        stall_ns_write,
        /// The longest wait.
        stall_ns_max,
        /// Bytes read.
        bytes_read,
        /// Bytes written.
        bytes_written,
        /// Stale translations found.
        stale_hits,
        /// Time in which it ran commands.
        busy_ns,
        /// Time without a command.
        idle_ns,
        /// Time in which all its commands waited.
        wait_ns,
        /// Commands set aside.
        set_aside,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn counters_have_no_padding() {
        assert_eq!(size_of::<Counters>(), 8 + 32 * 8);
        assert_eq!(offset_of!(Counters, faults_read), 8);
        assert_eq!(offset_of!(Counters, device_pages_total), 8 + 13 * 8);
        assert_eq!(offset_of!(Counters, fault_batches), 8 + 31 * 8);
        assert_eq!(Counters::REQUEST, 0xc108_4841);
    }

    #[test]
    fn fields_are_named_in_their_order() {
        let counters =
            Counters { faults_read: 1, tlb_hits: 2, fault_batches: 3, ..Counters::default() };
        let fields = counters.fields();
        assert_eq!(fields.len(), 32);
        assert_eq!((fields[0], fields[31]), (("faults_read", 1), ("fault_batches", 3)));
        assert!(fields.contains(&("tlb_hits", 2)));
        let engine = EngineCounters { commands: 4, set_aside: 5, ..EngineCounters::default() };
        let fields = engine.fields();
        assert_eq!(fields.len(), 18);
        assert_eq!((fields[0], fields[17]), (("commands", 4), ("set_aside", 5)));
    }
}
