//! mediagate: a gateway in front of `vllm serve` workers that decodes every image once.
//!
//! The modules in the order in which a request meets them; a module knows only those listed after it and [`error`].
//!
//! - [`config`]: the whole configuration. [`serve`], [`inspect`], [`predict`] and [`warm`] are what the program
//!   does with it.
//! - [`server`]: routes, auth, admission, answers: what clients and operators reach.
//! - [`prompt`]: the tokens of a request's prompt, by the model's own template and tokenizer.
//! - [`request`]: the media parts of a body are found as byte spans, and replaced.
//! - [`routing`]: which worker gets a request.
//! - [`model`]: the files of the served models, as `--model-path` gives them.
//! - [`worker`]: who the workers are, whether they live, what they granted.
//! - [`transfer`]: pixels from the arena into a worker's landing memory, over NIXL.
//! - [`media`]: a source (http URL or data: URI) becomes bytes, bytes become pixels in the arena, pixels get a name.
//! - [`memory`]: the arena, slots of it, and budgets: where bytes are, and how many there may be.
//! - [`sync`]: locks and atomics.
//! - [`observe`]: metrics and logs.

pub mod config;
pub mod error;
pub mod inspect;
pub mod media;
pub mod memory;
pub mod model;
pub mod observe;
#[cfg(feature = "mm-routing")]
pub mod predict;
#[cfg(feature = "mm-routing")]
pub mod prompt;
pub mod request;
pub mod routing;
pub mod serve;
pub mod server;
pub mod sync;
pub mod transfer;
pub mod warm;
pub mod worker;
