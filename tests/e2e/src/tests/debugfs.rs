// SPDX-License-Identifier: GPL-2.0
//! debugfs files of the library that are open while its modules are unloaded.

use super::module_reload::{
    load,
    unload,
    Restore, //
};
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    Test,
    What, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::{
    inject,
    module,
    Errno,
    Mapping, //
};
use std::fs::File;
use std::io::{
    Read,
    Seek,
    SeekFrom, //
};
use std::path::{
    Path,
    PathBuf, //
};

const OURS: &str = "the C driver has no such files";
const ROOT: &str = "/sys/kernel/debug/rust_hmm";
const LIBRARY: &str = "rust_hmm";

pub const TESTS: &[Test] = &[
    Test::new("debugfs", "open_files_pin_the_library", keep).only_rust(OURS),
    Test::new("debugfs", "unload_removes_files", removed_by_unload).only_rust(OURS),
    Test::new("debugfs", "invalid_reads_and_writes_are_refused", refused).only_rust(OURS),
];

/// Returns the regular files below `directory`.
fn files(directory: &Path) -> Result<Vec<PathBuf>, Stop> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).what("list debugfs")? {
        let path = entry.what("list debugfs")?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

/// Reads all of `file` again, in parts that are large enough for every line.
fn read(file: &mut File, path: &Path) -> Result<String, Stop> {
    let mut text = Vec::new();
    let mut part = [0; 4096];
    file.rewind().what("rewind")?;
    loop {
        let bytes = file.read(&mut part).what(&format!("read {}", path.display()))?;
        if bytes == 0 {
            return String::from_utf8(text).map_err(|error| Stop::Fail(error.to_string()));
        }
        text.extend_from_slice(&part[..bytes]);
    }
}

/// An open file keeps the library loaded, tried for each file alone. Otherwise closing the file
/// would use code and data of an unloaded module.
fn keep(ctx: &Ctx) -> Outcome {
    let _restore = Restore(ctx);
    load(ctx, "")?;
    module::unload("rust_dmirror").what("unload the driver")?;
    let paths = files(Path::new(ROOT))?;
    let points = paths.iter().filter(|path| path.parent() != Some(Path::new(ROOT))).count();
    check!(points >= 10 && paths.len() - points >= 5, "files: {paths:?}");
    for path in &paths {
        let name = path.display();
        let mut file = File::open(path).what(&format!("open {name}"))?;
        let text = read(&mut file, path)?;
        fails(module::unload(LIBRARY), Errno::EAGAIN, &format!("unload with {name} open"))?;
        check_eq!(read(&mut file, path)?, text, "{name} after a refused unload");
        drop(file);
    }
    module::unload(LIBRARY).what("unload when all are closed")?;
    check!(!Path::new(ROOT).exists(), "{ROOT} is there without the library");
    Ok(())
}

/// Files that were open before do not prevent an unload, and the next load creates the same files.
fn removed_by_unload(ctx: &Ctx) -> Outcome {
    let _restore = Restore(ctx);
    load(ctx, "")?;
    let before = files(Path::new(ROOT))?;
    for path in &before {
        read(&mut File::open(path).what("open")?, path)?;
    }
    unload(ctx)?;
    check!(!Path::new(ROOT).exists(), "{ROOT} is there without the library");
    load(ctx, "")?;
    check_eq!(files(Path::new(ROOT))?, before, "files after another load");
    Ok(())
}

fn refused(ctx: &Ctx) -> Outcome {
    let point = Path::new(ROOT).join("inject/retry");
    inject::set_point("retry", "3 every").what("set a point")?;
    let before = std::fs::read_to_string(&point).what("read the point")?;
    let long = [b'1'; 65];
    for bytes in [&b"x"[..], b"1 2", b"1 every 2", b"\xff\xfe", b"-1", &long] {
        let written = std::fs::write(&point, bytes).map_err(Errno::from);
        fails(written, Errno::EINVAL, &format!("writing {bytes:?}"))?;
    }
    let after = std::fs::read_to_string(&point).what("read the point")?;
    inject::clear_points().what("clear the points")?;
    check_eq!(before, after, "the point");
    let device = ctx.open()?;
    let map = Mapping::anon(4)?;
    map.fill(1);
    device_sees(&device, &map, 1, "before the look")?;
    let mut file = File::open(Path::new(ROOT).join("map")).what("open the map")?;
    // A buffer that is too small for any line.
    let mut little = [0; 64];
    let read = file.read(&mut little).map_err(Errno::from);
    fails(read, Errno::EINVAL, "a read of a few bytes")?;
    check_eq!(file.read(&mut []).what("read nothing")?, 0, "bytes of nothing");
    // Reads beyond all mirrors return nothing.
    file.seek(SeekFrom::Start(i64::MAX as u64 - 8192)).what("seek")?;
    let mut part = [0; 4096];
    check_eq!(file.read(&mut part).what("read behind all")?, 0, "bytes behind all");
    file.rewind().what("rewind")?;
    check!(file.read(&mut part).what("read the map")? != 0, "the map is empty");
    Ok(())
}
