// SPDX-License-Identifier: GPL-2.0

//! A table beside its model: operations for both, and comparisons.

use super::*;

/// Comparison after each operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Walks,
    Shapes,
    Flushes,
    Counts,
    Pages,
    Searches,
    Dma,
}

/// A flush under way.
pub(super) struct Started<F: Format> {
    pub(super) flushing: Flushing<(), F>,
    pub(super) range: Option<PageRange>,
    pub(super) tick: u32,
    pub(super) detached: usize,
    pub(super) number: usize,
}

/// A table and its model.
pub(super) struct Both<F: Format> {
    pub(super) look: Look,
    pub(super) model: Model<F>,
    pub(super) table: Table<F>,
    pub(super) reader: TableReader<F>,
    pub(super) prealloc: Prealloc<F>,
    pub(super) batch: Option<FlushBatch<F>>,
    pub(super) started: Vec<Started<F>>,
    /// Flushes that were started.
    pub(super) starts: usize,
    /// Table pages in the tree.
    pub(super) tree: BTreeSet<u32>,
    /// Table pages that have left it, with the number of the flush that they wait for.
    pub(super) left: BTreeMap<u32, usize>,
    pub(super) dma: Option<(Arc<DmaDevice>, Arc<DmaWindows>)>,
    pub(super) waiting: Waiting,
    /// Whether walks are checked in descending order.
    pub(super) descending: bool,
}

impl<F: Format> Both<F> {
    pub(super) fn new(look: Look) -> Self {
        Self::with_memory(look, TableMemory::none())
    }

    pub(super) fn with_memory(look: Look, memory: TableMemory) -> Self {
        let dma = F::DMA.then(|| {
            let device = DmaDevice::software(c"properties").unwrap();
            let windows = DmaWindows::new(&device).unwrap();
            (device, windows)
        });
        let windows = dma.as_ref().map(|(_, windows)| windows.clone());
        let table = Table::<F>::with(windows, memory).unwrap();
        Self {
            look,
            model: Model::new(),
            reader: table.reader(),
            prealloc: table.reader().prealloc(),
            batch: Some(table.batch()),
            tree: BTreeSet::new(),
            table,
            started: Vec::new(),
            starts: 0,
            left: BTreeMap::new(),
            dma,
            waiting: Waiting::default(),
            descending: false,
        }
    }

    /// Calls `install` for each block of the pages.
    pub(super) fn install(
        &mut self,
        at: At,
        starves: bool,
        f: &dyn Fn(usize, DevicePte) -> DevicePte,
    ) {
        let (first, count) = resolve::<F>(at);
        for piece in range(first, count).pmd_pieces() {
            if let Some((_, windows)) = &self.dma {
                windows.prepare(piece).unwrap();
            }
            if self.prealloc.refill().is_err() {
                // No entries can be installed.
                continue;
            }
            let fails = self.fails(FailPoint::Install);
            let mut none = self.table.reader().prealloc();
            let prealloc = if starves { &mut none } else { &mut self.prealloc };
            let batch = self.batch.as_mut().unwrap();
            let result = self.table.install(piece, prealloc, batch, |addr, entry| {
                *entry = f(addr / PAGE_SIZE, *entry);
            });
            let first = piece.start() / PAGE_SIZE;
            let last = (piece.end() - 1) / PAGE_SIZE;
            if fails || (starves && last < total::<F>()) {
                assert_eq!(result, Err(ENOMEM));
                continue;
            }
            let works = self.model.install(first, last + 1 - first, f);
            assert_eq!(result.is_ok(), works, "install of {piece:?}: {result:?}");
        }
    }

    /// Whether `point` is about to fail.
    pub(super) fn fails(&self, point: FailPoint) -> bool {
        let fails = crate::inject::fails(point);
        if fails {
            arm(Some(point));
        }
        fails
    }

