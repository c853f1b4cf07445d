// SPDX-License-Identifier: GPL-2.0

//! Structures of `dmirror_uapi.h`, field by field. A test of the programs compares size and offset
//! of each field with the C header.

arguments! {
    /// `struct dmirror_info`.
    Info: 40 {
        size: u32,
        version: u32,
        engines: u32,
        tlb_entries: u32,
        copy_threads: u32,
        coherent: u32,
        vram_bytes: u64,
        queue_depth: u64,
    }

    /// `struct dmirror_counters`.
    Counters: 264 {
        size: u32,
        version: u32,
        faults_read: u64,
        faults_write: u64,
        pages_mapped: u64,
        invalidations: u64,
        invalidated_pages: u64,
        migrated_to_device: u64,
        migrated_to_system: u64,
        cpu_faults: u64,
        cpu_fault_pages: u64,
        evicted_pages: u64,
        retries: u64,
        migrate_skipped: u64,
        device_pages_used: u64,
        device_pages_total: u64,
        accesses: u64,
        tlb_hits: u64,
        tlb_misses: u64,
        engine_faults_read: u64,
        engine_faults_write: u64,
        stalls_read: u64,
        stalls_write: u64,
        stall_ns_read: u64,
        stall_ns_write: u64,
        stall_ns_max: u64,
        bytes_read: u64,
        bytes_written: u64,
        stale_hits: u64,
        switched_pages: u64,
        bytes_copied: u64,
        copy_failures: u64,
        faults_coalesced: u64,
        fault_batches: u64,
    }

    /// `struct dmirror_submit`.
    Submit: 80 {
        size: u32,
        flags: u32,
        engine: u32,
        op: u32,
        addr: u64,
        bytes: u64,
        src: u64,
        value: u64,
        stride: u64,
        rounds: u64,
        think_ns: u64,
        id: u64,
    }

    /// `struct dmirror_wait`.
    Wait: 72 {
        size: u32,
        flags: u32,
        id: u64,
        timeout_ns: u64,
        status: i32,
        reserved: u32,
        result: u64,
        rounds: u64,
        faults: u64,
        stalls: u64,
        stall_ns: u64,
    }

    /// `struct dmirror_stop`.
    Stop: 16 {
        size: u32,
        flags: u32,
        id: u64,
    }

    /// `struct dmirror_engine`.
    Engine: 160 {
        size: u32,
        engine: u32,
        version: u32,
        reserved: u32,
        commands: u64,
        accesses: u64,
        tlb_hits: u64,
        tlb_misses: u64,
        faults_read: u64,
        faults_write: u64,
        stalls_read: u64,
        stalls_write: u64,
        stall_ns_read: u64,
        stall_ns_write: u64,
        stall_ns_max: u64,
        bytes_read: u64,
        bytes_written: u64,
        stale_hits: u64,
        busy_ns: u64,
        idle_ns: u64,
        wait_ns: u64,
        set_aside: u64,
    }

    /// `struct dmirror_migrate`.
    Migrate: 80 {
        size: u32,
        flags: u32,
        addr: u64,
        npages: u64,
        outcomes: u64,
        moved: u64,
        switched: u64,
        skipped: u64,
        no_memory: u64,
        copy_failed: u64,
        ns: u64,
    }

    /// `struct dmirror_set`.
    Set: 32 {
        size: u32,
        flags: u32,
        what: u32,
        reserved: u32,
        value: u64,
        old: u64,
    }

    /// `struct dmirror_discard`.
    Discard: 24 {
        size: u32,
        flags: u32,
        addr: u64,
        npages: u64,
    }

    /// `struct dmirror_attributes`.
    Attributes: 40 {
        size: u32,
        flags: u32,
        addr: u64,
        npages: u64,
        what: u32,
        preferred: u32,
        values: u32,
        granularity: u32,
    }

    /// `struct dmirror_placement`.
    Placement: 64 {
        size: u32,
        flags: u32,
        faults: u64,
        moved: u64,
        in_place: u64,
        evicted_for_room: u64,
        pieces: u64,
        pieces_idle: u64,
        chosen: u64,
    }

    /// `struct dmirror_policy`.
    Policy: 16 {
        size: u32,
        flags: u32,
        policy: u32,
        old: u32,
    }

    /// `struct dmirror_memory`.
    Memory: 32 {
        size: u32,
        flags: u32,
        first: u64,
        count: u64,
        left: u64,
    }

    /// `struct dmirror_unplug`.
    Unplug: 40 {
        size: u32,
        flags: u32,
        addr: u64,
        npages: u64,
        saved: u64,
        lost: u64,
    }

    /// `struct dmirror_queue`.
    Queue: 96 {
        size: u32,
        flags: u32,
        queue: u32,
        op: u32,
        addr: u64,
        bytes: u64,
        src: u64,
        value: u64,
        stride: u64,
        reserved: u64,
        after: u64,
        nafter: u64,
        rounds: u64,
        fence: u64,
    }

    /// `struct dmirror_fence`.
    Fence: 80 {
        size: u32,
        flags: u32,
        fence: u64,
        timeout_ns: u64,
        error: i32,
        fd: i32,
        state: u64,
        result: u64,
        moved: u64,
        stayed: u64,
        began_ns: u64,
        ended_ns: u64,
    }

    /// `struct dmirror_lock`.
    Lock: 72 {
        size: u32,
        flags: u32,
        addr: u64,
        bytes: u64,
        agents: u64,
        device_addr: u64,
        fine: u64,
        users: u64,
        ns: u64,
        looks: u64,
    }

    /// `struct dmirror_pull`.
    Pull: 72 {
        size: u32,
        flags: u32,
        fd: i32,
        reserved: u32,
        addr: u64,
        npages: u64,
        connection: u64,
        moved: u64,
        switched: u64,
        no_memory: u64,
        copy_failed: u64,
    }

    /// `struct dmirror_alloc`.
    Alloc: 40 {
        size: u32,
        flags: u32,
        fd: i32,
        queue: u32,
        bytes: u64,
        addr: u64,
        fence: u64,
    }

    /// `struct dmirror_events`.
    Events: 40 {
        size: u32,
        flags: u32,
        mask: u64,
        old: u64,
        waiting: u64,
        lost: u64,
    }

    /// `struct dmirror_event`, a record of the stream. It does not begin with its size.
    Event: 88 {
        version: u16,
        r#type: u16,
        error: i32,
        time_ns: u64,
        sequence: u64,
        lost: u64,
        addr: u64,
        npages: u64,
        mirror: u32,
        detail: u32,
        to_device: u32,
        reserved: u32,
        moved: u64,
        switched: u64,
        stayed: u64,
    }
}
