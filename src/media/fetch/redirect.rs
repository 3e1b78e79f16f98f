//! Where a `Location` leads (RFC 3986, section 5), without changing more than a reference has to be changed.
//!
//! The target is parsed and judged like a URL that a client sent: signed URLs stay byte for byte what the origin wrote, and
//! everything that is refused there is refused here.

use http::HeaderValue;

use super::error::FetchError;
use crate::media::source::{HttpUrl, SourceError};

/// The URL that `location` means when `base` answers with it.
pub(super) fn target(base: &HttpUrl, location: &HeaderValue) -> Result<HttpUrl, FetchError> {
    // Origins do send raw UTF-8 and spaces here, which no specification allows and every browser takes. A space becomes
    // what a browser makes of it; in a host, that is refused.
    let reference = std::str::from_utf8(location.as_bytes()).map_err(|_| FetchError::BadRedirect(None))?;
    let reference = reference.trim_ascii().replace(' ', "%20");
    resolve(base, &reference).map_err(|error| FetchError::BadRedirect(Some(error)))
}

fn resolve(base: &HttpUrl, reference: &str) -> Result<HttpUrl, SourceError> {
    if has_scheme(reference) {
        return HttpUrl::parse(reference);
    }
    let scheme = base.scheme().as_str();
    if reference.starts_with("//") {
        return HttpUrl::parse(&format!("{scheme}:{reference}"));
    }
    let (base_path, base_query) = match base.target().split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (base.target(), None),
    };
    let target = if reference.starts_with('/') {
        reference.to_owned()
    } else if reference.starts_with('?') {
        format!("{base_path}{reference}")
    } else if reference.is_empty() || reference.starts_with('#') {
        base_query.map_or_else(|| base_path.to_owned(), |query| format!("{base_path}?{query}"))
    } else {
        let (path, rest) = reference.split_at(reference.find(['?', '#']).unwrap_or(reference.len()));
        let folder = &base_path[..=base_path.rfind('/').unwrap_or(0)];
        format!("{}{rest}", without_dot_segments(&format!("{folder}{path}")))
    };
    HttpUrl::parse(&format!("{scheme}://{}{target}", base.authority()))
}

/// Whether a reference starts with a scheme: a colon before any slash, question mark or hash.
fn has_scheme(reference: &str) -> bool {
    let end = reference.find(['/', '?', '#', ':']);
    end.is_some_and(|end| reference[end..].starts_with(':'))
}

/// Takes `.` and `..` out of a merged path. Only relative references get here; a path that was written out is kept.
fn without_dot_segments(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                if is_last {
                    kept.push("");
                }
            }
            segment => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(location: &[u8]) -> Result<String, FetchError> {
        let base = HttpUrl::parse("https://origin.example:8443/a/b/c.png?sig=1").unwrap();
        target(&base, &HeaderValue::from_bytes(location).unwrap()).map(|url| url.raw().to_owned())
    }

    #[test]
    fn references_resolve_as_rfc_3986_says() {
        for (location, url) in [
            ("http://other.example/x?y=%2F", "http://other.example/x?y=%2F"),
            ("HTTPS://other.example", "HTTPS://other.example"),
            ("//other.example/x", "https://other.example/x"),
            ("/x/../y", "https://origin.example:8443/x/../y"),
            ("/", "https://origin.example:8443/"),
            ("d.png", "https://origin.example:8443/a/b/d.png"),
            ("d.png?u=http://x/../y", "https://origin.example:8443/a/b/d.png?u=http://x/../y"),
            ("./d.png", "https://origin.example:8443/a/b/d.png"),
            ("../a/./final.png", "https://origin.example:8443/a/a/final.png"),
            ("../../../../x", "https://origin.example:8443/x"),
            ("..", "https://origin.example:8443/a/"),
            (".", "https://origin.example:8443/a/b/"),
            ("?q", "https://origin.example:8443/a/b/c.png?q"),
            ("", "https://origin.example:8443/a/b/c.png?sig=1"),
            ("#top", "https://origin.example:8443/a/b/c.png?sig=1"),
            (" /x ", "https://origin.example:8443/x"),
            ("/a b?c d", "https://origin.example:8443/a%20b?c%20d"),
            ("/été", "https://origin.example:8443/été"),
        ] {
            assert_eq!(to(location.as_bytes()).unwrap(), url, "{location}");
        }
    }

    #[test]
    fn only_valid_http_urls_are_followed() {
        for location in [
            "file:///etc/passwd",
            "data:image/png;base64,AAAA",
            "ftp://example.com/x",
            "javascript:alert(1)",
            "http:///x",
            "http:/x",
            "http://u:p@origin.example/x",
            "http://a\\@b/",
            "/a\\b",
            "//",
            "http://a b/",
            "/a\tb",
        ] {
            assert!(matches!(to(location.as_bytes()), Err(FetchError::BadRedirect(Some(_)))), "{location}");
        }
        assert!(matches!(to(b"http://\xff\xfe/"), Err(FetchError::BadRedirect(None))));
    }
}