    /// Calls `for_each_split` or `remove_all`.
    pub(super) fn pass(
        &mut self,
        range: PageRange,
        split: bool,
        fast: bool,
        f: &dyn Fn(usize, DevicePte) -> DevicePte,
    ) {
        let first = range.start() / PAGE_SIZE;
        let last = ((range.end() - 1) / PAGE_SIZE).min(total::<F>() - 1);
        let free = self.table.pool.free.lock().leaves.len();
        let batch = self.batch.as_mut().unwrap();
        let mut seen = Vec::new();
        if fast {
            self.table.remove_all(range, batch, |entry, pages| seen.push((0, pages, entry)));
        } else {
            self.table.for_each_split(
                range,
                batch,
                |_| split,
                |span, entry| {
                    let page = span.start() / PAGE_SIZE;
                    seen.push((page, span.pages(), *entry));
                    *entry = f(page, *entry);
                },
            );
        }
        if first > last {
            assert!(seen.is_empty());
            return;
        }
        let mut expected = self.model.pass(first, last, free, split, f);
        if fast {
            expected.iter_mut().for_each(|(page, _, _)| *page = 0);
        }
        assert!(seen == expected, "a pass over {range:?} sees other leaves");
    }

    pub(super) fn start(&mut self) {
        let new = self.table.batch();
        let batch = self.batch.replace(new).unwrap();
        let tick = self.dma.as_ref().map_or(0, |(_, windows)| windows.tick());
        if self.look == Look::Flushes {
            self.check_batch(&batch);
        }
        self.model.lost.clear();
        self.model.tick += 1;
        let range = batch.range();
        let detached = batch.detached.len();
        let flusher = TestFlusher::default();
        let flushing = batch.start(&flusher);
        assert_eq!(flusher.started.get(), range);
        let number = self.starts;
        self.started.push(Started { flushing, range, tick, detached, number });
        self.starts += 1;
    }

    pub(super) fn check_batch(&self, batch: &FlushBatch<F>) {
        let lost = &self.model.lost;
        for page in lost.keys() {
            let addr = page * PAGE_SIZE;
            let covered = batch.range().is_some_and(|range| range.contains(addr));
            assert!(covered, "page {page} is not flushed: {:?}", batch.range());
        }
        assert_eq!(batch.pages(), lost.values().sum::<usize>());
        if lost.is_empty() && batch.detached.is_empty() {
            assert!(batch.is_empty(), "nothing was taken away, and all is flushed");
        }
    }

    pub(super) fn wait(&mut self, first: bool) {
        if self.started.is_empty() {
            return;
        }
        let index = if first { 0 } else { self.started.len() - 1 };
        let started = self.started.remove(index);
        let flusher = TestFlusher::default();
        let _proof = started.flushing.wait(&flusher);
        self.left.retain(|_, number| *number != started.number);
        self.waiting.flushed(started.number);
        assert_eq!(flusher.waited.get(), usize::from(started.range.is_some()));
        if let Some(range) = started.range {
            if let Some((_, windows)) = &self.dma {
                windows.unmap(range, started.tick);
                self.model.flushed(range, started.tick);
            }
        }
    }

    /// Whether flush `number`, which was started, is over.
    pub(super) fn is_over(&self, number: usize) -> bool {
        self.started.iter().all(|started| started.number != number)
    }

    pub(super) fn apply(&mut self, op: &Op) {
        match *op {
            Op::Install(at, entries) => {
                self.install(at, false, &|page, old| set(entries, page, old))
            }
            Op::Starve(at, entries) => self.install(at, true, &|page, old| set(entries, page, old)),
            Op::Upgrade(at) => self.install(at, false, &|_, old| upgraded(old)),
            Op::Take(at) => self.install(at, false, &|_, _| DevicePte::NONE),
            Op::Protect(at, split) => {
                let (first, count) = resolve::<F>(at);
                self.pass(range(first, count), split, false, &|_, old| old.write_protected());
            }
            Op::Replace(at, entries, split) => {
                let (first, count) = resolve::<F>(at);
                self.pass(range(first, count), split, false, &|page, old| {
                    let new = entries.of(page);
                    // That of a leaf of any size, which is not checked.
                    let fits = matches!(entries.order, Order::Aligned)
                        && can_hold::<F>(Model::<F>::raw(new.plus(slots::<F>(0))));
                    if fits {
                        new
                    } else {
                        old
                    }
                });
            }
            Op::Remove(at, fast) => {
                let (first, count) = resolve::<F>(at);
                self.pass(range(first, count), false, fast, &|_, _| DevicePte::NONE);
            }
            Op::RemoveAll(fast) => self.pass(everything(), false, fast, &|_, _| DevicePte::NONE),
            Op::Refill => {
                if self.prealloc.refill().is_ok() {
                    let free = self.table.pool.free.lock().leaves.len();
                    let kept = self.model.kept();
                    assert!(free >= kept, "{free} pages for splits, not {kept}");
                }
            }
            Op::Fail(point) => arm(Some(point)),
            Op::Start => self.start(),
            Op::Wait(first) => self.wait(first),
            Op::Shrink => {
                self.table.pool.scan(usize::MAX);
            }
            Op::Resize(at) => {
                let (first, count) = resolve::<F>(at);
                self.resize(range(first, count));
            }
            Op::WriteSizes => self.write_sizes(),
        }
    }

