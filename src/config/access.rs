//! Settings of access: who may use the gateway, and for what.

use std::{path::PathBuf, str::FromStr};

use clap::Args;

use super::ConfigError;
use crate::server::{extra::ExtraRoute, tenant::Tenancy};

#[derive(Debug, Args)]
#[command(next_help_heading = "Access")]
pub struct AccessArgs {
    /// File with the API keys of clients, one a line, and after it the words `debug` or `admin` for what
    /// it may beyond the API [default: no key needed]
    #[arg(long, env = "MEDIAGATE_API_KEY_FILE", value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// What tells tenants apart, who share no cached images: `none`, `api-key`, or `header:NAME`. A header must be set by a
    /// proxy that clients cannot go around
    #[arg(long, env = "MEDIAGATE_TENANCY", value_name = "TENANCY", default_value = "none", value_parser = Tenancy::from_str)]
    pub tenancy: Tenancy,
    /// A route of the workers that clients may use beside those of the API: a method and a path, such as
    /// `POST /v1/load_lora_adapter` (repeatable; in the variable separated by commas). Bodies pass unseen
    #[arg(long = "extra-route", id = "extra_route", env = "MEDIAGATE_EXTRA_ROUTE", value_name = "ROUTE", value_delimiter = ',',
          value_parser = ExtraRoute::from_str)]
    pub extra_routes: Vec<ExtraRoute>,
}

impl AccessArgs {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        for (at, route) in self.extra_routes.iter().enumerate() {
            if self.extra_routes[..at].contains(route) {
                let ExtraRoute { method, path } = route;
                return Err(ConfigError::Invalid(format!(
                    "--extra-route {method} {path} is given twice; give it once"
                )));
            }
        }
        Ok(())
    }
}
