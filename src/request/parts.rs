//! Content parts of OpenAI's messages.
//!
//! The rules are those of vLLM's own parser (vllm/renderers/chat_utils.py, `_parse_chat_message_content_mm_part`), read
//! for what could make a worker open something:
//!
//! - A part with an `image_url` member is an image, whatever its `type` says: vLLM looks at the member whenever a `uuid`
//!   stands beside it. The member is an object with `url`, or a bare string.
//! - A client's `uuid` is removed: vLLM uses it as the only key of its caches, so it would name other clients' images.
//!   A null `image_url`, which means "the image of this uuid", is refused for the same reason.
//! - Video, audio and embeddings are noted.

use std::ops::Range;

use super::{
    error::RequestError,
    image::{ImagePart, ImageSource, Place},
    json::{Reader, Text},
    read::{OtherContent, OtherPart},
    walker::{MAX_UUIDS, Seen, Walker},
};

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

/// Types of parts that hold no media: vLLM's `_TEXT_CONTENT_PART_TYPES`, and those of reasoning items.
const TEXT_TYPES: [&str; 8] =
    ["text", "refusal", "thinking", "input_text", "output_text", "tool_reference", "reasoning_text", "summary_text"];

const IMAGE_TYPES: [&str; 2] = ["image_url", "input_image"];

/// What was found in a part so far.
#[derive(Default)]
struct Found {
    kind: Option<String>,
    /// The URL, unless it is null, and the whole value of the member.
    image: Option<(Option<Text>, Range<usize>)>,
    other: Option<(&'static str, Option<Text>)>,
    others: usize,
    /// From the end of the member before to the end of the uuid, for removing it with its comma.
    uuid: Option<Range<usize>>,
}

impl<'a> Walker<'a> {
    /// Reads one content part.
    pub(super) fn part(&mut self, reader: &mut Reader<'a>) -> Result<(), RequestError> {
        if reader.peek()? != b'{' {
            return Ok(reader.skip()?);
        }
        let mut seen = Seen::default();
        let mut found = Found::default();
        let mut previous_end = None;
        let start = reader.position();
        let end = reader.object(|key, value| {
            let before = previous_end.unwrap_or(start + 1);
            value.peek()?;
            let begun = value.position();
            match key {
                "type" => {
                    seen.once("type", value)?;
                    if value.peek()? == b'"' {
                        let text = value.string("a string")?;
                        found.kind = Some(value.unescape(&text)?.into_owned());
                    } else {
                        value.skip()?;
                    }
                }
                "image_url" => {
                    seen.once("image_url", value)?;
                    let url = self.below("image_url", |walker| walker.url_of(value))?;
                    found.image = Some((url, begun..value.position()));
                }
                "uuid" => {
                    seen.once("uuid", value)?;
                    value.skip()?;
                    found.uuid = Some(before..value.position());
                }
                _ => match OTHER_MEDIA.iter().find(|&&known| known == key) {
                    Some(&known) => {
                        seen.once(known, value)?;
                        let url = match known {
                            "video_url" | "audio_url" => self.below(known, |walker| walker.url_of(value))?,
                            _ => {
                                value.skip()?;
                                None
                            }
                        };
                        found.others += 1;
                        found.other = Some((known, url));
                    }
                    None => value.skip()?,
                },
            }
            previous_end = Some(value.position());
            Ok::<_, RequestError>(())
        })?;
        if let Some(uuid) = found.uuid.take() {
            self.remove_uuid(uuid, start, end, reader)?;
        }
        self.judge(found, end, reader)
    }

    fn remove_uuid(
        &mut self,
        mut span: Range<usize>,
        start: usize,
        end: usize,
        reader: &Reader<'a>,
    ) -> Result<(), RequestError> {
        if self.request.removals.len() >= MAX_UUIDS {
            return Err(RequestError::TooManyUuids);
        }
        if span.start == start + 1 {
            // The first member: take the comma after it instead of the one before.
            let after = reader.text().as_bytes()[span.end..end].iter().position(|&byte| byte == b',');
            span.end = after.map_or(span.end, |comma| span.end + comma + 1);
        }
        self.request.removals.push(span);
        Ok(())
    }

    /// What a part is, once all of it is read.
    fn judge(&mut self, found: Found, end: usize, reader: &Reader<'a>) -> Result<(), RequestError> {
        let kind = found.kind.as_deref();
        let Some((url, value)) = found.image else {
            if kind.is_some_and(|kind| IMAGE_TYPES.contains(&kind)) {
                return Err(self.below("image_url", |walker| walker.wrong("An image part must have an image_url.")));
            }
            return self.judge_other(kind, found.other, found.others, reader);
        };
        self.below("image_url", |walker| {
            if kind.is_some_and(|kind| !IMAGE_TYPES.contains(&kind)) {
                return Err(walker.wrong("A part with an image_url must have the type image_url (or input_image)."));
            }
            if found.others > 0 {
                return Err(walker.wrong("A part can hold one medium only, not an image and another."));
            }
            let Some(url) = url else { return Err(RequestError::NullImage { param: walker.param() }) };
            let source = walker.url(reader, &url)?;
            let place = Place::Part { url: url.span, value, end };
            walker.image(ImagePart { param: walker.param(), source, place })
        })
    }

