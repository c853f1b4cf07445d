// SPDX-License-Identifier: GPL-2.0
//! Locked memory, and blits of it.

use super::mirror::engine_read;
use super::queues::end;
use super::Worker;
use hmm::{
    Locked,
    PAGE_SIZE, //
};

/// Maximal number of pages of a lock.
const MOST: usize = 8;

/// Locks two parts of the memory, copies one to the other by a blit, and unlocks both.
pub fn step(worker: &mut Worker<'_>) -> Result<(), String> {
    let device = &worker.device;
    let model = &mut worker.model;
    let agents = 1 << worker.index;
    let ([to, from], pages) = model.two_parts(MOST);
    let bytes = pages * PAGE_SIZE;
    let mut locks: Vec<Locked> = Vec::new();
    for first in [to, from] {
        let locked =
            model.attempt("lock", |map| device.lock(map.page_addr(first), bytes, agents, true))?;
        locks.extend(locked);
    }
    if let [there, here] = locks[..] {
        let found = model.attempt("locked", |map| device.locked(map.page_addr(to), 1))?;
        let addr = model.map.page_addr(to);
        if let Some(found) = found.filter(|it| (it.addr, it.bytes, it.users) != (addr, bytes, 1)) {
            return Err(format!("{bytes} bytes at {addr:#x} are locked once: {found:?}"));
        }
        engine_read(device, model, from, pages, Some(here.device_addr))?;
        model.settle(to, pages)?;
        model.settle(from, pages)?;
        let before = model.state();
        // A blit whose fence number could not be returned runs all the same. Blits run in order of
        // submission.
        let fence = model
            .insist("blit", |_| device.blit(there.device_addr, here.device_addr, bytes, &[]))?;
        let event = model.attempt("fence notify", |_| fence.event())?;
        let file = model.attempt("fence export", |_| fence.export())?;
        if let Some(file) = file {
            if let Some(known) = model.attempt("fence import", |_| device.import(&file))? {
                end(model, "end of an imported fence", &before, &known)?;
            }
        }
        let done = end(model, "end of a blit", &before, &fence)?.is_some();
        model.copied(to, from, pages, done);
        if let Some(event) = event {
            let signalled = event.poll(super::LIMIT).and_then(|_| event.take());
            if signalled != Ok(1) {
                return Err(format!("the end of a blit is not reported: {signalled:?}"));
            }
        }
    }
    for locked in locks {
        model.insist("unlock", |_| device.unlock(locked.device_addr))?;
    }
    Ok(())
}
