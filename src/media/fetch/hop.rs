//! One request to one origin, and what its response means.

use std::num::NonZeroUsize;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_RANGE, HOST, LOCATION, RANGE, USER_AGENT};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body::Body;
use http_body_util::Empty;
use hyper::body::Incoming;
use tokio::time::{timeout, timeout_at};

use super::coding::Coding;
use super::connect::Connection;
use super::error::FetchError;
use super::freshness::{Freshness, Validators};
use super::gate::{Announced, Passage};
use super::turns::Turn;
use super::{Fetched, Fetcher, body, redirect, retry};
use crate::media::source::HttpUrl;

/// What is asked for.
#[derive(Clone, Copy)]
pub(super) enum Want<'a> {
    /// All of it.
    Image,
    /// All of it, unless it is still the known one.
    ImageUnless(&'a Validators),
    /// Its first bytes, that many at most.
    Prefix(NonZeroUsize),
}

impl Want<'_> {
    fn is_conditional_at(self, url: &HttpUrl) -> bool {
        matches!(self, Self::ImageUnless(known) if known.are_from(url))
    }
}

/// What a hop came to, if it did not fail.
pub(super) enum Hop {
    /// Redirects and retries are not yet counted in it.
    Image(Fetched),
    NotModified(Freshness),
    Redirect(HttpUrl, Freshness),
}

/// A success of which the head is there.
struct Arrival<'a> {
    turn: Turn<'a>,
    connection: Connection,
    response: Response<Incoming>,
}

impl Fetcher {
    pub(super) async fn hop(&self, url: &HttpUrl, want: Want<'_>, passage: &Passage<'_>) -> Result<Hop, FetchError> {
        self.policy.check_url(url)?;
        let turn = self.turn(url, passage).await?;
        let (connection, response) = self.exchange(url, want).await?;
        let (status, headers) = (response.status(), response.headers());
        match status {
            StatusCode::OK | StatusCode::NON_AUTHORITATIVE_INFORMATION => {
                let arrival = Arrival { turn, connection, response };
                self.receive(url, want, arrival, passage).await.map(Hop::Image)
            }
            StatusCode::PARTIAL_CONTENT if matches!(want, Want::Prefix(_)) && starts_at_zero(headers) => {
                let arrival = Arrival { turn, connection, response };
                self.receive(url, want, arrival, passage).await.map(Hop::Image)
            }
            StatusCode::NOT_MODIFIED if want.is_conditional_at(url) => {
                let freshness = Freshness::of(headers);
                self.pool.put(url, connection);
                Ok(Hop::NotModified(freshness))
            }
            StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT => {
                let location = headers.get(LOCATION).ok_or(FetchError::BadRedirect(None))?;
                let next = redirect::target(url, location)?;
                let freshness = Freshness::of_redirect(status, headers);
                if response.body().is_end_stream() {
                    self.pool.put(url, connection);
                }
                Ok(Hop::Redirect(next, freshness))
            }
            status => Err(refusal(status, headers)),
        }
    }

