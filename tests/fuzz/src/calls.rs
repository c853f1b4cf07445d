// SPDX-License-Identifier: GPL-2.0
//! The calls, and the threads that make them.

use crate::{
    arena::{
        self,
        BUFFER,
        BUFFER_LEN, //
    },
    args::{
        self,
        Argument, //
    },
    stats::{
        Shared,
        WORDS, //
    },
    sys, //
};
use hmm::{
    rng::Rng,
    PAGE_SIZE, //
};
use std::{
    ffi::{
        CStr,
        OsStr, //
    },
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::atomic::Ordering::Relaxed, //
};

/// File descriptors of the nodes; each may be open or closed.
pub const FDS: [i32; 12] = [100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111];

/// Number of descriptors of the mock device. Those of the nodes of [`SMALL`] follow.
pub const LARGE: usize = FDS.len() - SMALL.len();

/// The nodes of the small drivers, if they are loaded.
pub const SMALL: [&CStr; 6] = [
    c"/dev/hmm_c_mirror",
    c"/dev/hmm_mirror_only",
    c"/dev/hmm_lpae",
    c"/dev/hmm_lpae_16k",
    c"/dev/rust_template",
    c"/dev/rust_engines",
];
/// Number of nodes with the calls of [`Op::Sample`], and indices of nodes with other calls.
const SAMPLES: usize = 4;
const TEMPLATE: usize = 4;
const ENGINES: usize = 5;

/// Contents of the victim's memory, which no other process writes.
pub const CANARY: u64 = 0x5ec2_e700_c0ff_ee42;

/// Signal that interrupts a call.
pub const INTERRUPT: i32 = libc::SIGUSR1;

macro_rules! ops {
    ($($op:ident $name:literal $weight:literal,)*) => {
        /// Kinds of calls.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Op {
            $(#[doc = $name] $op,)*
        }
        /// Names, as in the headers.
        pub const NAMES: [&str; OPS] = [$($name,)*];
        /// All of them.
        pub const ALL: [Op; OPS] = [$(Op::$op,)*];
        const WEIGHTS: [u64; OPS] = [$($weight,)*];
        /// Number of kinds.
        pub const OPS: usize = [$($weight,)*].len();
    };
}

