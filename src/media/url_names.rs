//! What an image is called where its pixels are not looked at: by its URL.
//!
//! The same URL may show another picture tomorrow. So the name serves to send requests for one URL to one worker, and no
//! cache of the worker's is told of it, unless the operator says that URLs never change what they show.

use std::borrow::Cow;

use clap::ValueEnum;

use super::content::{MediaId, Scope};

/// What a URL says of its picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum UrlIdentity {
    /// Where it is: the picture may change, so workers look at what they fetched
    #[default]
    Exact,
    /// Which it is: a URL shows the same picture forever, so workers may keep what they made of it under its name
    Immutable,
}

/// Names images by their URLs.
#[derive(Debug, Clone, Default)]
pub struct UrlNames {
    pub identity: UrlIdentity,
    /// Query parameters that do not tell pictures apart, such as signatures.
    pub ignored_parameters: Vec<String>,
}

impl UrlNames {
    /// The name of the image at `url`, an http(s) URL or a data: URI, within a scope.
    pub fn name(&self, scope: &Scope, url: &str) -> MediaId {
        MediaId::of_url(scope, &self.stripped(url))
    }

    /// `url` without the parameters that do not count; all else byte for byte.
    fn stripped<'a>(&self, url: &'a str) -> Cow<'a, str> {
        let is_http = url.get(..4).is_some_and(|scheme| scheme.eq_ignore_ascii_case("http"));
        if !is_http || self.ignored_parameters.is_empty() {
            return url.into();
        }
        let (before, fragment) = url.split_at(url.find('#').unwrap_or(url.len()));
        let Some((path, query)) = before.split_once('?') else { return url.into() };
        let counts = |pair: &&str| {
            let name = pair.split_once('=').map_or(*pair, |(name, _)| name);
            !self.ignored_parameters.iter().any(|ignored| ignored == name)
        };
        if query.split('&').all(|pair| counts(&pair)) {
            return url.into();
        }
        let kept: Vec<&str> = query.split('&').filter(counts).collect();
        let mark = if kept.is_empty() { "" } else { "?" };
        format!("{path}{mark}{}{fragment}", kept.join("&")).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_parameters_are_left_out_and_nothing_else_changes() {
        let names = UrlNames { ignored_parameters: vec!["sig".into(), "X-Amz-Date".into()], ..UrlNames::default() };
        for (url, expected) in [
            ("https://a/x?sig=1&w=2&X-Amz-Date=3", "https://a/x?w=2"),
            ("https://a/x?sig=1", "https://a/x"),
            ("https://a/x?sig&b=#f?sig=2", "https://a/x?b=#f?sig=2"),
            ("https://a/x?SIG=1&signature=2", "https://a/x?SIG=1&signature=2"),
            ("https://a/x#?sig=1", "https://a/x#?sig=1"),
            ("https://a/x?&&a", "https://a/x?&&a"),
            ("https://a/x", "https://a/x"),
            ("data:image/png;base64,AA==?sig=1", "data:image/png;base64,AA==?sig=1"),
        ] {
            assert_eq!(names.stripped(url), expected);
            assert_eq!(UrlNames::default().stripped(url), url);
        }
    }

    #[test]
    fn names_are_of_one_scope_and_one_url() {
        let names = UrlNames::default();
        let (all, one) = (Scope::default(), Scope::new(Some("tenant"), None));
        let url = "https://example.com/a.png?v=1";
        assert_eq!(names.name(&all, url), names.name(&all, url));
        assert_ne!(names.name(&all, url), names.name(&one, url));
        assert_ne!(names.name(&all, url), names.name(&all, "https://example.com/a.png?v=2"));
    }
}
