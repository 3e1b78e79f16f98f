//! Which headers cross the gateway.

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{
        AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
        TRANSFER_ENCODING, UPGRADE,
    },
};

/// Where Anthropic's clients put their key.
pub const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Of every answer, and of every request to a worker.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// With `1`, asks for the two that follow.
pub const DEBUG: HeaderName = HeaderName::from_static("x-mediagate-debug");
/// Which worker, why, and how the pictures went.
pub const ROUTE: HeaderName = HeaderName::from_static("x-mediagate-route");
/// The stages of a request in milliseconds (W3C Server Timing).
pub const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Headers of one connection (RFC 9110, 7.6.1), which end here.
const HOP_BY_HOP: [HeaderName; 8] =
    [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE];

/// A client's headers as the worker gets them: all but those of the connection, those that the new request has anew (it
/// has no trailers), and our own.
pub fn to_worker(client: &HeaderMap, authorization: Option<HeaderValue>) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(client.len() + 2);
    for (name, value) in client {
        let anew = [HOST, CONTENT_LENGTH, EXPECT, AUTHORIZATION, API_KEY, TRAILER].contains(name);
        if !anew && !name.as_str().starts_with("x-mediagate-") && !is_hop_by_hop(client, name) {
            headers.append(name, value.clone());
        }
    }
    if let Some(authorization) = authorization {
        headers.insert(AUTHORIZATION, authorization);
    }
    headers
}

/// A worker's headers as the client gets them: all but those of the connection.
pub fn to_client(worker: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(worker.len());
    for (name, value) in worker {
        if !is_hop_by_hop(worker, name) {
            headers.append(name, value.clone());
        }
    }
    headers
}

fn is_hop_by_hop(all: &HeaderMap, name: &HeaderName) -> bool {
    HOP_BY_HOP.contains(name)
        || all
            .get_all(CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .any(|value| value.split(',').any(|named| named.trim().eq_ignore_ascii_case(name.as_str())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn headers_of_the_connection_end_here_and_others_pass_in_order() {
        let client = map(&[
            ("host", "public.example"),
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("content-length", "5"),
            ("x-mediagate-debug", "1"),
            ("traceparent", "00-1-2-01"),
            ("authorization", "Bearer client"),
            ("accept", "a"),
            ("x-request-id", "id"),
            ("x-api-key", "client"),
        ]);
        let out = to_worker(&client, Some(HeaderValue::from_static("Bearer worker")));
        let mut names: Vec<_> = out.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["accept", "authorization", "traceparent", "x-request-id"]);
        assert_eq!(out[AUTHORIZATION], "Bearer worker");
    }

    #[test]
    fn repeated_headers_stay_repeated() {
        let mut worker = HeaderMap::new();
        worker.append("set-cookie", HeaderValue::from_static("a"));
        worker.append("set-cookie", HeaderValue::from_static("b"));
        assert_eq!(to_client(&worker).get_all("set-cookie").iter().count(), 2);
    }
}