ops! {
    Read "HMM_DMIRROR_READ" 30,
    Write "HMM_DMIRROR_WRITE" 30,
    MigrateToDev "HMM_DMIRROR_MIGRATE_TO_DEV" 30,
    MigrateToSys "HMM_DMIRROR_MIGRATE_TO_SYS" 30,
    Snapshot "HMM_DMIRROR_SNAPSHOT" 40,
    Exclusive "HMM_DMIRROR_EXCLUSIVE" 30,
    CheckExclusive "HMM_DMIRROR_CHECK_EXCLUSIVE" 40,
    Release "HMM_DMIRROR_RELEASE" 10,
    Flags "HMM_DMIRROR_FLAGS" 10,
    ReadUnlocked "HMM_DMIRROR_READ_UNLOCKED" 30,
    Info "DMIRROR_INFO" 60,
    Counters "DMIRROR_COUNTERS" 60,
    Submit "DMIRROR_SUBMIT" 60,
    Wait "DMIRROR_WAIT" 120,
    Stop "DMIRROR_STOP" 80,
    Engine "DMIRROR_ENGINE" 60,
    Migrate "DMIRROR_MIGRATE" 40,
    Set "DMIRROR_SET" 20,
    Discard "DMIRROR_DISCARD" 40,
    SetAttributes "DMIRROR_SET_ATTRIBUTES" 30,
    GetAttributes "DMIRROR_GET_ATTRIBUTES" 20,
    Placement "DMIRROR_PLACEMENT" 10,
    Policy "DMIRROR_POLICY" 10,
    Memory "DMIRROR_MEMORY" 5,
    Unplug "DMIRROR_UNPLUG" 10,
    QueueCreate "DMIRROR_QUEUE_CREATE" 10,
    QueueDestroy "DMIRROR_QUEUE_DESTROY" 5,
    QueueSubmit "DMIRROR_QUEUE_SUBMIT" 40,
    QueueRecord "DMIRROR_QUEUE_RECORD" 20,
    QueueWait "DMIRROR_QUEUE_WAIT" 20,
    QueueWaits "DMIRROR_QUEUE_WAITS" 10,
    FenceCreate "DMIRROR_FENCE_CREATE" 20,
    FenceSignal "DMIRROR_FENCE_SIGNAL" 40,
    FenceCheck "DMIRROR_FENCE_CHECK" 20,
    FenceSync "DMIRROR_FENCE_SYNC" 2,
    FenceRelease "DMIRROR_FENCE_RELEASE" 20,
    FenceExport "DMIRROR_FENCE_EXPORT" 10,
    FenceImport "DMIRROR_FENCE_IMPORT" 20,
    FenceNotify "DMIRROR_FENCE_NOTIFY" 20,
    Blit "DMIRROR_BLIT" 20,
    Lock "DMIRROR_LOCK" 20,
    Unlock "DMIRROR_UNLOCK" 20,
    Locked "DMIRROR_LOCKED" 20,
    Pull "DMIRROR_PULL" 10,
    Alloc "DMIRROR_ALLOC" 5,
    Events "DMIRROR_EVENTS" 20,
    Template "rust_template" 20,
    Engines "rust_engines" 20,
    Sample "other drivers" 60,
    Unknown "unknown ioctl" 90,
    Mmap "mmap" 1,
    Mremap "mremap" 1,
    Munmap "munmap" 1,
    Poll "poll" 20,
    ReadFd "read" 20,
    WriteFd "write" 20,
    Lseek "lseek" 20,
    Other "other calls on the file" 30,
    Open "open" 2,
    Dup "dup" 3,
    Close "close" 1,
    Pass "SCM_RIGHTS" 2,
}

impl Op {
    /// Whether its argument begins with its size.
    pub fn is_extension(self) -> bool {
        (Op::Info as usize..=Op::Events as usize).contains(&(self as usize))
    }
}

/// The kinds of calls that are drawn, with their weights.
#[derive(Clone, Copy, Debug)]
pub struct Drawn {
    weights: [u64; OPS],
    total: u64,
    /// The loaded ones of the nodes with the calls of [`Op::Sample`], as a bit mask.
    samples: u32,
}

impl Drawn {
    /// The calls of the loaded drivers, and those that no driver implements.
    pub fn new(hardware: bool) -> Drawn {
        let is_there = |op| match op {
            Op::Template => is_loaded(TEMPLATE),
            Op::Engines => is_loaded(ENGINES),
            Op::Lock | Op::Unlock | Op::Locked | Op::Pull => true,
            Op::Sample => !hardware && (0..SAMPLES).any(is_loaded),
            op => !(hardware && op.is_extension()),
        };
        let weights = std::array::from_fn(|op| if is_there(ALL[op]) { WEIGHTS[op] } else { 0 });
        let loaded = (0..SAMPLES).filter(|index| is_loaded(*index));
        let samples = loaded.fold(0, |mask, index| mask | (1 << index));
        Drawn { weights, total: weights.iter().sum(), samples }
    }

    /// Index of a loaded node with the calls of [`Op::Sample`].
    fn sample(&self, rng: &mut Rng) -> usize {
        let mut left = rng.below(self.samples.count_ones().max(1) as usize);
        let mut mask = self.samples;
        while left > 0 {
            mask &= mask - 1;
            left -= 1;
        }
        mask.trailing_zeros() as usize % SAMPLES
    }

    fn draw(&self, rng: &mut Rng) -> Op {
        let mut at = rng.below_u64(self.total);
        for (op, weight) in ALL.iter().zip(self.weights) {
            if at < weight {
                return *op;
            }
            at -= weight;
        }
        Op::Read
    }
}

