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
use nodes::{
    close,
    ENGINES,
    LARGE,
    TEMPLATE, //
};
use ops::serve_one_in;
use std::sync::atomic::Ordering::Relaxed;

pub mod nodes;
mod ops;

pub use nodes::{
    open_node,
    small_nodes,
    FDS, //
};
pub use ops::{
    Drawn,
    Op,
    ALL,
    NAMES,
    OPS, //
};

/// Contents of the victim's memory, which no other process writes.
pub const CANARY: u64 = 0x5ec2_e700_c0ff_ee42;

/// Signal that interrupts a call.
pub const INTERRUPT: i32 = libc::SIGUSR1;

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
