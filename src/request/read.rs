//! What the gateway needs to know of a body, found in one pass: its model, where its images and its messages stand.
//!
//! This file knows the members of the body; [`parts`](super::parts) and [`blocks`](super::blocks) know what is in the
//! content of a message, in OpenAI's and in Anthropic's words.

use std::{borrow::Cow, fmt::Write, ops::Range};

use super::{
    error::RequestError,
    image::ImagePart,
    json::{JsonError, Reader, Text},
    rewrite::Edits,
    shape::{Holder, Shape},
};
use crate::transfer::descriptor::SCHEME;

/// Images and other media that one request may hold; vLLM's own limit per prompt is usually far lower.
pub const MAX_MEDIA: usize = 512;

/// Messages that one request may hold: what is kept of each takes more memory than the shortest ones did.
pub const MAX_MESSAGES: usize = 16_384;

/// Clients' uuids that one request may hold: each is an edit of the body, which takes more memory than its bytes did.
pub const MAX_UUIDS: usize = 4096;

/// A client's request, as far as the gateway reads it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ClientRequest<'a> {
    pub model: Option<Cow<'a, str>>,
    pub stream: bool,
    /// Separates prefix caches; part of the scope of media ids.
    pub cache_salt: Option<Cow<'a, str>>,
    /// Of the Responses API: what the request continues.
    pub previous_response_id: Option<Cow<'a, str>>,
    /// Whether it tells the image processor how to work (`mm_processor_kwargs`), which workers may be set to allow.
    pub processor_kwargs: bool,
    /// Each element of the conversation, in order: its JSON text in the body. Empty where there are several conversations.
    pub messages: Vec<Range<usize>>,
    /// The JSON text of each other member of the body that the prompt is made of, with its key, in the order of the body.
    pub prompt_members: Vec<(&'static str, Range<usize>)>,
    /// In the order in which they stand in the body.
    pub images: Vec<ImagePart<'a>>,
    /// Media of other kinds, in the order in which they stand in the body.
    pub others: Vec<OtherPart<'a>>,
    /// What must go in any case: clients' uuids.
    pub removals: Vec<Range<usize>>,
}

/// A medium that is no image.
#[derive(Debug, PartialEq, Eq)]
pub struct OtherPart<'a> {
    /// OpenAI's `param`: the path of the part.
    pub param: String,
    /// The member that makes it one, for the client.
    pub kind: &'static str,
    pub content: OtherContent<'a>,
}

/// What a medium that is no image consists of.
#[derive(Debug, PartialEq, Eq)]
pub enum OtherContent<'a> {
    /// A URL, http or data, for the worker to open; and its JSON string with the quotes.
    Url { url: Cow<'a, str>, span: Range<usize> },
    /// Its bytes; nothing is opened.
    Within,
    /// What only a client may send who could do worse anyway (embeddings), or what nobody here knows.
    Untrusted,
}

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

impl<'a> ClientRequest<'a> {
    /// One pass over the body.
    pub fn read(shape: &Shape, body: &'a [u8]) -> Result<Self, RequestError> {
        let mut reader = Reader::new(body)?;
        let mut walker = Walker::default();
        let mut seen = Seen::default();
        reader.object(|key, value| walker.member(shape, key, value, &mut seen))?;
        reader.end()?;
        Ok(walker.request)
    }

    /// The edits that every request needs: clients' uuids go.
    pub fn edits(&self) -> Edits {
        let mut edits = Edits::default();
        for span in &self.removals {
            edits.replace(span.clone(), String::new());
        }
        edits
    }
}

/// A walk through a body, to wherever media can stand.
#[derive(Default)]
pub(super) struct Walker<'a> {
    pub request: ClientRequest<'a>,
    /// The way here, as OpenAI writes a `param`.
    path: String,
}

