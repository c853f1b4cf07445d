// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: marks of migrations, and the events that clear them.

use super::*;
use crate::{
    kernel::identity::{
        EventOwner,
        MemoryId,
        PgmapOwner, //
    },
    mm::{
        addr::PMD_SIZE,
        notifier::NotifierEvent, //
    }, //
};
use kernel::page::{
    PAGE_MASK,
    PAGE_SHIFT,
    PAGE_SIZE, //
};

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_in_flight)]
mod suite {
    use super::*;

    /// Returns a faultless request that recognises its events by name.
    fn request_of(name: MigrationId, range: PageRange) -> MigrationDesc {
        MigrationDesc {
            name,
            identity: EventMatch::Name,
            range,
            faultless: true,
            destination: Destination::Any,
        }
    }

    #[test]
    fn own_event_keeps_a_range_with_all_marks_as_a_whole() -> Result {
        let name = 0u8;
        let name = MigrationId::of(&name);
        let range = PageRange::from_pages(PMD_SIZE, 64)?;
        let part = PageRange::from_pages(PMD_SIZE + 8 * PAGE_SIZE, 16)?;
        let behind = PageRange::from_pages(range.end() - PAGE_SIZE, 2)?;
        let keeps = |request: MigrationDesc, span| -> Result<bool> {
            let mut running = InFlightMigrations::new();
            running.begin(request, InFlightNode::new()?)?;
            Ok(running
                .get(name, PMD_SIZE)
                .is_some_and(|own| own.keeps_all(span)))
        };
        let faultless = request_of(name, range);
        assert!(keeps(faultless, range)? && keeps(faultless, part)?);
        assert!(!keeps(faultless, behind)?);
        let ordinary = MigrationDesc {
            faultless: false,
            ..faultless
        };
        assert!(!keeps(ordinary, part)?);
        // The migration may fill a hole for which the device maps the zero page.
        let memory = 0u8;
        let coherent = MigrationDesc {
            destination: Destination::Coherent(MemoryId::of(&memory)),
            ..faultless
        };
        assert!(!keeps(coherent, part)?);

        let mut running = InFlightMigrations::new();
        running.begin(faultless, InFlightNode::new()?)?;
        running.unmark(PageRange::from_pages(part.start(), 1)?);
        let own = running.get(name, PMD_SIZE).ok_or(EINVAL)?;
        assert!(!own.keeps_all(part) && !own.keeps_all(range));
        let rest = PageRange::new(part.start() + PAGE_SIZE, part.end())?;
        assert!(own.keeps_all(rest));
        Ok(())
    }

    #[test]
    fn foreign_events_clear_marks() -> Result {
        let mine = 0u8;
        let other = 0u8;
        let mine = MigrationId::of(&mine);
        let other = MigrationId::of(&other);
        let mut running = InFlightMigrations::new();
        let range = PageRange::from_pages(PMD_SIZE, PMD_PAGES)?;
        running.begin(request_of(mine, range), InFlightNode::new()?)?;
        assert!(running.owns(mine, PMD_SIZE) && running.owns(mine, 2 * PMD_SIZE - PAGE_SIZE));
        assert!(!running.owns(other, PMD_SIZE) && !running.owns(mine, 2 * PMD_SIZE));

        assert_eq!(
            running.handle_event(&NotifierRange::for_test(
                NotifierEvent::Migrate,
                range,
                mine
            )),
            Some(mine)
        );
        assert!(running.owns(mine, PMD_SIZE));

        // Events with another originator, without one, or of another kind.
        let page = PageRange::from_pages(PMD_SIZE + 3 * PAGE_SIZE, 1)?;
        assert_eq!(
            running.handle_event(&NotifierRange::for_test(
                NotifierEvent::Migrate,
                page,
                other
            )),
            None
        );
        assert!(
            !running.owns(mine, PMD_SIZE + 3 * PAGE_SIZE)
                && running.owns(mine, PMD_SIZE + 2 * PAGE_SIZE)
        );
        let page = PageRange::from_pages(PMD_SIZE + 4 * PAGE_SIZE, 1)?;
        assert_eq!(
            running.handle_event(&NotifierRange::for_test(NotifierEvent::Clear, page, mine)),
            None
        );
        assert!(
            !running.owns(mine, PMD_SIZE + 4 * PAGE_SIZE)
                && running.owns(mine, PMD_SIZE + 5 * PAGE_SIZE)
        );
        let all = PageRange::new(0, usize::MAX & PAGE_MASK)?;
        assert_eq!(
            running.handle_event(&NotifierRange::for_test(
                NotifierEvent::Release,
                all,
                EventOwner::NONE
            )),
            None
        );
        assert!(!running.owns(mine, PMD_SIZE + 5 * PAGE_SIZE));

        let start = range.start();
        assert!(running.end(mine, start) && !running.end(mine, start));
        Ok(())
    }

