//! Pictures in the size that the model will see, bit for bit as the worker would have resized them.
//!
//! The image processors of many models shrink a picture before anything else: a photograph of 12 megapixels becomes one of
//! one. What the processor does to a picture that has the right size already is nothing. So where it is known which size
//! that is ([`SmartResize`]), and how pixels are computed (the two passes), the gateway does it while it decodes: the
//! model gets the same numbers, and a fraction of the bytes is hashed, kept and pushed.
//!
//! Whether a worker's processor is one that is known is judged elsewhere; where it is not, pictures stay as they are.

mod passes;
mod rule;
mod work;

pub use rule::SmartResize;
pub use work::{Scratch, decode_resized, scratch_bytes};
