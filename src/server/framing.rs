//! What every request must be like before anybody looks at it: where servers in a row could take it in different ways, it is
//! refused, and its connection closed (RFC 9112, 3.2 and 6.1).
//!
//! hyper refuses what is no HTTP. Of `Content-Length` beside `Transfer-Encoding` it goes by the latter and closes the
//! connection, as the RFC wants it. What is left is here.

use axum::{
    extract::Request,
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{
    HeaderMap, HeaderValue, StatusCode, Version,
    header::{CONNECTION, HOST, TRANSFER_ENCODING},
};

use super::answer::Refusal;

/// Lets requests through that are framed in one way only.
pub async fn sound(request: Request, next: Next) -> Response {
    match fault(request.version(), request.headers()) {
        None => next.run(request).await,
        Some(message) => {
            let mut response = Refusal::new(StatusCode::BAD_REQUEST, "invalid_http", message).into_response();
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            response
        }
    }
}

fn fault(version: Version, headers: &HeaderMap) -> Option<&'static str> {
    // HTTP/2 has frames, and its `:authority` stands once.
    if version > Version::HTTP_11 {
        return None;
    }
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() || (host.is_none() && version == Version::HTTP_11) {
        return Some("A request must have exactly one Host header.");
    }
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let coding = codings.next();
    if codings.next().is_some() || coding.is_some_and(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
        return Some("The only transfer coding that is understood here is chunked, once.");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_in_a_row_could_read_in_two_ways_is_refused() {
        let cases = [
            (Version::HTTP_11, &[("host", "x")][..], true),
            (Version::HTTP_11, &[("host", "x"), ("transfer-encoding", "Chunked")], true),
            (Version::HTTP_11, &[], false),
            (Version::HTTP_11, &[("host", "x"), ("host", "x")], false),
            (Version::HTTP_11, &[("host", "x"), ("transfer-encoding", "gzip, chunked")], false),
            (Version::HTTP_11, &[("host", "x"), ("transfer-encoding", "chunked, chunked")], false),
            (Version::HTTP_11, &[("host", "x"), ("transfer-encoding", "identity, chunked")], false),
            (
                Version::HTTP_11,
                &[("host", "x"), ("transfer-encoding", "gzip"), ("transfer-encoding", "chunked")],
                false,
            ),
            (Version::HTTP_10, &[], true),
            (Version::HTTP_10, &[("host", "x"), ("host", "y")], false),
            (Version::HTTP_2, &[], true),
        ];
        for (version, headers, is_sound) in cases {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(*name, HeaderValue::from_static(value));
            }
            assert_eq!(fault(version, &map).is_none(), is_sound, "{version:?} {headers:?}");
        }
    }
}
