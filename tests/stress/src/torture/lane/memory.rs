// SPDX-License-Identifier: GPL-2.0
//! Operations of a process on its mappings.

use super::{
    fail,
    Effect,
    Fail,
    Lane, //
};
use crate::torture::op::{
    Advice,
    Kind,
    Rights,
    Span, //
};
use crate::torture::region::prot;
use hmm::Errno;

/// Not defined in all versions of the libc crate.
const MADV_COLLAPSE: i32 = 25;
const MADV_POPULATE_WRITE: i32 = 23;

/// The `MADV_*` constant.
pub fn code(advice: Advice) -> i32 {
    match advice {
        Advice::DontNeed => libc::MADV_DONTNEED,
        Advice::Free => libc::MADV_FREE,
        Advice::PageOut => libc::MADV_PAGEOUT,
        Advice::Cold => libc::MADV_COLD,
        Advice::Collapse => MADV_COLLAPSE,
        Advice::HugePage => libc::MADV_HUGEPAGE,
        Advice::NoHugePage => libc::MADV_NOHUGEPAGE,
        Advice::Mergeable => libc::MADV_MERGEABLE,
        Advice::Unmergeable => libc::MADV_UNMERGEABLE,
        Advice::Populate => MADV_POPULATE_WRITE,
    }
}

/// Whether a single VMA contains the range. mremap() across VMAs may move only a part.
fn one_vma(start: usize, end: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().any(|line| {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        range.is_some_and(|(from, to)| {
            let number = |text| usize::from_str_radix(text, 16).unwrap_or(0);
            number(from) <= start && end <= number(to)
        })
    })
}