    async fn turn(&self, url: &HttpUrl, passage: &Passage<'_>) -> Result<Turn<'_>, FetchError> {
        let turn = timeout_at(passage.deadline(), self.turns.take(url)).await;
        turn.map_err(|_| FetchError::Saturated(self.config.total_timeout))
    }

    /// Reads the body of a success.
    async fn receive(
        &self,
        url: &HttpUrl,
        want: Want<'_>,
        arrival: Arrival<'_>,
        passage: &Passage<'_>,
    ) -> Result<Fetched, FetchError> {
        let max_bytes = self.config.max_bytes;
        let Arrival { mut turn, connection, response } = arrival;
        let (head, mut body) = response.into_parts();
        let coding = Coding::of(&head.headers)?;
        let freshness = Freshness::of(&head.headers);
        if passage.is_gated() {
            let length = body::announced(&body, max_bytes)?.filter(|_| coding == Coding::Identity);
            drop(turn);
            passage.pass(Announced { bytes: length.unwrap_or(max_bytes), freshness }).await?;
            turn = self.turn(url, passage).await?;
        }
        let (wire, ended) = match want {
            // A part of a coded body cannot be decoded.
            Want::Prefix(most) if coding == Coding::Identity => {
                body::read_prefix(&mut body, most.get().min(max_bytes)).await?
            }
            Want::Prefix(_) if head.status == StatusCode::PARTIAL_CONTENT => return Err(FetchError::UnknownCoding),
            _ => (body::read(&mut body, max_bytes).await?, true),
        };
        if ended {
            self.pool.put(url, connection);
        }
        drop(turn);
        let wire_bytes = wire.len();
        let bytes = coding.decode(wire, max_bytes).await?;
        if bytes.is_empty() {
            return Err(FetchError::Empty);
        }
        let is_whole = match head.status {
            StatusCode::PARTIAL_CONTENT => total_bytes(&head.headers) == Some(bytes.len() as u64),
            _ => ended,
        };
        Ok(Fetched {
            bytes,
            validators: Validators::of(url, &head.headers),
            freshness,
            wire_bytes,
            redirects: 0,
            retries: 0,
            is_whole,
            is_ranged: head.status == StatusCode::PARTIAL_CONTENT,
        })
    }

    /// Sends the request and waits for the head of the response.
    async fn exchange(&self, url: &HttpUrl, want: Want<'_>) -> Result<(Connection, Response<Incoming>), FetchError> {
        if let Some(mut connection) = self.pool.take(url) {
            match self.send(&mut connection, url, want).await {
                // The origin closed it while it was idle: that says nothing about the image, and is no attempt.
                Err(FetchError::Interrupted(_)) => {}
                result => return result.map(|response| (connection, response)),
            }
        }
        let mut connection = self.connector.connect(url).await?;
        let response = self.send(&mut connection, url, want).await?;
        Ok((connection, response))
    }

    async fn send(
        &self,
        connection: &mut Connection,
        url: &HttpUrl,
        want: Want<'_>,
    ) -> Result<Response<Incoming>, FetchError> {
        let request = self.request(url, want);
        let response = async {
            connection.sender.ready().await?;
            connection.sender.send_request(request).await
        };
        timeout(self.config.first_byte_timeout, response)
            .await
            .map_err(|_| FetchError::FirstByteTimeout(self.config.first_byte_timeout))?
            .map_err(body::broken)
    }

    fn request(&self, url: &HttpUrl, want: Want<'_>) -> Request<Empty<Bytes>> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = Uri::from(url.path_and_query().clone());
        let host = HeaderValue::from_str(&url.authority()).expect("hosts are ASCII without control characters");
        let headers = request.headers_mut();
        headers.insert(HOST, host);
        headers.insert(USER_AGENT, self.user_agent.clone());
        // What vLLM sends: an origin that negotiates formats gives both the same picture.
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        match want {
            Want::ImageUnless(known) if known.are_from(url) => known.ask(headers),
            Want::Image | Want::ImageUnless(_) => {}
            Want::Prefix(most) => {
                headers.insert(RANGE, range(most));
            }
        }
        request
    }
}

fn range(most: NonZeroUsize) -> HeaderValue {
    HeaderValue::from_str(&format!("bytes=0-{}", most.get() - 1)).expect("digits are fine in a header")
}

/// Whether a part is the beginning, as was asked for.
fn starts_at_zero(headers: &HeaderMap) -> bool {
    content_range(headers).is_some_and(|range| range.starts_with("0-"))
}

/// The size of what a part is from, if the origin knows it.
fn total_bytes(headers: &HeaderMap) -> Option<u64> {
    content_range(headers)?.rsplit_once('/')?.1.parse().ok()
}

fn content_range(headers: &HeaderMap) -> Option<&str> {
    headers.get(CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes ")
}

/// Whose fault a status without an image is.
fn refusal(status: StatusCode, headers: &HeaderMap) -> FetchError {
    match status.as_u16() {
        // 500 too: object stores document it as "try again".
        408 | 425 | 429 | 500 | 502 | 503 | 504 => {
            FetchError::OriginBusy { status, retry_after: retry::retry_after(headers) }
        }
        // A success without an image, a redirect that is none, a mistake of the client's: not there for us.
        100..500 => FetchError::OriginRefused(status),
        _ => FetchError::OriginFailed(status),
    }
}
