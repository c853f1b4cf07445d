// SPDX-License-Identifier: GPL-2.0

//! One open file: a mirror of the address space of the process that opened it.
//!
//! A process that inherits the file, or is sent it, drives the opener's address space.

use crate::{
    device::{Engine, MockDevice, Session},
    transfer::{self, Missing},
    uapi::{self, Command},
};
use kernel::{
    mm::virt::VmaNew,
    page::{Page, PAGE_SIZE},
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc, //
    },
    uaccess::UserSlice,
};
use rust_hmm::{
    memory::Memory,
    mirror::Mirror,
    mm::{device_pages::Kind, range_fault::Access},
    node::OpenFile,
    stats::Counter,
};

/// An open file.
#[pin_data]
pub(crate) struct MirrorFile {
    // Before `session`: no entry may be left when the device's pages are evicted.
    #[pin]
    mirror: Mirror<Engine>,
    session: Session,
    faults_read: Atomic<u64>,
    faults_write: Atomic<u64>,
}

/// The process is gone: `EINVAL` where `test_hmm` says so, which the library calls `EFAULT`.
fn gone_is_invalid(error: Error) -> Error {
    if error == EFAULT {
        EINVAL
    } else {
        error
    }
}

impl OpenFile for MirrorFile {
    type Device = MockDevice;

    fn open(device: Arc<MockDevice>) -> Result<Pin<KBox<Self>>> {
        let current = current!();
        let mm = current.mm().ok_or(EINVAL)?;
        let session = Session::new(device.clone());
        let mirror = rust_hmm::new_mirror!(mm, Engine(device))?;
        KBox::pin_init(
            try_pin_init!(Self {
                mirror <- mirror,
                session,
                faults_read: Atomic::new(0),
                faults_write: Atomic::new(0),
            }? Error),
            GFP_KERNEL,
        )
    }

    fn ioctl(&self, command: u32, argument: usize) -> Result<isize> {
        if command == uapi::COUNTERS {
            return self.counters(argument);
        }
        let mut request = Command::read(argument)?;
        self.serve(command, &mut request)?;
        request.write(argument)?;
        Ok(0)
    }

    fn mmap(&self, vma: &VmaNew) -> Result {
        let mixed = vma.set_mixedmap();
        let mut addr = vma.start();
        while addr < vma.end() {
            let page = Page::alloc_page(GFP_KERNEL | __GFP_ZERO)?;
            mixed.vm_insert_page(addr, &page)?;
            addr = addr.checked_add(PAGE_SIZE).ok_or(EINVAL)?;
        }
        Ok(())
    }
}

impl MirrorFile {
    fn memory(&self) -> &Memory<crate::vram::Vram> {
        &self.session.memory
    }

    fn serve(&self, command: u32, request: &mut Command) -> Result {
        match command {
            uapi::READ => self.read(request, Access::Read),
            uapi::READ_UNLOCKED => self.read(request, Access::ReadUnlocked),
            uapi::WRITE => {
                let result = transfer::write(&self.mirror, request);
                self.faults_write.add(request.faults, Relaxed);
                result
            }
            uapi::MIGRATE_TO_DEV => self.migrate_to_device(request),
            uapi::MIGRATE_TO_SYS => self.migrate_to_system(request),
            uapi::SNAPSHOT => self.snapshot(request),
            uapi::EXCLUSIVE => {
                self.mirror
                    .make_exclusive(request.range)
                    .map_err(|error| self.exclusive_error(error))?;
                transfer::read(&self.mirror, request, Missing::Fail)
            }
            uapi::CHECK_EXCLUSIVE => {
                if self.mirror.lock_table().any_exclusive(request.range) {
                    return Err(EPERM);
                }
                Ok(())
            }
            uapi::RELEASE => {
                if self.memory().evict_all()? != 0 {
                    return Err(EBUSY);
                }
                Ok(())
            }
            uapi::FLAGS => {
                let fail = request.npages & uapi::FLAG_FAIL_ALLOC != 0;
                self.memory().driver().fail_allocation.store(fail, Relaxed);
                Ok(())
            }
            _ => Err(EINVAL),
        }
    }

    fn read(&self, request: &mut Command, access: Access) -> Result {
        let result = transfer::read(&self.mirror, request, Missing::Fault(access));
        self.faults_read.add(request.faults, Relaxed);
        result
    }

    /// `EFAULT` also says that the memory cannot be written; `EINVAL` is for a process that is gone.
    fn exclusive_error(&self, error: Error) -> Error {
        if error == EFAULT && !self.mirror.is_alive() {
            EINVAL
        } else {
            error
        }
    }

    fn migrate_to_device(&self, request: &mut Command) -> Result {
        let outcome = self
            .mirror
            .migrate(request.range)
            .to_device()
            .map_err(gone_is_invalid)?;
        let (used, _) = self.memory().usage();
        if outcome.no_memory != 0 && used >= self.memory().limit() {
            return Err(ENOMEM);
        }
        // The migrated data goes to the caller, for verification; ENOENT if a page has not moved.
        transfer::read(&self.mirror, request, Missing::Fail)
    }

    fn migrate_to_system(&self, request: &mut Command) -> Result {
        let outcome = self
            .mirror
            .migrate(request.range)
            .to_system()
            .map_err(gone_is_invalid)?;
        if outcome.no_memory != 0 {
            return Err(ENOMEM);
        }
        request.cpages = outcome.entries as u64;
        Ok(())
    }

    fn snapshot(&self, request: &mut Command) -> Result {
        let private = self.memory().kind() == Kind::Private;
        let mut user =
            UserSlice::new(UserPtr::from_addr(request.ptr), request.range.pages()).writer();
        for piece in request.range.pmd_pieces() {
            let mut bytes = KVec::with_capacity(piece.pages(), GFP_KERNEL)?;
            self.mirror
                .snapshot(piece, |page| {
                    // There is room, by the capacity above.
                    let _full = bytes.push_within_capacity(uapi::snapshot_byte(page, private));
                })
                .map_err(|error| self.exclusive_error(error))?;
            user.write_slice(&bytes)?;
            request.cpages += piece.pages() as u64;
        }
        Ok(())
    }

    fn counters(&self, argument: usize) -> Result<isize> {
        const BYTES: usize = uapi::COUNTER_WORDS * size_of::<u64>();

        let size: u32 = UserSlice::new(UserPtr::from_addr(argument), size_of::<u32>())
            .reader()
            .read()?;
        let size = usize::try_from(size)?;
        if size < 16 {
            return Err(EINVAL);
        }
        let bytes = size.min(BYTES) & !7;
        let file = self.mirror.stats();
        let device = self.memory().stats();
        let (used, total) = self.memory().usage();
        let words: [u64; uapi::COUNTER_WORDS] = [
            bytes as u64 | (u64::from(uapi::COUNTERS_VERSION) << 32),
            self.faults_read.load(Relaxed),
            self.faults_write.load(Relaxed),
            file.get(Counter::MappedPages),
            file.get(Counter::Invalidations),
            file.get(Counter::InvalidatedPages),
            file.get(Counter::ToDevice),
            file.get(Counter::ToSystem),
            device.get(Counter::CpuFaults),
            device.get(Counter::CpuFaultPages),
            device.get(Counter::Evicted),
            file.get(Counter::Retries),
            file.get(Counter::Skipped),
            used as u64,
            total as u64,
        ];
        let mut user = UserSlice::new(UserPtr::from_addr(argument), bytes).writer();
        for word in words.iter().take(bytes / size_of::<u64>()) {
            user.write(word)?;
        }
        Ok(0)
    }
}
