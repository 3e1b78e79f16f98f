//! Compiles the C that Rust cannot avoid: native/ has one file a library.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=native/jpeg_shim.c");
    println!("cargo:rerun-if-changed=native/jpeg_shim.h");
    let libjpeg = env::var("DEP_TURBOJPEG_INCLUDE").expect("turbojpeg-sys tells where it put libjpeg's headers");
    cc::Build::new()
        .file("native/jpeg_shim.c")
        .includes(libjpeg.split(','))
        .warnings(true)
        .extra_warnings(true)
        // What the shim reads after a jump is set before setjmp and never changed; gcc cannot tell.
        .flag_if_supported("-Wno-clobbered")
        .compile("mediagate_jpeg_shim");
}
