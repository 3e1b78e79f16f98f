//! From a chat request to the tokens of its prompt.
//!
//! Tools and other variables are what vLLM makes of them, the text goes through template and tokenizer, and each placeholder
//! becomes as many as its image has. A prompt that cannot be predicted surely is none: [`NotWritten`] says why.

use std::ops::Range;

use bytes::Bytes;
use minijinja::Value;
use serde::Deserialize;
use tokenizers::Tokenizer;

use super::{
    conversation::{Unusual, conversation},
    template::Template,
};
use crate::{
    model::{ImageTokens, ModelFiles},
    request::ClientRequest,
    routing::prompt::{MediaSpan, MmImage, PromptTokens},
};

/// Longest text that is tokenized: above the context of any model.
const MAX_TEXT_BYTES: usize = 4 << 20;

/// Most tokens that a prompt may expand to.
const MAX_TOKENS: usize = 2 << 20;

/// Members of a body that have no place in templates' variables here.
const UNUSUAL_MEMBERS: [&str; 3] = ["documents", "reasoning_effort", "chat_template"];

/// Variables that mean something to transformers itself.
const RESERVED_VARIABLES: [&str; 16] = [
    "chat_template",
    "tokenize",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
    "conversation",
    "messages",
    "documents",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "processor_kwargs",
];

/// Writes the prompts of one model.
pub struct PromptWriter {
    template: Template,
    /// For requests with tools: [`None`] if there is none.
    tool_template: Option<Template>,
    tokenizer: Tokenizer,
    /// `bos_token` and its like, which templates print.
    special_tokens: Vec<(String, Value)>,
    /// The id that stands for an image.
    placeholder_id: u32,
    /// Its text.
    placeholder: String,
}

/// What keeps a model's prompts from being written. For operators: it stands at start.
#[derive(Debug, thiserror::Error)]
pub enum PromptWriterError {
    #[error("it has no chat template")]
    NoTemplate,
    #[error("its chat template cannot be followed: {0}")]
    Template(#[from] minijinja::Error),
    #[error("it has no tokenizer.json")]
    NoTokenizer,
    #[error("its tokenizer.json cannot be read: {0}")]
    Tokenizer(tokenizers::Error),
    #[error("neither config.json nor the vocabulary says which token stands for an image")]
    NoPlaceholder,
}

/// Why the tokens of one request are not predicted. For logs and metrics.
#[derive(Debug, thiserror::Error)]
pub enum NotWritten {
    #[error("unusual: {0}")]
    Unusual(#[from] Unusual),
    #[error("the template failed: {0}")]
    Template(#[from] minijinja::Error),
    #[error("the tokenizer failed: {0}")]
    Tokenizer(tokenizers::Error),
    #[error("{found} placeholders for {images} images")]
    Placeholders { found: usize, images: usize },
    #[error("too long")]
    TooLong,
}

impl NotWritten {
    /// For the metric.
    pub fn code(&self) -> &'static str {
        match self {
            NotWritten::Unusual(_) => "unusual",
            NotWritten::Template(_) => "template",
            NotWritten::Tokenizer(_) => "tokenizer",
            NotWritten::Placeholders { .. } => "placeholders",
            NotWritten::TooLong => "too_long",
        }
    }
}

/// A chat request, as far as its prompt is made of it. Owned, so that it can go to another thread.
#[derive(Debug, Clone)]
pub struct PromptRequest {
    pub body: Bytes,
    /// Each message's JSON.
    pub messages: Vec<Range<usize>>,
    /// The JSON of other members, by key.
    pub members: Vec<(&'static str, Range<usize>)>,
    /// The JSON of each image's URL, in order.
    pub urls: Vec<Range<usize>>,
    /// The images, in the same order.
    pub images: Vec<MmImage>,
}

impl PromptRequest {
    /// Of a client's request, whose images are these.
    pub fn new(body: &Bytes, client: &ClientRequest<'_>, images: Vec<MmImage>) -> Self {
        PromptRequest {
            body: body.clone(),
            messages: client.messages.clone(),
            members: client.prompt_members.clone(),
            urls: client.images.iter().map(|image| image.place.span()).collect(),
            images,
        }
    }

