//! Why a request is refused before anything is done for it.

use std::borrow::Cow;

use http::StatusCode;

use super::{
    json::JsonError,
    walker::{MAX_MEDIA, MAX_MESSAGES, MAX_UUIDS},
};
use crate::error::Fault;

/// See the module's documentation. All are 400.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RequestError {
    #[error(transparent)]
    Json(#[from] JsonError),
    #[error("{param} is null")]
    NullImage { param: String },
    #[error("{param}: {reason}")]
    Part { param: String, reason: &'static str },
    #[error("{param}: a client used the scheme of references")]
    ReservedScheme { param: String },
    #[error("{key} is for workers among themselves")]
    TransferParams { key: &'static str },
    #[error("more than {MAX_MEDIA} media parts")]
    TooManyMedia,
    #[error("more than {MAX_MESSAGES} messages")]
    TooManyMessages,
    #[error("more than {MAX_UUIDS} uuids")]
    TooManyUuids,
}

impl RequestError {
    /// OpenAI's `param`: which part it is about.
    pub fn param(&self) -> Option<&str> {
        match self {
            RequestError::Json(_)
            | RequestError::TooManyMedia
            | RequestError::TooManyMessages
            | RequestError::TooManyUuids => None,
            RequestError::TransferParams { key } => Some(key),
            RequestError::NullImage { param }
            | RequestError::Part { param, .. }
            | RequestError::ReservedScheme { param } => Some(param),
        }
    }
}

impl Fault for RequestError {
    fn status(&self) -> StatusCode {
        StatusCode::BAD_REQUEST
    }

    fn code(&self) -> &'static str {
        match self {
            RequestError::Json(error) => error.code(),
            RequestError::NullImage { .. } => "uuid_only_unsupported",
            RequestError::Part { .. } => "invalid_image_part",
            RequestError::ReservedScheme { .. } => "reserved_scheme",
            RequestError::TransferParams { .. } => "transfer_params_forbidden",
            RequestError::TooManyMedia => "too_many_images",
            RequestError::TooManyMessages => "too_many_messages",
            RequestError::TooManyUuids => "too_many_uuids",
        }
    }

    fn public(&self) -> Cow<'static, str> {
        match self {
            RequestError::Json(error) => error.public(),
            RequestError::NullImage { .. } => {
                "An image part must carry an image: naming an earlier one by uuid is not supported.".into()
            }
            RequestError::Part { reason, .. } => (*reason).into(),
            RequestError::ReservedScheme { .. } => {
                "The image URL uses a scheme that is reserved for the gateway; use http, https or data.".into()
            }
            RequestError::TransferParams { key } => {
                format!("{key} would make a worker connect to where it says; clients may not set it.").into()
            }
            RequestError::TooManyMedia => {
                format!("A request may hold at most {MAX_MEDIA} images and other media.").into()
            }
            RequestError::TooManyMessages => format!("A request may hold at most {MAX_MESSAGES} messages.").into(),
            RequestError::TooManyUuids => format!("A request may hold at most {MAX_UUIDS} uuids.").into(),
        }
    }
}