impl<'a> Walker<'a> {
    fn member(
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
        let url = self.url(value, &text)?;
        self.image(ImagePart {
            param: self.path.clone(),
            source: super::image::ImageSource::Url(url),
            place: super::image::Place::Bare { url: text.span },
        })
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

    /// What a URL says, if clients may say it.
    pub fn url(&self, reader: &Reader<'a>, text: &Text) -> Result<Cow<'a, str>, RequestError> {
        let url = reader.unescape(text)?;
        // Compared as leniently as any URL parser could: a scheme is case-insensitive, and some trim white space.
        let scheme = SCHEME.trim_end_matches("//");
        let trimmed = url.trim_start_matches(|c: char| c.is_whitespace() || c.is_control());
        if trimmed.get(..scheme.len()).is_some_and(|given| given.eq_ignore_ascii_case(scheme)) {
            return Err(RequestError::ReservedScheme { param: self.path.clone() });
        }
        Ok(url)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        error::Fault,
        request::{
            image::{ImageSource, Place},
            shape,
        },
    };

    fn read<'a>(shape: &Shape, body: &'a str) -> ClientRequest<'a> {
        ClientRequest::read(shape, body.as_bytes()).unwrap_or_else(|error| panic!("{error}: {body}"))
    }

    fn params(shape: &Shape, body: &str) -> Vec<String> {
        read(shape, body).images.into_iter().map(|image| image.param).collect()
    }