    fn judge_other(
        &mut self,
        kind: Option<&str>,
        other: Option<(&'static str, Option<Text>)>,
        others: usize,
        reader: &Reader<'a>,
    ) -> Result<(), RequestError> {
        let unknown = kind.is_some_and(|kind| !TEXT_TYPES.contains(&kind));
        let (kind, content) = match other {
            // vLLM would choose one of them.
            Some(_) if others > 1 => return Err(self.wrong("A part can hold one medium only.")),
            Some((key, Some(text))) => match self.below(key, |walker| walker.url(reader, &text))? {
                ImageSource::Url(url) => (key, OtherContent::Url { url, span: text.span }),
                ImageSource::EscapedDataUri(_) | ImageSource::Base64 { .. } => (key, OtherContent::Within),
            },
            Some((key @ ("video_url" | "audio_url" | "input_audio"), None)) => (key, OtherContent::Within),
            Some((key, None)) => (key, OtherContent::Untrusted),
            None if unknown => ("of unknown type", OtherContent::Untrusted),
            None => return Ok(()),
        };
        self.other(OtherPart { param: self.param(), kind, content })
    }

    /// The URL in a member: an object with `url`, a bare string, or `None` for null.
    fn url_of(&mut self, value: &mut Reader<'a>) -> Result<Option<Text>, RequestError> {
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
                        return Err(self.wrong("The url of a medium must be a string."));
                    }
                    url = Some(value.string("a string")?);
                    Ok(())
                })?;
                Ok(url)
            }
            _ if value.null()? => Ok(None),
            _ => Err(self.wrong("A medium must be a string or an object with a url.")),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;
    use crate::{
        error::Fault,
        request::{ClientRequest, shape},
    };

    fn read(body: &str) -> Result<ClientRequest<'_>, RequestError> {
        ClientRequest::read(&shape::CHAT, body.as_bytes())
    }

    fn url<'a>(image: &'a ImagePart<'_>) -> &'a str {
        match &image.source {
            ImageSource::Url(url) => url,
            other => panic!("{other:?} is no URL"),
        }
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
        let found: Vec<_> = request.images.iter().map(|image| (image.param.as_str(), url(image))).collect();
        let params = ["messages[1].content[1].image_url", "messages[2].content[0].image_url"];
        assert_eq!(found, [(params[0], "http://x/a"), (params[1], "data:,x")]);
        for image in &request.images {
            let Place::Part { url, value, end } = &image.place else { panic!("{image:?}") };
            assert!(body[url.clone()].starts_with('"') && body[url.clone()].ends_with('"'));
            assert_eq!(&body[*end..=*end], "}");
            let value = &body[value.clone()];
            assert!(value == &body[url.clone()] || (value.starts_with('{') && value.ends_with('}')));
        }
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
            (r#"{"type":"video_url","video_url":{"url":"mediagate://x"}}"#, "reserved_scheme"),
            (r#"{"video_url":"http://a","audio_url":"http://b"}"#, "invalid_image_part"),
            (r#"{"video_url":"http://a","video_url":"http://b"}"#, "duplicate_key"),
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
    fn other_media_and_unknown_types_are_noted() {
        for part in [
            r#"{"type":"video_url","video_url":{"url":"http://a"}}"#,
            r#"{"type":"input_audio","input_audio":{"data":"","format":"wav"}}"#,
            r#"{"video_url":"http://a","uuid":"x"}"#,
            r#"{"type":"text","text":"a","audio_url":"http://a"}"#,
            r#"{"type":"something_new"}"#,
        ] {
            assert_eq!(read(&one_part(part)).unwrap().others.len(), 1, "{part}");
        }
        for part in [r#"{"type":"text","text":"a"}"#, r#"{"type":"reasoning_text","text":"a"}"#, r#"{"text":"a"}"#, "7"]
        {
            assert!(read(&one_part(part)).unwrap().others.is_empty(), "{part}");
        }
    }

    #[test]
    fn only_what_the_worker_would_open_has_a_url() {
        for (part, expected) in [
            (r#"{"type":"video_url","video_url":{"url":"http://a\/b"}}"#, Some("http://a/b")),
            (r#"{"type":"audio_url","audio_url":"data:,x"}"#, Some("data:,x")),
            (r#"{"type":"video_url","video_url":null}"#, None),
            (r#"{"type":"input_audio","input_audio":{"data":"http://a","format":"wav"}}"#, None),
        ] {
            let body = one_part(part);
            match (&read(&body).unwrap().others[0].content, expected) {
                (OtherContent::Url { url, span }, Some(expected)) => {
                    assert_eq!(url, expected);
                    assert!(body[span.clone()].starts_with('"'), "{part}");
                }
                (OtherContent::Within, None) => {}
                (other, _) => panic!("{part}: {other:?}"),
            }
        }
        for part in [r#"{"image_embeds":"x"}"#, r#"{"type":"input_file","file_url":"http://a"}"#] {
            assert_eq!(read(&one_part(part)).unwrap().others[0].content, OtherContent::Untrusted, "{part}");
        }
    }

    #[test]
    fn param_names_the_part() {
        let body = one_part(r#"{"type":"text","text":"a"},{"type":"image_url","image_url":null}"#);
        assert_eq!(read(&body).unwrap_err().param(), Some("messages[0].content[1].image_url"));
    }
}
