//! Compiles the C that Rust cannot avoid: native/ has one file a library.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=native");
    let libjpeg = env::var("DEP_TURBOJPEG_INCLUDE").expect("turbojpeg-sys tells where it put libjpeg's headers");
    cc::Build::new()
        .files(["native/jpeg_shim.c", "native/jpeg_refine.c"])
        .includes(libjpeg.split(','))
        .warnings(true)
        .extra_warnings(true)
        // What the shim reads after a jump is set before setjmp and never changed; gcc cannot tell.
        .flag_if_supported("-Wno-clobbered")
        .compile("mediagate_jpeg_shim");
}
