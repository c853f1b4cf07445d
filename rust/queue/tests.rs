// SPDX-License-Identifier: GPL-2.0

use super::*;
use crate::kernel::{
    cancel::cancelled,
    fence::FenceStatus, //
};
use kernel::time::{
    delay::fsleep,
    Delta, //
};

const SECOND: Option<Delta> = Some(Delta::from_secs(10));

/// Record of the order in which operations ran.
#[pin_data]
struct Log {
    #[pin]
    ran: Mutex<KVec<u32>>,
}

impl Log {
    fn new() -> Result<Arc<Self>> {
        let (name, key) = lock_classes::shares();
        Arc::pin_init(
            pin_init!(Self { ran <- Mutex::new(KVec::new(), name, key) }),
            GFP_KERNEL,
        )
    }

    /// Returns an operation that appends `value` to the record.
    fn note(self: &Arc<Self>, value: u32) -> impl FnOnce(&CancelToken) -> Result + Send + 'static {
        let log = self.clone();
        move |_| Ok(log.ran.lock().push(value, GFP_KERNEL)?)
    }

    fn is(&self, expected: &[u32]) -> bool {
        self.ran.lock().as_slice() == expected
    }
}

fn of(fence: &Fence) -> Result<KVec<Fence>> {
    let mut after = KVec::new();
    after.push(fence.clone(), GFP_KERNEL)?;
    Ok(after)
}

fn gate(kind: FenceType) -> Result<DriverFence> {
    DriverFence::new(kind)
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_queue)]
mod suite {
    use super::*;

    /// The address of this identifies a type of device.
    static STATIC: u8 = 0;

    #[test]
    fn operations_run_in_order_after_their_fences() -> Result {
        let kind = FenceType::of(&STATIC);
        let one = Queue::new(kind, 8)?;
        let two = Queue::new(kind, 8)?;
        let log = Log::new()?;
        let gate = gate(kind)?;
        let first = one.submit(of(&gate.fence())?, log.note(1))?;
        let second = one.submit(KVec::new(), log.note(2))?;
        let third = two.submit(of(&second)?, log.note(3))?;
        two.wait(first.clone())?;
        let all = two.record()?;
        fsleep(Delta::from_millis(20));
        assert!(log.is(&[]));
        assert_eq!(all.check(), FenceStatus::NotDone);
        gate.signal(Ok(()));
        assert_eq!(all.synchronize(SECOND), Ok(()));
        assert!(log.is(&[1, 2, 3]));
        for fence in [first, second, third] {
            assert_eq!(fence.check(), FenceStatus::Done);
        }
        Ok(())
    }

    #[test]
    fn failure_affects_dependants_only() -> Result {
        let queue = Queue::new(FenceType::NONE, 16)?;
        let log = Log::new()?;
        let bad = queue.submit(KVec::new(), |_| Err(EIO))?;
        let other = queue.submit(KVec::new(), log.note(1))?;
        let depends = queue.submit(of(&bad)?, log.note(2))?;
        let indirectly = queue.submit(of(&depends)?, log.note(3))?;
        let record = queue.record()?;
        assert_eq!(record.synchronize(SECOND), Err(EIO));
        assert_eq!(other.check(), FenceStatus::Done);
        assert_eq!(depends.check(), FenceStatus::Failed(EIO));
        assert_eq!(indirectly.check(), FenceStatus::Failed(EIO));
        // After a record, the queue's error is cleared.
        let record = queue.record()?;
        assert_eq!(record.synchronize(SECOND), Ok(()));
        // A failed wait makes later operations fail, until the next record.
        queue.wait(bad)?;
        let follows = queue.submit(KVec::new(), log.note(4))?;
        let record = queue.record()?;
        let later = queue.submit(KVec::new(), log.note(5))?;
        assert_eq!(later.synchronize(SECOND), Ok(()));
        assert_eq!(follows.check(), FenceStatus::Failed(EIO));
        assert_eq!(record.check(), FenceStatus::Failed(EIO));
        assert!(log.is(&[1, 5]));
        Ok(())
    }

    #[test]
    fn full_queue_refuses_and_dropped_queue_cancels() -> Result {
        let queue = Queue::new(FenceType::NONE, 2)?;
        let gate = gate(FenceType::NONE)?;
        queue.wait(gate.fence())?;
        // The thread removes the wait from the ring.
        let mut fences = KVec::new();
        for _ in 0..100 {
            match queue.submit(KVec::new(), |_| Ok(())) {
                Ok(fence) => fences.push(fence, GFP_KERNEL)?,
                Err(error) => {
                    assert_eq!(error, EBUSY);
                    if fences.len() == 2 {
                        break;
                    }
                }
            }
            fsleep(Delta::from_millis(1));
        }
        assert_eq!(fences.len(), 2);
        drop(queue);
        for fence in &fences {
            assert_eq!(fence.check(), FenceStatus::Failed(cancelled()));
        }
        Ok(())
    }

    #[test]
    fn fences_of_the_same_type_are_not_checked() -> Result {
        let other = 1u8;
        let kind = FenceType::of(&STATIC);
        let queue = Queue::new(kind, 8)?;
        for (from, expected) in [
            (
                kind,
                WaitStats {
                    on_device: 1,
                    ..WaitStats::default()
                },
            ),
            (
                FenceType::of(&other),
                WaitStats {
                    on_device: 1,
                    on_host: 1,
                    looks: FOREIGN_FENCE_POLLS as u64,
                    sleeps: 1,
                },
            ),
        ] {
            let gate = gate(from)?;
            let done = queue.submit(of(&gate.fence())?, |_| Ok(()))?;
            // Wait until the queue waits, which may take long on a busy machine.
            for _ in 0..100 {
                fsleep(Delta::from_millis(50));
                if queue.waits() == expected {
                    break;
                }
            }
            assert_eq!(done.check(), FenceStatus::NotDone);
            assert_eq!(queue.waits(), expected);
            gate.signal(Ok(()));
            assert_eq!(done.synchronize(SECOND), Ok(()));
        }
        Ok(())
    }
}
