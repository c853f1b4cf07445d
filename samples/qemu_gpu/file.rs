// SPDX-License-Identifier: GPL-2.0

//! An open file: a mirror of the address space of the process that opened it.

use crate::{
    arguments::Pull,
    engine::Access,
    gpu::{
        Gpu,
        View, //
    },
    lock_ioctls::{
        self,
        Locker, //
    },
    structure::{
        self,
        gone_is_invalid,
        no_flags,
        Structure, //
    },
    uapi::{
        self,
        Command, //
    },
    FILE_OPS, //
};
use kernel::{
    ioctl,
    mm::virt::VmaNew,
    page::{
        Page,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::{
        Arc,
        Completion, //
    },
    uaccess::{
        UserSlice,
        UserSliceReader,
        UserSliceWriter, //
    }, //
};
use rust_hmm::{
    host_lock::APERTURE,
    kernel::miscdevice::OpenFile,
    mirror::Mirror,
    mm::{
        addr::PageRange,
        dma::DmaDevice,
        range_fault,
        vma::fatal_signal_pending, //
    }, //
};

/// Maximum number of consecutive device faults without progress, after which a command fails with
/// `EBUSY`.
const FAULT_ROUNDS: usize = 10_000;
/// `DMIRROR_PULL`, and `DMIRROR_PULL_ASK`.
const PULL: u32 = 0x78;
const ASK: u32 = 1;

/// State of a file, shared with the engine.
pub(crate) struct Client {
    // Dropped before the session, which evicts pages: the mirror must have no entries then.
    mirror: Mirror<View>,
    gpu: Session,
}

impl Client {
    pub(crate) fn mirror(&self) -> &Mirror<View> {
        &self.mirror
    }

    pub(crate) fn device(&self) -> &Gpu {
        &self.gpu.0
    }
}

impl Locker for Client {
    type Device = View;

    fn mirror(&self) -> &Mirror<View> {
        &self.mirror
    }

    fn agents(&self) -> &[Arc<DmaDevice>] {
        &self.device().agents
    }
}

/// Counts an open file of the GPU.
struct Session(Arc<Gpu>);

impl Drop for Session {
    fn drop(&mut self) {
        self.0.count_file(false);
    }
}

/// An open file.
pub(crate) struct File(Arc<Client>);

/// Source or destination of a transfer in user memory.
enum User {
    To(UserSliceWriter),
    From(UserSliceReader),
}

impl OpenFile for File {
    type Device = Gpu;

    fn open(gpu: Arc<Gpu>) -> Result<Pin<KBox<Self>>> {
        let current = current!();
        let mm = current.mm().ok_or(EINVAL)?;
        let mirror = rust_hmm::new_mirror!(mm, View::new(gpu.clone()), "qemu_gpu::table")?;
        gpu.count_file(true);
        let gpu = Session(gpu);
        let client = Arc::new(Client { mirror, gpu }, GFP_KERNEL_ACCOUNT)?;
        Ok(KBox::pin(Self(client), GFP_KERNEL_ACCOUNT)?)
    }

    fn ioctl(&self, command: u32, argument: usize) -> Result<isize> {
        if self.0.device().memory.is_gone() {
            return Err(ENODEV);
        }
        match ioctl::_IOC_NR(command) {
            number @ 0x70..=0x77 => lock_ioctls::serve(&*self.0, number, argument)?,
            PULL => self.pull(argument)?,
            _ => {
                let mut request = Command::read(argument)?;
                self.serve(command, &mut request)?;
                request.write(argument)?;
            }
        }
        Ok(0)
    }

    fn mmap(&self, vma: &VmaNew) -> Result {
        let mixed = vma.set_mixedmap();
        let range = PageRange::new(vma.start(), vma.end())?;
        for index in 0..range.pages() {
            if fatal_signal_pending() {
                return Err(EINTR);
            }
            let page = Page::alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO)?;
            mixed.vm_insert_page(range.address(index), &page)?;
        }
        Ok(())
    }
}

impl File {
    fn serve(&self, command: u32, request: &mut Command) -> Result {
        let mirror = &self.0.mirror;
        let memory = &self.0.device().memory;
        match command {
            uapi::READ => self.read(request, Some(range_fault::Access::Read)),
            uapi::READ_UNLOCKED => self.read(request, Some(range_fault::Access::ReadUnlocked)),
            uapi::WRITE => {
                let user = User::From(self.user(request)?.reader());
                self.transfer(request, user, Some(range_fault::Access::Write))
            }
            uapi::MIGRATE_TO_DEV => {
                let outcome = mirror
                    .migrate(request.range)
                    .to_device()
                    .map_err(gone_is_invalid)?;
                if outcome.no_memory != 0 && memory.usage().0 >= memory.limit() {
                    return Err(ENOMEM);
                }
                self.read(request, None)
            }
            uapi::MIGRATE_TO_SYS => {
                let outcome = mirror
                    .migrate(request.range)
                    .to_system()
                    .map_err(gone_is_invalid)?;
                if outcome.no_memory != 0 {
                    return Err(ENOMEM);
                }
                request.cpages = outcome.entries as u64;
                Ok(())
            }
            uapi::SNAPSHOT => self.snapshot(request),
            uapi::EXCLUSIVE => {
                mirror
                    .make_exclusive(request.range)
                    .map_err(|error| self.exclusive_error(error))?;
                self.read(request, None)
            }
            uapi::CHECK_EXCLUSIVE => {
                if mirror.lock_table()?.any_exclusive(request.range) {
                    Err(EPERM)
                } else {
                    Ok(())
                }
            }
            uapi::RELEASE => match memory.evict_all_killable()? {
                0 => Ok(()),
                _ => Err(EBUSY),
            },
            uapi::FLAGS => {
                let fail = request.npages & uapi::FLAG_FAIL_ALLOC != 0;
                memory.faults().fail_allocation(fail);
                Ok(())
            }
            _ => Err(EINVAL),
        }
    }

