// SPDX-License-Identifier: GPL-2.0
//! Loading and unloading kernel modules.

use crate::errno::Errno;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Loads the module file `path` with `params`, as in `name=value name=value`.
pub fn load(path: &Path, params: &str) -> Result<(), Errno> {
    let file = File::open(path)?;
    let params = CString::new(params).map_err(|_| Errno::EINVAL)?;
    // SAFETY: an open file and a string that outlive the call.
    let ret =
        unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), params.as_ptr(), 0) };
    Errno::check(ret).map(|_| ())
}

/// Unloads the module `name` (underscores, no suffix), without waiting.
pub fn unload(name: &str) -> Result<(), Errno> {
    let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
    // SAFETY: a string that outlives the call.
    let ret = unsafe { libc::syscall(libc::SYS_delete_module, name.as_ptr(), libc::O_NONBLOCK) };
    Errno::check(ret).map(|_| ())
}

/// Names of the loaded modules in a text like `/proc/modules`.
pub fn parse_loaded(text: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.split_whitespace().next()).map(String::from).collect()
}

/// Returns the parameters of module `name` in a text with a line for each module: its name and its
/// parameters.
fn parse_parameters<'a>(text: &'a str, name: &str) -> &'a str {
    let mut lines = text.lines().map(|line| line.split_once(' ').unwrap_or((line, "")));
    lines.find(|(module, _)| *module == name).map_or("", |(_, parameters)| parameters.trim())
}

/// Returns the parameters with which the test machine has loaded module `name` at boot.
pub fn boot_parameters(name: &str) -> String {
    let text = std::fs::read_to_string("/hmm/modules").unwrap_or_default();
    parse_parameters(&text, name).to_string()
}

/// Is the module `name` loaded?
pub fn is_loaded(name: &str) -> bool {
    let text = std::fs::read_to_string("/proc/modules").unwrap_or_default();
    parse_loaded(&text).iter().any(|loaded| loaded == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_match_the_module() {
        let text = "rust_hmm\nrust_dmirror vram_mib=16 policy=1\n";
        assert_eq!(parse_parameters(text, "rust_dmirror"), "vram_mib=16 policy=1");
        assert_eq!(parse_parameters(text, "rust_hmm"), "");
        assert_eq!(parse_parameters(text, "rust"), "");
        assert_eq!(parse_parameters("", "rust_hmm"), "");
    }

    #[test]
    fn module_names_are_parsed() {
        let text = "rust_dmirror 40960 0 - Live 0x0\nrust_hmm 65536 1 rust_dmirror, Live 0x0\n";
        assert_eq!(parse_loaded(text), ["rust_dmirror", "rust_hmm"]);
        assert!(!is_loaded("there_is_no_such_module"));
    }
}
