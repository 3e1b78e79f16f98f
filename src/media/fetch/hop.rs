//! One request to one origin, and what its response means.

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, HOST, LOCATION, USER_AGENT};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body::Body;
use http_body_util::Empty;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout, timeout_at};

use super::coding::Coding;
use super::connect::Connection;
use super::error::FetchError;
use super::freshness::{Freshness, Validators};
use super::{Fetcher, body, redirect, retry};
use crate::media::source::HttpUrl;

/// What a hop came to, if it did not fail.
pub(super) enum Hop {
    Image { bytes: Bytes, wire_bytes: usize, validators: Validators, freshness: Freshness },
    NotModified(Freshness),
    Redirect(HttpUrl),
}

impl Fetcher {
    pub(super) async fn hop(
        &self,
        url: &HttpUrl,
        known: Option<&Validators>,
        deadline: Instant,
    ) -> Result<Hop, FetchError> {
        self.policy.check_url(url)?;
        let _turn = timeout_at(deadline, self.turns.take(url))
            .await
            .map_err(|_| FetchError::Saturated(self.config.total_timeout))?;
        let (connection, response) = self.exchange(url, known).await?;
        let (head, mut body) = response.into_parts();
        match head.status {
            StatusCode::OK | StatusCode::NON_AUTHORITATIVE_INFORMATION => {
                let coding = Coding::of(&head.headers)?;
                let wire = body::read(&mut body, self.config.max_bytes).await?;
                self.pool.put(url, connection);
                let wire_bytes = wire.len();
                let bytes = coding.decode(wire, self.config.max_bytes).await?;
                if bytes.is_empty() {
                    return Err(FetchError::Empty);
                }
                let validators = Validators::of(&head.headers);
                Ok(Hop::Image { bytes, wire_bytes, validators, freshness: Freshness::of(&head.headers) })
            }
            StatusCode::NOT_MODIFIED => {
                self.pool.put(url, connection);
                Ok(Hop::NotModified(Freshness::of(&head.headers)))
            }
            StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT => {
                let location = head.headers.get(LOCATION).ok_or(FetchError::BadRedirect(None))?;
                let next = redirect::target(url, location)?;
                if body.is_end_stream() {
                    self.pool.put(url, connection);
                }
                Ok(Hop::Redirect(next))
            }
            status => Err(refusal(status, &head.headers)),
        }
    }

    /// Sends the request and waits for the head of the response.
    async fn exchange(
        &self,
        url: &HttpUrl,
        known: Option<&Validators>,
    ) -> Result<(Connection, Response<Incoming>), FetchError> {
        if let Some(mut connection) = self.pool.take(url) {
            match self.send(&mut connection, url, known).await {
                // The origin closed it while it was idle: that says nothing about the image, and is no attempt.
                Err(FetchError::Interrupted(_)) => {}
                result => return result.map(|response| (connection, response)),
            }
        }
        let mut connection = self.connector.connect(url).await?;
        let response = self.send(&mut connection, url, known).await?;
        Ok((connection, response))
    }

    async fn send(
        &self,
        connection: &mut Connection,
        url: &HttpUrl,
        known: Option<&Validators>,
    ) -> Result<Response<Incoming>, FetchError> {
        let request = self.request(url, known);
        let response = async {
            connection.sender.ready().await?;
            connection.sender.send_request(request).await
        };
        timeout(self.config.first_byte_timeout, response)
            .await
            .map_err(|_| FetchError::FirstByteTimeout(self.config.first_byte_timeout))?
            .map_err(body::broken)
    }

    fn request(&self, url: &HttpUrl, known: Option<&Validators>) -> Request<Empty<Bytes>> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = Uri::from(url.path_and_query().clone());
        let host = HeaderValue::from_str(&url.authority()).expect("hosts are ASCII without control characters");
        let headers = request.headers_mut();
        headers.insert(HOST, host);
        headers.insert(USER_AGENT, self.user_agent.clone());
        // What vLLM sends: an origin that negotiates formats gives both the same picture.
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Some(known) = known {
            known.ask(headers);
        }
        request
    }
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
