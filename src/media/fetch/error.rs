//! How a fetch fails, whose fault that is, and whether another attempt can help.
//!
//! Policy refusals and what the client could have known (no such host, 404, too large) are its own mistakes: 400. What an
//! origin does wrong is 502, what it does too slowly 504, and a gateway that has no turn to give is 503. No sentence for
//! the client names a host, an address or a query, or repeats what an origin or a library said: a client could otherwise
//! read from them what is inside our network.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use thiserror::Error;

use super::policy::PolicyRefusal;
use crate::error::Fault;
use crate::media::source::SourceError;

/// A cause for the log. Shared, so that everybody who waits for one fetch can have its error.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// Why an image was not fetched.
#[derive(Clone, Debug, Error)]
pub enum FetchError {
    /// The policy refuses the URL, or one that it redirects to. Nothing was dialled for it.
    #[error("refused by the fetch policy: {0}")]
    Refused(#[from] PolicyRefusal),
    /// A redirect without a target that is a valid http(s) URL.
    #[error("the origin redirects to something that is no http(s) URL")]
    BadRedirect(#[source] Option<SourceError>),
    /// More redirects than `max_redirects`.
    #[error("more than {max} redirects")]
    TooManyRedirects {
        /// The limit.
        max: u32,
    },
    /// The name does not exist or has no address.
    #[error("the host has no address")]
    NoSuchHost,
    /// The name could not be resolved now.
    #[error("the host cannot be resolved now")]
    Resolver(#[source] Cause),
    /// No address accepts a connection, or the connection broke before it was usable.
    #[error("no connection to the origin")]
    Connect(#[source] Cause),
    /// The certificate does not hold, or there is no protocol in common.
    #[error("no TLS session with the origin")]
    Tls(#[source] Cause),
    /// The connection broke between the request and the last byte of the response.
    #[error("the origin broke the connection")]
    Interrupted(#[source] Cause),
    /// The origin sent something that is not HTTP, or a head that is too large.
    #[error("the origin does not speak HTTP/1.1 as it should")]
    Protocol(#[source] Cause),
    /// A status that says: not here, not you, not this way.
    #[error("the origin answers {0}")]
    OriginRefused(StatusCode),
    /// A status that says: not now.
    #[error("the origin answers {status}")]
    OriginBusy {
        /// 408, 425, 429, 500, 502, 503 or 504.
        status: StatusCode,
        /// How long the origin asks to be left alone.
        retry_after: Option<Duration>,
    },
    /// Any other status that is an origin's fault.
    #[error("the origin answers {0}")]
    OriginFailed(StatusCode),
    /// The image is larger than `max_bytes`, on the wire or decoded.
    #[error("the image has more than {max_bytes} bytes")]
    TooLarge {
        /// The limit.
        max_bytes: usize,
    },
    /// A success with nothing in it.
    #[error("the origin sent an empty body")]
    Empty,
    /// A content coding that was not asked for and is not known.
    #[error("the origin uses a content coding that is not supported")]
    UnknownCoding,
    /// A body that is not in the coding that its head names, or that ends before its time.
    #[error("the body cannot be decoded")]
    BadCoding(#[source] Cause),
    /// No connection within `connect_timeout`.
    #[error("no connection within {0:?}")]
    ConnectTimeout(Duration),
    /// No response within `first_byte_timeout`.
    #[error("no response within {0:?}")]
    FirstByteTimeout(Duration),
    /// The whole fetch took longer than `total_timeout`.
    #[error("not finished within {0:?}")]
    TotalTimeout(Duration),
    /// No turn came within `total_timeout`: too much is being fetched, in all or from this host.
    #[error("no turn within {0:?}")]
    Saturated(Duration),
}

impl FetchError {
    /// Whether the same fetch may succeed a moment later. Never so for a refusal.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Resolver(_)
            | Self::Connect(_)
            | Self::Interrupted(_)
            | Self::OriginBusy { .. }
            | Self::ConnectTimeout(_) => true,
            Self::Refused(_)
            | Self::BadRedirect(_)
            | Self::TooManyRedirects { .. }
            | Self::NoSuchHost
            | Self::Tls(_)
            | Self::Protocol(_)
            | Self::OriginRefused(_)
            | Self::OriginFailed(_)
            | Self::TooLarge { .. }
            | Self::Empty
            | Self::UnknownCoding
            | Self::BadCoding(_)
            | Self::FirstByteTimeout(_)
            | Self::TotalTimeout(_)
            | Self::Saturated(_) => false,
        }
    }

    /// How long the origin asked to be left alone.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::OriginBusy { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

impl Fault for FetchError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Refused(_)
            | Self::BadRedirect(_)
            | Self::TooManyRedirects { .. }
            | Self::NoSuchHost
            | Self::OriginRefused(_)
            | Self::TooLarge { .. }
            | Self::Empty
            | Self::UnknownCoding
            | Self::BadCoding(_) => StatusCode::BAD_REQUEST,
            Self::Resolver(_)
            | Self::Connect(_)
            | Self::Tls(_)
            | Self::Interrupted(_)
            | Self::Protocol(_)
            | Self::OriginBusy { .. }
            | Self::OriginFailed(_) => StatusCode::BAD_GATEWAY,
            Self::ConnectTimeout(_) | Self::FirstByteTimeout(_) | Self::TotalTimeout(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::Saturated(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Refused(PolicyRefusal::Domain) => "media_domain_not_allowed",
            Self::Refused(PolicyRefusal::Port(_)) => "media_port_not_allowed",
            Self::Refused(PolicyRefusal::IpLiteral) => "media_ip_literal_not_allowed",
            Self::Refused(PolicyRefusal::LocalName | PolicyRefusal::Address(_)) => "media_host_not_allowed",
            Self::BadRedirect(_) => "media_bad_redirect",
            Self::TooManyRedirects { .. } => "media_too_many_redirects",
            Self::NoSuchHost => "media_no_such_host",
            Self::Resolver(_) => "media_resolve_failed",
            Self::Connect(_) => "media_connect_failed",
            Self::Tls(_) => "media_tls_failed",
            Self::Interrupted(_) => "media_fetch_interrupted",
            Self::Protocol(_) => "media_protocol_error",
            Self::OriginRefused(_) => "media_origin_refused",
            Self::OriginBusy { .. } | Self::OriginFailed(_) => "media_origin_failed",
            Self::TooLarge { .. } => "media_too_large",
            Self::Empty => "media_empty",
            Self::UnknownCoding | Self::BadCoding(_) => "media_bad_content_coding",
            Self::ConnectTimeout(_) => "media_connect_timeout",
            Self::FirstByteTimeout(_) | Self::TotalTimeout(_) => "media_fetch_timeout",
            Self::Saturated(_) => "media_fetch_saturated",
        }
    }

    fn public(&self) -> Cow<'static, str> {
        let what = match self {
            Self::Refused(PolicyRefusal::Domain) => "its host is not among the domains that this gateway fetches from",
            Self::Refused(PolicyRefusal::Port(_)) => "this gateway does not fetch from its port",
            Self::Refused(PolicyRefusal::IpLiteral) => {
                "its host is an IP address, and this gateway fetches by name only"
            }
            Self::Refused(PolicyRefusal::LocalName | PolicyRefusal::Address(_)) => {
                "its host is not public, and this gateway does not allow it"
            }
            Self::BadRedirect(_) => "the server that has it redirects to something that is not a valid http(s) URL",
            Self::TooManyRedirects { max } => {
                return format!("The image could not be fetched: it is behind more than {max} redirects.").into();
            }
            Self::NoSuchHost => "its host does not exist",
            Self::Resolver(_) => "the name of its host could not be resolved",
            Self::Connect(_) => "its server does not accept connections",
            Self::Tls(_) => "no secure connection to its server is possible",
            Self::Interrupted(_) => "its server broke the connection",
            Self::Protocol(_) => "its server did not answer in valid HTTP",
            Self::OriginRefused(status) | Self::OriginFailed(status) | Self::OriginBusy { status, .. } => {
                return format!("The image could not be fetched: its server answered {}.", status.as_u16()).into();
            }
            Self::TooLarge { max_bytes } => {
                return format!("The image could not be fetched: it has more than {max_bytes} bytes.").into();
            }
            Self::Empty => "its server sent an empty answer",
            Self::UnknownCoding => "its server sent it in a content coding that this gateway does not know",
            Self::BadCoding(_) => "its server sent it in a damaged content coding",
            Self::ConnectTimeout(_) => "no connection to its server came about in time",
            Self::FirstByteTimeout(_) => "its server did not answer in time",
            Self::TotalTimeout(_) => "it did not arrive in time",
            Self::Saturated(_) => "this gateway is fetching as much as it may already; try again later",
        };
        format!("The image could not be fetched: {what}.").into()
    }
}

#[cfg(test)]
mod tests {
    use super::super::address::Refusal;
    use super::*;

    fn cause() -> Cause {
        Arc::new(std::io::Error::other("10.0.0.7 said secret at 0x7f00dead"))
    }

    #[test]
    fn no_sentence_for_clients_repeats_a_cause() {
        for error in [
            FetchError::Refused(PolicyRefusal::Address(Refusal::Metadata)),
            FetchError::Resolver(cause()),
            FetchError::Connect(cause()),
            FetchError::Tls(cause()),
            FetchError::Interrupted(cause()),
            FetchError::Protocol(cause()),
            FetchError::BadCoding(cause()),
        ] {
            let public = error.public();
            assert!(public.starts_with("The image could not be fetched: ") && public.ends_with('.'), "{public}");
            for private in ["10.0", "secret", "0x", "metadata"] {
                assert!(!public.contains(private), "{public}");
            }
        }
    }

    #[test]
    fn refusals_are_never_retried() {
        for refusal in [
            PolicyRefusal::Domain,
            PolicyRefusal::Port(22),
            PolicyRefusal::IpLiteral,
            PolicyRefusal::LocalName,
            PolicyRefusal::Address(Refusal::Private),
        ] {
            let error = FetchError::from(refusal);
            assert!(!error.is_transient());
            assert_eq!(error.status(), StatusCode::BAD_REQUEST);
        }
    }
}
