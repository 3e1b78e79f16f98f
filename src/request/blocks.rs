//! Content blocks of Anthropic's messages.
//!
//! vLLM makes a URL of an image's `source` (`_convert_image_source_to_url` in vllm/entrypoints/anthropic/serving.py), at the
//! top of a message and in the result of a tool: the `url` of one of type `url`, and a data: URI of any other. It knows no
//! other media; a block of another type with a `source` is refused where it could be opened.

use std::borrow::Cow;

use super::{
    error::RequestError,
    image::{ImagePart, ImageSource, Place},
    json::Reader,
    read::{OtherContent, OtherPart},
    walker::{Seen, Walker},
};

/// Types of blocks that hold no media of their own (vLLM's `AnthropicContentBlock`).
const TEXT_TYPES: [&str; 8] = [
    "text",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
    "tool_reference",
    "tool_addition",
    "tool_removal",
];

impl<'a> Walker<'a> {
    /// Reads one block of a message.
    pub(super) fn block(&mut self, reader: &mut Reader<'a>) -> Result<(), RequestError> {
        self.block_at(reader, true)
    }

    fn block_at(&mut self, reader: &mut Reader<'a>, top: bool) -> Result<(), RequestError> {
        if reader.peek()? != b'{' {
            return Ok(reader.skip()?);
        }
        let mut seen = Seen::default();
        let mut kind: Option<Cow<'a, str>> = None;
        let mut source = None;
        reader.object(|key, value| {
            match key {
                "type" => {
                    seen.once("type", value)?;
                    kind = text(value)?;
                }
                "source" => {
                    seen.once("source", value)?;
                    value.peek()?;
                    let start = value.position();
                    let found = self.below("source", |walker| walker.source(value))?;
                    source = Some((found, start..value.position()));
                }
                "content" if top => {
                    seen.once("content", value)?;
                    if value.peek()? == b'[' {
                        return self.below("content", |walker| {
                            value.array(|index, value| walker.at(index, |walker| walker.block_at(value, false)))
                        });
                    }
                    value.skip()?;
                }
                _ => value.skip()?,
            }
            Ok::<_, RequestError>(())
        })?;
        match (kind.as_deref(), source) {
            (Some("image"), Some((source, value))) => self.below("source", |walker| {
                let source = source.ok_or_else(|| {
                    walker
                        .wrong("The source of an image must be of type url, with a url, or of type base64, with data.")
                })?;
                walker.image(ImagePart { param: walker.param(), source, place: Place::Source { value } })
            }),
            (Some("image"), None) => Err(self.wrong("An image must have a source.")),
            (Some(kind), Some(_)) if !TEXT_TYPES.contains(&kind) => {
                self.other(OtherPart { param: self.param(), kind: "of unknown type", content: OtherContent::Untrusted })
            }
            _ => Ok(()),
        }
    }

    /// What the source of an image is; `None` if vLLM would find nothing there.
    fn source(&mut self, value: &mut Reader<'a>) -> Result<Option<ImageSource<'a>>, RequestError> {
        if value.peek()? != b'{' {
            value.skip()?;
            return Ok(None);
        }
        let mut seen = Seen::default();
        let (mut kind, mut url, mut data) = (None, None, None);
        value.object(|key, value| {
            match key {
                "type" => {
                    seen.once("type", value)?;
                    kind = text(value)?;
                }
                "url" => {
                    seen.once("url", value)?;
                    if value.peek()? == b'"' {
                        let text = value.string("a string")?;
                        url = Some(self.url(value, &text)?);
                    } else {
                        value.skip()?;
                    }
                }
                "data" => {
                    seen.once("data", value)?;
                    if value.peek()? == b'"' {
                        let text = value.string("a string")?;
                        data = Some(ImageSource::Base64 { raw: value.raw(&text), has_escapes: text.has_escapes });
                    } else {
                        value.skip()?;
                    }
                }
                _ => value.skip()?,
            }
            Ok::<_, RequestError>(())
        })?;
        Ok(match kind.as_deref() {
            Some("url") => url,
            Some("base64") | None => data,
            Some(_) => None,
        })
    }
}

/// A string, or `None` for anything else.
fn text<'a>(value: &mut Reader<'a>) -> Result<Option<Cow<'a, str>>, RequestError> {
    if value.peek()? != b'"' {
        value.skip()?;
        return Ok(None);
    }
    let text = value.string("a string")?;
    Ok(Some(value.unescape(&text)?))
}
