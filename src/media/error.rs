//! Why an image was not loaded.

use std::{borrow::Cow, sync::Arc};

use http::StatusCode;

use super::{decode::DecodeError, fetch::FetchError, source::SourceError};
use crate::{error::Fault, memory::BudgetError};

#[derive(Debug, thiserror::Error)]
pub enum MediaError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("the images of the request need more memory than the gateway has for {what}: {cause}")]
    TooLarge {
        /// Which budget.
        what: &'static str,
        cause: Cow<'static, str>,
    },
    #[error("no memory for {what} became free in time: {cause}")]
    Overloaded {
        /// Which budget.
        what: &'static str,
        cause: Cow<'static, str>,
    },
    #[error("the decoder ended without a result")]
    Lost,
}

impl MediaError {
    /// What admission to a budget ended with.
    pub(super) fn admission(what: &'static str, error: &BudgetError) -> Self {
        let cause = Cow::Owned(error.to_string());
        match error {
            BudgetError::NeverFits { .. } => MediaError::TooLarge { what, cause },
            BudgetError::Busy { .. } => MediaError::Overloaded { what, cause },
        }
    }

    /// Whether the origin of a URL is at fault, so that asking it again at once would most likely end the same.
    pub(super) fn is_of_the_origin(&self) -> bool {
        match self {
            // The policy judges anew for nothing, and what is saturated is our side.
            MediaError::Fetch(FetchError::Refused(_) | FetchError::Resolver(_) | FetchError::Saturated(_)) => false,
            MediaError::Fetch(_) => true,
            MediaError::Decode(DecodeError::OutputLength { .. }) => false,
            MediaError::Decode(_) => true,
            _ => false,
        }
    }
}

impl Fault for MediaError {
    fn status(&self) -> StatusCode {
        match self {
            MediaError::Source(error) => error.status(),
            MediaError::Fetch(error) => error.status(),
            MediaError::Decode(error) => error.status(),
            MediaError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            MediaError::Overloaded { .. } => StatusCode::SERVICE_UNAVAILABLE,
            MediaError::Lost => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            MediaError::Source(error) => error.code(),
            MediaError::Fetch(error) => error.code(),
            MediaError::Decode(error) => error.code(),
            MediaError::TooLarge { .. } => "media_exceeds_memory",
            MediaError::Overloaded { .. } => "media_overloaded",
            MediaError::Lost => "internal_error",
        }
    }

    fn public(&self) -> Cow<'static, str> {
        match self {
            MediaError::Source(error) => error.public(),
            MediaError::Fetch(error) => error.public(),
            MediaError::Decode(error) => error.public(),
            MediaError::TooLarge { .. } => {
                "The images of this request are larger, together, than this server can hold; send fewer or smaller ones."
                    .into()
            }
            MediaError::Overloaded { .. } => "The server has no memory for more images right now; try again.".into(),
            MediaError::Lost => "The image could not be decoded because of an internal error.".into(),
        }
    }

    fn retryable(&self) -> bool {
        match self {
            MediaError::Source(error) => error.retryable(),
            MediaError::Fetch(error) => error.retryable(),
            MediaError::Decode(error) => error.retryable(),
            MediaError::TooLarge { .. } => false,
            MediaError::Overloaded { .. } | MediaError::Lost => true,
        }
    }
}

/// The first image of a request that could not be loaded.
#[derive(Debug, Clone, thiserror::Error)]
#[error("image {index}: {error}")]
pub struct LoadError {
    /// Its place among the request's images.
    pub index: usize,
    /// Shared by all that waited for that image.
    pub error: Arc<MediaError>,
}

impl LoadError {
    pub(super) fn new(index: usize, error: impl Into<Arc<MediaError>>) -> Self {
        LoadError { index, error: error.into() }
    }
}