    #[test]
    fn messages_and_what_else_the_prompt_is_made_of_are_found_as_they_stand() {
        let body = r#"{ "tools" : [ {"a": 1} ],"messages":[ {"role":"user"} , 7,{"content":[]}],"n":1,"add_generation_prompt":false}"#;
        let request = read(&shape::CHAT, body);
        let messages: Vec<_> = request.messages.iter().map(|span| &body[span.clone()]).collect();
        assert_eq!(messages, [r#"{"role":"user"}"#, "7", r#"{"content":[]}"#]);
        let members: Vec<_> = request.prompt_members.iter().map(|(key, span)| (*key, &body[span.clone()])).collect();
        assert_eq!(members, [("tools", r#"[ {"a": 1} ]"#), ("add_generation_prompt", "false")]);
    }

    #[test]
    fn images_are_found_wherever_a_surface_takes_them() {
        let part = r#"{"type":"image_url","image_url":{"url":"http://x"}}"#;
        let input = r#"{"type":"input_image","image_url":"http://x"}"#;
        for (shape, body, expected) in [
            (
                &shape::BATCH,
                format!(r#"{{"messages":[[{{"content":[{part}]}}],[{{"content":"a"}},{{"content":[{part}]}}]]}}"#),
                &["messages[0][0].content[0].image_url", "messages[1][1].content[0].image_url"][..],
            ),
            (
                &shape::RESPONSES,
                format!(
                    r#"{{"input":[{{"role":"user","content":[{input}]}},{{"type":"function_call_output","output":[{input}]}}]}}"#
                ),
                &["input[0].content[0].image_url", "input[1].output[0].image_url"],
            ),
            (
                &shape::EMBEDDINGS,
                format!(r#"{{"input":[[1,2],[3]],"messages":[{{"content":[{part}]}}]}}"#),
                &["messages[0].content[0].image_url"],
            ),
            (
                &shape::EMBEDDINGS,
                format!(r#"{{"input":[[{{"content":[{part}]}}]]}}"#),
                &["input[0][0].content[0].image_url"],
            ),
            (
                &shape::SCORES,
                format!(r#"{{"query":{{"content":[{part}]}},"documents":["a",{{"content":[{part}]}}]}}"#),
                &["query.content[0].image_url", "documents[1].content[0].image_url"],
            ),
            (&shape::COHERE_EMBED, r#"{"images":["http://x","data:,x"]}"#.into(), &["images[0]", "images[1]"]),
            (
                &shape::COHERE_EMBED,
                format!(r#"{{"inputs":[{{"content":[{part}]}}]}}"#),
                &["inputs[0].content[0].image_url"],
            ),
            (&shape::TEXT, format!(r#"{{"prompt":"a","messages":[{{"content":[{part}]}}]}}"#), &[]),
        ] {
            assert_eq!(params(shape, &body), expected, "{body}");
        }
    }

    #[test]
    fn anthropics_images_have_a_url_or_bytes_of_their_own() {
        let body = r#"{"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[
            {"type":"image","source":{"type":"url","url":"http:\/\/x"}},
            {"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"a"},
                {"source":{"data":"QUJD","media_type":"image\/png","type":"base64"},"type":"image"}]}]},
            {"role":"assistant","content":"text"}]}"#;
        let request = read(&shape::MESSAGES, body);
        assert_eq!(request.messages.len(), 2);
        assert_eq!(request.prompt_members[0].0, "system");
        let [first, second] = &request.images[..] else { panic!("{:?}", request.images) };
        assert_eq!(first.param, "messages[0].content[0].source");
        assert_eq!(first.source, ImageSource::Url("http://x".into()));
        assert_eq!(second.param, "messages[0].content[1].content[1].source");
        assert_eq!(second.source, ImageSource::Base64 { media_type: "image/png".into(), data: "QUJD".into() });
        let mut edits = request.edits();
        for image in &request.images {
            assert!(matches!(image.place, Place::Source { .. }));
            image.place.put_url(&mut edits, "data:,y");
        }
        let changed = edits.apply(&body.to_owned().into());
        let changed: serde_json::Value = serde_json::from_slice(&changed).unwrap();
        let source = serde_json::json!({"type": "url", "url": "data:,y"});
        assert_eq!(changed["messages"][0]["content"][0]["source"], source);
        assert_eq!(changed["messages"][0]["content"][1]["content"][1]["source"], source);
    }

    #[test]
    fn what_no_surface_may_say_is_refused() {
        let anthropic = |block: &str| format!(r#"{{"messages":[{{"content":[{block}]}}]}}"#);
        for (shape, body, code) in [
            (&shape::CHAT, r#"{"kv_transfer_params":{"remote_host":"h"}}"#.into(), "transfer_params_forbidden"),
            (&shape::TEXT, r#"{"ec_transfer_params":[]}"#.into(), "transfer_params_forbidden"),
            (&shape::COHERE_EMBED, r#"{"images":[{"url":"http://x"}]}"#.into(), "invalid_image_part"),
            (&shape::COHERE_EMBED, r#"{"images":["mediagate:x"]}"#.into(), "reserved_scheme"),
            (&shape::RESPONSES, r#"{"input":[{"output":{"image_url":"http://x"}}]}"#.into(), "invalid_type"),
            (&shape::MESSAGES, anthropic(r#"{"type":"image"}"#), "invalid_image_part"),
            (&shape::MESSAGES, anthropic(r#"{"type":"image","source":null}"#), "invalid_image_part"),
            (
                &shape::MESSAGES,
                anthropic(r#"{"type":"image","source":{"type":"file","file_id":"f"}}"#),
                "invalid_image_part",
            ),
            (
                &shape::MESSAGES,
                anthropic(r#"{"type":"image","source":{"type":"url","url":"mediagate:x"}}"#),
                "reserved_scheme",
            ),
            (
                &shape::MESSAGES,
                anthropic(r#"{"type":"image","source":{"type":"url","url":"a","url":"b"}}"#),
                "duplicate_key",
            ),
        ] {
            let error = ClientRequest::read(shape, body.as_bytes()).expect_err(&body);
            assert_eq!(error.code(), code, "{body}");
        }
        assert!(read(&shape::CHAT, r#"{"kv_transfer_params":null}"#).images.is_empty());
        let messages = format!(r#"{{"messages":[{}0]}}"#, "0,".repeat(MAX_MESSAGES));
        assert_eq!(ClientRequest::read(&shape::CHAT, messages.as_bytes()).unwrap_err().code(), "too_many_messages");
    }

    #[test]
    fn what_tells_the_image_processor_how_to_work_is_noted() {
        for (members, expected) in [
            ("", false),
            (r#","mm_processor_kwargs":null"#, false),
            (r#","mm_processor_kwargs":{"max_pixels":1}"#, true),
            (r#","mm_processor_kwargs":{},"mm_processor_kwargs":null"#, true),
        ] {
            let body = format!(r#"{{"messages":[]{members}}}"#);
            assert_eq!(read(&shape::CHAT, &body).processor_kwargs, expected, "{members}");
        }
    }

    #[test]
    fn what_only_plugins_or_nobody_understands_is_noted() {
        for (shape, body) in [
            (&shape::POOLING, r#"{"data":{"url":"http://x"}}"#),
            (
                &shape::MESSAGES,
                r#"{"messages":[{"content":[{"type":"document","source":{"type":"url","url":"http://x"}}]}]}"#,
            ),
            (&shape::RESPONSES, r#"{"input":[{"content":[{"type":"input_file","file_url":"http://x"}]}]}"#),
        ] {
            let request = read(shape, body);
            assert_eq!(request.others.len(), 1, "{body}");
            assert_eq!(request.others[0].content, OtherContent::Untrusted);
        }
    }
}
