// SPDX-License-Identifier: GPL-2.0
//! Arguments of the later ioctls (attributes, memory, queues and fences, locks, other devices,
//! events) and of those of the small drivers.

use crate::arena::{
    self,
    BUFFER,
    BUFFER_LEN, //
};
use crate::args::two;
use crate::calls::{
    Op,
    FDS, //
};
use hmm::rng::Rng;
use hmm::PAGE_SIZE;

/// Number and argument size of each ioctl.
pub const IOCTLS: [(Op, u8, usize); 27] = [
    (Op::SetAttributes, 0x50, 40),
    (Op::GetAttributes, 0x51, 40),
    (Op::Placement, 0x52, 64),
    (Op::Policy, 0x53, 16),
    (Op::Memory, 0x54, 32),
    (Op::Unplug, 0x55, 40),
    (Op::QueueCreate, 0x60, 96),
    (Op::QueueDestroy, 0x61, 96),
    (Op::QueueSubmit, 0x62, 96),
    (Op::QueueRecord, 0x63, 96),
    (Op::QueueWait, 0x64, 96),
    (Op::QueueWaits, 0x65, 96),
    (Op::FenceCreate, 0x66, 80),
    (Op::FenceSignal, 0x67, 80),
    (Op::FenceCheck, 0x68, 80),
    (Op::FenceSync, 0x69, 80),
    (Op::FenceRelease, 0x6a, 80),
    (Op::FenceExport, 0x6b, 80),
    (Op::FenceImport, 0x6c, 80),
    (Op::FenceNotify, 0x6d, 80),
    (Op::Blit, 0x6e, 96),
    (Op::Lock, 0x70, 72),
    (Op::Unlock, 0x71, 72),
    (Op::Locked, 0x72, 72),
    (Op::Pull, 0x78, 72),
    (Op::Alloc, 0x79, 40),
    (Op::Events, 0x7a, 40),
];

/// Number of commands of the drivers in `samples/c_mirror`, `samples/mirror_only` and
/// `samples/lpae`.
pub const SAMPLE_COMMANDS: u8 = 11;
/// Argument size of `samples/c_mirror`; the others take four words.
pub const SAMPLE_BYTES: usize = 80;

/// Number of commands of `samples/template` and `samples/engines`.
pub const TEMPLATE_COMMANDS: u8 = 3;

/// Request of their command `number` with an argument of `bytes`: `_IOW('T', number, ...)`.
pub const fn iow_t(number: u64, bytes: u64) -> u64 {
    (1 << 30) | (bytes << 16) | ((b'T' as u64) << 8) | number
}

/// Maximum timeout of a call that only a fatal signal interrupts, in ns.
const WAIT: u64 = 20_000_000;

/// Bytes of managed memory, most of which stays mapped until the process ends.
const MANAGED: u64 = 256 << 10;

/// Number and argument size of `op`, if it is one of these ioctls.
pub fn ioctl(op: Op) -> Option<(u8, usize)> {
    let found = IOCTLS.iter().find(|(other, ..)| *other == op);
    found.map(|(_, number, bytes)| (*number, *bytes))
}

/// Number of a queue, fence or descriptor. They are allocated in ascending order.
fn name(rng: &mut Rng) -> u64 {
    match rng.below(16) {
        0 => crate::mutate::border(rng),
        1..4 => rng.below_u64(4096),
        _ => rng.below_u64(24),
    }
}

/// Number of a queue; a file has only a few.
fn queue(rng: &mut Rng) -> u64 {
    if rng.one_in(4) {
        name(rng) & 0xffff_ffff
    } else {
        1 + rng.below_u64(4)
    }
}

/// File descriptor of a node or of an exported sync file.
fn descriptor(rng: &mut Rng) -> u32 {
    match rng.below(4) {
        0 => rng.pick(&FDS) as u32,
        1 => crate::mutate::half(rng),
        _ => 3 + rng.below(32) as u32,
    }
}

/// A length in bytes.
fn bytes(rng: &mut Rng) -> u64 {
    match rng.below(16) {
        0 => 512 * PAGE_SIZE as u64,
        1 => crate::mutate::border(rng),
        _ => (1 + rng.below_u64(8)) * PAGE_SIZE as u64,
    }
}

