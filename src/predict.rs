//! `mediagate prompt`: the tokens that routing predicts of a request's prompt, as one JSON line a request.
//!
//! Compared with the `prompt_token_ids` that the worker returns for the same request (`"return_token_ids": true`), it tells
//! whether the model's files say what the worker computes.

use std::{error::Error, io::Write, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use serde::Serialize;

use crate::{
    config::PromptArgs,
    media::{
        content::Scope,
        dimensions::{Dimensions, NoSize},
        fetch::Fetcher,
        url_names::UrlNames,
    },
    model::{ImageTokens, ModelFiles, UncountableSize},
    prompt::{NotWritten, PromptRequest, PromptWriter},
    request::{ClientRequest, RequestError, shape},
    routing::prompt::{MmImage, PromptTokens},
};

/// One line of output.
#[derive(Debug, Serialize)]
struct Line {
    request: String,
    status: &'static str,
    /// Why there are no tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<Vec<u32>>,
    /// Where each image stands among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    images: Option<Vec<Image>>,
}

#[derive(Debug, Serialize)]
struct Image {
    offset: usize,
    length: usize,
}

#[derive(Debug, thiserror::Error)]
enum NotPredicted {
    #[error("cannot read the file: {0}")]
    Read(#[from] std::io::Error),
    #[error("no chat completion request: {0}")]
    Request(#[from] RequestError),
    #[error("the image at index {index}: {reason}")]
    Size { index: usize, reason: NoSize },
    #[error(transparent)]
    Count(#[from] UncountableSize),
    #[error(transparent)]
    Prompt(#[from] NotWritten),
}

struct Model {
    images: ImageTokens,
    writer: PromptWriter,
    dimensions: Dimensions,
}

pub async fn run(args: PromptArgs) -> Result<(), Box<dyn Error>> {
    let files = ModelFiles::read(&args.model_path)?;
    let config = args.media.config();
    let images = ImageTokens::new(&files)?;
    let writer = PromptWriter::new(&files, &images)?;
    let dimensions =
        Dimensions::new(Arc::new(Fetcher::new(&config.fetch)?), config.fetch.total_timeout + Duration::from_secs(1));
    let model = Model { images, writer, dimensions };
    let mut out = std::io::stdout().lock();
    for path in &args.requests {
        let request = path.display().to_string();
        let line = match predict(&model, path).await {
            Ok(PromptTokens { ids, media }) => {
                let images = media.iter().map(|span| Image { offset: span.offset, length: span.length }).collect();
                Line { request, status: "ok", reason: None, tokens: Some(ids), images: Some(images) }
            }
            Err(reason) => {
                Line { request, status: "unknown", reason: Some(reason.to_string()), tokens: None, images: None }
            }
        };
        serde_json::to_writer(&mut out, &line)?;
        writeln!(out)?;
    }
    Ok(())
}

async fn predict(model: &Model, path: &Path) -> Result<PromptTokens, NotPredicted> {
    let body = Bytes::from(tokio::fs::read(path).await?);
    let client = ClientRequest::read(&shape::CHAT, &body)?;
    let (names, scope) = (UrlNames::default(), Scope::default());
    let mut images = Vec::with_capacity(client.images.len());
    for (index, part) in client.images.iter().enumerate() {
        let name = part.source.name(&names, &scope);
        let size = model.dimensions.of(name, &part.source.text(&body)).await;
        let size = size.map_err(|reason| NotPredicted::Size { index, reason })?;
        images.push(MmImage { hash: name.into(), tokens: model.images.count(size.height, size.width)? });
    }
    Ok(model.writer.write(&PromptRequest::new(&body, &client, images))?)
}
