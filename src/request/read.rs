//! Where images stand in a chat completion request, and what else the gateway must know of it.
//!
//! The rules are those of vLLM's own parser (vllm/renderers/chat_utils.py, `_parse_chat_message_content_mm_part`), read
//! for what could make a worker open something:
//!
//! - A part with an `image_url` member is an image, whatever its `type` says: vLLM looks at the member whenever a `uuid`
//!   stands beside it. The member is an object with `url`, or a bare string.
//! - A client's `uuid` is removed: vLLM uses it as the only key of its caches, so it would name other clients' images.
//!   A null `image_url`, which means "the image of this uuid", is refused for the same reason.
//! - Video, audio and embeddings are refused in frontend decoding, and pass otherwise.

use std::{borrow::Cow, collections::HashSet, ops::Range};

use http::StatusCode;

use super::{
    json::{JsonError, Reader, Text},
    rewrite::Edits,
};
use crate::{error::Fault, transfer::descriptor::SCHEME};

/// Image parts that one request may hold; vLLM's own limit per prompt is usually far lower.
pub const MAX_IMAGES: usize = 512;

/// Clients' uuids that one request may hold: each is an edit of the body, which takes more memory than its bytes did.
const MAX_UUIDS: usize = 4096;

/// A client's request, as far as the gateway reads it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ClientRequest<'a> {
    pub model: Option<Cow<'a, str>>,
    pub stream: bool,
    /// Separates prefix caches; part of the scope of media ids.
    pub cache_salt: Option<Cow<'a, str>>,
    /// Whether it tells the image processor how to work (`mm_processor_kwargs`), which workers may be set to allow.
    pub processor_kwargs: bool,
    /// Each element of the conversation, in order: its JSON text in the body.
    pub messages: Vec<Range<usize>>,
    /// The JSON text of each other member of the body that the prompt is made of, with its key, in the order of the body.
    pub prompt_members: Vec<(&'static str, Range<usize>)>,
    /// In the order in which they stand in the conversation.
    pub images: Vec<ImagePart<'a>>,
    /// A part of a kind that frontend decoding cannot handle: its JSON path and its kind.
    pub other_media: Option<(PartPath, &'static str)>,
    /// What must go in any case: clients' uuids.
    pub removals: Vec<Range<usize>>,
}

/// `messages[message].content[part]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartPath {
    pub message: usize,
    pub part: usize,
}

/// One image part.
#[derive(Debug, PartialEq, Eq)]
pub struct ImagePart<'a> {
    pub path: PartPath,
    /// The exact text of the URL.
    pub url: Cow<'a, str>,
    /// The JSON string of the URL in the body, with its quotes.
    pub url_span: Range<usize>,
    /// The whole value of the member `image_url`: that string, or the object around it.
    pub value_span: Range<usize>,
    /// Where members can be added to the part: its closing brace.
    pub end: usize,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RequestError {
    #[error(transparent)]
    Json(#[from] JsonError),
    #[error("{path}: image_url is null")]
    NullImage { path: PartPath },
    #[error("{path}: {reason}")]
    Part { path: PartPath, reason: &'static str },
    #[error("{path}: a client used the scheme of references")]
    ReservedScheme { path: PartPath },
    #[error("more than {MAX_IMAGES} images")]
    TooManyImages,
    #[error("more than {MAX_UUIDS} uuids")]
    TooManyUuids,
}

impl std::fmt::Display for PartPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "messages[{}].content[{}]", self.message, self.part)
    }
}

impl RequestError {
    /// OpenAI's `param`: which part it is about.
    pub fn param(&self) -> Option<String> {
        match self {
            RequestError::Json(_) => None,
            RequestError::TooManyImages | RequestError::TooManyUuids => Some("messages".into()),
            RequestError::NullImage { path }
            | RequestError::Part { path, .. }
            | RequestError::ReservedScheme { path } => Some(format!("{path}.image_url")),
        }
    }
}

impl Fault for RequestError {
    fn status(&self) -> StatusCode {
        StatusCode::BAD_REQUEST
    }

