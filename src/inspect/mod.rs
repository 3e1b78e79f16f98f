//! `mediagate inspect`: what the gateway would make of an image, for whoever asks why it is refused or looks wrong.

mod report;

use std::{
    error::Error,
    io::Write,
    path::{Path, PathBuf},
    time::Instant,
};

use bytes::Bytes;
use sha2::{Digest, Sha256};

use self::report::{Pixels, Policy, Report, Resized, Times};
#[cfg(feature = "mm-routing")]
use crate::model::{ImageTokens, ModelFiles, processor};
use crate::{
    config::InspectArgs,
    error::Fault,
    media::{
        content::{Name, Scope},
        decode::{self, Probe, Size},
        error::MediaError,
        fetch::{FetchError, Fetcher, Trail},
        loader::MediaConfig,
        resize::SmartResize,
        source::Source,
    },
};

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
    /// The code that a client would get, and the message: here with the private cause, since it is the operator's own.
    fn code_and_message(&self) -> (&'static str, String) {
        match self {
            InspectError::Read(_) => ("unreadable_file", self.to_string()),
            InspectError::TooLarge(_) => ("file_too_large", self.to_string()),
            InspectError::Media(error) => (error.code(), format!("{} ({error})", error.public())),
        }
    }
}

/// What cannot be written is no property of an image, and ends the call.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}: {source}")]
struct WriteError {
    path: PathBuf,
    source: Box<dyn Error + Send + Sync>,
}

pub async fn run(args: InspectArgs) -> Result<(), Box<dyn Error>> {
    let tokens = tokens_of(&args)?;
    let resize = rule_of(&args)?;
    let inspector = Inspector { config: args.media.config(), fetcher: Fetcher::new(&args.media.config().fetch)? };
    if let Some(dir) = &args.png_out {
        std::fs::create_dir_all(dir).map_err(|source| WriteError { path: dir.clone(), source: source.into() })?;
    }
    let mut out = std::io::stdout().lock();
    for (index, input) in args.inputs.into_iter().enumerate() {
        let mut report = Report::default();
        match inspector.inspect(&input, &mut report).await {
            Ok(Some(rgb)) => {
                if let (Some(dir), Some(pixels)) = (&args.png_out, &mut report.pixels) {
                    let path = dir.join(format!("{}.png", index + 1));
                    write_png(&path, pixels, &rgb).map_err(|source| WriteError { path: path.clone(), source })?;
                    pixels.png = Some(path.display().to_string());
                }
                report.status = "ok";
            }
            Ok(None) => report.status = "ok",
            Err(error) => {
                let (code, message) = error.code_and_message();
                (report.status, report.code, report.message) = ("refused", Some(code), Some(message));
            }
        }
        report.resized = report.pixels.as_ref().and_then(|pixels| {
            let Size { height, width } = resize?.target(Size { height: pixels.height, width: pixels.width })?;
            Some(Resized { width, height })
        });
        report.tokens = report.pixels.as_ref().and_then(|pixels| tokens(pixels.height, pixels.width));
        report.input = shown(input);
        if args.json {
            serde_json::to_writer(&mut out, &report)?;
            writeln!(out)?;
        } else {
            write!(out, "{report}")?;
        }
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

/// How the model's image processor sizes images, where that is known.
#[cfg(feature = "mm-routing")]
fn rule_of(args: &InspectArgs) -> Result<Option<SmartResize>, Box<dyn Error>> {
    let Some(dir) = &args.model_path else { return Ok(None) };
    Ok(ModelFiles::read(dir)?.image_processor.as_ref().and_then(processor::rule_of_files))
}

#[cfg(not(feature = "mm-routing"))]
fn rule_of(_: &InspectArgs) -> Result<Option<SmartResize>, Box<dyn Error>> {
    Ok(None)
}

/// Data URIs are long: their beginning names them.
fn shown(input: String) -> String {
    const LONGEST: usize = 200;
    if input.chars().count() <= LONGEST { input } else { input.chars().take(LONGEST).chain("...".chars()).collect() }
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}

struct Inspector {
    config: MediaConfig,
    fetcher: Fetcher,
}

impl Inspector {
    /// Goes the way of an image, and notes what it finds. Gives its pixels, unless it goes to workers as the file it is.
    async fn inspect(&self, input: &str, report: &mut Report) -> Result<Option<Vec<u8>>, InspectError> {
        let bytes = self.read(input, report).await?;
        report.bytes = Some(bytes.len());
        let header = match decode::probe(&bytes, &self.config.decode)? {
            Probe::Decodable(header) => header,
            Probe::Opaque(format) => {
                report.format = Some(format.name());
                report.code = Some("not_decoded");
                report.message = Some("This format goes to the worker as the file it is.".into());
                return Ok(None);
            }
        };
        report.format = Some(header.format().name());
        let start = Instant::now();
        let mut rgb = vec![0; header.rgb_bytes()];
        decode::decode_into(&bytes, &header, &mut rgb, &mut decode::Scratch::default())?;
        report.times_ms.decode = Some(milliseconds(start));
        let start = Instant::now();
        let name = Name::of(&Scope::default(), header.height(), header.width(), &rgb);
        report.times_ms.hash = Some(milliseconds(start));
        let (stored_height, stored_width) = header.stored_size();
        report.pixels = Some(Pixels {
            width: name.width,
            height: name.height,
            stored_width,
            stored_height,
            orientation: header.orientation(),
            conversion: header.conversion(),
            content_hash: name.content_hash.to_string(),
            media_id: name.media_id.to_string(),
            rgb_sha256: Sha256::digest(&rgb).iter().map(|byte| format!("{byte:02x}")).collect(),
            png: None,
        });
        Ok(Some(rgb))
    }

    async fn read(&self, input: &str, report: &mut Report) -> Result<Bytes, InspectError> {
        let is_url = ["http:", "https:", "data:"]
            .iter()
            .any(|scheme| input.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)));
        let most = self.config.fetch.max_bytes;
        let start = Instant::now();
        let bytes = if is_url {
            match Source::parse(input)? {
                Source::Http(url) => return self.fetch(&url, report).await,
                Source::Data(uri) => uri.decode(most)?,
            }
        } else {
            let path = Path::new(input);
            let length = tokio::fs::metadata(path).await.map_err(InspectError::Read)?.len();
            if length > most as u64 {
                return Err(InspectError::TooLarge(length));
            }
            tokio::fs::read(path).await.map_err(InspectError::Read)?.into()
        };
        report.times_ms.read = milliseconds(start);
        Ok(bytes)
    }

    async fn fetch(&self, url: &crate::media::source::HttpUrl, report: &mut Report) -> Result<Bytes, InspectError> {
        let start = Instant::now();
        let judged = self.fetcher.check(url).await;
        report.times_ms.policy = Some(milliseconds(start));
        report.policy = Some(match judged {
            Ok(()) => Policy::Allowed,
            Err(FetchError::Refused(_)) => Policy::Refused,
            Err(_) => Policy::Unknown,
        });
        judged?;
        let (trail, start) = (Trail::default(), Instant::now());
        let fetched = self.fetcher.fetch_with_trail(url, &trail).await;
        report.times_ms = Times { read: milliseconds(start), ..std::mem::take(&mut report.times_ms) };
        report.redirects = trail.urls().split_off(1.min(trail.urls().len()));
        Ok(fetched?.bytes)
    }
}

fn write_png(path: &Path, pixels: &Pixels, rgb: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut encoder =
        png::Encoder::new(std::io::BufWriter::new(std::fs::File::create(path)?), pixels.width, pixels.height);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(rgb)?;
    Ok(writer.finish()?)
}
