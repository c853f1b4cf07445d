// SPDX-License-Identifier: GPL-2.0
//! A region of memory, and the model of its contents and state.

use crate::torture::op::{
    Kind,
    Rights,
    Span, //
};
use hmm::pattern::{
    self,
    Mismatch,
    WORDS, //
};
use hmm::{
    files,
    Errno,
    Mapping,
    Prot,
    PAGE_SIZE, //
};
use std::fs::File;
use std::sync::atomic::Ordering::SeqCst;

/// Seed of the initial contents of files.
const FILE_SEED: u64 = 77;

/// State of a page in the model, besides its contents.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// The page is mapped.
    pub mapped: bool,
    /// Access rights of the mapping.
    pub rights: Rights,
    /// Freed with `MADV_FREE`: the contents may be zero until the page is written.
    pub lazy: bool,
    /// Locked with `mlock`.
    pub locked: bool,
    /// The page may be missing, so that an access needs the userfaultfd handler.
    pub missing: bool,
}

/// A region and its model.
#[derive(Debug)]
pub struct Region {
    /// Type of the memory.
    pub kind: Kind,
    /// The mapping that the operations use.
    pub map: Mapping,
    /// A second mapping of the same file.
    pub view: Option<Mapping>,
    file: Option<File>,
    shadow: Vec<u64>,
    /// The memory is hugetlb. False once it was unmapped, because it is mapped again without
    /// hugetlb.
    pub is_hugetlb: bool,
    /// State of each page.
    pub pages: Vec<Page>,
    /// Byte with which the userfaultfd handler fills missing pages.
    pub filler: u8,
}

/// The protection of `rights`.
pub fn prot(rights: Rights) -> Prot {
    match rights {
        Rights::None => Prot::None,
        Rights::Read => Prot::Read,
        Rights::Write => Prot::ReadWrite,
    }
}

impl Region {
    /// Maps a region of `pages` pages.
    pub fn new(kind: Kind, pages: usize, filler: u8) -> Result<Region, Errno> {
        let mut file = None;
        let mut view = None;
        let blocks = pages / hmm::HUGE_PAGES;
        let map = match kind {
            Kind::Anon | Kind::Uffd => Mapping::anon(pages)?,
            Kind::Huge => Mapping::anon_huge(blocks)?,
            Kind::Hugetlb => Mapping::hugetlb(blocks)?,
            Kind::Shared | Kind::File => {
                let memory = files::memfd(FILE_SEED, pages)?;
                let map = if kind == Kind::Shared {
                    view = Some(Mapping::file_shared(&memory, pages)?);
                    Mapping::file_shared(&memory, pages)?
                } else {
                    Mapping::file_private(&memory, pages)?
                };
                file = Some(memory);
                map
            }
        };
        let page = Page {
            mapped: true,
            rights: Rights::Write,
            lazy: false,
            locked: false,
            missing: kind == Kind::Uffd,
        };
        let mut region = Region {
            kind,
            map,
            view,
            file,
            shadow: vec![0; pages * WORDS],
            is_hugetlb: kind == Kind::Hugetlb,
            pages: vec![page; pages],
            filler,
        };
        region.emptied(Span { r: 0, page: 0, n: pages });
        Ok(region)
    }

    /// The words of a page in the model.
    pub fn shadow(&self, page: usize) -> &[u64] {
        &self.shadow[page * WORDS..(page + 1) * WORDS]
    }

    /// All words of the model.
    pub fn words(&mut self) -> &mut [u64] {
        &mut self.shadow
    }

    /// Sets the words of a page in the model.
    pub fn set_shadow(&mut self, page: usize, words: &[u64]) {
        self.shadow[page * WORDS..(page + 1) * WORDS].copy_from_slice(words);
    }

    /// Updates the model after the contents of the range were dropped: pages are zero, or filled
    /// from the file or by the userfaultfd handler.
    pub fn emptied(&mut self, at: Span) {
        for page in at.pages() {
            let filler = u64::from_ne_bytes([self.filler; 8]);
            for word in 0..WORDS {
                self.shadow[page * WORDS + word] = match self.kind {
                    Kind::Shared if self.pages[page].mapped => pattern::word(FILE_SEED, page, word),
                    Kind::File => pattern::word(FILE_SEED, page, word),
                    Kind::Uffd => filler,
                    _ => 0,
                };
            }
            self.pages[page].lazy = false;
            self.pages[page].missing = self.kind == Kind::Uffd;
        }
    }