/// Valid calls of these kinds take long: makes only one in so many valid.
fn serve_one_in(op: Op) -> usize {
    match op {
        Op::Read | Op::Write | Op::ReadUnlocked | Op::Snapshot => 12,
        Op::MigrateToDev | Op::MigrateToSys | Op::Migrate | Op::Exclusive => 24,
        Op::Release => 40,
        Op::Submit => 6,
        _ => 1,
    }
}

/// Address at which [`Op::Mmap`] maps nodes.
const MAPS: usize = arena::HOLE - (64 << 20);

/// Makes calls.
pub struct Caller {
    /// Random number generator.
    pub rng: Rng,
    /// Counters of all processes.
    pub shared: &'static Shared,
    /// Slot of the thread, among those of all processes.
    pub slot: usize,
    /// Index of its page for arguments.
    pub thread: usize,
    /// Number of nodes.
    pub devices: u64,
    /// Kinds of calls.
    pub drawn: Drawn,
    /// The devices are `qemu_gpu`, which takes 200 ms for a page.
    pub hardware: bool,
    /// A pair of sockets.
    pub sockets: [i32; 2],
    /// Identifiers of the last commands, by descriptor.
    pub ids: [u64; FDS.len()],
    /// Device address and CPU address of the last lock, by descriptor.
    pub locked: [[u64; 2]; FDS.len()],
    /// Fence of the last blit, by descriptor: only these fences can be exported.
    pub blits: [u64; FDS.len()],
    /// A test parameter to reset: descriptor and number.
    pub undo: Option<(i32, u64)>,
}

fn open_path(path: &CStr, flags: i32) -> isize {
    let flags = libc::O_RDWR | libc::O_CLOEXEC | flags;
    let path = path.as_ptr() as usize;
    sys::call3(libc::SYS_openat, libc::AT_FDCWD as usize, path, flags as usize)
}

/// Opens the node of descriptor `which`, or node `device` of the mock. Returns a negative number on
/// an error. Half of them are opened with `O_NONBLOCK`.
pub fn open_node(which: usize, device: u64) -> isize {
    let flags = if which % 2 == 0 { libc::O_NONBLOCK } else { 0 };
    let small = which.checked_sub(LARGE).map(|index| open_path(SMALL[index], flags));
    if let Some(node) = small.filter(|node| *node >= 0) {
        return node;
    }
    let mut path = *b"/dev/hmm_dmirror0\0";
    path[16] = b'0' + device as u8;
    CStr::from_bytes_with_nul(&path).map_or(-1, |path| open_path(path, flags))
}

/// Paths of the nodes of the small drivers that exist.
pub fn small_nodes() -> impl Iterator<Item = &'static Path> {
    SMALL.iter().map(|path| small_path(path)).filter(|path| path.exists())
}

fn small_path(path: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(path.to_bytes()))
}

/// Whether the small driver with index `which` is loaded.
fn is_loaded(which: usize) -> bool {
    small_path(SMALL[which]).exists()
}

fn close(fd: isize) -> isize {
    sys::call3(libc::SYS_close, fd as usize, 0, 0)
}

impl Caller {
    /// Makes one call.
    pub fn one(&mut self) {
        if let Some((fd, what)) = self.undo.take_if(|_| self.rng.one_in(4)) {
            self.set(fd, what, if what == 1 { u64::MAX } else { 0 });
        }
        let op = self.drawn.draw(&mut self.rng);
        if self.rng.one_in(8) {
            let addr = arena::page(&mut self.rng);
            let write = self.rng.one_in(2);
            arena::touch(addr, 64, write);
        }
        self.call(op);
    }

    /// Sets a test parameter.
    pub fn set(&mut self, fd: i32, what: u64, value: u64) {
        let at = arena::settings(self.thread);
        args::put_set(at, what, value);
        self.timed(Op::Set, fd, hmm::abi::iowr(0x47, 32), at, false);
    }

