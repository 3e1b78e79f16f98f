//! The routes that workers serve for clients, and what the gateway must know of each.
//!
//! What each route takes was read in vLLM 0.32, and tried on it (vllm/entrypoints/*/api_router.py, protocol.py):
//!
//! - Chat completions and responses show a picture under its `uuid`, and answer 400 to one that they do not know, before
//!   the first byte of a stream, too.
//! - Anthropic's messages have no place for a `uuid`. They become a chat with the URL of each image as it stands.
//! - What pools (embeddings, scores) parses its media on a thread of its own, where references are not understood:
//!   pixels go inline.

use super::plan::Way;
use crate::request::shape::{self, Shape};

/// A route of vLLM's that clients may use.
#[derive(Debug)]
pub struct Surface {
    /// Here and on the worker.
    pub path: &'static str,
    /// What metrics call it.
    pub name: &'static str,
    /// Where media stand in its bodies.
    pub shape: &'static Shape,
    /// The best way in which pictures may travel here.
    pub best_way: Way,
    /// Whether a content part may have a `uuid`.
    pub uuid: bool,
    pub again: Again,
    /// Whether an answer is a response that later requests refer to.
    pub makes_responses: bool,
}

/// Whether a request whose connection broke before the first byte of an answer may be sent to another worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// It has no effect that could happen twice.
    Safe,
    /// It may have begun something.
    Unsafe,
}

impl Surface {
    const fn new(path: &'static str, name: &'static str, shape: &'static Shape, best_way: Way, uuid: bool) -> Self {
        Surface { path, name, shape, best_way, uuid, again: Again::Safe, makes_responses: false }
    }

    /// Whether a worker that has answered holds the pictures of the request in its caches, under their uuids.
    pub fn fills_caches(&self) -> bool {
        self.best_way == Way::Known
    }
}

/// All of them. Each takes POST with a JSON body.
pub static SURFACES: [Surface; 17] = [
    Surface::new("/v1/chat/completions", "chat_completions", &shape::CHAT, Way::Known, true),
    Surface::new("/v1/chat/completions/batch", "chat_completions_batch", &shape::BATCH, Way::Push, true),
    Surface {
        // A background response works on when nobody listens any more.
        again: Again::Unsafe,
        makes_responses: true,
        ..Surface::new("/v1/responses", "responses", &shape::RESPONSES, Way::Known, true)
    },
    Surface::new("/v1/messages", "messages", &shape::MESSAGES, Way::Push, false),
    Surface::new("/v1/messages/count_tokens", "count_tokens", &shape::MESSAGES, Way::Push, false),
    Surface::new("/v1/completions", "completions", &shape::TEXT, Way::Inline, false),
    // Shown, and not processed: what its uuid names is not in the caches afterwards.
    Surface::new("/tokenize", "tokenize", &shape::CHAT, Way::Push, true),
    Surface::new("/detokenize", "detokenize", &shape::TEXT, Way::Inline, false),
    Surface::new("/v1/embeddings", "embeddings", &shape::EMBEDDINGS, Way::Inline, true),
    Surface::new("/v2/embed", "embed", &shape::COHERE_EMBED, Way::Inline, false),
    Surface::new("/pooling", "pooling", &shape::POOLING, Way::Inline, true),
    Surface::new("/classify", "classify", &shape::EMBEDDINGS, Way::Inline, true),
    Surface::new("/score", "score", &shape::SCORES, Way::Inline, true),
    Surface::new("/v1/score", "score", &shape::SCORES, Way::Inline, true),
    Surface::new("/rerank", "rerank", &shape::SCORES, Way::Inline, true),
    Surface::new("/v1/rerank", "rerank", &shape::SCORES, Way::Inline, true),
    Surface::new("/v2/rerank", "rerank", &shape::SCORES, Way::Inline, true),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_alone_are_tried_only_where_a_part_may_have_one() {
        for surface in SURFACES.iter().filter(|surface| surface.best_way == Way::Known) {
            assert!(surface.uuid, "{}", surface.path);
        }
    }

    #[test]
    fn no_path_stands_twice() {
        let paths: std::collections::HashSet<_> = SURFACES.iter().map(|surface| surface.path).collect();
        assert_eq!(paths.len(), SURFACES.len());
    }
}
