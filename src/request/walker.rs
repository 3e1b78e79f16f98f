//! The walk through a body, to wherever media can stand.
//!
//! This file knows the members of the body; [`parts`](super::parts) and [`blocks`](super::blocks) know what is in the
//! content of a message, in OpenAI's and in Anthropic's words.

use std::{borrow::Cow, fmt::Write, ops::Range};

use super::{
    error::RequestError,
    image::{ImagePart, ImageSource, Place},
    json::{JsonError, Reader, Text},
    read::{ClientRequest, OtherContent, OtherPart},
    shape::{Holder, Shape},
};
use crate::{media::source::Pieces, transfer::descriptor::SCHEME};

/// Images and other media that one request may hold; vLLM's own limit per prompt is usually far lower.
pub const MAX_MEDIA: usize = 512;

/// Messages that one request may hold: what is kept of each takes more memory than the shortest ones did.
pub const MAX_MESSAGES: usize = 16_384;

/// Clients' uuids that one request may hold: each is an edit of the body, which takes more memory than its bytes did.
pub const MAX_UUIDS: usize = 4096;

/// Members that vLLM's prompts are made of beside the conversation (`build_chat_params`, `_convert_system_message`).
const PROMPT_MEMBERS: [&str; 12] = [
    "tools",
    "tool_choice",
    "documents",
    "reasoning_effort",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "system",
    "instructions",
    "prompt",
];

/// Members with addresses that a worker connects to, to fetch KV blocks or encoder outputs from another.
const TRANSFER_PARAMS: [&str; 2] = ["kv_transfer_params", "ec_transfer_params"];

/// A walk through a body, to wherever media can stand.
#[derive(Default)]
pub(super) struct Walker<'a> {
    pub request: ClientRequest<'a>,
    /// The way here, as OpenAI writes a `param`.
    path: String,
}

impl<'a> Walker<'a> {
    pub fn member(
        &mut self,
        shape: &Shape,
        key: &str,
        value: &mut Reader<'a>,
        seen: &mut Seen,
    ) -> Result<(), RequestError> {
        let first = value.peek()?;
        let start = value.position();
        if let Some(&(key, holder)) = shape.holders.iter().find(|(name, _)| *name == key) {
            seen.once(key, value)?;
            self.below(key, |walker| walker.held(holder, value))?;
        } else if let Some(&key) = shape.opaque.iter().find(|&&name| name == key) {
            value.skip()?;
            let param = key.to_owned();
            self.other(OtherPart { param, kind: key, content: OtherContent::Untrusted })?;
        } else if let Some(&key) = TRANSFER_PARAMS.iter().find(|&&name| name == key) {
            if !value.null()? {
                return Err(RequestError::TransferParams { key });
            }
        } else {
            match key {
                "model" => self.request.model = one_string("model", value, seen)?,
                "cache_salt" => self.request.cache_salt = one_string("cache_salt", value, seen)?,
                "previous_response_id" => {
                    self.request.previous_response_id = one_string("previous_response_id", value, seen)?;
                }
                "store" => {
                    // Of two the later counts, as it does for vLLM.
                    self.request.store_off = first == b'f';
                    value.skip()?;
                }
                "mm_processor_kwargs" => {
                    self.request.processor_kwargs |= first != b'n';
                    value.skip()?;
                }
                "stream" => {
                    seen.once("stream", value)?;
                    self.request.stream = first != b'n' && value.boolean("stream")?;
                    if first == b'n' {
                        value.skip()?;
                    }
                }
                _ => value.skip()?,
            }
        }
        if let Some(key) = PROMPT_MEMBERS.iter().find(|&&member| member == key) {
            // Of two the later counts, as it does for vLLM; and what is kept has a bound, whatever a body repeats.
            self.request.prompt_members.retain(|(known, _)| known != key);
            self.request.prompt_members.push((key, start..value.position()));
        }
        Ok(())
    }

    fn held(&mut self, holder: Holder, value: &mut Reader<'a>) -> Result<(), RequestError> {
        match (holder, value.peek()?) {
            (Holder::Nested, _) => self.nested(value, 0),
            (Holder::System, _) => self.content("system", Holder::Blocks, value),
            (Holder::Urls, b'[') => value.array(|index, value| self.at(index, |walker| walker.bare_url(value))),
            (Holder::Messages | Holder::Items | Holder::Blocks, b'[') => value.array(|index, value| {
                value.peek()?;
                let start = value.position();
                self.at(index, |walker| walker.message(holder, value))?;
                self.note_message(start..value.position())
            }),
            (Holder::Items, b'"') => {
                let text = value.string("a string")?;
                self.note_message(text.span)
            }
            _ => Ok(value.skip()?),
        }
    }

    fn note_message(&mut self, span: Range<usize>) -> Result<(), RequestError> {
        if self.request.messages.len() >= MAX_MESSAGES {
            return Err(RequestError::TooManyMessages);
        }
        self.request.messages.push(span);
        Ok(())
    }

