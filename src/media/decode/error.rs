//! Why an image was not decoded, for the log and for the client.

use std::borrow::Cow;

use http::StatusCode;

use super::Format;
use crate::error::Fault;

/// Every way in which [`probe`](super::probe) and [`decode_into`](super::decode_into) fail.
///
/// `Display` carries the cause and is for the log; what a client reads is [`Fault::public`].
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// No bytes at all.
    #[error("the image has no bytes")]
    Empty,
    /// No format that vLLM reads, recognised by its first bytes where that is possible.
    #[error("not an image format that is served: {}", .name.unwrap_or("unrecognised"))]
    Unsupported {
        /// What it seems to be, e.g. `"HEIC"`.
        name: Option<&'static str>,
    },
    /// The bytes end before the picture does.
    #[error("{}: truncated", .0.name())]
    Truncated(Format),
    /// The codec gave up.
    #[error("{}: {cause}", .format.name())]
    Corrupt {
        /// The format by its first bytes.
        format: Format,
        /// What the codec said; private.
        cause: Cow<'static, str>,
    },
    /// Above one of the [`DecodeLimits`](super::DecodeLimits).
    #[error("{}: {what} is {value}, the limit is {limit}", .format.name())]
    TooLarge {
        /// The format by its first bytes.
        format: Format,
        /// Which limit.
        what: &'static str,
        /// What the file asks for.
        value: u64,
        /// What is allowed.
        limit: u64,
    },
    /// The caller's buffer is not as long as [`Header::rgb_bytes`](super::Header::rgb_bytes): a bug of ours.
    #[error("the output has {actual} bytes, the picture {expected}")]
    OutputLength {
        /// Bytes of the picture.
        expected: usize,
        /// Bytes of the buffer.
        actual: usize,
    },
}

impl DecodeError {
    /// A broken file; `cause` goes to the log only.
    pub(super) fn corrupt(format: Format, cause: impl Into<Cow<'static, str>>) -> Self {
        Self::Corrupt { format, cause: cause.into() }
    }
}

impl Fault for DecodeError {
    fn status(&self) -> StatusCode {
        match self {
            Self::OutputLength { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Empty => "image_empty",
            Self::Unsupported { .. } => "unsupported_image_format",
            Self::Truncated(_) => "image_truncated",
            Self::Corrupt { .. } => "image_corrupt",
            Self::TooLarge { .. } => "image_too_large",
            Self::OutputLength { .. } => "internal_error",
        }
    }

    fn public(&self) -> Cow<'static, str> {
        match self {
            Self::Empty => "The image is empty.".into(),
            Self::Unsupported { name: None } => "The data is not an image in a supported format.".into(),
            Self::Unsupported { name: Some(name) } => format!("{name} is not a supported image format.").into(),
            Self::Truncated(format) => format!("The {} image is truncated.", format.name()).into(),
            Self::Corrupt { format, .. } => {
                format!("The {} image is broken and cannot be decoded.", format.name()).into()
            }
            Self::TooLarge { format, what, value, limit } => {
                format!("The {} image is too large: its {what} is {value}, the limit is {limit}.", format.name()).into()
            }
            Self::OutputLength { .. } => "The image could not be decoded.".into(),
        }
    }
}