    fn call(&mut self, op: Op) {
        let which = match (op, self.rng.one_in(8)) {
            (Op::Sample, false) => LARGE + self.drawn.sample(&mut self.rng),
            (Op::Template, false) => LARGE + TEMPLATE,
            (Op::Engines, false) => LARGE + ENGINES,
            (_, true) => self.rng.below(FDS.len()),
            (op, _) if op as usize > Op::Sample as usize => self.rng.below(FDS.len()),
            _ => self.rng.below(LARGE),
        };
        let fd = FDS[which];
        match op {
            Op::Mmap | Op::Mremap | Op::Munmap => self.mapping(op, fd),
            Op::Poll | Op::ReadFd | Op::WriteFd | Op::Lseek | Op::Other => self.plain(op, fd),
            Op::Open | Op::Dup | Op::Close | Op::Pass => self.descriptor(op, which),
            _ => self.ioctl(op, which),
        }
    }

    /// Exports the fence of the last blit.
    fn export(&mut self, which: usize) {
        let mut argument = Argument::of(Op::FenceExport, &mut self.rng, 0);
        (argument.words[1], argument.words[2]) = (self.blits[which], 0);
        let at = argument.place(&mut self.rng, self.thread);
        let result = self.timed(Op::FenceExport, FDS[which], argument.request, at, false);
        if result >= 0 && arena::is_kept(at + 24) && at % 8 == 0 {
            close((sys::peek(at + 24) >> 32) as isize);
        }
    }

    fn ioctl(&mut self, mut op: Op, which: usize) {
        let fd = FDS[which];
        let mut argument = Argument::of(op, &mut self.rng, self.ids[which]);
        if self.hardware {
            argument.shorten(op);
        }
        // Device addresses cannot be guessed: use that of the last lock.
        match op {
            Op::Unlock if !self.rng.one_in(4) => argument.words[4] = self.locked[which][0],
            Op::Locked if !self.rng.one_in(4) => argument.words[1] = self.locked[which][1],
            Op::Blit if !self.rng.one_in(4) => {
                // From the first page of the lock to the second.
                let first = self.locked[which][0] & !(PAGE_SIZE as u64 - 1);
                argument.words[2] = first.wrapping_add(PAGE_SIZE as u64);
                (argument.words[3], argument.words[4]) = (PAGE_SIZE as u64, first);
                argument.words[9] = 0;
            }
            Op::FenceExport if !self.rng.one_in(4) => {
                (argument.words[1], argument.words[2]) = (self.blits[which], 0);
            }
            _ => {}
        }
        if !self.rng.one_in(serve_one_in(op)) {
            argument.spoil(op, &mut self.rng);
        }
        argument.mutate(op, &mut self.rng);
        let at = if argument.is_setting() {
            // Also if the request was changed into this one.
            op = Op::Set;
            argument.place_setting(&mut self.rng, self.thread)
        } else {
            argument.place(&mut self.rng, self.thread)
        };
        let heavy = argument.heavy;
        let result = self.timed(op, fd, argument.request, at, heavy);
        if result < 0 {
            return;
        }
        let page = arena::arguments(self.thread);
        match op {
            Op::Submit
                if arena::is_kept(at + 72)
                    && at % 8 == 0
                    && (page..page + PAGE_SIZE).contains(&at) =>
            {
                self.ids[which] = sys::peek(at + 72);
            }
            Op::Lock
                if arena::is_kept(at + 32)
                    && at % 8 == 0
                    && (page..page + PAGE_SIZE).contains(&at) =>
            {
                self.locked[which] = [sys::peek(at + 32), argument.words[1]];
            }
            Op::Blit
                if arena::is_kept(at + 88)
                    && at % 8 == 0
                    && (page..page + PAGE_SIZE).contains(&at) =>
            {
                self.blits[which] = sys::peek(at + 88);
                // Few blits succeed, and other calls release their fences.
                self.export(which);
            }
            // Otherwise they would use up the limit of open files.
            Op::FenceExport if arena::is_kept(at + 24) && at % 8 == 0 && !self.rng.one_in(4) => {
                close((sys::peek(at + 24) >> 32) as isize);
            }
            Op::Set => self.undo = Some((fd, argument.words[1] & 0xffff_ffff)),
            Op::Read | Op::ReadUnlocked | Op::MigrateToDev | Op::Exclusive => {
                for page in 0..argument.pages().min(16) {
                    if sys::peek(BUFFER + page * PAGE_SIZE) == CANARY {
                        self.shared.leaks.fetch_add(1, Relaxed);
                    }
                }
            }
            _ => {}
        }
    }

