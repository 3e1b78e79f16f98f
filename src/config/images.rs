//! Settings of what is done with images: decoded here or passed on, and how they are named.

use std::str::FromStr;

use clap::{ArgAction, Args};

use super::ConfigError;
use crate::{
    media::url_names::{UrlIdentity, UrlNames},
    server::resize::Resize,
};

#[derive(Debug, Args)]
#[command(next_help_heading = "Images")]
pub struct ImageArgs {
    /// Decode images here and push the pixels to the workers; without it, image URLs pass to the workers
    #[arg(long, env = "MEDIAGATE_FRONTEND_DECODING", value_name = "BOOL", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub frontend_decoding: bool,
    /// Whether images are brought to the size that the model will see before they are sent: `auto` where it changes nothing
    /// for the model (docs/SEMANTICS.md says when that is), or `off`
    #[arg(long, env = "MEDIAGATE_RESIZE", value_name = "auto|off", default_value = "auto", value_parser = Resize::from_str)]
    pub resize: Resize,
    /// What the URL of an image says where images pass by URL: `exact`, where it is; or `immutable`, which it is: then it shows
    /// the same picture forever, and workers keep what they made of it under a hash of the URL, as vLLM's uuid
    #[arg(long, env = "MEDIAGATE_URL_IDENTITY", value_name = "KIND", default_value = "exact")]
    pub url_identity: UrlIdentity,
    /// Query parameter that does not tell images apart, such as a signature (repeatable)
    #[arg(long, env = "MEDIAGATE_URL_IDENTITY_IGNORE", value_name = "NAME", value_delimiter = ',')]
    pub url_identity_ignore: Vec<String>,
    /// With --frontend-decoding, let video and audio pass: data: URIs as they are, http URLs as the bytes fetched by the
    /// same rules as images; without it, they are refused
    #[arg(long, env = "MEDIAGATE_PASS_OTHER_MEDIA", value_name = "BOOL", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub pass_other_media: bool,
}

impl ImageArgs {
    /// How images are named by their URLs.
    pub fn url_names(&self) -> UrlNames {
        UrlNames { identity: self.url_identity, ignored_parameters: self.url_identity_ignore.clone() }
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if self.frontend_decoding && self.url_identity == UrlIdentity::Immutable {
            return Err(ConfigError::Invalid(
                "--url-identity immutable is for images that pass by URL; with --frontend-decoding their pixels name them"
                    .into(),
            ));
        }
        Ok(())
    }
}
