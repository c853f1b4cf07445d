// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: pinned memory of a real user address space.

use super::*;
use crate::{
    host_lock::{
        Coherence,
        LockError,
        APERTURE, //
    },
    inject::{
        ArmedPoint,
        FailPoint, //
    },
    mm::dma::DmaDevice, //
};

fn agent() -> Result<[Arc<DmaDevice>; 1]> {
    Ok([DmaDevice::software(c"hmm-kunit")?])
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_host_lock)]
mod suite {
    use super::*;

    #[test]
    fn range_is_locked_until_its_last_unlock() -> Result {
        let (range, _shared, mirror) = attached(8)?;
        let agents = agent()?;
        let lock = |first, pages| -> Result<usize> {
            let part = PageRange::from_pages(range.address(first), pages)?;
            let locked = mirror.lock(part, &agents, Coherence::Fine);
            Ok(locked.map_err(|_| EBUSY)?.device_address)
        };
        let all = lock(0, 8)?;
        assert_eq!(all, APERTURE + range.start());
        let part = lock(2, 3)?;
        assert_eq!(part, all + 2 * PAGE_SIZE);
        assert_eq!(lock(0, 8)?, all);
        let region = mirror.locked(part).ok_or(ENOENT)?;
        assert_eq!((region.range(), region.users()), (range, 3));
        assert!(region.dma(&agents[0], part).is_some());
        assert_eq!(mirror.unlock(part + PAGE_SIZE), Err(ENOENT));
        for address in [all, part, all] {
            assert_eq!(mirror.unlock(address), Ok(()));
        }
        assert!(mirror.locked(part).is_none());
        assert_eq!(mirror.unlock(all), Err(ENOENT));
        Ok(())
    }

    #[test]
    fn extended_and_finer_locks_are_refused() -> Result {
        let (range, _shared, mirror) = attached(8)?;
        let agents = agent()?;
        let lock = |first, pages, grain| {
            let part = PageRange::from_pages(range.address(first), pages)?;
            mirror.lock(part, &agents, grain)
        };
        assert_eq!(
            mirror.lock(range, &[], Coherence::Fine),
            Err(LockError::Error(EINVAL))
        );
        let coarse = lock(2, 4, Coherence::Coarse);
        assert!(coarse.is_ok_and(|locked| locked.grain == Coherence::Coarse));
        for (first, pages) in [(0, 8), (0, 3), (5, 3), (2, 5), (1, 5)] {
            assert_eq!(
                lock(first, pages, Coherence::Coarse),
                Err(LockError::Extends)
            );
        }
        assert_eq!(lock(3, 1, Coherence::Fine), Err(LockError::Coherence));
        assert!(lock(0, 2, Coherence::Fine).is_ok());
        Ok(())
    }

    #[test]
    fn pages_without_an_address_are_not_locked() -> Result {
        let (range, _shared, mirror) = attached(4)?;
        let agents = agent()?;
        let armed = ArmedPoint::new(FailPoint::Dma, 3, false)?;
        let locked = mirror.lock(range, &agents, Coherence::Fine);
        assert_eq!(locked, Err(LockError::Error(ENOMEM)));
        assert!(!armed.is_left());
        assert_eq!((agents[0].live(), agents[0].unmapped()), (0, 2));
        let locked = mirror.lock(range, &agents, Coherence::Fine);
        let locked = locked.map_err(|_| EBUSY)?;
        assert_eq!(agents[0].live(), 4);
        mirror.unlock(locked.device_address)?;
        assert_eq!(agents[0].live(), 0);
        Ok(())
    }

    #[test]
    fn list_of_pins_grows_with_the_pinned_pages() -> Result {
        let (range, _shared, mirror) = attached(4)?;
        let agents = agent()?;
        // A list of all pages of this range would have 32 GiB.
        let large = PageRange::from_pages(range.start(), 1 << 32)?;
        let locked = mirror.lock(large, &agents, Coherence::Fine);
        assert_eq!(locked, Err(LockError::Error(EFAULT)));
        assert_eq!(agents[0].live(), 0);
        assert!(mirror.lock(range, &agents, Coherence::Fine).is_ok());
        Ok(())
    }

