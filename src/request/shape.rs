//! Which members of a body hold conversations and media, surface by surface.
//!
//! Read in vLLM 0.32 (the protocol.py of each folder in vllm/entrypoints): what a worker could open must be known here.

/// The shape of a surface's bodies.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Members in which media can stand.
    pub holders: &'static [(&'static str, Holder)],
    /// Members that hold what only a worker's plugin understands, URLs among it.
    pub opaque: &'static [&'static str],
}

/// How media stand in a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// OpenAI's messages: each with `content`, a text or a list of content parts.
    Messages,
    /// A text, or items of the Responses API: as messages, and the output of a tool is in `output`.
    Items,
    /// What has `content`, alone, in a list, or in lists in a list: scoring, and conversations in batches.
    Nested,
    /// Anthropic's messages: each with `content`, a text or a list of blocks.
    Blocks,
    /// Anthropic's system prompt: a text or a list of blocks.
    System,
    /// A list of URLs (Cohere).
    Urls,
}

/// Chat completions, and what takes the same conversation.
pub static CHAT: Shape = Shape { holders: &[("messages", Holder::Messages)], opaque: &[] };

/// `BatchChatCompletionRequest`, whose `messages` are conversations.
pub static BATCH: Shape = Shape { holders: &[("messages", Holder::Nested)], opaque: &[] };

/// `ResponsesRequest`. Its `previous_input_messages` are in the form of models that see no images (harmony).
pub static RESPONSES: Shape = Shape { holders: &[("input", Holder::Items)], opaque: &[] };

/// `AnthropicMessagesRequest`.
pub static MESSAGES: Shape =
    Shape { holders: &[("messages", Holder::Blocks), ("system", Holder::System)], opaque: &[] };

/// `EmbeddingRequest` and `ClassificationRequest`: a conversation or several, in either member.
pub static EMBEDDINGS: Shape =
    Shape { holders: &[("messages", Holder::Nested), ("input", Holder::Nested)], opaque: &[] };

/// `PoolingRequest`, whose `data` goes to a plugin for input and output, which may fetch from it.
pub static POOLING: Shape =
    Shape { holders: &[("messages", Holder::Nested), ("input", Holder::Nested)], opaque: &["data"] };

/// `CohereEmbedRequest`.
pub static COHERE_EMBED: Shape =
    Shape { holders: &[("images", Holder::Urls), ("inputs", Holder::Nested)], opaque: &[] };

/// `ScoreRequest` and `RerankRequest`, under all of their names.
pub static SCORES: Shape = Shape {
    holders: &[
        ("query", Holder::Nested),
        ("queries", Holder::Nested),
        ("documents", Holder::Nested),
        ("items", Holder::Nested),
        ("data_1", Holder::Nested),
        ("data_2", Holder::Nested),
        ("text_1", Holder::Nested),
        ("text_2", Holder::Nested),
    ],
    opaque: &[],
};

/// No media: completions, detokenize.
pub static TEXT: Shape = Shape { holders: &[], opaque: &[] };