/// Fills the argument, except its size. Word 0 contains only flags.
pub fn fill(op: Op, rng: &mut Rng, words: &mut [u64]) {
    let page = arena::page(rng) as u64;
    let most = if rng.one_in(32) { 1024 } else { 8 };
    let pages = 1 + rng.below_u64(most);
    match op {
        Op::SetAttributes | Op::GetAttributes => {
            (words[1], words[2]) = (page, pages);
            let what = rng.below_u64(32);
            let preferred = rng.below_u64(3);
            words[3] = two(what, preferred);
            words[4] = two(rng.below_u64(32) & what, rng.below_u64(12));
        }
        Op::Policy => words[1] = two(rng.below_u64(4), 0),
        Op::Memory => {
            words[0] = two(0, rng.below_u64(2));
            (words[1], words[2]) = (rng.below_u64(1 << 17), 1 + rng.below_u64(64));
        }
        // Never the correct flags, because no device would be left for the run.
        Op::Unplug => (words[1], words[2]) = (page, pages),
        Op::QueueSubmit => {
            let op = rng.pick(&[0, 1, 2, 3, 16, 17, 18, 19, 20, 21, 22, 23, 4, 24]);
            words[1] = two(queue(rng), op);
            (words[2], words[3]) = (page, bytes(rng));
            words[4] = if matches!(op, 3 | 20) { arena::page(rng) as u64 } else { 0 };
            words[5] = rng.bits();
            words[6] = if matches!(op, 19 | 22) { rng.pick(&[8, 64, 4096]) } else { 0 };
            words[8] = BUFFER as u64 + rng.below_u64(BUFFER_LEN as u64 / 8) * 8;
            words[9] = if rng.one_in(2) { rng.below_u64(4) } else { 0 };
            words[10] = rng.below_u64(3);
        }
        Op::QueueDestroy | Op::QueueRecord | Op::QueueWaits => words[1] = queue(rng),
        Op::QueueWait => (words[1], words[11]) = (queue(rng), name(rng)),
        Op::FenceSignal => {
            words[1] = name(rng);
            words[3] = rng.pick(&[0, 0, -5i32 as u32, 1, u32::MAX]).into();
        }
        Op::FenceCheck | Op::FenceRelease => words[1] = name(rng),
        Op::FenceSync => (words[1], words[2]) = (name(rng), rng.below_u64(WAIT)),
        Op::FenceExport => (words[1], words[2]) = (name(rng), u64::from(rng.one_in(8))),
        Op::FenceImport => {
            // A fence of another node, or a sync file.
            words[0] = two(0, u64::from(!rng.one_in(4)));
            (words[1], words[3]) = (name(rng), two(0, descriptor(rng).into()));
        }
        Op::FenceNotify => {
            let fd = if rng.one_in(2) { descriptor(rng) } else { u32::MAX };
            (words[1], words[3]) = (name(rng), two(0, fd.into()));
        }
        Op::Blit => {
            words[2] = page | (rng.below_u64(2) << 62);
            words[4] = arena::page(rng) as u64 | (rng.below_u64(2) << 62);
            words[3] = bytes(rng);
            words[8] = BUFFER as u64 + rng.below_u64(BUFFER_LEN as u64 / 8) * 8;
            words[9] = rng.below_u64(4);
        }
        Op::Lock | Op::Unlock | Op::Locked => {
            words[0] = two(0, rng.below_u64(2) * u64::from(op == Op::Lock));
            (words[1], words[2]) = (page + rng.below_u64(PAGE_SIZE as u64), bytes(rng));
            (words[3], words[4]) = (1 + rng.below_u64(15), page);
            words[8] = if op == Op::Locked { rng.below_u64(64) } else { 0 };
        }
        Op::Pull => {
            words[0] = two(0, rng.below_u64(2));
            words[1] = descriptor(rng).into();
            (words[2], words[3]) = (page, pages);
        }
        Op::Alloc => {
            words[0] = two(0, rng.below_u64(8));
            let file = if rng.one_in(4) { descriptor(rng) } else { rng.pick(&FDS) as u32 };
            words[1] = two(file.into(), if rng.one_in(2) { queue(rng) } else { 0 });
            words[2] = 1 + rng.below_u64(MANAGED);
        }
        Op::Events => {
            words[0] = two(0, u64::from(rng.one_in(8)));
            words[1] = rng.bits() & ((1 << (9 + u32::from(rng.one_in(16)))) - 1);
        }
        _ => {}
    }
}

