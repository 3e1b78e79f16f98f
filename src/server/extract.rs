//! What handlers take from a request, as axum's extractors do; what is wrong with it is said in our shape, and not in their
//! plain text.

use axum::{
    Json as AxumJson,
    extract::{FromRequest, FromRequestParts, Path as AxumPath, Request},
};
use http::request::Parts;
use serde::de::DeserializeOwned;

use super::answer::Refusal;

/// The parameters of a path. One that they cannot be read from has no route.
pub struct Path<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let AxumPath(parameters) =
            AxumPath::from_request_parts(parts, state).await.map_err(|_| Refusal::not_found())?;
        Ok(Path(parameters))
    }
}

/// An operator's order: a short JSON body.
pub struct Order<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Order<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        match AxumJson::from_request(request, state).await {
            Ok(AxumJson(order)) => Ok(Order(order)),
            // It tells an operator which member of their own body is wrong.
            Err(error) => Err(Refusal::new(error.status(), "invalid_order", error.body_text())),
        }
    }
}