    fn code(&self) -> &'static str {
        match self {
            RequestError::Json(error) => error.code(),
            RequestError::NullImage { .. } => "uuid_only_unsupported",
            RequestError::Part { .. } => "invalid_image_part",
            RequestError::ReservedScheme { .. } => "reserved_scheme",
            RequestError::TooManyImages => "too_many_images",
            RequestError::TooManyUuids => "too_many_uuids",
        }
    }

    fn public(&self) -> Cow<'static, str> {
        match self {
            RequestError::Json(error) => error.public(),
            RequestError::NullImage { .. } => {
                "An image part must carry an image: naming an earlier one by uuid is not supported.".into()
            }
            RequestError::Part { reason, .. } => (*reason).into(),
            RequestError::ReservedScheme { .. } => {
                "The image URL uses a scheme that is reserved for the gateway; use http, https or data.".into()
            }
            RequestError::TooManyImages => format!("A request may hold at most {MAX_IMAGES} images.").into(),
            RequestError::TooManyUuids => format!("A request may hold at most {MAX_UUIDS} uuids.").into(),
        }
    }
}

/// Members that make a part media of another kind (vLLM's `_MEDIA_CONTENT_PART_KEYS` less images by URL).
const OTHER_MEDIA: [&str; 9] = [
    "video_url",
    "audio_url",
    "input_audio",
    "image_embeds",
    "audio_embeds",
    "video_embeds",
    "prompt_embeds",
    "image_pil",
    "input_video",
];

/// Types of parts that hold no media (vLLM's `_TEXT_CONTENT_PART_TYPES`).
const TEXT_TYPES: [&str; 6] = ["text", "refusal", "thinking", "input_text", "output_text", "tool_reference"];

/// Members that vLLM's chat templates see beside the messages (`ChatCompletionRequest.build_chat_params`).
const PROMPT_MEMBERS: [&str; 9] = [
    "tools",
    "tool_choice",
    "documents",
    "reasoning_effort",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
];

const IMAGE_TYPES: [&str; 2] = ["image_url", "input_image"];

impl<'a> ClientRequest<'a> {
    /// One pass over the body.
    pub fn read(body: &'a [u8]) -> Result<Self, RequestError> {
        let mut reader = Reader::new(body)?;
        let mut request = ClientRequest::default();
        let mut seen = Seen::default();
        reader.object(|key, value| {
            match key {
                "messages" => {
                    seen.once("messages", value)?;
                    if value.peek()? == b'[' {
                        return value.array(|message, value| {
                            value.peek()?;
                            let start = value.position();
                            request.message(message, value)?;
                            request.messages.push(start..value.position());
                            Ok(())
                        });
                    }
                }
                "model" => {
                    seen.once("model", value)?;
                    if value.peek()? == b'"' {
                        let text = value.string("a string")?;
                        request.model = Some(value.unescape(&text)?);
                        return Ok(());
                    }
                }
                "cache_salt" => {
                    seen.once("cache_salt", value)?;
                    if value.peek()? == b'"' {
                        let text = value.string("a string")?;
                        request.cache_salt = Some(value.unescape(&text)?);
                        return Ok(());
                    }
                }
                "mm_processor_kwargs" => request.processor_kwargs |= value.peek()? != b'n',
                "stream" => {
                    seen.once("stream", value)?;
                    if value.peek()? != b'n' {
                        request.stream = value.boolean("stream")?;
                        return Ok(());
                    }
                }
                _ => {}
            }
            value.peek()?;
            let start = value.position();
            value.skip()?;
            if let Some(key) = PROMPT_MEMBERS.iter().find(|&&member| member == key) {
                request.prompt_members.push((key, start..value.position()));
            }
            Ok::<_, RequestError>(())
        })?;
        reader.end()?;
        Ok(request)
    }

    /// The edits that every request needs: clients' uuids go.
    pub fn edits(&self) -> Edits {
        let mut edits = Edits::default();
        for span in &self.removals {
            edits.replace(span.clone(), String::new());
        }
        edits
    }