    /// Makes an ioctl and measures its duration.
    fn timed(&mut self, op: Op, fd: i32, request: u64, at: usize, heavy: bool) -> isize {
        let mut words = [request, at as u64, fd as u64, 0, 0, 0, 0, 0, 0, 0];
        if arena::is_kept(at & !7) {
            let page_end = (at & !(PAGE_SIZE - 1)) + PAGE_SIZE;
            for (index, word) in words[3..].iter_mut().enumerate() {
                let addr = (at & !7) + index * 8;
                *word = if addr < page_end { sys::peek(addr) } else { 0 };
            }
        }
        self.measure(op, words, heavy, || sys::ioctl(fd, request, at))
    }

    fn measure(
        &mut self,
        op: Op,
        words: [u64; WORDS],
        heavy: bool,
        call: impl FnOnce() -> isize,
    ) -> isize {
        let slot = &self.shared.slots[self.slot];
        for (place, word) in slot.words.iter().zip(words) {
            place.store(word, Relaxed);
        }
        let with_cpu = heavy || self.rng.one_in(32);
        let cpu = with_cpu.then(sys::thread_ns);
        let since = sys::ticks();
        slot.since.store(since, Relaxed);
        slot.op.store(op as u32 + 1, Relaxed);
        let result = call();
        slot.op.store(0, Relaxed);
        let wall = sys::ticks().saturating_sub(since);
        let cpu = cpu.map(|cpu| sys::thread_ns().saturating_sub(cpu));
        self.shared.record(op, result, wall, cpu);
        result
    }

    fn mapping(&mut self, op: Op, fd: i32) {
        let rng = &mut self.rng;
        let place = MAPS + rng.below(64) * 16 * PAGE_SIZE;
        let len = (1 + rng.below(if rng.clone().one_in(64) { 512 } else { 16 })) * PAGE_SIZE;
        let prot = rng.pick(&[3, 3, 3, 1, 2, 0, 7]);
        let flags = rng.pick(&[
            libc::MAP_PRIVATE,
            libc::MAP_SHARED,
            libc::MAP_PRIVATE | libc::MAP_POPULATE,
            libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC,
            libc::MAP_PRIVATE | libc::MAP_LOCKED,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
        ]) | libc::MAP_FIXED;
        let offset = match rng.below(4) {
            0 => crate::mutate::border(rng) as usize & !(PAGE_SIZE - 1),
            _ => 0,
        };
        let target = MAPS + rng.below(64) * 16 * PAGE_SIZE;
        let longer = (1 + rng.below(16)) * PAGE_SIZE;
        let words = [
            fd as u64,
            place as u64,
            len as u64,
            prot as u64,
            flags as u64,
            offset as u64,
            target as u64,
            0,
            0,
            0,
        ];
        self.measure(op, words, true, || match op {
            Op::Mmap => sys::mmap(place, len, prot, flags, fd, offset),
            Op::Mremap => {
                let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
                sys::call(
                    libc::SYS_mremap,
                    [place, len.min(16 * PAGE_SIZE), longer, flags, target, 0],
                )
            }
            _ => sys::call3(libc::SYS_munmap, place, len, 0),
        });
    }