    /// Bytes of text in it, without images.
    pub fn text_bytes(&self) -> usize {
        let length = |spans: &[Range<usize>]| spans.iter().map(ExactSizeIterator::len).sum::<usize>();
        let members: usize = self.members.iter().map(|(_, span)| span.len()).sum();
        (length(&self.messages) + members).saturating_sub(length(&self.urls))
    }

    fn member(&self, key: &str) -> Result<Option<&[u8]>, Unusual> {
        let mut found =
            self.members.iter().filter(|(member, _)| *member == key).map(|(_, span)| &self.body[span.clone()]);
        let first = found.next().filter(|&json| json != b"null");
        if found.next().is_some() { Err(Unusual("a member that is there twice")) } else { Ok(first) }
    }

    /// The messages, with null in place of each image's URL.
    fn messages_without_urls(&self) -> Result<Vec<String>, Unusual> {
        let mut urls = self.urls.iter().peekable();
        let mut without = Vec::with_capacity(self.messages.len());
        for message in &self.messages {
            let mut bytes = Vec::with_capacity(message.len().min(MAX_TEXT_BYTES));
            let mut at = message.start;
            while let Some(url) = urls.next_if(|url| url.start < message.end) {
                bytes.extend_from_slice(&self.body[at.min(url.start)..url.start]);
                bytes.extend_from_slice(b"null");
                at = url.end.min(message.end);
            }
            bytes.extend_from_slice(&self.body[at..message.end]);
            without.push(String::from_utf8(bytes).map_err(|_| Unusual("no UTF-8"))?);
        }
        Ok(without)
    }
}

impl PromptWriter {
    /// Reads template and tokenizer: work of a second or so, to be done off the async threads.
    ///
    /// # Errors
    ///
    /// [`PromptWriterError`].
    pub fn new(files: &ModelFiles, images: &ImageTokens) -> Result<Self, PromptWriterError> {
        let template = Template::new(files.chat_template.as_deref().ok_or(PromptWriterError::NoTemplate)?)?;
        let tool_template = files.tool_template.as_deref().map(Template::new).transpose()?;
        let bytes = files.tokenizer.as_ref().ok_or(PromptWriterError::NoTokenizer)?;
        let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(PromptWriterError::Tokenizer)?;
        // transformers sets both for each call, and vLLM asks for neither.
        tokenizer.with_truncation(None).map_err(PromptWriterError::Tokenizer)?;
        tokenizer.with_padding(None);
        let placeholder_id = images
            .placeholder_id(&files.config, |token| tokenizer.token_to_id(token))
            .ok_or(PromptWriterError::NoPlaceholder)?;
        let placeholder = images.placeholder_text().to_owned();
        let special_tokens = special_tokens(files.tokenizer_config.as_ref());
        Ok(PromptWriter { template, tool_template, tokenizer, special_tokens, placeholder_id, placeholder })
    }

    /// The tokens of a request's prompt. Takes about a millisecond for each 5,000 tokens of text.
    ///
    /// # Errors
    ///
    /// [`NotWritten`] where they cannot be predicted.
    pub fn write(&self, request: &PromptRequest) -> Result<PromptTokens, NotWritten> {
        if request.text_bytes() > MAX_TEXT_BYTES {
            return Err(NotWritten::TooLong);
        }
        let (text, add_special_tokens) = self.render(request)?;
        let encoded = self.tokenizer.encode_fast(text, add_special_tokens).map_err(NotWritten::Tokenizer)?;
        self.expand(encoded.get_ids(), &request.images)
    }

    fn render(&self, request: &PromptRequest) -> Result<(String, bool), NotWritten> {
        for key in UNUSUAL_MEMBERS {
            if request.member(key)?.is_some() {
                return Err(Unusual("a template, documents or an effort of its own").into());
            }
        }
        if flag(request, "continue_final_message", false)? {
            return Err(Unusual("an answer that is to be continued").into());
        }
        let tools = tools(request)?;
        let template = match &tools {
            None => &self.template,
            Some(_) => self.tool_template.as_ref().ok_or(Unusual("tools, and no template for them"))?,
        };
        let messages = conversation(&request.messages_without_urls()?, template.format, &self.placeholder)?;
        if messages.is_empty() {
            return Err(Unusual("no messages").into());
        }
        let mut variables = self.special_tokens.clone();
        variables.extend([
            ("messages".into(), messages.into()),
            ("tools".into(), tools.map_or_else(|| Value::from(()), Value::from)),
            ("documents".into(), Value::from(())),
            ("add_generation_prompt".into(), flag(request, "add_generation_prompt", true)?.into()),
        ]);
        if let Some(json) = request.member("chat_template_kwargs")? {
            let given: std::collections::BTreeMap<String, Value> =
                serde_json::from_slice(json).map_err(|_| Unusual("chat_template_kwargs that are no object"))?;
            if given.keys().any(|key| RESERVED_VARIABLES.contains(&key.as_str())) {
                return Err(Unusual("chat_template_kwargs that mean something else").into());
            }
            variables.extend(given);
        }
        let text = template.render(Value::from_pairs(variables))?;
        Ok((text, flag(request, "add_special_tokens", false)?))
    }

