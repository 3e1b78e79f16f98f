//! The text of a source, as a request has it.

use super::{DataUri, Source, SourceError};
use crate::memory::SharedText;

/// Where an image is, as it stands in a request's body: shared, and not copied however it is written there.
#[derive(Debug, Clone)]
pub struct SourceText {
    text: SharedText,
    form: Form,
}

#[derive(Debug, Clone, Copy)]
enum Form {
    /// A URL, of any scheme.
    Url,
    /// A data: URI with the escapes of JSON.
    EscapedDataUri,
    /// The base64 of a data: URI, with the escapes of JSON if it has any.
    Base64,
}

impl SourceText {
    /// A data: URI as it stands within a JSON string.
    pub fn escaped_data_uri(text: SharedText) -> Self {
        SourceText { text, form: Form::EscapedDataUri }
    }

    /// The base64 of an image as it stands within a JSON string.
    pub fn base64(text: SharedText) -> Self {
        SourceText { text, form: Form::Base64 }
    }

    /// Costs microseconds, whatever the size of the picture.
    ///
    /// # Errors
    ///
    /// As [`Source::parse`].
    pub fn parse(&self) -> Result<Source<'_>, SourceError> {
        let text = self.text.as_str();
        match self.form {
            Form::Url => Source::parse(text),
            Form::EscapedDataUri => DataUri::parse_escaped(text).map(Source::Data),
            Form::Base64 => DataUri::of_payload(text).map(Source::Data),
        }
    }

    /// The text, if it is that of an http(s) URL or of no source at all.
    pub fn as_url(&self) -> Option<&str> {
        let text = self.text.as_str();
        let is_url = text.get(..4).is_some_and(|begin| begin.eq_ignore_ascii_case("http"));
        (is_url && matches!(self.form, Form::Url)).then_some(text)
    }
}

impl From<SharedText> for SourceText {
    fn from(text: SharedText) -> Self {
        SourceText { text, form: Form::Url }
    }
}

impl From<String> for SourceText {
    fn from(text: String) -> Self {
        SharedText::from(text).into()
    }
}

impl From<&str> for SourceText {
    fn from(text: &str) -> Self {
        SharedText::from(text).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(source: &SourceText) -> Vec<u8> {
        match source.parse().unwrap() {
            Source::Data(uri) => uri.decode(1 << 20).unwrap().to_vec(),
            Source::Http(url) => panic!("{url:?}"),
        }
    }

    #[test]
    fn an_image_is_the_same_however_a_body_has_it() {
        for source in [
            SourceText::from("data:image/png;base64,QUJD/w=="),
            SourceText::escaped_data_uri("data:image\\/png;base64,QUJD\\/w==".into()),
            SourceText::base64("QUJD/w==".into()),
            SourceText::base64("\\u0051UJD\\/w==".into()),
        ] {
            assert_eq!(bytes(&source), b"ABC\xff", "{source:?}");
        }
    }
}
