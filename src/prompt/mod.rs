//! What a model's files say of prompts: the policy `mm-kv`.
//!
//! - [`writer`]: a chat request's tokens, as its worker will compute them.
//! - [`conversation`]: messages as vLLM hands them to the template.
//! - [`template`]: the chat template, as transformers renders it; [`json`] is how Python writes what is put there.
//! - [`self_check`]: predictions are compared with what workers did, and given up where they are wrong.
//! - Here: [`PromptModel`], which puts them together for one model.
//!
//! A prompt that is not predicted is known by its texts and images: nobody is served worse than without a model's files.

mod conversation;
mod json;
pub mod self_check;
mod template;
mod writer;

use std::sync::Arc;

use tokio::sync::Semaphore;

pub use self_check::SelfCheck;
pub use writer::{NotWritten, PromptRequest, PromptWriter, PromptWriterError};

use crate::{
    model::{ImageTokens, ModelFiles},
    observe,
    routing::prompt::PromptTokens,
};

/// Prompts with less text than this are written where they are asked for: that takes less than a switch of threads
/// under load.
const SHORT_TEXT_BYTES: usize = 2 << 10;

/// What routing makes of one model's files.
pub struct PromptModel {
    /// Tokens of images, if the model's family is known.
    pub image_tokens: Option<ImageTokens>,
    writer: Option<Arc<PromptWriter>>,
    /// Whether its predictions are right.
    pub self_check: Arc<SelfCheck>,
    /// A core each at most: the others are for requests under way.
    turns: Arc<Semaphore>,
}

impl PromptModel {
    /// Makes what can be made of the files, and logs what cannot: work of a second or so, to be done off the async threads.
    pub fn new(name: Option<&str>, files: &ModelFiles) -> Self {
        let image_tokens = ImageTokens::new(files)
            .inspect_err(|error| tracing::warn!(name, "images of this model are routed without their tokens: {error}"))
            .ok();
        let writer = image_tokens.as_ref().and_then(|images| {
            PromptWriter::new(files, images)
                .inspect_err(|error| {
                    tracing::warn!(name, "prompts of this model are routed by their texts, not their tokens: {error}");
                })
                .ok()
        });
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        PromptModel {
            image_tokens,
            writer: writer.map(Arc::new),
            self_check: Arc::new(SelfCheck::new(name)),
            turns: Arc::new(Semaphore::new(cores)),
        }
    }

    /// Whether prompts of this model are known by their tokens, as long as nothing speaks against one.
    pub fn writes(&self) -> bool {
        self.writer.is_some() && self.self_check.is_on()
    }

    /// The tokens of a prompt, or `None` if they are not predicted; the reason is logged and counted.
    pub async fn write(&self, request: PromptRequest) -> Option<PromptTokens> {
        let writer = self.writer.clone()?;
        if !self.self_check.is_on() {
            observe::prompt("off");
            return None;
        }
        let written = if request.text_bytes() <= SHORT_TEXT_BYTES {
            writer.write(&request)
        } else {
            // Never closed.
            let turn = self.turns.clone().acquire_owned().await.ok()?;
            let write = move || {
                let _turn = turn;
                writer.write(&request)
            };
            // It may have panicked, or the gateway is ending.
            tokio::task::spawn_blocking(write).await.ok()?
        };
        match written {
            Ok(tokens) => {
                observe::prompt("tokens");
                Some(tokens)
            }
            Err(reason) => {
                tracing::debug!(%reason, "the prompt's tokens are not predicted");
                observe::prompt(reason.code());
                None
            }
        }
    }
}