    #[test]
    fn removed_agent_is_unmapped_and_maps_nothing() -> Result {
        let (range, _shared, mirror) = attached(4)?;
        let agents = agent()?;
        let lock = || mirror.lock(range, &agents, Coherence::Fine);
        let locked = lock().map_err(|_| EBUSY)?;
        let region = mirror.locked(locked.device_address).ok_or(ENOENT)?;
        assert_eq!((agents[0].live(), agents[0].close()), (4, 4));
        assert_eq!(agents[0].live(), 0);
        // Pages that are not mapped for a device cannot be synchronised.
        region.sync(&agents[0], locked.device_address, true);
        drop(region);
        // Devices for which the range is mapped already are not mapped again.
        assert!(lock().is_ok());
        mirror.unlock(locked.device_address)?;
        mirror.unlock(locked.device_address)?;
        assert_eq!(lock(), Err(LockError::Error(ENODEV)));
        assert_eq!(agents[0].live(), 0);
        Ok(())
    }

    #[test]
    fn bounced_memory_is_never_fine_grained() -> Result {
        let (range, _shared, mirror) = attached(4)?;
        let bouncing = [DmaDevice::bouncing(c"hmm-kunit-bouncing")?];
        let both = [agent()?[0].clone(), bouncing[0].clone()];
        for agents in [&bouncing[..], &both[..]] {
            assert_eq!(
                mirror.lock(range, agents, Coherence::Fine),
                Err(LockError::Coherence)
            );
        }
        // A fine-grained range stays so for all its devices.
        let locked = mirror.lock(range, &both[..1], Coherence::Fine);
        let locked = locked.map_err(|_| EBUSY)?;
        assert_eq!(locked.grain, Coherence::Fine);
        let coarse = mirror.lock(range, &bouncing, Coherence::Coarse);
        assert_eq!(coarse, Err(LockError::Coherence));
        mirror.unlock(locked.device_address)?;
        assert!(mirror.locked(locked.device_address).is_none());
        Ok(())
    }

    #[test]
    fn locking_migrates_back_and_prevents_migration() -> Result {
        let (range, shared, mirror) = attached(4)?;
        for index in 0..4 {
            store(range.address(index), 100 + index as u64)?;
        }
        assert_eq!(mirror.migrate(range).to_device()?.moved, 4);
        let agents = agent()?;
        let locked = mirror
            .lock(range, &agents, Coherence::Fine)
            .map_err(|_| EBUSY)?;
        assert_eq!(shared.memory.usage().0, 0);
        let outcome = mirror.migrate(range).to_device()?;
        assert_eq!((outcome.moved, outcome.skipped), (0, 4));
        // The device accesses the same pages as the process.
        let region = mirror.locked(locked.device_address).ok_or(ENOENT)?;
        let page = region
            .page(locked.device_address + PAGE_SIZE)
            .ok_or(ENOENT)?;
        let mut word = [0; 8];
        page.read(0, &mut word)?;
        assert_eq!(u64::from_ne_bytes(word), 101);
        page.write(0, &201u64.to_ne_bytes())?;
        assert_eq!(load(range.address(1))?, 201);
        drop(region);
        mirror.unlock(locked.device_address)?;
        assert_eq!(mirror.migrate(range).to_device()?.moved, 4);
        Ok(())
    }

    #[test]
    fn remapped_memory_does_not_share_the_lock() -> Result {
        let (range, _shared, mirror) = attached(4)?;
        let agents = agent()?;
        let lock = || mirror.lock(range, &agents, Coherence::Fine);
        let locked = lock().map_err(|_| EBUSY)?;
        unmap(range)?;
        assert_eq!(lock(), Err(LockError::Error(EFAULT)));
        // The first lock keeps its pages.
        let region = mirror.locked(locked.device_address).ok_or(ENOENT)?;
        assert_eq!((region.users(), agents[0].live()), (1, 4));
        drop(region);
        mirror.unlock(locked.device_address)?;
        assert_eq!(agents[0].live(), 0);
        Ok(())
    }
}
