// SPDX-License-Identifier: GPL-2.0
//~ PASS
//! A migration with each of the kernel's stages once, with the mmap lock held.

use kernel::{
    mm::MmWithUser,
    prelude::*, //
};
use rust_hmm::{
    kernel::identity::MigrationId,
    mm::{
        addr::PageRange,
        exclusive::ExclusivePage,
        folio::LockedFolio,
        migrate::{
            Batch,
            Isolated,
            System, //
        },
        vma::MmapGuard, //
    }, //
};

fn needs_send<T: Send>(_: T) {}

pub fn migrate(
    mm: &MmWithUser,
    range: PageRange,
    folio: LockedFolio,
    to: &mut [u8],
) -> Result<usize> {
    let mut batch = Batch::new()?;
    let guard = MmapGuard::lock(mm)?;
    let id = MigrationId::of(&range);
    for _ in 0..2 {
        let vma = guard.vma_lookup(range.start()).ok_or(EFAULT)?;
        let system = Isolated::of_system(vma, range, false, id, &mut batch)?;
        let System::Isolated(mut isolated, _) = system else {
            return Err(EBUSY);
        };
        if let Some(pages) = isolated.source(0) {
            let _read = pages.read(0, to);
        }
        if let Some(pages) = isolated.destination(0) {
            pages.clear();
        }
        isolated.skip(0);
        drop(isolated.migrate());
    }
    let vma = guard.vma_lookup(range.start()).ok_or(EFAULT)?;
    let mut folio = Some(folio);
    if let System::Isolated(mut isolated, _) =
        Isolated::of_system(vma, range, false, id, &mut batch)?
    {
        isolated.fill(move |_| folio.take());
    }
    needs_send(range);
    let page = ExclusivePage::new(&guard, 0x1000, id)?;
    Ok(page.pfn())
}
