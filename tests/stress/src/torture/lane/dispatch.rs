// SPDX-License-Identifier: GPL-2.0
//! Maps each operation to the function that executes it.

use super::{
    device,
    Fail,
    Lane, //
};
use crate::torture::op::Op;

impl Lane<'_> {
    pub(super) fn dispatch(&mut self, op: &Op) -> Result<(), Fail> {
        match *op {
            Op::CpuWrite { at, seed } => self.cpu_write(at, seed),
            Op::CpuRead { at } => self.cpu_read(at),
            Op::CpuAdd { at, word, value } => self.cpu_add(at, word, value),
            Op::DevWrite { dev, at, seed } => self.dev_write(dev, at, seed),
            Op::DevRead { dev, at, unlocked } => self.dev_read(dev, at, unlocked),
            Op::Exclusive { dev, at } => self.exclusive(dev, at),
            Op::Snapshot { dev, at } => self.snapshot(dev, at),
            Op::ToDevice { dev, at } => self.move_there(dev, at),
            Op::ToSystem { dev, at } => self.move_back(dev, at),
            Op::Release { dev } => self.release(dev),
            Op::Engine { .. } => self.engine(op),
            Op::Watch { dev, at } => self.watch(dev, at),
            Op::Count { dev, at, value } => self.count(dev, at, value),
            Op::Finish => {
                self.kill_children()?;
                self.finish_commands(|_| true)
            }
            Op::Migrate { dev, at, back, ordinary, outcomes } => {
                self.migrate(dev, at, device::way(back, ordinary), outcomes)
            }
            Op::Discard { dev, at } => self.discard(dev, at),
            Op::Queued { dev, other, at } => self.queued(dev, other, at),
            Op::Pull { dev, other, at } => self.pull(dev, other, at),
            Op::HostLock { dev, at, fine } => self.host_lock(dev, at, fine),
            Op::Managed { dev, pages, populate, seed } => self.managed(dev, pages, populate, seed),
            Op::ManagedBeside { dev, pages, bits, seed } => {
                self.managed_beside(dev, pages, bits, seed)
            }
            Op::ManagedLater { dev, pages, bits, seed } => {
                self.managed_later(dev, pages, bits, seed)
            }
            Op::QueueWork { dev, at, from, value, fails } => {
                self.queue_work(dev, at, from, value, fails)
            }
            Op::Connect { dev, which } => self.connect(dev, which),
            Op::Resize { dev, block, restore } => self.resize(dev, block, restore),
            Op::Events { dev, mask } => self.events(dev, mask),
            Op::CheckExclusive { dev, at } => self.check_exclusive(dev, at),
            Op::Unmap { at } => self.unmap(at),
            Op::MapAgain { at } => self.map_again(at),
            Op::Move { from, to } => self.move_pages(from, to),
            Op::Protect { at, rights } => self.protect(at, rights),
            Op::Advise { at, advice } => self.advise(at, advice),
            Op::Lock { at } => self.lock(at, true),
            Op::Unlock { at } => self.lock(at, false),
            Op::Fork { how, dev, at, seed } => self.fork(how, dev, at, seed),
            Op::Reopen { dev } => self.reopen(dev),
            Op::FailAlloc { dev } => self.fail_alloc(dev),
            Op::CopyFail { dev, after } => self.copy_fail(dev, after),
            Op::CopyDelay { dev, ns } => self.set(dev, hmm::Setting::CopyDelay, ns),
            Op::FlushDelay { dev, ns } => self.set(dev, hmm::Setting::FlushDelay, ns),
            Op::CommonAdd { wide, page, value } => self.common_add(wide, page, value),
            Op::CommonDevAdd { wide, dev, page, value } => {
                self.common_dev_add(wide, dev, page, value)
            }
            Op::CommonOwn { wide, dev, page, by_device, value } => {
                self.common_own(wide, dev, page, by_device, value)
            }
            Op::CommonMove { dev, back, ordinary } => {
                self.common_move(dev, device::way(back, ordinary))
            }
            Op::CommonAdvise { advice } => self.common_advise(advice),
            Op::Policy { dev, which } => self.set_policy(dev, which),
            Op::Attributes { dev, at, preferred, values, order } => {
                self.attributes(dev, at, preferred, values, order)
            }
            Op::Squeeze { mib } => self.squeeze(mib),
            Op::Hold { dev, at, fine } => self.hold(dev, at, fine),
            Op::HoldCommon { dev, wide, page, n } => self.hold_common(dev, wide, page, n),
            Op::UseHeld { which, write, value } => self.use_held(which, write, value),
            Op::Unhold { which } => self.unhold(which),
            Op::Blit { dev, other, at, from, slow } => self.blit(dev, other, at, from, slow),
            Op::Notify { dev, other, at, fails } => self.notify(dev, other, at, fails),
            Op::EngineStatus { dev, engine, at } => self.engine_status(dev, engine, at),
            Op::Placement { dev } => self.placement(dev),
            Op::AskPull { dev, other } => self.ask_pull(dev, other),
            Op::EventsOf { dev, at, all } => self.events_of(dev, at, all),
        }
    }
}
