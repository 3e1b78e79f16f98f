//! `mediagate inspect`: what the gateway would make of an image, as one JSON line an input.

use std::{error::Error, io::Write, path::Path};

use bytes::Bytes;
use serde::Serialize;
use sha2::{Digest, Sha256};

#[cfg(feature = "mm-routing")]
use crate::model::{ImageTokens, ModelFiles};
use crate::{
    config::InspectArgs,
    error::Fault,
    media::{
        content::{Name, Scope},
        decode::{self, Probe},
        error::MediaError,
        fetch::Fetcher,
        loader::MediaConfig,
        source::Source,
    },
};

/// One line of output.
#[derive(Debug, Default, Serialize)]
struct Line {
    input: String,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<&'static str>,
    #[serde(flatten)]
    pixels: Option<Pixels>,
    /// With a model: how many tokens of a prompt the image is.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<usize>,
}

#[derive(Debug, Serialize)]
struct Pixels {
    width: u32,
    height: u32,
    content_hash: String,
    media_id: String,
    rgb_sha256: String,
}

#[derive(Debug, thiserror::Error)]
enum InspectError {
    #[error("cannot read the file: {0}")]
    Read(std::io::Error),
    #[error("the file has {0} bytes, more than --media-max-bytes")]
    TooLarge(u64),
    #[error(transparent)]
    Media(MediaError),
}

impl<E: Into<MediaError>> From<E> for InspectError {
    fn from(error: E) -> Self {
        InspectError::Media(error.into())
    }
}

impl InspectError {
    fn code_and_message(&self) -> (&'static str, String) {
        match self {
            InspectError::Read(_) => ("unreadable_file", self.to_string()),
            InspectError::TooLarge(_) => ("file_too_large", self.to_string()),
            InspectError::Media(error) => (error.code(), error.public().into_owned()),
        }
    }
}

pub async fn run(args: InspectArgs) -> Result<(), Box<dyn Error>> {
    let config = args.media.config();
    let fetcher = Fetcher::new(&config.fetch)?;
    let tokens = tokens_of(&args)?;
    let mut out = std::io::stdout().lock();
    for input in args.inputs {
        let line = match inspect(&input, &config, &fetcher).await {
            Ok(mut line) => {
                line.tokens = line.pixels.as_ref().and_then(|Pixels { width, height, .. }| tokens(*height, *width));
                line
            }
            Err(error) => {
                let (code, message) = error.code_and_message();
                Line { status: "refused", code: Some(code), message: Some(message), ..Line::default() }
            }
        };
        let input = shown(input);
        serde_json::to_writer(&mut out, &Line { input, ..line })?;
        writeln!(out)?;
    }
    Ok(())
}

/// Tokens of an image by height and width.
type TokensOf = Box<dyn Fn(u32, u32) -> Option<usize>>;

/// Says for a height and a width how many tokens an image is to the model; nothing without a model.
#[cfg(feature = "mm-routing")]
fn tokens_of(args: &InspectArgs) -> Result<TokensOf, Box<dyn Error>> {
    let Some(dir) = &args.model_path else { return Ok(Box::new(|_, _| None)) };
    let counter = ImageTokens::new(&ModelFiles::read(dir)?)
        .map_err(|error| format!("{}: the model's image tokens cannot be counted: {error}", dir.display()))?;
    Ok(Box::new(move |height, width| counter.count(height, width).ok()))
}

#[cfg(not(feature = "mm-routing"))]
fn tokens_of(_: &InspectArgs) -> Result<TokensOf, Box<dyn Error>> {
    Ok(Box::new(|_, _| None))
}

/// Data URIs are long: their beginning names them.
fn shown(input: String) -> String {
    const LONGEST: usize = 200;
    if input.chars().count() <= LONGEST { input } else { input.chars().take(LONGEST).chain("...".chars()).collect() }
}

async fn inspect(input: &str, config: &MediaConfig, fetcher: &Fetcher) -> Result<Line, InspectError> {
    let bytes = read(input, config, fetcher).await?;
    let header = match decode::probe(&bytes, &config.decode)? {
        Probe::Decodable(header) => header,
        // Goes to the worker as it is.
        Probe::Opaque(format) => {
            return Ok(Line {
                status: "ok",
                code: Some("not_decoded"),
                message: Some("This format goes to the worker as the file it is.".into()),
                format: Some(format.name()),
                ..Line::default()
            });
        }
    };
    let mut rgb = vec![0; header.rgb_bytes()];
    decode::decode_into(&bytes, &header, &mut rgb)?;
    let name = Name::of(&Scope::default(), header.height(), header.width(), &rgb);
    let pixels = Pixels {
        width: name.width,
        height: name.height,
        content_hash: name.content_hash.to_string(),
        media_id: name.media_id.to_string(),
        rgb_sha256: Sha256::digest(&rgb).iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    Ok(Line { status: "ok", format: Some(header.format().name()), pixels: Some(pixels), ..Line::default() })
}

async fn read(input: &str, config: &MediaConfig, fetcher: &Fetcher) -> Result<Bytes, InspectError> {
    let is_url = ["http:", "https:", "data:"]
        .iter()
        .any(|scheme| input.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)));
    if is_url {
        return match Source::parse(input)? {
            Source::Http(url) => Ok(fetcher.fetch(&url).await?.bytes),
            Source::Data(uri) => Ok(uri.decode(config.fetch.max_bytes)?),
        };
    }
    let path = Path::new(input);
    let length = tokio::fs::metadata(path).await.map_err(InspectError::Read)?.len();
    if length > config.fetch.max_bytes as u64 {
        return Err(InspectError::TooLarge(length));
    }
    Ok(tokio::fs::read(path).await.map_err(InspectError::Read)?.into())
}
