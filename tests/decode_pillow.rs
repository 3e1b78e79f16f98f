//! Random images, whole and damaged, against Pillow itself.
//!
//! Needs a Python with pillow==13.0.0 and numpy: the one in `MEDIAGATE_PILLOW_PYTHON`, or that of `.venv`. Without one,
//! the test says so and passes. `MEDIAGATE_PILLOW_IMAGES` and `MEDIAGATE_PILLOW_SEED` choose how many images, and which.

#[allow(dead_code, reason = "shared with another test")]
mod decode_support;

use decode_support::{generous, pillow};

/// A whole file and two damaged ones each.
const IMAGES: &str = "400";

#[test]
fn random_images_are_decoded_as_pillow_decodes_them() {
    pillow::compare("generate.py", IMAGES, &generous());
}
