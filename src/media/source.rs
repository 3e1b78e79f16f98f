//! Where a client says its image is, judged on the exact text that it sent.
//!
//! A source is either an http(s) URL ([`HttpUrl`]) or a data URI ([`DataUri`]). Both are parsed here from the raw
//! string, not by a general URL library: such a library mends what it reads. The `url` crate, for one, turns `http:///x.png` into
//! the host `x.png`, drops tabs and newlines, reads `\` as `/`, removes dot segments and re-encodes quotes. Each of
//! these has been the hole in somebody's allow-list, or broke somebody's signed URL. What would need mending is refused
//! here, with the reason; what passes is sent to the origin byte for byte.
//!
//! In a body a source may be written with the escapes of JSON, and may be megabytes long: [`SourceText`] is a source as it
//! stands there.
//!
//! [`Source::parse`] looks at the characters of an http URL and only at the header of a data URI: it costs microseconds
//! whatever the size of the picture.

mod data_uri;
mod error;
mod escapes;
mod host;
mod http_url;
mod text;

pub use data_uri::DataUri;
pub use error::{Base64Flaw, SourceError, UrlFlaw};
pub use escapes::Pieces;
pub use host::Host;
pub use http_url::{HttpUrl, Scheme};
pub use text::SourceText;

/// The scheme of the references that this gateway puts in place of images. No client may send one.
pub const RESERVED_SCHEME: &str = "mediagate";

/// The source of one image.
///
/// A data URI borrows the text of the request, which may be many megabytes. To decode it on another thread, send the
/// owner of the text there and parse again: parsing a data URI reads its header only.
#[derive(Clone, Debug)]
pub enum Source<'a> {
    /// An `http:` or `https:` URL, well formed but not yet judged by any policy.
    Http(HttpUrl),
    /// A `data:` URI with base64 content, not yet decoded.
    Data(DataUri<'a>),
}

impl<'a> Source<'a> {
    /// Parses the exact string of the request.
    ///
    /// # Errors
    ///
    /// [`SourceError`] if the scheme is none of http, https and data, or if the text is not well formed. The scheme
    /// `mediagate:` has an error of its own, [`SourceError::ReservedScheme`].
    pub fn parse(raw: &'a str) -> Result<Self, SourceError> {
        let (scheme, rest) = split_scheme(raw)?;
        if scheme.eq_ignore_ascii_case("data") {
            DataUri::parse(rest).map(Self::Data)
        } else if scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https") {
            HttpUrl::parse(raw).map(Self::Http)
        } else if scheme.eq_ignore_ascii_case(RESERVED_SCHEME) {
            Err(SourceError::ReservedScheme)
        } else {
            Err(SourceError::UnsupportedScheme)
        }
    }
}

/// Splits `scheme:rest`. The scheme has RFC 3986's alphabet, so white space or anything else in front of it is refused.
fn split_scheme(raw: &str) -> Result<(&str, &str), SourceError> {
    /// No registered scheme comes near it; keeps the search away from megabytes of bare base64.
    const LONGEST_SCHEME: usize = 64;

    if raw.is_empty() {
        return Err(SourceError::Empty);
    }
    let head = &raw.as_bytes()[..raw.len().min(LONGEST_SCHEME + 1)];
    let end = head.iter().position(|byte| *byte == b':').ok_or(SourceError::NoScheme)?;
    let scheme = &head[..end];
    let is_scheme = scheme.first().is_some_and(u8::is_ascii_alphabetic)
        && scheme.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'));
    if !is_scheme {
        return Err(SourceError::NoScheme);
    }
    Ok((&raw[..end], &raw[end + 1..]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::Fault;

    fn error(raw: &str) -> SourceError {
        Source::parse(raw).map(|source| panic!("{raw:?} was taken as {source:?}")).unwrap_err()
    }

    #[test]
    fn only_http_https_and_data_are_sources() {
        assert!(matches!(Source::parse("https://example.com/x.png"), Ok(Source::Http(_))));
        assert!(matches!(Source::parse("HTTP://example.com/x.png"), Ok(Source::Http(_))));
        assert!(matches!(Source::parse("dAtA:;base64,QUJD"), Ok(Source::Data(_))));
        for raw in
            ["file:///etc/passwd", "gopher://example.com/", "ftp://example.com/x", "javascript:alert(1)", "blob:x"]
        {
            assert_eq!(error(raw), SourceError::UnsupportedScheme, "{raw}");
        }
        for raw in
            ["/etc/passwd", "//example.com/x.png", "x.png", " http://example.com/", "\u{feff}http://example.com/"]
        {
            assert_eq!(error(raw), SourceError::NoScheme, "{raw}");
        }
        assert_eq!(error(""), SourceError::Empty);
    }

    #[test]
    fn our_own_references_are_refused_under_a_code_of_their_own() {
        for raw in ["mediagate:slot/7", "MediaGate://x"] {
            assert_eq!(error(raw).code(), "reserved_scheme", "{raw}");
        }
    }

    #[test]
    fn bare_base64_is_not_searched_for_a_scheme() {
        assert_eq!(error(&"iVBORw0KGgo".repeat(100_000)), SourceError::NoScheme);
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(raw in any::<String>()) {
            let _ = Source::parse(&raw);
        }

        #[test]
        fn no_url_makes_the_parser_panic(rest in "[ -~\u{80}-\u{ffff}]{0,40}", scheme in "(http|https|data):/{0,3}") {
            if let Ok(Source::Data(uri)) = Source::parse(&format!("{scheme}{rest}")) {
                let _ = uri.decode(16);
            }
        }

        #[test]
        fn what_passes_is_sent_as_it_was_written(
            path in "(/[!$&-;=@-Z_a-z~]{0,12}){1,4}",
            query in prop::option::of("[!$&-;=?@-Z_a-z~]{0,20}"),
        ) {
            let target = query.map_or(path.clone(), |query| format!("{path}?{query}"));
            let raw = format!("https://example.com{target}");
            let Ok(Source::Http(url)) = Source::parse(&raw) else { panic!("{raw} was refused") };
            prop_assert_eq!(url.target(), target);
            prop_assert_eq!(url.raw(), raw);
        }
    }
}
