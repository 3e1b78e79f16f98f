//! One image of a request: where it stands, what it is, and how something else is put in its place.

use std::{borrow::Cow, ops::Range};

use bytes::Bytes;

use super::rewrite::Edits;
use crate::{
    media::{
        content::{MediaId, Scope},
        source::SourceText,
        url_names::UrlNames,
    },
    memory::SharedText,
};

/// An image, as a request has it.
#[derive(Debug, PartialEq, Eq)]
pub struct ImagePart<'a> {
    /// OpenAI's `param`: the path of the member that holds it.
    pub param: String,
    pub source: ImageSource<'a>,
    pub place: Place,
}

/// What an image is.
#[derive(Debug, PartialEq, Eq)]
pub enum ImageSource<'a> {
    /// The exact text of a URL.
    Url(Cow<'a, str>),
    /// A data: URI that has escapes, as it stands in the body.
    EscapedDataUri(&'a str),
    /// Anthropic's: base64, as it stands in the body. The type that stands beside it is often wrong, and not looked at.
    Base64 { raw: &'a str, has_escapes: bool },
}

impl ImageSource<'_> {
    /// What it is called where it is not decoded: by what its URL says, or its base64, with escapes or without.
    pub fn name(&self, urls: &UrlNames, scope: &Scope) -> MediaId {
        match self {
            ImageSource::Url(url) => urls.name(scope, url),
            ImageSource::Base64 { raw, has_escapes: false } => MediaId::of_url(scope, raw),
            ImageSource::EscapedDataUri(raw) | ImageSource::Base64 { raw, has_escapes: true } => {
                MediaId::of_escaped_url(scope, raw)
            }
        }
    }

    /// Its text for whoever loads it: a part of `body`, which it was read from.
    pub fn text(&self, body: &Bytes) -> SourceText {
        match self {
            ImageSource::Url(url) => SharedText::within(body, url).into(),
            ImageSource::EscapedDataUri(raw) => SourceText::escaped_data_uri(SharedText::within(body, raw)),
            ImageSource::Base64 { raw, .. } => SourceText::base64(SharedText::within(body, raw)),
        }
    }
}

/// Where an image stands in the body.
#[derive(Debug, PartialEq, Eq)]
pub enum Place {
    /// A content part of OpenAI's.
    Part {
        /// The JSON string of the URL, with its quotes.
        url: Range<usize>,
        /// The whole value of the member `image_url`: that string, or the object around it.
        value: Range<usize>,
        /// Where members can be added to the part: its closing brace.
        end: usize,
    },
    /// The JSON string of a URL, with its quotes, and nothing around it.
    Bare { url: Range<usize> },
    /// The value of the member `source` of a block of Anthropic's.
    Source { value: Range<usize> },
}

impl Place {
    /// All that says which image it is.
    pub fn span(&self) -> Range<usize> {
        match self {
            Place::Part { value, .. } | Place::Source { value } => value.clone(),
            Place::Bare { url } => url.clone(),
        }
    }

    /// Puts a URL there. It must have no character that JSON would escape.
    pub fn put_url(&self, edits: &mut Edits, url: &str) {
        let (before, after) = self.around();
        edits.replace(self.url_span(), format!("{before}{url}{after}"));
    }

    /// Puts a URL there that is `prefix` and the base64 of the two parts in a row.
    pub fn put_base64(&self, edits: &mut Edits, prefix: &str, parts: [Bytes; 2]) {
        let (before, after) = self.around();
        edits.replace_with_base64(self.url_span(), format!("{before}{prefix}"), parts, after);
    }

    /// Takes the image away, so that its uuid alone stands for it. Only a content part can do without.
    pub fn put_null(&self, edits: &mut Edits) {
        if let Place::Part { value, .. } = self {
            edits.replace(value.clone(), "null".into());
        }
    }

    /// Adds vLLM's `uuid`. Only a content part has a place for it.
    pub fn put_uuid(&self, edits: &mut Edits, uuid: &str) {
        if let Place::Part { end, .. } = self {
            edits.replace(*end..*end, format!(",\"uuid\":\"{uuid}\""));
        }
    }

    fn url_span(&self) -> Range<usize> {
        match self {
            Place::Part { url, .. } | Place::Bare { url } => url.clone(),
            Place::Source { value } => value.clone(),
        }
    }

    /// What stands before and after a URL.
    fn around(&self) -> (&'static str, &'static str) {
        match self {
            Place::Part { .. } | Place::Bare { .. } => ("\"", "\""),
            // vLLM takes the text of a source of this type as it is (`_convert_image_source_to_url`).
            Place::Source { .. } => ("{\"type\":\"url\",\"url\":\"", "\"}"),
        }
    }
}
