// SPDX-License-Identifier: GPL-2.0
//! Sets the address of the program.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // On arm64 a static program is linked to a fixed address, by default in the first MiB. The
    // arena must be the only memory below `arena::LIMIT`.
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("aarch64") {
        println!("cargo:rustc-link-arg-bins=-Wl,--image-base=0x20000000000");
    }
}