    pub(super) fn check(&mut self) {
        match self.look {
            Look::Walks => self.check_walks(),
            Look::Shapes => self.check_shapes(),
            Look::Flushes => {}
            Look::Counts => self.check_counts(),
            Look::Pages => self.check_pages(),
            Look::Searches => self.check_searches(),
            Look::Dma => self.check_dma(),
        }
    }

    /// Begins with the page at which the previous check has ended, so that the first lookup finds
    /// the table of this page in the cache, if an update has not removed it.
    pub(super) fn check_walks(&mut self) {
        let mut pages: Vec<usize> = looked_at::<F>().collect();
        if self.descending {
            pages.reverse();
        }
        self.descending = !self.descending;
        for page in pages {
            let expected = self.model.get(page);
            // Twice: the first lookup may begin at the root.
            for _ in 0..2 {
                let found = self.table.get_near(page * PAGE_SIZE);
                assert_eq!(found, expected, "look at page {page} after others");
            }
            assert_eq!(self.table.get(page * PAGE_SIZE), expected, "page {page}");
            let addr = page * PAGE_SIZE + page % PAGE_SIZE;
            let found = self.reader.walk(addr).map_or(DevicePte::NONE, |leaf| leaf.entry);
            assert_eq!(found, Model::<F>::raw(expected), "walk to page {page}");
        }
        let beyond = last_address::<F>() + 1;
        assert_eq!(self.reader.walk(beyond), None);
        assert_eq!(self.reader.walk(usize::MAX), None);
    }

    pub(super) fn check_shapes(&self) {
        for page in looked_at::<F>() {
            let found = self.table.leaf(page * PAGE_SIZE).map(|leaf| leaf.order);
            let expected = if self.model.is_huge(page) { order::<F>(1) } else { 0 };
            let expected = self.model.get(page).is_valid().then_some(expected);
            assert_eq!(found, expected, "order at page {page}");
        }
    }

    /// The table pages in the tree, each with its level.
    pub(super) fn tree(&self) -> Vec<(u32, u32)> {
        let mut found = vec![(self.table.root, F::LEVELS - 1)];
        let mut next = 0;
        let guard = rcu::read_lock();
        while let Some((index, level)) = found.get(next).copied() {
            let Some(page) = self.table.pool.page(&guard, index) else {
                // The root is made when it is needed.
                assert_eq!(index, self.table.root);
                return Vec::new();
            };
            for slot in 0..fan::<F>() {
                if let Slot::Table(child) = tree::decode(page.load(slot)) {
                    found.push((child, level - 1));
                }
            }
            next += 1;
        }
        found
    }

    pub(super) fn check_counts(&self) {
        assert_eq!(self.table.live(), self.model.pages.len());
        let guard = rcu::read_lock();
        for (index, level) in self.tree() {
            let page = self.table.pool.page(&guard, index).unwrap();
            let used: Vec<_> = (0..fan::<F>())
                .filter(|slot| tree::decode(page.load(*slot)) != Slot::Empty)
                .collect();
            assert_eq!(page.used() as usize, used.len(), "table page {index}");
            let (low, high) = page.bounds();
            assert!(used.iter().all(|slot| (low..=high).contains(slot)));
            assert!(index == self.table.root || !used.is_empty());
        }
    }