    /// vLLM's `PromptReplacement`: each placeholder as often as its image has tokens.
    fn expand(&self, ids: &[u32], images: &[MmImage]) -> Result<PromptTokens, NotWritten> {
        let found = ids.iter().filter(|&&id| id == self.placeholder_id).count();
        if found != images.len() {
            return Err(NotWritten::Placeholders { found, images: images.len() });
        }
        let total = images.iter().fold(ids.len(), |total, image| total.saturating_add(image.tokens));
        if total > MAX_TOKENS {
            return Err(NotWritten::TooLong);
        }
        let mut images = images.iter();
        let mut prompt = PromptTokens { ids: Vec::with_capacity(total), media: Vec::with_capacity(found) };
        for &id in ids {
            match (id == self.placeholder_id).then(|| images.next()).flatten() {
                None => prompt.ids.push(id),
                Some(image) => {
                    prompt.media.push(MediaSpan { hash: image.hash, offset: prompt.ids.len(), length: image.tokens });
                    prompt.ids.extend(std::iter::repeat_n(id, image.tokens));
                }
            }
        }
        Ok(prompt)
    }
}

fn flag(request: &PromptRequest, key: &str, default: bool) -> Result<bool, Unusual> {
    let Some(json) = request.member(key)? else { return Ok(default) };
    serde_json::from_slice(json).map_err(|_| Unusual("a flag that is no boolean"))
}

/// A tool as vLLM's protocol writes it again (`ChatCompletionToolsParam.model_dump`): what it knows, in its order.
fn tools(request: &PromptRequest) -> Result<Option<Vec<Value>>, Unusual> {
    #[derive(Deserialize)]
    struct Tool {
        #[serde(default)]
        r#type: Option<String>,
        function: Function,
        #[serde(default)]
        defer_loading: Option<bool>,
    }
    #[derive(Deserialize)]
    struct Function {
        name: String,
        #[serde(default)]
        description: Option<String>,
        #[serde(default)]
        parameters: Option<Value>,
        #[serde(default)]
        strict: Option<bool>,
        #[serde(default)]
        defer_loading: Option<bool>,
    }

    let Some(json) = request.member("tools")? else { return Ok(None) };
    let tools: Vec<Tool> = serde_json::from_slice(json).map_err(|_| Unusual("tools of an unknown shape"))?;
    let written = tools.into_iter().map(|tool| {
        if tool.r#type.is_some_and(|kind| kind != "function")
            || tool.defer_loading.is_some()
            || tool.function.defer_loading.is_some()
        {
            return Err(Unusual("a tool that is no plain function"));
        }
        let Function { name, description, parameters, strict, .. } = tool.function;
        let function = [
            ("name", Value::from(name)),
            ("description", description.map_or_else(|| Value::from(()), Value::from)),
            ("parameters", parameters.unwrap_or_else(|| Value::from(()))),
        ];
        let function = function.into_iter().chain(strict.map(|strict| ("strict", Value::from(strict))));
        Ok(Value::from_pairs([("type", Value::from("function")), ("function", Value::from_pairs(function))]))
    });
    written.collect::<Result<_, _>>().map(Some)
}

/// `bos_token` and its like of tokenizer_config.json, each a text or an object with one.
fn special_tokens(config: Option<&serde_json::Value>) -> Vec<(String, Value)> {
    let Some(serde_json::Value::Object(config)) = config else { return Vec::new() };
    let tokens = config.iter().filter(|(key, _)| key.ends_with("_token"));
    let text = |value: &serde_json::Value| value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned);
    tokens.filter_map(|(key, value)| Some((key.clone(), Value::from(text(value)?)))).collect()
}
