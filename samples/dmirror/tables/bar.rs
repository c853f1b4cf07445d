// SPDX-License-Identifier: GPL-2.0

//! The PCI function whose memory has the page tables: `ivshmem-plain` of QEMU, of which BAR 2 is
//! memory. The mock devices exist while it is bound.
//!
//! The module has no alias for it, so that the mock is not loaded where such a function is found.

use super::{
    Tables,
    TABLES, //
};
use crate::Nodes;
use kernel::{
    device::Core,
    device_id::IdArray,
    pci,
    prelude::*,
    sync::atomic::{
        ordering::Full,
        AtomicFlag, //
    }, //
};
use rust_hmm::mm::{
    bar_tables::BarTables,
    pci::PciMemory, //
};

/// PCI device ID of ivshmem.
const IVSHMEM: u32 = 0x1110;
const MEMORY: pci::DeviceId = pci::DeviceId::from_id(pci::Vendor::REDHAT_QUMRANET, IVSHMEM);

#[cfg(not(hmm_series_7_3))]
const TABLE: IdArray<pci::DeviceId, (), 1> = IdArray::new([(MEMORY, ())]);
#[cfg(hmm_series_7_3)]
const TABLE: IdArray<pci::DeviceId, (), 1> = IdArray::new_without_index([MEMORY]);

#[cfg(not(hmm_series_7_3))]
type Info<'b> = &'b ();
#[cfg(hmm_series_7_3)]
type Info<'b> = Option<&'b ()>;

fn this_module() -> &'static ThisModule {
    #[cfg(not(hmm_series_7_3))]
    return &crate::THIS_MODULE;
    #[cfg(hmm_series_7_3)]
    return kernel::module::this_module::<crate::LocalModule>();
}

/// Whether a function is bound. The names of the devices exist once.
static BOUND: AtomicFlag = AtomicFlag::new(false);

/// Use of the names.
struct Names;

impl Names {
    /// `ENODEV` if another function is bound.
    fn take() -> Result<Self> {
        if BOUND.xchg(true, Full) {
            return Err(ENODEV);
        }
        Ok(Self)
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        BOUND.xchg(false, Full);
    }
}

/// A bound function.
pub(crate) struct Bound {
    // Dropped before the names are free.
    _nodes: Nodes,
    _names: Names,
}

/// The driver of the function.
pub(crate) struct BarDriver;

impl pci::Driver for BarDriver {
    type IdInfo = ();
    type Data<'bound> = Bound;
    const ID_TABLE: pci::IdTable<Self::IdInfo> = &TABLE;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        _info: Info<'bound>,
    ) -> impl PinInit<Bound, Error> + 'bound {
        pin_init::pin_init_scope(move || {
            let names = Names::take()?;
            pdev.enable_device_mem()?;
            let bar = PciMemory::claim(pdev, 0, 2)?;
            let tables = Tables::Bar(BarTables::new(&bar, 0, bar.size(), TABLES)?);
            let nodes = crate::nodes(this_module(), |_| tables.clone())?;
            dev_info!(pdev, "page tables in {} MiB of it\n", bar.size() >> 20);
            Ok(try_init!(Bound {
                _nodes: nodes,
                _names: names,
            }? Error))
        })
    }
}