    /// An object with `content`, a list of such, or a list of lists: no shape goes deeper.
    fn nested(&mut self, value: &mut Reader<'a>, depth: usize) -> Result<(), RequestError> {
        match value.peek()? {
            b'{' => self.message(Holder::Nested, value),
            b'[' if depth < 2 => value.array(|index, value| match value.peek()? {
                b'[' | b'{' => self.at(index, |walker| walker.nested(value, depth + 1)),
                _ => Ok(value.skip()?),
            }),
            _ => Ok(value.skip()?),
        }
    }

    fn message(&mut self, holder: Holder, value: &mut Reader<'a>) -> Result<(), RequestError> {
        if value.peek()? != b'{' {
            return Ok(value.skip()?);
        }
        let mut seen = Seen::default();
        value.object(|key, value| {
            let key = match key {
                "content" => "content",
                "output" if holder == Holder::Items => "output",
                _ => return Ok(value.skip()?),
            };
            seen.once(key, value)?;
            self.below(key, |walker| walker.content(key, holder, value))
        })?;
        Ok(())
    }

    fn content(&mut self, key: &'static str, holder: Holder, value: &mut Reader<'a>) -> Result<(), RequestError> {
        match value.peek()? {
            b'[' => value.array(|index, value| {
                self.at(index, |walker| match holder {
                    Holder::Blocks => walker.block(value),
                    _ => walker.part(value),
                })
            }),
            // An object is nothing that the APIs know, and a lenient parser might take it for a list of parts.
            b'{' => Err(JsonError::Type { what: key, at: value.position(), expected: "a string or an array" }.into()),
            _ => Ok(value.skip()?),
        }
    }

    fn bare_url(&mut self, value: &mut Reader<'a>) -> Result<(), RequestError> {
        if value.peek()? != b'"' {
            return Err(self.wrong("An image must be a string: a URL."));
        }
        let text = value.string("a string")?;
        let source = self.url(value, &text)?;
        self.image(ImagePart { param: self.path.clone(), source, place: Place::Bare { url: text.span } })
    }

    /// Goes on below a member.
    pub fn below<T>(&mut self, key: &str, go: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(key);
        let result = go(self);
        self.path.truncate(length);
        result
    }

    /// Goes on below an element.
    pub fn at<T>(&mut self, index: usize, go: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        // Writing to a String cannot fail.
        let _ = write!(self.path, "[{index}]");
        let result = go(self);
        self.path.truncate(length);
        result
    }

    /// The path of where the walk is.
    pub fn param(&self) -> String {
        self.path.clone()
    }

    /// What is here is no media that could be understood.
    pub fn wrong(&self, reason: &'static str) -> RequestError {
        RequestError::Part { param: self.path.clone(), reason }
    }

    /// What is at a URL, if clients may say it. A data: URI with escapes stays as it stands.
    pub fn url(&self, reader: &Reader<'a>, text: &Text) -> Result<ImageSource<'a>, RequestError> {
        let raw = reader.raw(text);
        if text.has_escapes && Pieces::new(raw).begins_with("data:") {
            return Ok(ImageSource::EscapedDataUri(raw));
        }
        let url = reader.unescape(text)?;
        // Compared as leniently as any URL parser could: a scheme is case-insensitive, and some trim white space.
        let scheme = SCHEME.trim_end_matches("//");
        let trimmed = url.trim_start_matches(|c: char| c.is_whitespace() || c.is_control());
        if trimmed.get(..scheme.len()).is_some_and(|given| given.eq_ignore_ascii_case(scheme)) {
            return Err(RequestError::ReservedScheme { param: self.path.clone() });
        }
        Ok(ImageSource::Url(url))
    }

    pub fn image(&mut self, image: ImagePart<'a>) -> Result<(), RequestError> {
        self.one_more_medium()?;
        self.request.images.push(image);
        Ok(())
    }

    pub fn other(&mut self, part: OtherPart<'a>) -> Result<(), RequestError> {
        self.one_more_medium()?;
        self.request.others.push(part);
        Ok(())
    }

    fn one_more_medium(&self) -> Result<(), RequestError> {
        let media = self.request.images.len() + self.request.others.len();
        if media < MAX_MEDIA { Ok(()) } else { Err(RequestError::TooManyMedia) }
    }
}

/// A member that is a string, or else does not count.
fn one_string<'a>(
    key: &'static str,
    value: &mut Reader<'a>,
    seen: &mut Seen,
) -> Result<Option<Cow<'a, str>>, RequestError> {
    seen.once(key, value)?;
    if value.peek()? != b'"' {
        value.skip()?;
        return Ok(None);
    }
    let text = value.string("a string")?;
    Ok(Some(value.unescape(&text)?))
}

/// Keys of one object that may occur once only, since parsers differ in which of two they take.
#[derive(Default)]
pub(super) struct Seen(Vec<&'static str>);

impl Seen {
    pub fn once(&mut self, key: &'static str, reader: &Reader<'_>) -> Result<(), JsonError> {
        if self.0.contains(&key) {
            return Err(JsonError::Duplicate { key, at: reader.position() });
        }
        self.0.push(key);
        Ok(())
    }
}