/// Fills four words, and for `samples/c_mirror` its union.
pub fn fill_sample(rng: &mut Rng, words: &mut [u64]) {
    (words[0], words[1]) = (arena::page(rng) as u64, 1 + rng.below_u64(16));
    words[2] = match rng.below(4) {
        0 => 0,
        1 => two(rng.below_u64(3), rng.below_u64(4)),
        2 => rng.below_u64(16),
        _ => descriptor(rng).into(),
    };
    words[3] = rng.bits();
    words[4] = two(rng.below_u64(64), rng.bits() & 0x0303_0303);
    words[5] = rng.bits() & 0xffff;
}

/// Fills an address, an addend or number of pages, and one of two engines.
pub fn fill_template(number: u64, rng: &mut Rng, words: &mut [u64]) {
    words[0] = arena::page(rng) as u64;
    words[1] = 1 + rng.below_u64(16);
    if number == 0 {
        words[0] += rng.below_u64(PAGE_SIZE as u64 / 8) * 8;
        words[1] = rng.bits();
    }
    words[2] = rng.below_u64(3);
}

/// Limits arguments that could request a timeout of minutes, or most of the memory.
pub fn restrain(op: Op, words: &mut [u64]) {
    match op {
        Op::FenceSync => words[2] %= WAIT,
        Op::Alloc if words[2] < 1 << 40 => words[2] %= 8 << 20,
        Op::Unplug => words[0] &= 0xffff_ffff,
        _ => {}
    }
}

/// Calls whose arguments [`race`](crate::chaos::race) must not change, because of [`restrain`].
pub fn is_alone(op: Op) -> bool {
    matches!(op, Op::FenceSync | Op::Alloc | Op::Unplug | Op::Sample)
}

/// Calls that may wait for long and that only a fatal signal interrupts.
pub fn only_a_kill_ends(op: Op) -> bool {
    matches!(op, Op::FenceSync | Op::Sample)
}

#[cfg(test)]
mod tests {
    use crate::args::Argument;
    use crate::calls::{
        Op,
        ALL,
        NAMES, //
    };
    use hmm::rng::Rng;
    use std::path::{
        Path,
        PathBuf, //
    };

    /// Reads a file of the checkout that contains this crate.
    fn file(name: &str) -> String {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let found: Option<PathBuf> =
            here.ancestors().map(|dir| dir.join(name)).find(|path| path.exists());
        let path = found.unwrap_or_else(|| panic!("no {name} above this crate"));
        std::fs::read_to_string(path).expect("readable")
    }

    /// Size of a C structure, all of whose members are naturally aligned.
    fn size_of(header: &str, structure: &str) -> usize {
        let start = header.find(&format!("\n{structure} {{")).expect("its structure");
        let body = &header[start..];
        let body = &body[..body.find("};").expect("an end")];
        let size = |line: &str| match line.split_whitespace().next() {
            Some("__u64" | "__s64") => 8,
            Some("__u32" | "__s32") => 4,
            Some("__u16" | "__s16") => 2,
            _ => 0,
        };
        body.lines().map(size).sum()
    }

    fn op(name: &str) -> Op {
        let index = NAMES.iter().position(|known| *known == name);
        ALL[index.unwrap_or_else(|| panic!("the fuzzer does not know {name}"))]
    }

    /// Number and argument size of an ioctl request.
    fn request(op: Op) -> (u8, usize) {
        let request = Argument::of(op, &mut Rng::new(1, 0), 0).request;
        (request as u8, (request >> 16) as usize & 0x3fff)
    }

