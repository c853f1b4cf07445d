// SPDX-License-Identifier: GPL-2.0

//! Copies of memory that is mostly read: the device reads its copy, CPUs read the page.
//!
//! A copy is made as a migration is, with an announced step whose marks any foreign event takes away, but that
//! its pages stay. What is true of it from then on: *a copy exists only while the device's entry names it*, but for
//! the moment before that and until the flush after. Events that remove the entry retire the copy; so whoever
//! changes the page, of which an event tells before it is visible ([`Replica`]), finds the device without it.

use super::{Announced, Device, Inner, Mirror, State};
use crate::{
    locks,
    memory::{Arrival, Copies, Memory},
    mm::{
        addr::{PageRange, PMD_PAGES},
        device_pages::DeviceRange,
        migrate::{Batch, Isolated, Replica, Source, System},
        notifier::Cookie,
        range_fault::AddressSpace,
        space::Vma,
    },
    pgtable::{Entry, FlushBatch, Flushing, Spares, Table},
    policy::Mask,
    space::{Identity, Request},
    stats::Counter,
};
use core::mem::ManuallyDrop;
use kernel::{
    page::{PAGE_MASK, PAGE_SHIFT},
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        SpinLock, //
    },
    xarray::{AllocKind, XArray},
};

/// Attempts for a piece: the first one splits huge pages.
const TRIES: usize = 2;

/// The copies of one mirror.
#[pin_data]
pub(crate) struct Replicas {
    /// By page number.
    #[pin]
    all: XArray<KBox<Replica>>,
    /// How many there are, those that are to go included.
    count: Atomic<usize>,
    /// Copies that the current holder of the table lock retired. The flush of its change takes them.
    #[pin]
    retired: SpinLock<Option<KBox<Replica>>>,
}

