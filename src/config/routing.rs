//! Settings of routing.

use std::{str::FromStr, time::Duration};

use clap::Args;

use super::ConfigError;
use crate::{
    model::ModelPath,
    routing::{RoutePolicy, RoutingSettings, Weights},
};

#[derive(Debug, Args)]
#[command(next_help_heading = "Choosing a worker")]
pub struct RoutingArgs {
    /// How a worker is chosen [default: mm-kv where --model-path is given, else media-prefix]
    #[arg(long, env = "MEDIAGATE_ROUTE_POLICY", value_name = "NAME")]
    pub route_policy: Option<RoutePolicy>,
    /// What it saves that a worker need not process and encode an image again, for each of its tokens; a token of the prompt
    /// that need not be computed saves 1
    #[arg(long, env = "MEDIAGATE_ROUTE_MEDIA_WEIGHT", value_name = "WEIGHT", default_value = "0.5")]
    pub route_media_weight: f64,
    /// What a token of work that a worker has already costs
    #[arg(long, env = "MEDIAGATE_ROUTE_LOAD_WEIGHT", value_name = "WEIGHT", default_value = "0.5")]
    pub route_load_weight: f64,
    /// Share of a prompt that a worker must hold for that to count, where it does not hold the largest image: 0 to 1
    #[arg(long, env = "MEDIAGATE_ROUTE_MIN_OVERLAP", value_name = "SHARE", default_value = "0.5")]
    pub route_min_overlap: f64,
    /// How much chance there is in the choice: 0 for none; at 1, a worker that costs a whole prompt more is chosen by 1/e as
    /// often
    #[arg(long, env = "MEDIAGATE_ROUTE_TEMPERATURE", value_name = "TEMPERATURE", default_value = "0")]
    pub route_temperature: f64,
    /// Blocks of KV caches that are known at once, of all workers together
    #[arg(long, env = "MEDIAGATE_ROUTE_INDEX_BLOCKS", value_name = "N", default_value = "2000000")]
    pub route_index_blocks: usize,
    /// How often each worker is asked how busy it is
    #[arg(long, env = "MEDIAGATE_LOAD_INTERVAL_MS", value_name = "MS", default_value = "1000")]
    pub load_interval_ms: u64,
    /// Folder of a served model, as vLLM was given it: `DIR`, or `NAME=DIR` with the served model name (repeatable; in the
    /// variable separated by commas). Its files say how many tokens an image is
    #[arg(long = "model-path", id = "model_path", env = "MEDIAGATE_MODEL_PATH", value_name = "[NAME=]DIR", value_delimiter = ',',
          value_parser = ModelPath::from_str)]
    pub model_paths: Vec<ModelPath>,
    /// Time that a request waits for the size of an image that passes by URL, which tells routing its tokens
    #[cfg(feature = "mm-routing")]
    #[arg(long, env = "MEDIAGATE_IMAGE_SIZE_TIMEOUT_MS", value_name = "MS", default_value = "500")]
    pub image_size_timeout_ms: u64,
}

impl RoutingArgs {
    pub fn settings(&self) -> RoutingSettings {
        RoutingSettings {
            policy: self.route_policy.unwrap_or(RoutePolicy::of_knowledge(!self.model_paths.is_empty())),
            weights: Weights {
                media: self.route_media_weight,
                load: self.route_load_weight,
                min_overlap: self.route_min_overlap,
                temperature: self.route_temperature,
            },
            index_blocks: self.route_index_blocks,
            load_interval: Duration::from_millis(self.load_interval_ms),
        }
    }

    pub fn validate(&self) -> Result<(), ConfigError> {
        let weights = [
            ("--route-media-weight", self.route_media_weight, f64::MAX),
            ("--route-load-weight", self.route_load_weight, f64::MAX),
            ("--route-min-overlap", self.route_min_overlap, 1.0),
            ("--route-temperature", self.route_temperature, f64::MAX),
        ];
        if let Some((name, _, most)) = weights.iter().find(|(_, value, most)| !(0.0..=*most).contains(value)) {
            let range = if *most == 1.0 { "from 0 to 1" } else { "of 0 or more" };
            return Err(ConfigError::Invalid(format!("{name} must be a number {range}")));
        }
        if self.load_interval_ms < 100 {
            let message = "--load-interval-ms is below 100, which would keep the workers busy answering it";
            return Err(ConfigError::Invalid(message.into()));
        }
        Ok(())
    }
}
