// SPDX-License-Identifier: GPL-2.0

//! An open file: a mirror of the address space of the process that opened it.
//!
//! A process that inherits or receives the file descriptor accesses the address space of the
//! opener.

use crate::{
    client::Client,
    device::MockDevice,
    extension,
    structure::gone_is_invalid,
    transfer::{
        self,
        Missing, //
    },
    uapi::{
        self,
        Command, //
    },
    vram::Vram, //
};
use kernel::{
    mm::virt::VmaNew,
    page::{
        Page,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::Arc,
    uaccess::{
        UserSlice,
        UserSliceWriter, //
    }, //
};
use rust_hmm::{
    kernel::miscdevice::{
        OpenFile,
        PollFlags,
        Poller, //
    },
    managed,
    memory::Memory,
    mirror::{
        PageLocation,
        Snapshot, //
    },
    mm::{
        addr::PageRange,
        device_pages::MemoryKind,
        range_fault::Access, //
    }, //
};

/// An open file. Closing it stops its commands.
pub(crate) struct MirrorFile(Arc<Client>);

impl Drop for MirrorFile {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl OpenFile for MirrorFile {
    type Device = MockDevice;

    fn open(device: Arc<MockDevice>) -> Result<Pin<KBox<Self>>> {
        Ok(KBox::pin(Self(Client::new(device)?), GFP_KERNEL_ACCOUNT)?)
    }

    fn ioctl(&self, command: u32, argument: usize) -> Result<isize> {
        if self.0.device().is_gone() && !extension::works_without_device(command) {
            return Err(ENODEV);
        }
        if extension::is_extension(command) {
            extension::serve(&self.0, command, argument)?;
            return Ok(0);
        }
        let mut request = Command::read(argument)?;
        self.serve(command, &mut request)?;
        request.write(argument)?;
        Ok(0)
    }

    fn read(&self, to: &mut UserSliceWriter, wait: bool) -> Result<usize> {
        self.0.events().ok_or(EINVAL)?.read(to, wait)
    }

    fn poll(&self, waiter: &Poller<'_>) -> PollFlags {
        let events = self.0.events().map(|events| events.poll(waiter));
        match (events, self.0.queues.poll(waiter)) {
            (Some(events), Some(fences)) => events | fences,
            (events, fences) => events.or(fences).unwrap_or(PollFlags::ERROR),
        }
    }

    fn mmap(&self, vma: &VmaNew) -> Result {
        if managed::map(vma)? {
            return Ok(());
        }
        let mixed = vma.set_mixedmap();
        let mut addr = vma.start();
        while addr < vma.end() {
            // The mapping may exceed the memory of the machine, so respond to SIGKILL.
            transfer::check_alive()?;
            let page = Page::alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO)?;
            mixed.vm_insert_page(addr, &page)?;
            addr = addr.checked_add(PAGE_SIZE).ok_or(EINVAL)?;
        }
        Ok(())
    }
}

impl MirrorFile {
    /// Returns the state that the file shares with its commands.
    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.0
    }

    fn memory(&self) -> &Memory<Vram> {
        self.0.memory()
    }

    fn serve(&self, command: u32, request: &mut Command) -> Result {
        match command {
            uapi::READ => self.read(request, Access::Read),
            uapi::READ_UNLOCKED => self.read(request, Access::ReadUnlocked),
            uapi::WRITE => {
                let result = transfer::write(&self.0, request);
                self.0.add_faults(true, request.faults);
                result
            }
            uapi::MIGRATE_TO_DEV => self.migrate_to_device(request),
            uapi::MIGRATE_TO_SYS => self.migrate_to_system(request),
            uapi::SNAPSHOT => self.snapshot(request),
            uapi::EXCLUSIVE => {
                self.0
                    .mirror()
                    .make_exclusive(request.range)
                    .map_err(|error| self.exclusive_error(error))?;
                transfer::read(&self.0, request, Missing::Fail)
            }
            uapi::CHECK_EXCLUSIVE => {
                if self.0.mirror().lock_table()?.any_exclusive(request.range) {
                    return Err(EPERM);
                }
                Ok(())
            }
            uapi::RELEASE => {
                if self.memory().evict_all_killable()? != 0 {
                    return Err(EBUSY);
                }
                Ok(())
            }
            uapi::FLAGS => {
                let fail = request.npages & uapi::FLAG_FAIL_ALLOC != 0;
                self.memory().faults().fail_allocation(fail);
                Ok(())
            }
            _ => Err(EINVAL),
        }
    }

    fn read(&self, request: &mut Command, access: Access) -> Result {
        let result = transfer::read(&self.0, request, Missing::Fault(access));
        self.0.add_faults(false, request.faults);
        result
    }

    /// Returns `EINVAL`, as `test_hmm` does, if the process has exited. `EFAULT` also stands for
    /// memory that is not writable.
    fn exclusive_error(&self, error: Error) -> Error {
        if error == EFAULT && !self.0.mirror().is_alive() {
            EINVAL
        } else {
            error
        }
    }

    fn migrate_to_device(&self, request: &mut Command) -> Result {
        let outcome = self
            .0
            .mirror()
            .migrate(request.range)
            .to_device()
            .map_err(gone_is_invalid)?;
        let (used, _) = self.memory().usage();
        if outcome.no_memory != 0 && used >= self.memory().limit() {
            return Err(ENOMEM);
        }
        // As in `test_hmm`, return the migrated data for verification.
        match transfer::read(&self.0, request, Missing::Fail) {
            // A concurrent invalidation may remove entries between migration and read. khugepaged,
            // for example, clears the entries of a block before it finds that device pages cannot
            // be collapsed.
            Err(error) if error == ENOENT && self.is_on_device(request.range)? => {
                self.read(request, Access::Read)
            }
            result => result,
        }
    }

    /// Whether all pages of `range` are in device memory.
    fn is_on_device(&self, range: PageRange) -> Result<bool> {
        let mut all = true;
        for piece in range.pmd_pieces() {
            transfer::check_alive()?;
            self.0
                .mirror()
                .snapshot(piece, |page| {
                    all &= matches!(
                        page,
                        Snapshot::Page {
                            location: PageLocation::Device,
                            ..
                        }
                    );
                })
                .map_err(gone_is_invalid)?;
        }
        Ok(all)
    }

    fn migrate_to_system(&self, request: &mut Command) -> Result {
        let outcome = self
            .0
            .mirror()
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
        let private = self.memory().kind() == MemoryKind::Private;
        let mut user =
            UserSlice::new(UserPtr::from_addr(request.ptr), request.range.pages()).writer();
        for piece in request.range.pmd_pieces() {
            transfer::check_alive()?;
            let mut bytes = KVec::with_capacity(piece.pages(), GFP_KERNEL)?;
            self.0
                .mirror()
                .snapshot(piece, |page| {
                    // Does not fail, because of the capacity above.
                    let _full = bytes.push_within_capacity(uapi::snapshot_byte(page, private));
                })
                .map_err(|error| self.exclusive_error(error))?;
            user.write_slice(&bytes)?;
            request.cpages += piece.pages() as u64;
        }
        Ok(())
    }
}