    /// Returns `EINVAL`, as `test_hmm` does, if the process has exited. `EFAULT` also stands for
    /// memory that is not writable.
    fn exclusive_error(&self, error: Error) -> Error {
        if self.0.mirror.is_alive() {
            error
        } else {
            gone_is_invalid(error)
        }
    }

    fn user(&self, request: &Command) -> Result<UserSlice> {
        let bytes = request.range.pages().checked_mul(PAGE_SIZE).ok_or(EINVAL)?;
        Ok(UserSlice::new(UserPtr::from_addr(request.ptr), bytes))
    }

    fn read(&self, request: &mut Command, missing: Option<range_fault::Access>) -> Result {
        let user = User::To(self.user(request)?.writer());
        self.transfer(request, user, missing)
    }

    /// Reads or writes the range with the engine. Pages without a translation are faulted in with
    /// the access `missing`; `ENOENT` if that is `None`.
    fn transfer(
        &self,
        request: &mut Command,
        mut user: User,
        missing: Option<range_fault::Access>,
    ) -> Result {
        let mirror = &self.0.mirror;
        let total = request.range.pages();
        let there = |piece: PageRange| -> Result<bool> {
            Ok(mirror.lock_table()?.present(piece) == piece.pages())
        };
        if missing.is_none() {
            for piece in request.range.pmd_pieces() {
                if !there(piece)? {
                    return Err(ENOENT);
                }
            }
        }
        let mut buffer = KVVec::new();
        buffer.resize(PAGE_SIZE, 0, GFP_KERNEL)?;
        let mut rounds = 0;
        let mut done = 0;
        while done < total {
            if fatal_signal_pending() {
                return Err(EINTR);
            }
            let write = matches!(user, User::From(_));
            if let User::From(reader) = &mut user {
                if rounds == 0 {
                    reader.read_slice(&mut buffer)?;
                }
            }
            let found;
            (buffer, found) = self.access(request.range.address(done), write, buffer)?;
            if found {
                if let User::To(writer) = &mut user {
                    writer.write_slice(&buffer)?;
                }
                (done, rounds) = (done + 1, 0);
                continue;
            }
            rounds += 1;
            if rounds > FAULT_ROUNDS {
                return Err(EBUSY);
            }
            let rest = PageRange::new(request.range.address(done), request.range.end())?;
            // If the first page was invalidated during the previous fault, request at most one PMD.
            let next = match rounds {
                1 => rest,
                _ => rest.pmd_pieces().next().ok_or(EINVAL)?,
            };
            mirror.fault(next, missing.ok_or(ENOENT)?)?;
            request.faults += 1;
        }
        request.cpages = done as u64;
        Ok(())
    }

    /// Accesses one page. Returns whether the engine had a translation.
    fn access(&self, addr: usize, write: bool, page: KVVec<u8>) -> Result<(KVVec<u8>, bool)> {
        let access = Arc::pin_init(
            pin_init!(Access {
                client <- kernel::new_mutex!(Some(self.0.clone()), "qemu_gpu::client"),
                addr,
                write,
                page <- kernel::new_mutex!((page, Ok(false)), "qemu_gpu::page"),
                done <- Completion::new(),
            }),
            GFP_KERNEL,
        )?;
        self.0.device().engine.access(&access)?;
        let mut page = access.page.lock();
        let found = core::mem::replace(&mut page.1, Ok(false))?;
        Ok((core::mem::take(&mut page.0), found))
    }

    fn snapshot(&self, request: &mut Command) -> Result {
        let to = UserPtr::from_addr(request.ptr);
        let mut user = UserSlice::new(to, request.range.pages()).writer();
        for piece in request.range.pmd_pieces() {
            let mut bytes = KVec::with_capacity(piece.pages(), GFP_KERNEL)?;
            let each = |page| {
                // Does not fail, because of the capacity above.
                let _full = bytes.push_within_capacity(uapi::snapshot_byte(page, true));
            };
            self.0
                .mirror
                .snapshot(piece, each)
                .map_err(|error| self.exclusive_error(error))?;
            user.write_slice(&bytes)?;
            request.cpages += piece.pages() as u64;
        }
        Ok(())
    }

    /// Migrates pages from the memory of another GPU to this one.
    fn pull(&self, user: usize) -> Result {
        let mut raw = Structure::<Pull>::read(user, 72)?;
        no_flags(raw.flags & !ASK)?;
        let source = FILE_OPS.with(raw.fd, |file| file.0.clone())?;
        raw.connection = self.0.mirror.connection(&source.mirror) as u64;
        if raw.flags & ASK == 0 {
            let range = structure::range(raw.addr, raw.npages)?;
            let pulled = self.0.mirror.pull(range, &source.mirror);
            let outcome = pulled.map_err(gone_is_invalid)?;
            raw.moved = outcome.moved as u64;
            raw.switched = outcome.switched as u64;
            raw.no_memory = outcome.no_memory as u64;
            raw.copy_failed = outcome.copy_failed as u64;
        }
        raw.write()
    }
}

// Device addresses of locked memory must not be addresses of a process.
const _: () = assert!(APERTURE > 1 << 47);