    fn message(&mut self, message: usize, reader: &mut Reader<'a>) -> Result<(), RequestError> {
        if reader.peek()? != b'{' {
            return Ok(reader.skip()?);
        }
        let mut seen = Seen::default();
        reader.object(|key, value| {
            if key != "content" {
                return Ok(value.skip()?);
            }
            seen.once("content", value)?;
            match value.peek()? {
                b'[' => value.array(|part, value| self.part(PartPath { message, part }, value)),
                // An object is nothing that OpenAI knows, and a lenient parser might take it for a list of parts.
                b'{' => {
                    let at = value.position();
                    Err(JsonError::Type { what: "content", at, expected: "a string or an array" }.into())
                }
                _ => Ok(value.skip()?),
            }
        })?;
        Ok(())
    }

    fn part(&mut self, path: PartPath, reader: &mut Reader<'a>) -> Result<(), RequestError> {
        if reader.peek()? != b'{' {
            return Ok(reader.skip()?);
        }
        let mut seen = Seen::default();
        let mut kind: Option<String> = None;
        let mut image: Option<(Option<Text>, Range<usize>)> = None;
        let mut other = None;
        // The span from the end of the member before to the end of this one, for removing a member with its comma.
        let mut uuid: Option<Range<usize>> = None;
        let mut previous_end = None;
        let start = reader.position();
        let end = reader.object(|key, value| {
            let before = previous_end.unwrap_or(start + 1);
            match key {
                "type" => {
                    seen.once("type", value)?;
                    if value.peek()? == b'"' {
                        let text = value.string("a string")?;
                        kind = Some(value.unescape(&text)?.into_owned());
                    } else {
                        value.skip()?;
                    }
                }
                "image_url" => {
                    seen.once("image_url", value)?;
                    value.peek()?;
                    let begun = value.position();
                    let url = url_of(path, value)?;
                    image = Some((url, begun..value.position()));
                }
                "uuid" => {
                    seen.once("uuid", value)?;
                    value.skip()?;
                    uuid = Some(before..value.position());
                }
                _ => {
                    if let Some(known) = OTHER_MEDIA.iter().find(|&&known| known == key) {
                        other = Some(*known);
                    }
                    value.skip()?;
                }
            }
            previous_end = Some(value.position());
            Ok::<_, RequestError>(())
        })?;

        if let Some(mut span) = uuid {
            if self.removals.len() >= MAX_UUIDS {
                return Err(RequestError::TooManyUuids);
            }
            let body = reader.text().as_bytes();
            if span.start == start + 1 {
                // The first member: take the comma after it instead of the one before.
                let after = body[span.end..end].iter().position(|&byte| byte == b',');
                span.end = after.map_or(span.end, |comma| span.end + comma + 1);
            }
            self.removals.push(span);
        }
        match (image, kind.as_deref()) {
            (Some(_), Some(kind)) if !IMAGE_TYPES.contains(&kind) => Err(RequestError::Part {
                path,
                reason: "A part with an image_url must have the type image_url (or input_image).",
            }),
            (Some(_), _) if other.is_some() => {
                Err(RequestError::Part { path, reason: "A part can hold one medium only, not an image and another." })
            }
            (Some((Some(url), value_span)), _) => self.image(path, &url, value_span, end, reader),
            (Some((None, _)), _) => Err(RequestError::NullImage { path }),
            (None, Some(kind)) if IMAGE_TYPES.contains(&kind) => {
                Err(RequestError::Part { path, reason: "An image part must have an image_url." })
            }
            (None, kind) => {
                let unknown = kind.filter(|kind| !TEXT_TYPES.contains(kind)).map(|_| "of unknown type");
                if let Some(what) = other.or(unknown) {
                    self.other_media.get_or_insert((path, what));
                }
                Ok(())
            }
        }
    }

    fn image(
        &mut self,
        path: PartPath,
        url: &Text,
        value_span: Range<usize>,
        end: usize,
        reader: &Reader<'a>,
    ) -> Result<(), RequestError> {
        if self.images.len() >= MAX_IMAGES {
            return Err(RequestError::TooManyImages);
        }
        let text = reader.unescape(url)?;
        // Compared as leniently as any URL parser could: a scheme is case-insensitive, and some trim white space.
        let scheme = SCHEME.trim_end_matches("//");
        let trimmed = text.trim_start_matches(|c: char| c.is_whitespace() || c.is_control());
        if trimmed.get(..scheme.len()).is_some_and(|given| given.eq_ignore_ascii_case(scheme)) {
            return Err(RequestError::ReservedScheme { path });
        }
        self.images.push(ImagePart { path, url: text, url_span: url.span.clone(), value_span, end });
        Ok(())
    }
}