    /// Calls that the drivers do not implement, or that the kernel handles generically.
    fn plain(&mut self, op: Op, fd: i32) {
        let rng = &mut self.rng;
        let addr = match rng.below(4) {
            0 => BUFFER,
            _ => arena::any_page(rng),
        };
        let len = match rng.below(4) {
            0 => crate::mutate::border(rng) as usize,
            _ => rng.below(3 * PAGE_SIZE),
        };
        let choice = rng.below_u64(9);
        let number = crate::mutate::border(rng) as usize;
        let fd = fd as usize;
        let socket = self.sockets[0];
        let words = [fd as u64, addr as u64, len as u64, choice, number as u64, 0, 0, 0, 0, 0];
        self.measure(op, words, false, || match op {
            Op::Poll => {
                // An array of one `struct pollfd`, in memory that is always mapped.
                let at = BUFFER + BUFFER_LEN - 8;
                sys::poke(at, fd as u64 | (0x7fff << 32));
                let immediately = libc::timespec { tv_sec: 0, tv_nsec: 0 };
                let immediately = core::ptr::from_ref(&immediately) as usize;
                sys::call(libc::SYS_ppoll, [at, 1, immediately, 0, 0, 0])
            }
            Op::ReadFd if choice < 4 => sys::call3(libc::SYS_read, fd, addr, len),
            Op::ReadFd => sys::call(libc::SYS_pread64, [fd, addr, len, number, 0, 0]),
            Op::WriteFd if choice < 4 => sys::call3(libc::SYS_write, fd, addr, len),
            Op::WriteFd => sys::call(libc::SYS_pwrite64, [fd, addr, len, number, 0, 0]),
            Op::Lseek => sys::call3(libc::SYS_lseek, fd, number, choice as usize),
            _ => match choice {
                0 => sys::call3(libc::SYS_fsync, fd, 0, 0),
                1 => sys::call3(libc::SYS_ftruncate, fd, number, 0),
                2 => sys::call(libc::SYS_fallocate, [fd, 0, 0, number, 0, 0]),
                3 => sys::call3(
                    libc::SYS_fcntl,
                    fd,
                    libc::F_SETFL as usize,
                    libc::O_NONBLOCK as usize,
                ),
                4 => sys::call3(libc::SYS_fcntl, fd, libc::F_GETFL as usize, 0),
                5 => sys::call3(libc::SYS_flock, fd, (libc::LOCK_SH | libc::LOCK_NB) as usize, 0),
                6 => sys::call(libc::SYS_splice, [fd, 0, socket as usize, 0, len, 2]),
                7 => sys::call(libc::SYS_readahead, [fd, 0, len, 0, 0, 0]),
                // SAFETY: it takes no pointer.
                _ => unsafe { libc::posix_fadvise(fd as i32, 0, number as i64, 0) as isize },
            },
        });
    }

    fn descriptor(&mut self, op: Op, which: usize) {
        let fd = FDS[which];
        let device = self.rng.below_u64(self.devices);
        let source = self.rng.pick(&FDS);
        let sockets = self.sockets;
        let words = [fd as u64, device, source as u64, 0, 0, 0, 0, 0, 0, 0];
        let result = self.measure(op, words, true, || match op {
            Op::Open => {
                let new = open_node(which, device);
                if new >= 0 {
                    sys::call3(libc::SYS_dup3, new as usize, fd as usize, libc::O_CLOEXEC as usize);
                    close(new);
                }
                new
            }
            Op::Dup => {
                sys::call3(libc::SYS_dup3, source as usize, fd as usize, libc::O_CLOEXEC as usize)
            }
            Op::Close => close(fd as isize),
            _ => crate::pass::pass(sockets, source, fd),
        });
        if op == Op::Open && result >= 0 {
            self.ids[which] = 0;
        }
    }
}