    pub(super) fn check_pages(&mut self) {
        let tree = self.tree();
        let different: BTreeSet<_> = tree.iter().map(|(index, _)| *index).collect();
        assert_eq!(different.len(), tree.len(), "a table page is in two places");
        for index in self.tree.difference(&different) {
            self.left.insert(*index, self.starts);
        }
        let again = self.left.keys().find(|index| different.contains(index));
        assert_eq!(again, None, "a table page is used again before its flush");
        self.tree = different;
        let detached = self.batch.as_ref().map_or(0, |batch| batch.detached.len())
            + self.started.iter().map(|it| it.detached).sum::<usize>();
        // One operation may put a page into the tree and take it out.
        assert!(detached >= self.left.len(), "table pages wait for no flush");
        assert_eq!(
            tree.len() + detached + self.prealloc.pages.len() + self.table.pool.free_pages(),
            self.table.pool.pages(),
            "table pages in the tree, detached, reserved and free"
        );
    }

    pub(super) fn check_searches(&self) {
        let model = &self.model;
        let starts: Vec<_> = (0..3).map(base::<F>).collect();
        for (number, start) in starts.iter().enumerate() {
            for (skip, count) in [(0, AREA), (500, 30), (511, 2), (7 * number + 3, 600)] {
                let first = start + skip;
                let end = (start + skip + count).min(total::<F>());
                if first >= end {
                    continue;
                }
                let range = range(first, end - first);
                let present = (first..end).take_while(|page| model.get(*page).is_valid()).count();
                assert_eq!(self.table.present(range), present, "present in {range:?}");
                let holds = |entry: DevicePte| entry.is_valid() && entry.is_device();
                // Of a huge leaf only one is asked, but all are alike in this.
                let any = (first..end).any(|page| holds(model.get(page)));
                assert_eq!(self.table.any(range, holds), any, "any in {range:?}");
            }
        }
        for (first, parts) in [(0, 1), (3, 2), (700, 3)] {
            self.check_scan(first, parts);
        }
    }

    /// Looks through the table in parts, from page `first` on.
    pub(super) fn check_scan(&self, first: usize, parts: usize) {
        let mut seen = Vec::new();
        let mut from = Some(first * PAGE_SIZE);
        while let Some(addr) = from {
            from = self.reader.scan(addr, parts, |range, entry, is_huge| {
                for index in 0..range.pages() {
                    let page = range.start() / PAGE_SIZE + index;
                    seen.push((page, entry.plus(index), is_huge));
                }
                true
            });
            // Gaps have too many parts.
            if let Some(addr) = from {
                let next = self.model.pages.range(addr / PAGE_SIZE..).next();
                from = next.map(|(page, _)| page * PAGE_SIZE);
            }
        }
        let expected = self
            .model
            .pages
            .range(first..)
            .map(|(page, entry)| (*page, Model::<F>::raw(*entry), self.model.is_huge(*page)));
        assert!(seen.into_iter().eq(expected), "a scan sees other pages");
    }

    pub(super) fn check_dma(&self) {
        let Some((device, _)) = &self.dma else { return };
        assert_eq!(device.live(), self.model.mapped.len() as u64);
        for (page, entry) in &self.model.pages {
            if is_system(*entry) {
                let live = Some(Mapped::Live(entry.number()));
                assert_eq!(self.model.mapped.get(page).copied(), live);
            }
        }
    }

    /// Removes everything.
    pub(super) fn end(mut self) {
        arm(None);
        self.pass(everything(), false, true, &|_, _| DevicePte::NONE);
        self.check();
        self.start();
        while !self.started.is_empty() {
            self.wait(true);
        }
        self.check();
        assert_eq!(self.table.live(), 0);
        if self.look == Look::Pages {
            // The root, unless nothing was ever to be installed.
            let root = self.tree().len();
            assert!(root <= 1);
            drop(self.prealloc);
            let pool = &self.table.pool;
            assert_eq!(pool.free_pages() + root, pool.pages());
            while pool.count() != 0 {
                assert_ne!(pool.scan(usize::MAX), 0, "free pages cannot be given back");
            }
            assert_eq!(pool.pages(), root);
        }
        if let Some((device, windows)) = &self.dma {
            assert_eq!(device.live(), 0);
            windows.retire_windows(everything());
            assert_eq!(windows.count(), 0);
        }
    }
}

pub(super) fn set(entries: Entries, page: usize, old: DevicePte) -> DevicePte {
    match entries.leave {
        0 => entries.of(page),
        every if page % every == 0 => old,
        _ => entries.of(page),
    }
}
