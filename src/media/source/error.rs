//! Why the text of a source was refused. All of these are the client's mistakes.

use std::borrow::Cow;

use http::StatusCode;
use thiserror::Error;

use crate::error::Fault;

/// A source that cannot be used, whatever the policy says.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SourceError {
    /// The string is empty.
    #[error("the image URL is empty")]
    Empty,
    /// No `scheme:` at the start.
    #[error("the image URL has no scheme; http:, https: and data: are accepted")]
    NoScheme,
    /// Neither http, https nor data.
    #[error("the scheme of the image URL is not supported; http:, https: and data: are accepted")]
    UnsupportedScheme,
    /// The gateway's own scheme, which only the gateway may write.
    #[error("the scheme mediagate: is reserved and not accepted from clients")]
    ReservedScheme,
    /// An http URL that is not well formed.
    #[error("the image URL is not valid: {0}")]
    Url(UrlFlaw),
    /// A data URI without the comma that ends its header.
    #[error("the data URI is not valid: no comma separates its header from its content")]
    DataWithoutComma,
    /// A data URI whose header does not end in `;base64`.
    #[error("the data URI is not base64: its header has to end in ;base64")]
    DataNotBase64,
    /// A data URI with nothing behind the comma.
    #[error("the data URI holds no data")]
    DataEmpty,
    /// Content that is not base64.
    #[error("the base64 content of the data URI is not valid: {0}")]
    Base64(Base64Flaw),
    /// Content that would be larger than allowed once decoded.
    #[error("the data URI holds more than the {max_bytes} bytes that an image may have")]
    TooLarge {
        /// The limit, in decoded bytes.
        max_bytes: usize,
    },
}

/// What is wrong with an http URL.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs)] // The sentence says it.
pub enum UrlFlaw {
    #[error("it is longer than {} bytes", super::http_url::MAX_URL_BYTES)]
    TooLong,
    #[error("it contains a backslash")]
    Backslash,
    #[error("it contains white space, which has to be written as %20")]
    WhiteSpace,
    #[error("it contains a control character")]
    ControlCharacter,
    #[error("// has to follow the scheme")]
    NoSlashes,
    #[error("it contains a user name or password")]
    UserInfo,
    #[error("it names no host")]
    NoHost,
    #[error("its host is not valid")]
    Host,
    #[error("its host is written in characters that stand for other ones")]
    DisguisedHost,
    #[error("its port is not a number from 1 to 65535")]
    Port,
}

/// What is wrong with a base64 text.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs)] // The sentence says it.
pub enum Base64Flaw {
    #[error("it contains white space or line breaks (encode with `base64 -w0`)")]
    WhiteSpace,
    #[error("it is percent-encoded")]
    PercentEncoded,
    #[error("it uses the URL-safe alphabet (- and _ for + and /)")]
    UrlSafeAlphabet,
    #[error("its length or its padding is wrong")]
    Length,
    #[error("it contains a character outside the base64 alphabet")]
    Alphabet,
}

impl Fault for SourceError {
    fn status(&self) -> StatusCode {
        StatusCode::BAD_REQUEST
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Empty | Self::NoScheme | Self::Url(_) => "invalid_image_url",
            Self::UnsupportedScheme => "unsupported_scheme",
            Self::ReservedScheme => "reserved_scheme",
            Self::DataWithoutComma | Self::DataNotBase64 | Self::DataEmpty => "invalid_data_uri",
            Self::Base64(_) => "invalid_base64",
            Self::TooLarge { .. } => "media_too_large",
        }
    }

    /// The `Display` text: it is made of constants and our own limits, nothing of the source is repeated in it.
    fn public(&self) -> Cow<'static, str> {
        format!("The image is not usable: {self}.").into()
    }
}