impl Replicas {
    /// None. Context: may sleep. `ENOMEM`.
    pub(super) fn new() -> Result<Pin<KBox<Self>>> {
        let (name, key) = locks::replicas();
        KBox::pin_init(
            pin_init!(Self {
                all <- XArray::new(AllocKind::Alloc),
                count: Atomic::new(0),
                retired <- SpinLock::new(None, name, key),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Whether there are any.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.count.load(Relaxed) != 0
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Keeps `replica` for the page at `addr`. `EBUSY` if there is one; `ENOMEM`.
    fn add(&self, addr: usize, replica: KBox<Replica>) -> Result {
        let number = addr >> PAGE_SHIFT;
        let mut all = self.all.lock();
        if all.get(number).is_some() {
            return Err(EBUSY);
        }
        // The lock may be dropped for memory, but only who owns the page's mark comes here.
        let other = all.store(number, replica, GFP_KERNEL_ACCOUNT)?;
        drop(all);
        self.count.fetch_add(1, Relaxed);
        if let Some(other) = other {
            self.retire_one(other);
        }
        Ok(())
    }

    /// Page frame of the copy of the page at `addr`.
    fn pfn(&self, addr: usize) -> Option<usize> {
        self.all
            .lock()
            .get(addr >> PAGE_SHIFT)
            .map(|replica| replica.pfn())
    }

    /// Retires the copy of the page at `addr`: it is freed after the flush of this change.
    ///
    /// # Context
    ///
    /// The table lock is held, within a change.
    fn retire(&self, addr: usize) {
        let taken = self.all.lock().remove(addr >> PAGE_SHIFT);
        if let Some(replica) = taken {
            self.retire_one(replica);
        }
    }

    fn retire_one(&self, mut replica: KBox<Replica>) {
        let mut retired = self.retired.lock();
        replica.next = retired.take();
        *retired = Some(replica);
    }

    /// Takes the copies that were retired since the table lock was taken.
    ///
    /// # Context
    ///
    /// The table lock is held.
    pub(super) fn take_retired(&self) -> Retired {
        Retired(match self.any() {
            true => ManuallyDrop::new(self.retired.lock().take()),
            false => ManuallyDrop::new(None),
        })
    }

    /// Frees the copies that a change retired, after its flush. Returns how many these were.
    fn free(&self, retired: Retired) -> usize {
        let list = ManuallyDrop::into_inner(retired.0);
        let mut count = 0;
        let mut next = list.as_ref();
        while let Some(replica) = next {
            count += 1;
            next = replica.next.as_ref();
        }
        drop(list);
        if count != 0 {
            self.count.fetch_sub(count, Relaxed);
        }
        count
    }
}

/// Copies that one change retired. [`Replicas::free`] frees them; dropped otherwise, as with a lost
/// flush, they leak, because the device may still read them.
pub(super) struct Retired(ManuallyDrop<Option<KBox<Replica>>>);

impl<D: Device> Inner<D> {
    /// Frees the copies that a change retired, after its flush.
    pub(super) fn free_copies(&self, retired: Retired) {
        let count = self.replicas.free(retired);
        if let Some(memory) = self.device.memory().filter(|_| count != 0) {
            memory.lose_replicas(count);
        }
    }

    /// Whether `entry`, that of the page at `addr`, names a copy.
    pub(super) fn is_copy(&self, addr: usize, entry: Entry) -> bool {
        if !self.replicas.any() || !entry.is_device() || entry.is_writable() {
            return false;
        }
        let number = |pfn| self.device.memory()?.entry_number(pfn);
        self.replicas.pfn(addr).and_then(number) == Some(entry.number())
    }

    /// `entry` goes, that of the pages of `span`.
    pub(super) fn retire_copies(&self, span: PageRange, entry: Entry) {
        if !self.replicas.any() {
            return;
        }
        for index in 0..span.pages() {
            let addr = span.address(index);
            if self.is_copy(addr, entry.plus(index)) {
                self.replicas.retire(addr);
                self.stats.add(Counter::Collapsed, 1);
            }
        }
    }

    /// Gives up the copies of `range`, of those in `block` of the device's memory only if that is given. Context:
    /// may sleep; takes the table lock.
    pub(crate) fn collapse(&self, range: Option<PageRange>, block: Option<DeviceRange>) {
        if !self.replicas.any() {
            return;
        }
        let all = PageRange::new(0, usize::MAX & PAGE_MASK).ok();
        let Some(range) = range.or(all) else {
            return;
        };
        let mut guard = self.lock();
        let State { table, .. } = &mut *guard;
        let is_in = |number: usize| {
            block.is_none_or(|block| (block.first..block.first + block.count).contains(&number))
        };
        let ((), flush) = self.change(table, Some(range), |table, batch| {
            self.clear_copies(table, batch, range, is_in);
        });
        drop(guard);
        Flushing::end(flush, self);
    }

    /// Removes the entries of `range` that name copies, and retires these, as far as `is_in` takes their numbers.
    fn clear_copies(
        &self,
        table: &mut Table<D::Format>,
        batch: &mut FlushBatch<D::Format>,
        range: PageRange,
        is_in: impl Fn(usize) -> bool,
    ) {
        table.for_each(range, batch, |span, entry| {
            // Copies that lie in a row have become a huge leaf.
            let goes = |index: usize| {
                let entry = entry.plus(index);
                is_in(entry.number()) && self.is_copy(span.address(index), entry)
            };
            if entry.is_device() && (0..span.pages()).any(goes) {
                self.retire_copies(span, *entry);
                *entry = Entry::NONE;
            }
        });
    }
}

/// Room for a piece.
struct Work<F: crate::pgtable::Format> {
    batch: Batch,
    copies: Copies,
    spares: Spares<F>,
    /// Copies by their index in the piece.
    made: KVec<(usize, KBox<Replica>)>,
}

impl<D: Device> Mirror<D> {
    /// Copies of pages that the device has now, of memory that is mostly read.
    pub fn replicas(&self) -> usize {
        self.inner().replicas.count()
    }

    /// Makes copies of the pages of `range` that are in system memory, in one mapping without write access, for
    /// the device to read. Best effort. Returns how many were made.
    ///
    /// # Errors
    ///
    /// As [`Migrate::to_device`](crate::migrate::Migrate::to_device).
    pub(super) fn replicate(
        &self,
        space: &AddressSpace,
        range: PageRange,
        evict: bool,
    ) -> Result<usize> {
        let memory = self.device().memory().ok_or(ENODEV)?;
        let before = memory.turn();
        let mut work = Work {
            batch: Batch::new()?,
            copies: Copies::new(true)?,
            spares: self.spares(),
            made: KVec::with_capacity(PMD_PAGES, GFP_KERNEL)?,
        };
        let _charge = space.charge();
        let mut made = 0;
        for piece in range.pmd_pieces() {
            for _ in 0..TRIES {
                let missing = piece.pages() - self.on_device(piece);
                if missing == 0 {
                    break;
                }
                match memory.grow(missing) {
                    Err(error) if error != ENOMEM => return Err(error),
                    _ => {}
                }
                if evict {
                    match memory.make_room(missing, before) {
                        Err(error) if error != ENOMEM => return Err(error),
                        _ => {}
                    }
                }
                made += self.replicate_piece(space, piece, memory, &mut work)?;
            }
        }
        self.stats().add(Counter::Replicated, made as u64);
        Ok(made)
    }

    fn replicate_piece(
        &self,
        space: &AddressSpace,
        piece: PageRange,
        memory: &Memory<D::Memory>,
        work: &mut Work<D::Format>,
    ) -> Result<usize> {
        work.spares.refill()?;
        work.made.clear();
        // Nothing else has this address while the step runs.
        let name = Cookie::of(work);
        let request = Request {
            name,
            identity: Identity::Name,
            range: piece,
            faultless: true,
            only_for: None,
        };
        let (mmap, announced) = self.begin(space, request)?;
        let piece = announced.range();
        let arrival = memory.arrive()?;
        let result = (|| {
            let vma = mmap
                .vma_lookup(piece.start())
                .filter(|vma| vma.is_constant())
                .ok_or(EINVAL)?;
            // With the mmap lock held, it stays so.
            self.join_copies(vma, piece, memory, &arrival, work)?;
            self.isolate_and_copy(vma, &announced, memory, &arrival, work)?;
            // Those that were joined came before.
            work.made.sort_unstable_by_key(|(index, _)| *index);
            self.use_copies(name, piece, memory, work)
        })();
        work.made.clear();
        drop(announced);
        result
    }

    /// Makes copies of the other pages. Only these are isolated: it costs all devices their entries, and so others
    /// their copies.
    // A stack frame of its own.
    #[inline(never)]
    fn isolate_and_copy(
        &self,
        vma: Vma<'_>,
        announced: &Announced<'_, D>,
        memory: &Memory<D::Memory>,
        arrival: &Arrival<'_>,
        work: &mut Work<D::Format>,
    ) -> Result {
        let (name, piece) = (announced.name(), announced.range());
        let mut wanted = Mask::EMPTY;
        let mut any = !work.made.is_empty();
        for index in 0..piece.pages() {
            let addr = piece.address(index);
            let has = self.has_device_entry(addr);
            any |= has;
            if !has && vma.share(addr) {
                wanted.add(index..index + 1);
                any = true;
            }
        }
        for (index, _) in &work.made {
            wanted.remove(*index..*index + 1);
        }
        if !any {
            // Nothing, or a huge page: that is split by this.
            wanted.add(0..piece.pages());
        }
        let mut next = 0;
        while let Some(run) = wanted.run(next, piece.pages()) {
            let pages = PageRange::from_pages(piece.address(run.start), run.len())?;
            let Work {
                batch,
                copies,
                made,
                ..
            } = &mut *work;
            // Of a borrowed step: the pages stay where they are.
            let isolated = System::read_by(announced, || {
                Isolated::of_system(vma, pages, false, name, batch)
            })?;
            let (mut isolated, pages) = match isolated {
                System::Isolated(isolated, part) => (isolated, part),
                System::Stay(part) | System::Busy(part) => {
                    next = run.start + part.pages();
                    continue;
                }
            };
            next = run.start + pages.pages();
            isolated.fill(|entry| match entry.source {
                Source::Page(_) if entry.pages == 1 && !entry.writable => memory.alloc(arrival, 0),
                _ => None,
            });
            memory.copy_all(&mut isolated, copies);
            for index in 0..pages.pages() {
                // What there is no memory for is mapped in place.
                if let Some(replica) = isolated.take_copy(index) {
                    made.push_within_capacity((run.start + index, replica))
                        .map_err(|_| EINVAL)?;
                }
            }
        }
        // CPUs have their pages again. Those that were not shared when they were isolated could be written
        // since.
        work.made.retain(|(_, replica)| !replica.is_writable());
        Ok(())
    }

    /// Makes copies of pages of which others have some: these cannot be isolated.
    // A stack frame of its own.
    #[inline(never)]
    fn join_copies(
        &self,
        vma: Vma<'_>,
        piece: PageRange,
        memory: &Memory<D::Memory>,
        arrival: &Arrival<'_>,
        work: &mut Work<D::Format>,
    ) -> Result {
        let mut pairs = KVec::new();
        for index in 0..piece.pages() {
            let addr = piece.address(index);
            if self.has_device_entry(addr) {
                continue;
            }
            let Some(source) = vma.constant(addr) else {
                continue;
            };
            let Some(folio) = memory.alloc(arrival, 0) else {
                break;
            };
            pairs.push((index, source, folio), GFP_KERNEL)?;
        }
        if pairs.is_empty() {
            return Ok(());
        }
        let filled = memory.copy_pages(&pairs, &mut work.copies);
        for (index, source, folio) in pairs.drain_all() {
            if !filled.has(index) {
                continue;
            }
            if let Ok(replica) = Replica::new(folio, source) {
                work.made
                    .push_within_capacity((index, replica))
                    .map_err(|_| EINVAL)?;
            }
        }
        Ok(())
    }

    /// Lets the device use the copies that were made, of pages that nobody else has touched since the step began.
    // A stack frame of its own.
    #[inline(never)]
    fn use_copies(
        &self,
        name: Cookie,
        piece: PageRange,
        memory: &Memory<D::Memory>,
        work: &mut Work<D::Format>,
    ) -> Result<usize> {
        let inner = self.inner();
        {
            let guard = self.inner().lock();
            let owns = |index| guard.transactions.owns(name, piece.address(index));
            work.made.retain(|(index, _)| owns(*index));
        }
        let mut numbers = KVec::with_capacity(work.made.len(), GFP_KERNEL)?;
        for (index, replica) in work.made.drain_all() {
            let Some(number) = memory.entry_number(replica.pfn()) else {
                continue;
            };
            if inner.replicas.add(piece.address(index), replica).is_ok() {
                memory.add_replica();
                numbers
                    .push_within_capacity((index, number, false))
                    .map_err(|_| EINVAL)?;
            }
        }
        let mut next = 0;
        let mut used = 0;
        let mut guard = self.inner().lock();
        let State {
            table,
            transactions,
            ..
        } = &mut *guard;
        let (result, flush) = inner.change(table, Some(piece), |table, batch| {
            let result = table.install(piece, &mut work.spares, batch, |addr, slot| {
                let Some((index, number, is_used)) = numbers.get_mut(next) else {
                    return;
                };
                if piece.address(*index) != addr {
                    return;
                }
                next += 1;
                if transactions.owns(name, addr) {
                    *slot = Entry::device(*number, false);
                    *is_used = true;
                    used += 1;
                }
            });
            if result.is_err() {
                // A format that needs several tables may have got some.
                inner.clear_copies(table, batch, piece, |_| true);
            }
            result
        });
        // No device entry refers to these copies, so they need no flush.
        let unused = |is_used: bool| result.is_err() || !is_used;
        for (index, ..) in numbers.iter().filter(|(_, _, is_used)| unused(*is_used)) {
            inner.replicas.retire(piece.address(*index));
        }
        let unused = inner.replicas.take_retired();
        drop(guard);
        Flushing::end(flush, inner);
        inner.free_copies(unused);
        result.map(|()| used)
    }
}