impl Lane<'_> {
    /// Maximal subranges whose pages `which` accepts. A hugetlb region counts as a whole.
    fn runs(&self, at: Span, which: impl Fn(&crate::torture::region::Page) -> bool) -> Vec<Span> {
        let region = &self.regions[at.r];
        let at = match region.kind {
            Kind::Hugetlb => Span { page: 0, n: region.pages.len(), ..at },
            _ => at,
        };
        let mut runs: Vec<Span> = Vec::new();
        for page in at.pages().filter(|page| which(&region.pages[*page])) {
            match runs.last_mut() {
                Some(run) if run.page + run.n == page => run.n += 1,
                _ => runs.push(Span { r: at.r, page, n: 1 }),
            }
        }
        if region.kind == Kind::Hugetlb {
            runs.retain(|run| run.n == region.pages.len());
        }
        runs
    }

    pub(super) fn unmap(&mut self, at: Span) -> Result<(), Fail> {
        if self.regions[at.r].kind == Kind::Uffd {
            // A new mapping would not be registered with the userfaultfd.
            return Ok(());
        }
        for run in self.runs(at, |page| page.mapped) {
            self.quiesce(run, Effect::Changes)?;
            self.release_held(run)?;
            let region = &mut self.regions[run.r];
            if let Err(error) = region.map.unmap_pages(run.page, run.n) {
                return fail("munmap", error);
            }
            for page in run.pages() {
                region.pages[page].mapped = false;
                region.pages[page].lazy = false;
            }
        }
        Ok(())
    }

    pub(super) fn map_again(&mut self, at: Span) -> Result<(), Fail> {
        self.regions[at.r].map_holes(at).map_err(|error| format!("mmap: {error}"))
    }

    pub(super) fn move_pages(&mut self, from: Span, to: Span) -> Result<(), Fail> {
        let apart = from.r != to.r || from.page + from.n <= to.page || to.page + to.n <= from.page;
        let there = from.pages().all(|page| self.regions[from.r].pages[page].mapped);
        let start = self.addr(from);
        if !apart || !there || !one_vma(start, start + from.n * hmm::PAGE_SIZE) {
            return Ok(());
        }
        self.quiesce(from, Effect::Changes)?;
        self.quiesce(to, Effect::Changes)?;
        self.release_held(from)?;
        self.release_held(to)?;
        let source = &self.regions[from.r].map;
        let target = &self.regions[to.r].map;
        if let Err(error) = source.move_pages(from.page, from.n, target, to.page) {
            return fail("mremap", error);
        }
        self.note("  moved by mremap");
        for (page, other) in from.pages().zip(to.pages()) {
            let state = self.regions[from.r].pages[page];
            let words = self.regions[from.r].shadow(page).to_vec();
            self.regions[to.r].set_shadow(other, &words);
            self.regions[to.r].pages[other] = state;
            self.regions[from.r].pages[page].mapped = false;
            self.regions[from.r].pages[page].lazy = false;
        }
        Ok(())
    }

    pub(super) fn protect(&mut self, at: Span, rights: Rights) -> Result<(), Fail> {
        for run in self.runs(at, |page| page.mapped && page.rights != rights) {
            self.quiesce(run, Effect::Changes)?;
            let all = self.runs(run, |page| page.rights == Rights::Write);
            for run in all {
                self.settle(run)?;
            }
            let region = &mut self.regions[run.r];
            match region.map.protect_pages(prot(rights), run.page, run.n) {
                Ok(()) => run.pages().for_each(|page| region.pages[page].rights = rights),
                Err(error) => return fail("mprotect", error),
            }
        }
        Ok(())
    }

    pub(super) fn advise(&mut self, at: Span, advice: Advice) -> Result<(), Fail> {
        let kind = self.regions[at.r].kind;
        let loses = matches!(advice, Advice::DontNeed | Advice::Free);
        if advice == Advice::Free && !matches!(kind, Kind::Anon | Kind::Huge) {
            return Ok(());
        }
        if advice == Advice::Populate && kind == Kind::Uffd {
            return Ok(());
        }
        // Restrict MADV_FREE to writable pages, because settle() writes them to make the contents
        // defined.
        let writes = matches!(advice, Advice::Free | Advice::Populate);
        for run in self.runs(at, |page| page.mapped && (!writes || page.rights == Rights::Write)) {
            if loses {
                self.quiesce(run, Effect::Changes)?;
                if advice == Advice::DontNeed {
                    self.release_held(run)?;
                }
                if run.pages().any(|page| self.regions[run.r].pages[page].locked) {
                    self.lock(run, false)?;
                }
            }
            let result = self.regions[run.r].map.advise_pages(code(advice), run.page, run.n);
            match (advice, result) {
                (Advice::DontNeed, Ok(())) if kind == Kind::Shared => {}
                (Advice::DontNeed, Ok(())) => self.regions[run.r].emptied(run),
                (Advice::Free, Ok(())) => {
                    run.pages().for_each(|page| self.regions[run.r].pages[page].lazy = true)
                }
                (_, Ok(())) => {}
                (_, Err(error)) if loses => return fail(format!("{advice:?}"), error),
                // Other advice may fail; the contents are unaffected.
                (_, Err(error)) => self.note(format!("  {advice:?}: {error}")),
            }
        }
        Ok(())
    }

    pub(super) fn lock(&mut self, at: Span, lock: bool) -> Result<(), Fail> {
        if self.regions[at.r].kind == Kind::Uffd {
            return Ok(());
        }
        for run in self.runs(at, |page| page.mapped) {
            let map = &self.regions[run.r].map;
            match map.lock_pages(lock, run.page, run.n) {
                Ok(()) => {}
                // mlock() of an inaccessible range marks the VMA, but fails to populate it.
                Err(error) if lock => self.note(format!("  mlock: {error}")),
                Err(error) => return fail("munlock", error),
            }
            run.pages().for_each(|page| self.regions[run.r].pages[page].locked = lock);
        }
        Ok(())
    }

    /// Pushes other memory of the control group to swap, and frees the memory used for that.
    pub(super) fn squeeze(&mut self, mib: usize) -> Result<(), Fail> {
        let pages = (mib << 8).min(self.ballast.pages());
        for page in 0..pages {
            self.ballast.set(page, 1, page as u64);
        }
        let wrong = (0..pages).find(|page| self.ballast.get(*page, 1) != *page as u64);
        if let Some(page) = wrong {
            return fail("ballast", format!("page {page} is wrong"));
        }
        match self.ballast.advise_pages(libc::MADV_DONTNEED, 0, pages) {
            Ok(()) => Ok(()),
            Err(error @ Errno(_)) => fail("ballast", error),
        }
    }
}
