//! Reads a body while counting it.

use std::error::Error;
use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::error::FetchError;

/// The length that the head announces, if it does.
///
/// # Errors
///
/// If that is above `max_bytes`.
pub(super) fn announced(body: &Incoming, max_bytes: usize) -> Result<Option<usize>, FetchError> {
    let length = body.size_hint().exact().map(usize::try_from);
    match length {
        None => Ok(None),
        Some(Ok(bytes)) if bytes <= max_bytes => Ok(Some(bytes)),
        Some(_) => Err(FetchError::TooLarge { max_bytes }),
    }
}

/// The whole body, at most `max_bytes`.
///
/// A body that announces more is refused before it is read, one that grows beyond is refused at the first byte too many,
/// and one that ends before its time is an error, never a shorter picture.
pub(super) async fn read(body: &mut Incoming, max_bytes: usize) -> Result<Bytes, FetchError> {
    /// Memory follows the bytes that came, not what an origin announced.
    const FIRST_BYTES: usize = 64 << 10;

    let most = announced(body, max_bytes)?.unwrap_or(max_bytes);
    let mut bytes = BytesMut::with_capacity(most.min(FIRST_BYTES));
    while let Some(frame) = body.frame().await {
        // Trailers say nothing about a picture.
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        let len = bytes.len() + data.len();
        if len > max_bytes {
            return Err(FetchError::TooLarge { max_bytes });
        }
        if len > bytes.capacity() {
            // Twice as much each time, and never past what may come.
            let capacity = (bytes.capacity() * 2).clamp(len, most.max(len));
            bytes.reserve(capacity - bytes.len());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

/// The first `most_bytes` of a body, and whether they are all of it.
pub(super) async fn read_prefix(body: &mut Incoming, most_bytes: usize) -> Result<(Bytes, bool), FetchError> {
    let mut bytes = BytesMut::new();
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await else { break };
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        let room = most_bytes - bytes.len();
        bytes.extend_from_slice(&data[..data.len().min(room)]);
        if data.len() >= room {
            return Ok((bytes.freeze(), data.len() == room && body.is_end_stream()));
        }
    }
    Ok((bytes.freeze(), true))
}

/// Tells bad framing, which comes again, from a broken connection, which may not.
pub(super) fn broken(error: hyper::Error) -> FetchError {
    let io_kind = error.source().and_then(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind);
    let is_bad_framing = matches!(io_kind, Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData));
    if error.is_parse() || error.is_parse_too_large() || is_bad_framing {
        FetchError::Protocol(Arc::new(error))
    } else {
        FetchError::Interrupted(Arc::new(error))
    }
}