    #[test]
    fn every_ioctl_of_the_headers_is_known() {
        let header = file("samples/dmirror/dmirror_uapi.h");
        let mut seen = 0;
        for line in header.lines().filter(|line| line.contains("_IOWR('H',")) {
            let mut words = line.split(|c: char| c.is_whitespace() || "(),".contains(c));
            let mut words = words.by_ref().filter(|word| !word.is_empty());
            assert_eq!(words.next(), Some("#define"));
            let name = words.next().expect("a name");
            let number = words.nth(2).and_then(|hex| hex.strip_prefix("0x")).expect("a number");
            let number = u8::from_str_radix(number, 16).expect("a number");
            let structure: Vec<&str> = words.collect();
            let bytes = size_of(&header, &structure.join(" "));
            assert_eq!(request(op(name)), (number, bytes), "{name}");
            seen += 1;
        }
        assert!(seen >= 34, "{seen} ioctls");
        // The numbers of the kernel's `test_hmm` interface.
        let source = file("samples/common/uapi.rs");
        let mut seen = 0;
        for line in source.lines().filter(|line| line.contains("u32 = command(0x")) {
            let name = line.split([' ', ':']).nth(2).expect("a name");
            let number = line.split("0x").nth(1).and_then(|rest| rest.strip_suffix(");"));
            let number = u8::from_str_radix(number.expect("a number"), 16).expect("a number");
            assert_eq!(request(op(&format!("HMM_DMIRROR_{name}"))), (number, 40), "{name}");
            seen += 1;
        }
        assert!(seen >= 10, "{seen} of the kernel's ioctls");
    }

    #[test]
    fn every_command_of_the_small_drivers_is_known() {
        let source = file("samples/c_mirror/c_mirror.c");
        let start = source.find("enum command {").expect("its commands");
        let list = &source[start..];
        let commands = list[..list.find('}').expect("an end")].split(',').count();
        assert_eq!(commands, usize::from(super::SAMPLE_COMMANDS));
        for name in ["samples/common/sum.rs", "samples/lpae/lpae.rs"] {
            let source = file(name);
            let numbers = source.lines().filter_map(|line| {
                let rest = line.split_once(": u32 = ")?.1;
                rest.strip_suffix(';')?.parse::<u8>().ok()
            });
            let numbers: Vec<u8> = numbers.collect();
            assert!(!numbers.is_empty() && numbers.iter().all(|n| *n < super::SAMPLE_COMMANDS));
        }
    }

    #[test]
    fn every_node_of_the_small_drivers_is_known() {
        let mut nodes = std::collections::BTreeSet::new();
        for name in [
            "samples/c_mirror/c_mirror.c",
            "samples/mirror_only/mirror_only.rs",
            "samples/lpae/lpae.rs",
            "samples/template/template.rs",
            "samples/engines/engines.rs",
        ] {
            let source = file(name);
            let before = if name.ends_with(".c") { ".name = \"" } else { "Node::new(c\"" };
            let names = source.split(before).skip(1).filter_map(|rest| rest.split('"').next());
            nodes.extend(names.map(|node| format!("/dev/{node}")));
        }
        let known =
            crate::calls::nodes::SMALL.iter().map(|path| path.to_string_lossy().into_owned());
        assert_eq!(nodes, known.collect());
    }

    #[test]
    fn every_command_of_the_guides_is_known() {
        for (name, op) in [
            ("samples/template/template.rs", Op::Template),
            ("samples/engines/engines.rs", Op::Engines),
        ] {
            let source = file(name);
            let mut seen = 0;
            for line in source.lines().filter(|line| line.contains("ioctl::_IOW::<[u64; ")) {
                let rest = line.split_once("[u64; ").expect("words").1;
                let words: usize = rest.split(']').next().expect("words").parse().expect("words");
                let number = rest.split_once("'T' as u32, ").expect("a number").1;
                let number: u64 = number.split(')').next().expect("an end").parse().expect("it");
                assert!(number < super::TEMPLATE_COMMANDS.into(), "{name}: {line}");
                let drawn =
                    (0..100).map(|seed| Argument::of(op, &mut Rng::new(seed, 0), 0).request);
                let known = super::iow_t(number, words as u64 * 8);
                assert!(drawn.into_iter().any(|request| request == known), "{name}: {line}");
                seen += 1;
            }
            assert_eq!(seen, super::TEMPLATE_COMMANDS, "{name}");
        }
    }

    #[test]
    fn no_call_unplugs_the_device() {
        let mut rng = Rng::new(5, 0);
        for _ in 0..100_000 {
            let mut argument = Argument::of(Op::Unplug, &mut rng, 0);
            argument.mutate(Op::Unplug, &mut rng);
            assert_eq!(argument.words[0] >> 32, 0);
        }
    }
}