    #[test]
    fn owned_pages_of_a_part_are_reported() -> Result {
        let name = MigrationId::of(&0u8);
        let mut running = InFlightMigrations::new();
        let range = PageRange::from_pages(PMD_SIZE, 300)?;
        running.begin(request_of(name, range), InFlightNode::new()?)?;
        running.release(name, PageRange::from_pages(range.address(70), 3)?);
        let own = running.get(name, range.start()).ok_or(EINVAL)?;
        let mut asked = PageSet::EMPTY;
        asked.add(60..80);
        let of_all = own.owned_of(range.start(), &asked);
        assert_eq!((of_all.count(0..PMD_PAGES), of_all.count(60..70)), (17, 10));
        // Indices relative to another page: 65, 66, and so on.
        let of_part = own.owned_of(range.address(5), &asked);
        assert_eq!(of_part.count(0..PMD_PAGES), 17);
        assert!(of_part.has(64) && !of_part.has(65) && !of_part.has(67) && of_part.has(68));
        // Pages beyond the range are not marked.
        let mut last = PageSet::EMPTY;
        last.add(290..310);
        for (start, count) in [(range.start(), 10), (range.address(5), 5)] {
            assert_eq!(own.owned_of(start, &last).count(0..PMD_PAGES), count);
        }
        Ok(())
    }

    #[test]
    fn only_moved_pages_become_writable_again() -> Result {
        let name = MigrationId::of(&0u8);
        let mut running = InFlightMigrations::new();
        let range = PageRange::from_pages(PMD_SIZE, 300)?;
        running.begin(request_of(name, range), InFlightNode::new()?)?;
        let set = |pages| {
            let mut set = PageSet::EMPTY;
            set.add(pages);
            set
        };
        let writable = |running: &InFlightMigrations| -> Result<PageSet> {
            Ok(*running.get(name, range.start()).ok_or(EINVAL)?.writable())
        };
        assert!(writable(&running)?.is_empty());
        running.set_writable(name, range.start(), &set(10..80));
        running.keep_writable(name, range, &set(60..90));
        assert_eq!(writable(&running)?, set(60..80));
        // Pages that are relative to another page say nothing.
        let part = PageRange::from_pages(range.address(1), 299)?;
        running.keep_writable(name, part, &set(60..80));
        assert!(writable(&running)?.is_empty());
        Ok(())
    }

    #[test]
    fn many_migrations_run_concurrently() -> Result {
        let names = [0u8; 1000];
        let mut running = InFlightMigrations::new();
        let request = |name: &u8, index: usize, pages| {
            Ok::<_, Error>(MigrationDesc {
                name: MigrationId::of(name),
                identity: EventMatch::Name,
                range: PageRange::from_pages(index << PAGE_SHIFT, pages)?,
                faultless: true,
                destination: Destination::Any,
            })
        };
        // Two migrations for each page, the first of which has the mark. The pages lie in several
        // blocks.
        for (index, name) in names.iter().enumerate() {
            running.begin(request(name, index / 2, 1)?, InFlightNode::new()?)?;
        }
        let owner = |running: &InFlightMigrations, page: usize| {
            let owns = |name: &&u8| running.owns(MigrationId::of(*name), page << PAGE_SHIFT);
            names.iter().filter(owns).count()
        };
        assert_eq!((owner(&running, 0), owner(&running, 499)), (1, 1));
        // An event clears marks only in its range.
        let range = PageRange::from_pages(100 << PAGE_SHIFT, 300)?;
        assert_eq!(
            running.handle_event(&NotifierRange::for_test(
                NotifierEvent::Clear,
                range,
                EventOwner::NONE
            )),
            None
        );
        for page in [0, 99, 100, 399, 400, 499] {
            assert_eq!(
                owner(&running, page),
                usize::from(!(100..400).contains(&page))
            );
        }
        for (index, name) in names.iter().enumerate() {
            assert!(running.end(MigrationId::of(name), (index / 2) << PAGE_SHIFT));
        }
        assert!(running.0.is_empty());
        let name = &names[0];
        assert_eq!(
            running.begin(request(name, 0, PMD_PAGES + 1)?, InFlightNode::new()?),
            Err(EINVAL)
        );
        Ok(())
    }

