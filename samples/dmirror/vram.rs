// SPDX-License-Identifier: GPL-2.0

//! The memory of a mock device. Nothing reads it but the engines and the copy engine.

use crate::{
    chooser::Chooser,
    copy_engine::CopyEngine,
    settings::{Fixed, Setting, Settings},
    streams::Streams,
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic, AtomicFlag},
        Arc,
        SetOnce, //
    },
};
use rust_hmm::{
    connection::Connection,
    events::Event,
    memory::{Copy, CopyJob, MemoryOps},
    mirror::{Place, PlaceMut},
    mm::{
        addr::PMD_SIZE,
        device_pages::{DeviceRange, Kind},
        notifier::Cookie,
        page::SharedBytes,
        user::UserSpan,
    },
};

/// Blocks whose places are allocated at once: 8 GiB.
const GROUP: usize = 4096;

/// Contents of device memory, in blocks of 2 MiB that are allocated when they are first written, as
/// are their places. So the memory may be far larger than what there is to back it. Coherent memory
/// has its own.
pub(crate) struct Store {
    groups: KVVec<SetOnce<KVVec<SetOnce<SharedBytes>>>>,
    /// Device page numbers plus one of pages whose contents are lost.
    lost: KVVec<Atomic<usize>>,
}

/// Most pages that a test can lose.
const LOST: usize = 1024;

impl Store {
    /// Room for `bytes`.
    fn new(bytes: usize) -> Result<Self> {
        let groups = places(bytes.div_ceil(PMD_SIZE * GROUP))?;
        let mut lost = KVVec::with_capacity(LOST, GFP_KERNEL)?;
        for _ in 0..LOST {
            lost.push(Atomic::new(0), GFP_KERNEL)?;
        }
        Ok(Self { groups, lost })
    }

    /// The contents of page `number` are lost: it cannot be copied any more. `ENOMEM` if there are too many.
    pub(crate) fn lose(&self, number: usize) -> Result {
        let free = self.lost.iter().find(|place| place.load(Relaxed) == 0);
        free.ok_or(ENOMEM)?.store(number + 1, Relaxed);
        Ok(())
    }

    fn is_lost(&self, range: DeviceRange) -> bool {
        let pages = range.first + 1..range.first + 1 + range.count;
        let mut lost = self.lost.iter().map(|place| place.load(Relaxed));
        // They are filled from the first one on.
        lost.by_ref()
            .take_while(|number| *number != 0)
            .any(|number| pages.contains(&number))
    }

    /// Number and offset of the block of `range`, which lies in one block.
    fn locate(range: DeviceRange) -> Result<(usize, usize)> {
        let start = range.first.checked_mul(PAGE_SIZE).ok_or(EINVAL)?;
        Ok((start / PMD_SIZE, start % PMD_SIZE))
    }

    /// The block and offset, if something was ever written to it.
    fn find(&self, range: DeviceRange) -> Result<(&SharedBytes, usize)> {
        let (block, offset) = Self::locate(range)?;
        let group = self.groups.get(block / GROUP).ok_or(EINVAL)?;
        let blocks = group.as_ref().ok_or(EIO)?;
        let bytes = blocks.get(block % GROUP).ok_or(EINVAL)?.as_ref();
        Ok((bytes.ok_or(EIO)?, offset))
    }

    /// The block and offset; the block is made if need be.
    fn find_or_make(&self, range: DeviceRange) -> Result<(&SharedBytes, usize)> {
        let (block, offset) = Self::locate(range)?;
        let group = self.groups.get(block / GROUP).ok_or(EINVAL)?;
        let blocks = made(group, || places(GROUP))?;
        let block = blocks.get(block % GROUP).ok_or(EINVAL)?;
        Ok((made(block, || SharedBytes::new(PMD_SIZE))?, offset))
    }

    /// Carries out a copy from this memory, or to it; `to` is where device memory is written, which may
    /// be another device's.
    pub(crate) fn copy(&self, copy: &Copy<'_>, to: &Self) -> Result {
        let there = to;
        match (&copy.source, &copy.destination) {
            (None, PlaceMut::Cpu(to)) => {
                to.clear();
                Ok(())
            }
            (None, PlaceMut::Device(to)) => {
                let (bytes, offset) = there.find_or_make(*to)?;
                bytes.clear(offset, to.count * PAGE_SIZE)
            }
            (Some(Place::Cpu(from)), PlaceMut::Cpu(to)) => to.copy_from(from),
            (Some(Place::Cpu(from)), PlaceMut::Device(to)) => {
                let (bytes, offset) = there.find_or_make(*to)?;
                bytes.load(offset, from)
            }
            (Some(Place::Device(from)), PlaceMut::Cpu(_)) if self.is_lost(*from) => Err(EIO),
            (Some(Place::Device(from)), PlaceMut::Cpu(to)) => {
                let (bytes, offset) = self.find(*from)?;
                bytes.store(offset, to)
            }
            (Some(Place::Device(from)), PlaceMut::Device(to)) => {
                let (bytes, offset) = self.find(*from)?;
                let (destination, at) = there.find_or_make(*to)?;
                destination.copy_from(at, bytes, offset, from.count * PAGE_SIZE)
            }
        }
    }
}