/// The URL in an `image_url` member: an object with `url`, a bare string, or `None` for null.
fn url_of(path: PartPath, value: &mut Reader<'_>) -> Result<Option<Text>, RequestError> {
    match value.peek()? {
        b'"' => Ok(Some(value.string("a string")?)),
        b'{' => {
            let mut seen = Seen::default();
            let mut url = None;
            value.object(|key, value| {
                if key != "url" {
                    return Ok(value.skip()?);
                }
                seen.once("url", value)?;
                if value.null()? {
                    return Ok(());
                }
                if value.peek()? != b'"' {
                    return Err(RequestError::Part { path, reason: "image_url.url must be a string." });
                }
                url = Some(value.string("a string")?);
                Ok(())
            })?;
            Ok(url)
        }
        _ if value.null()? => Ok(None),
        _ => Err(RequestError::Part { path, reason: "image_url must be a string or an object with a url." }),
    }
}

/// Keys of one object that may occur once only, since parsers differ in which of two they take.
#[derive(Default)]
struct Seen(HashSet<&'static str>);

impl Seen {
    fn once(&mut self, key: &'static str, reader: &Reader<'_>) -> Result<(), JsonError> {
        if self.0.insert(key) { Ok(()) } else { Err(JsonError::Duplicate { key, at: reader.position() }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<ClientRequest<'_>, RequestError> {
        ClientRequest::read(body.as_bytes())
    }

    fn one_part(part: &str) -> String {
        format!(r#"{{"messages":[{{"role":"user","content":[{part}]}}]}}"#)
    }

    #[test]
    fn finds_images_in_every_message_as_object_and_as_string() {
        let body = r#" {"model":"m","stream" : true,"cache_salt":"s","messages":[
            {"role":"system","content":"text"},
            {"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"detail":"low","url":"http:\/\/x/\u0061"}}]},
            {"role":"tool","content":[{"image_url":"data:,x","type":"image_url"}, "plain"]}]} "#;
        let request = read(body).unwrap();
        assert_eq!(request.model.as_deref(), Some("m"));
        assert_eq!(request.cache_salt.as_deref(), Some("s"));
        assert!(request.stream);
        let found: Vec<_> = request.images.iter().map(|image| (image.path, &*image.url)).collect();
        assert_eq!(
            found,
            [(PartPath { message: 1, part: 1 }, "http://x/a"), (PartPath { message: 2, part: 0 }, "data:,x")]
        );
        for image in &request.images {
            assert!(body[image.url_span.clone()].starts_with('"') && body[image.url_span.clone()].ends_with('"'));
            assert_eq!(&body[image.end..=image.end], "}");
            let value = &body[image.value_span.clone()];
            assert!(value == &body[image.url_span.clone()] || (value.starts_with('{') && value.ends_with('}')));
        }
    }

    #[test]
    fn messages_and_what_else_the_prompt_is_made_of_are_found_as_they_stand() {
        let body = r#"{ "tools" : [ {"a": 1} ],"messages":[ {"role":"user"} , 7,{"content":[]}],"n":1,"add_generation_prompt":false}"#;
        let request = read(body).unwrap();
        let messages: Vec<_> = request.messages.iter().map(|span| &body[span.clone()]).collect();
        assert_eq!(messages, [r#"{"role":"user"}"#, "7", r#"{"content":[]}"#]);
        let members: Vec<_> = request.prompt_members.iter().map(|(key, span)| (*key, &body[span.clone()])).collect();
        assert_eq!(members, [("tools", r#"[ {"a": 1} ]"#), ("add_generation_prompt", "false")]);
    }

    #[test]
    fn a_clients_uuid_is_removed_with_its_comma_wherever_it_stands() {
        for (part, expected) in [
            (r#"{"uuid":"u","type":"text","text":"a"}"#, r#"{"type":"text","text":"a"}"#),
            (r#"{"type":"text" , "uuid" : {"a":[1]} , "text":"a"}"#, r#"{"type":"text" , "text":"a"}"#),
            (
                r#"{"type":"image_url","image_url":{"url":"http://a"},"uuid":null}"#,
                r#"{"type":"image_url","image_url":{"url":"http://a"}}"#,
            ),
            (r#"{"uuid":"u"}"#, r#"{}"#),
        ] {
            let body = one_part(part);
            let request = read(&body).unwrap();
            let new = request.edits().apply(&body.clone().into());
            assert_eq!(str::from_utf8(&new).unwrap(), one_part(expected));
        }
    }

    #[test]
    fn what_could_name_or_hide_an_image_is_refused() {
        for (part, code) in [
            (r#"{"type":"image_url","image_url":null,"uuid":"x"}"#, "uuid_only_unsupported"),
            (r#"{"type":"image_url","image_url":{"url":null}}"#, "uuid_only_unsupported"),
            (r#"{"type":"image_url","image_url":{}}"#, "uuid_only_unsupported"),
            (r#"{"type":"text","text":"a","image_url":"http://a","uuid":"x"}"#, "invalid_image_part"),
            (r#"{"type":"image_url","image_url":"http://a","video_url":"http://b"}"#, "invalid_image_part"),
            (r#"{"type":"image_url"}"#, "invalid_image_part"),
            (r#"{"type":"image_url","image_url":[1]}"#, "invalid_image_part"),
            (r#"{"type":"image_url","image_url":{"url":7}}"#, "invalid_image_part"),
            (r#"{"type":"image_url","image_url":"http://a","image_url":"http://b"}"#, "duplicate_key"),
            (r#"{"type":"image_url","image_url":"http://a","im\u0061ge_url":"http://b"}"#, "duplicate_key"),
            (r#"{"type":"image_url","image_url":{"url":"http://a","url":"http://b"}}"#, "duplicate_key"),
            (r#"{"type":"image_url","type":"text","text":"a"}"#, "duplicate_key"),
            (r#"{"type":"image_url","image_url":"mediagate://x"}"#, "reserved_scheme"),
            (r#"{"type":"image_url","image_url":" \tMediaGate:x"}"#, "reserved_scheme"),
        ] {
            let body = one_part(part);
            let error = read(&body).expect_err(part);
            assert_eq!(error.code(), code, "{part}");
            assert_eq!(error.status(), StatusCode::BAD_REQUEST);
        }
        assert_eq!(read(r#"{"messages":[],"messages":[]}"#).unwrap_err().code(), "duplicate_key");
        assert_eq!(read(r#"{"messages":[{"content":{"type":"text"}}]}"#).unwrap_err().code(), "invalid_type");
        assert_eq!(read(r#"{"messages":[]} x"#).unwrap_err().code(), "invalid_json");
    }

    #[test]
    fn what_tells_the_image_processor_how_to_work_is_noted() {
        let noted = |members: &str| {
            let body = format!(r#"{{"messages":[]{members}}}"#);
            ClientRequest::read(body.as_bytes()).map(|request| request.processor_kwargs)
        };
        for (members, expected) in [
            ("", false),
            (r#","mm_processor_kwargs":null"#, false),
            (r#","mm_processor_kwargs":{"max_pixels":1}"#, true),
            (r#","mm_processor_kwargs":{},"mm_processor_kwargs":null"#, true),
        ] {
            assert_eq!(noted(members), Ok(expected), "{members}");
        }
    }

    #[test]
    fn other_media_and_unknown_types_are_noted() {
        for part in [
            r#"{"type":"video_url","video_url":{"url":"http://a"}}"#,
            r#"{"type":"input_audio","input_audio":{"data":"","format":"wav"}}"#,
            r#"{"video_url":"http://a","uuid":"x"}"#,
            r#"{"type":"text","text":"a","audio_url":"http://a"}"#,
            r#"{"type":"something_new"}"#,
        ] {
            assert!(read(&one_part(part)).unwrap().other_media.is_some(), "{part}");
        }
        assert!(read(&one_part(r#"{"type":"text","text":"a"}"#)).unwrap().other_media.is_none());
    }

    #[test]
    fn param_names_the_part() {
        let body = one_part(r#"{"type":"text","text":"a"},{"type":"image_url","image_url":null}"#);
        assert_eq!(read(&body).unwrap_err().param().as_deref(), Some("messages[0].content[1].image_url"));
    }
}