    /// Whether the access rights of a page allow the access.
    pub fn allows(&self, page: usize, write: bool) -> bool {
        let page = &self.pages[page];
        let enough = if write { page.rights == Rights::Write } else { page.rights != Rights::None };
        page.mapped && enough
    }

    /// Reads a page with the CPU.
    pub fn load(&self, page: usize, into: &mut [u64]) {
        for (word, place) in into.iter_mut().enumerate() {
            *place = self.map.get(page, word);
        }
    }

    /// Compares the words of a page with the model.
    pub fn compare(&self, page: usize, found: &[u64]) -> Result<(), Mismatch> {
        let expected = self.shadow(page);
        if found == expected || (self.pages[page].lazy && found.iter().all(|word| *word == 0)) {
            return Ok(());
        }
        let word = found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
        Err(Mismatch { page, word, found: found[word], expected: expected[word] })
    }

    /// Compares bytes that an agent read with the model.
    pub fn compare_bytes(&self, first: usize, bytes: &[u8]) -> Result<(), Mismatch> {
        let mut words = [0; WORDS];
        for (index, page) in bytes.chunks_exact(PAGE_SIZE).enumerate() {
            for (word, raw) in words.iter_mut().zip(page.chunks_exact(8)) {
                *word = u64::from_ne_bytes(raw.try_into().unwrap_or_default());
            }
            self.compare(first + index, &words)?;
        }
        Ok(())
    }

    /// Reads an accessible page with the CPU through each mapping, and compares.
    pub fn check(&self, page: usize) -> Result<(), Mismatch> {
        let mut words = [0; WORDS];
        self.load(page, &mut words);
        self.compare(page, &words)?;
        if let Some(view) = &self.view {
            for (word, place) in words.iter_mut().enumerate() {
                *place = view.get(page, word);
            }
            self.compare(page, &words)?;
        }
        Ok(())
    }

    /// Writes a page that was freed with `MADV_FREE`, so that its contents are defined, and
    /// compares it.
    pub fn settle(&mut self, page: usize) -> Result<(), Mismatch> {
        if !self.pages[page].lazy {
            return Ok(());
        }
        // The first access must be a write, because the page could be freed between a read and a
        // write. Do not add 0: compilers turn that into a read.
        self.map.atomic(page, 0).fetch_add(1, SeqCst);
        self.map.atomic(page, 0).fetch_sub(1, SeqCst);
        let mut words = [0; WORDS];
        self.load(page, &mut words);
        self.compare(page, &words)?;
        self.set_shadow(page, &words);
        self.pages[page].lazy = false;
        Ok(())
    }

    /// Fills a page with the CPU, and updates the model.
    pub fn fill(&mut self, page: usize, seed: u64) {
        self.map.fill_pages(seed, page, 1);
        self.wrote(page, seed);
    }

    /// Updates the model after an agent has filled a page.
    pub fn wrote(&mut self, page: usize, seed: u64) {
        for word in 0..WORDS {
            self.shadow[page * WORDS + word] = pattern::word(seed, page, word);
        }
        self.pages[page].lazy = false;
        self.pages[page].missing = false;
    }

    /// Maps the unmapped pages of the range with all rights; their old contents are lost, except
    /// those of a shared file.
    pub fn map_holes(&mut self, at: Span) -> Result<(), Errno> {
        let mut page = at.page;
        while page < at.page + at.n {
            let first = page;
            while page < at.page + at.n && !self.pages[page].mapped {
                page += 1;
            }
            if page > first {
                let shared = self.kind == Kind::Shared;
                let file = self.file.as_ref().map(|file| (file, shared));
                self.map.map_again(first, page - first, file)?;
                // A hugetlb region is unmapped only as a whole.
                self.is_hugetlb = false;
                if self.kind == Kind::Huge {
                    let _ = self.map.advise_pages(libc::MADV_HUGEPAGE, first, page - first);
                }
                for index in first..page {
                    let state = &mut self.pages[index];
                    (state.mapped, state.rights, state.locked) = (true, Rights::Write, false);
                }
                // A shared file keeps its contents.
                if !shared {
                    self.emptied(Span { r: at.r, page: first, n: page - first });
                }
            }
            page += 1;
        }
        Ok(())
    }
}