/// Empty places.
fn places<T>(count: usize) -> Result<KVVec<SetOnce<T>>> {
    let mut places = KVVec::with_capacity(count, GFP_KERNEL)?;
    for _ in 0..count {
        places.push(SetOnce::new(), GFP_KERNEL)?;
    }
    Ok(places)
}

/// What is in `place`, which is made if need be.
fn made<T>(place: &SetOnce<T>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
    if let Some(made) = place.as_ref() {
        return Ok(made);
    }
    // If somebody else was faster, theirs is as good.
    place.populate(make()?);
    // Another thread may be about to finish.
    for _ in 0..1000 {
        if let Some(made) = place.as_ref() {
            return Ok(made);
        }
        core::hint::spin_loop();
    }
    Err(ENOMEM)
}

/// The memory, and who copies to and from it.
pub(crate) struct Vram {
    store: Arc<Store>,
    settings: Arc<Settings>,
    pub(crate) copy_engine: CopyEngine,
    chooser: Option<Chooser>,
    streams: Arc<Streams>,
    /// The next huge allocation is to fail, for tests.
    pub(crate) fail_allocation: AtomicFlag,
}

impl Vram {
    /// Memory of `bytes`, none of which is there yet.
    pub(crate) fn new(
        bytes: usize,
        fixed: &Fixed,
        settings: Arc<Settings>,
        streams: Arc<Streams>,
    ) -> Result<Self> {
        let store = Arc::new(Store::new(bytes)?, GFP_KERNEL)?;
        let chooser = match fixed.own_alloc {
            true => Some(Chooser::new(bytes / PAGE_SIZE)?),
            false => None,
        };
        Ok(Self {
            copy_engine: CopyEngine::new(store.clone(), settings.clone(), fixed.copy_threads)?,
            store,
            chooser,
            streams,
            settings,
            fail_allocation: AtomicFlag::new(false),
        })
    }

    /// Folios that were used where the device had chosen.
    pub(crate) fn chosen(&self) -> u64 {
        self.chooser.as_ref().map_or(0, Chooser::honoured)
    }

    /// The contents of page `number` are lost.
    pub(crate) fn lose(&self, number: usize) -> Result {
        self.store.lose(number)
    }

    /// Reads from byte `at` of `range` as an engine does.
    pub(crate) fn read(&self, range: DeviceRange, at: usize, dst: &mut [u8]) -> Result {
        let (bytes, offset) = self.store.find(range)?;
        bytes.read(offset.checked_add(at).ok_or(EINVAL)?, dst)
    }

    /// Writes to byte `at` of `range` as an engine does.
    pub(crate) fn write(&self, range: DeviceRange, at: usize, src: &[u8]) -> Result {
        let (bytes, offset) = self.store.find(range)?;
        bytes.write(offset.checked_add(at).ok_or(EINVAL)?, src)
    }

    /// Reads `range` to user memory, as far as that is there. Returns the bytes read.
    pub(crate) fn read_to_user(&self, range: DeviceRange, to: UserSpan) -> Result<usize> {
        let (bytes, offset) = self.store.find(range)?;
        bytes.read_to_user(offset, to)
    }

    /// Writes `range` from user memory, as far as that is there. Returns the bytes written.
    pub(crate) fn write_from_user(&self, range: DeviceRange, from: UserSpan) -> Result<usize> {
        let (bytes, offset) = self.store.find(range)?;
        bytes.write_from_user(offset, from)
    }

    /// Adds to the word at byte `at` of `range`, atomically. Returns the word before.
    pub(crate) fn fetch_add(&self, range: DeviceRange, at: usize, value: u64) -> Result<u64> {
        let (bytes, offset) = self.store.find(range)?;
        bytes.fetch_add_u64(offset.checked_add(at).ok_or(EINVAL)?, value)
    }
}

impl MemoryOps for Vram {
    fn copy(&self, job: CopyJob) {
        self.copy_engine.submit(job, None);
    }

    fn connection(&self, _other: &Self, _kind: Kind) -> Connection {
        // The other one says what it can itself.
        match self.settings.get(Setting::Connection) {
            0 => Connection::None,
            1 => Connection::Migratable,
            _ => Connection::Unified,
        }
    }

    fn copy_to(&self, other: &Self, job: CopyJob) {
        self.copy_engine.submit(job, Some(other.store.clone()));
    }

    fn copy_at_once(&self, copy: &Copy<'_>) -> Option<Result> {
        self.copy_engine.copy_at_once(copy)
    }

    fn kick(&self) {
        self.copy_engine.kick();
    }

    fn cancelled(&self) {
        self.copy_engine.drop_cancelled();
    }

    fn choose(&self, order: u32) -> Option<usize> {
        self.chooser.as_ref()?.choose(order)
    }

    fn freed(&self, range: DeviceRange) {
        if let Some(chooser) = &self.chooser {
            chooser.freed(range);
        }
    }

    fn wants_events(&self) -> bool {
        self.streams.any()
    }

    fn event(&self, space: Cookie, event: &Event) {
        self.streams.of_space(space, event);
    }

    fn fail_allocation(&self, _order: u32) -> bool {
        self.fail_allocation.load(Relaxed) && self.fail_allocation.xchg(false, Relaxed)
    }
}