    #[test]
    fn page_belongs_to_one_migration() -> Result {
        let names = [0u8; 2];
        let first = MigrationId::of(&names[0]);
        let second = MigrationId::of(&names[1]);
        let mut running = InFlightMigrations::new();
        let request = |name, start, pages| {
            Ok::<_, Error>(MigrationDesc {
                name,
                identity: EventMatch::Name,
                range: PageRange::from_pages(start, pages)?,
                faultless: true,
                destination: Destination::Any,
            })
        };
        running.begin(request(first, PAGE_SIZE, 4)?, InFlightNode::new()?)?;
        running.begin(request(second, 3 * PAGE_SIZE, 4)?, InFlightNode::new()?)?;
        assert!(running.owns(first, 4 * PAGE_SIZE) && !running.owns(second, 4 * PAGE_SIZE));
        assert!(!running.owns(first, 5 * PAGE_SIZE) && running.owns(second, 5 * PAGE_SIZE));
        // The event of the second migration clears the mark of the first one, and removes the
        // entry.
        let range = PageRange::from_pages(3 * PAGE_SIZE, 4)?;
        let event = NotifierRange::for_test(NotifierEvent::Migrate, range, second);
        assert_eq!(running.handle_event(&event), Some(second));
        assert!(!running.owns(first, 4 * PAGE_SIZE) && running.owns(first, 2 * PAGE_SIZE));
        let entry = DevicePte::system(1, false);
        let page = |addr| PageRange::from_pages(addr, 1);
        assert!(!running.keeps(second, page(4 * PAGE_SIZE)?, entry));
        assert!(running.keeps(second, page(5 * PAGE_SIZE)?, entry));
        // A huge leaf with pages of both migrations begins with one of the second migration. It is
        // not kept as a whole.
        let both = |start| PageRange::from_pages(start, 2);
        assert!(
            running.divides(second, both(4 * PAGE_SIZE)?)
                && !running.divides(second, both(5 * PAGE_SIZE)?)
        );
        assert!(!running.keeps(second, both(4 * PAGE_SIZE)?, entry));
        assert!(running.keeps(second, both(5 * PAGE_SIZE)?, entry));
        assert!(
            running.owns_any(second, both(4 * PAGE_SIZE)?)
                && !running.owns_all(second, both(4 * PAGE_SIZE)?)
        );
        assert!(
            running.owns_all(second, both(5 * PAGE_SIZE)?)
                && !running.owns_any(first, both(4 * PAGE_SIZE)?)
        );
        Ok(())
    }

    #[test]
    fn ordinary_migration_keeps_unclaimed_entries_only() -> Result {
        let owner = PgmapOwner::for_test(1);
        let names = [0u8; 2];
        let back = MigrationId::of(&names[0]);
        let there = MigrationId::of(&names[1]);
        let mut running = InFlightMigrations::new();
        // A CPU fault migrates two pages back, while others are migrated to the device without
        // marks.
        running.begin(
            MigrationDesc {
                name: back,
                identity: EventMatch::current(owner),
                range: PageRange::from_pages(PAGE_SIZE, 2)?,
                faultless: true,
                destination: Destination::Any,
            },
            InFlightNode::new()?,
        )?;
        let range = PageRange::from_pages(PAGE_SIZE, 4)?;
        running.begin(
            MigrationDesc {
                name: there,
                identity: EventMatch::Name,
                range,
                faultless: false,
                destination: Destination::Any,
            },
            InFlightNode::new()?,
        )?;
        let event = NotifierRange::for_test(NotifierEvent::Migrate, range, there);
        assert_eq!(running.handle_event(&event), Some(there));
        let page = |addr| PageRange::from_pages(addr, 1);
        let device = DevicePte::device(1, false);
        let system = DevicePte::system(1, false);
        assert!(!running.owns(back, PAGE_SIZE) && !running.keeps(there, page(PAGE_SIZE)?, device));
        assert!(running.keeps(there, page(3 * PAGE_SIZE)?, device));
        assert!(!running.keeps(there, page(3 * PAGE_SIZE)?, system));
        Ok(())
    }

    #[test]
    fn device_pages_are_recognised_by_task_and_range() -> Result {
        let owner = PgmapOwner::for_test(1);
        let other = PgmapOwner::for_test(3);
        let name = 0u8;
        let name = MigrationId::of(&name);
        let mut running = InFlightMigrations::new();
        let range = PageRange::from_pages(PMD_SIZE, 16)?;
        let mut request = MigrationDesc {
            name,
            identity: EventMatch::current(owner),
            range,
            faultless: true,
            destination: Destination::Any,
        };
        running.begin(request, InFlightNode::new()?)?;
        let entry = DevicePte::device(1, false);
        let event = |range, owner| NotifierRange::for_test(NotifierEvent::Migrate, range, owner);
        assert_eq!(running.handle_event(&event(range, owner)), Some(name));
        let page = |addr| PageRange::from_pages(addr, 1);
        assert!(running.keeps(name, page(PMD_SIZE)?, entry));
        // An event beyond the range is foreign, although it has the same owner: a CPU fault of this
        // task.
        let more = PageRange::from_pages(range.address(15), 2)?;
        assert_eq!(running.handle_event(&event(more, owner)), None);
        assert!(!running.owns(name, range.address(15)));
        assert!(!running.keeps(name, page(range.address(15))?, entry));
        assert_eq!(running.handle_event(&event(range, other)), None);
        assert!(!running.owns(name, PMD_SIZE));
        assert!(running.end(name, range.start()));

        // The same event from another task.
        request.identity = EventMatch::Task { pid: -1, owner };
        running.begin(request, InFlightNode::new()?)?;
        assert!(running.holds(PMD_SIZE) && running.overlap(range));
        assert_eq!(running.handle_event(&event(range, owner)), None);
        assert!(!running.holds(PMD_SIZE));
        Ok(())
    }
}
