//! What the files that the settings name say: secrets, keys, certificates, the list of workers.

use std::path::{Path, PathBuf};

use http::HeaderValue;

use super::{ConfigError, ServeArgs};
use crate::{
    server::{
        auth::{ApiKeys, ApiKeysError},
        reload::Fresh,
        tls::{self, TlsError},
    },
    worker::{WorkerUrlError, client::ClientError},
};

/// Shortest attach secret: 128 bits, if it is random bytes.
const MIN_SECRET_BYTES: usize = 16;

/// A file that a setting names, and that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{path}: {source}")]
    ApiKeys { path: PathBuf, source: ApiKeysError },
    #[error("{0}: the API key of the workers is empty, or has characters that a header cannot hold")]
    WorkerKey(PathBuf),
    #[error("{path}: an attach key has at least {MIN_SECRET_BYTES} bytes; `openssl rand -hex 32` makes one")]
    AttachKey { path: PathBuf },
    #[error("{0}; --worker and the lines of --workers-file are base URLs such as http://10.0.0.1:8000")]
    Worker(WorkerUrlError),
    #[error(transparent)]
    Tls(TlsError),
    #[error(transparent)]
    Client(ClientError),
}

/// A secret in a file: its content without white space around it.
pub fn read_secret(path: &Path) -> Result<String, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
    Ok(text.trim_ascii().to_owned())
}

/// The keys of clients.
pub fn api_keys(args: &ServeArgs) -> Result<ApiKeys, ConfigError> {
    match &args.access.api_key_file {
        None => Ok(ApiKeys::default()),
        Some(path) => ApiKeys::parse(&read_secret(path)?)
            .map_err(|source| FileError::ApiKeys { path: path.clone(), source }.into()),
    }
}

/// `Authorization` for the workers, where they want one of their own.
pub fn worker_authorization(args: &ServeArgs) -> Result<Option<HeaderValue>, ConfigError> {
    let Some(path) = &args.fleet.worker_api_key_file else { return Ok(None) };
    let key = read_secret(path)?;
    let value = HeaderValue::try_from(format!("Bearer {key}")).ok().filter(|_| !key.is_empty());
    let mut value = value.ok_or_else(|| FileError::WorkerKey(path.clone()))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// The secret that gateways and workers share.
pub fn attach_secret(args: &ServeArgs) -> Result<Option<String>, ConfigError> {
    let Some(path) = &args.transfer.attach_key_file else { return Ok(None) };
    let secret = read_secret(path)?;
    if secret.len() < MIN_SECRET_BYTES {
        return Err(FileError::AttachKey { path: path.clone() }.into());
    }
    Ok(Some(secret))
}

/// The files that a reload reads.
pub fn read_on_reload(args: &ServeArgs) -> Vec<PathBuf> {
    let files = [
        &args.config,
        &args.fleet.workers_file,
        &args.access.api_key_file,
        &args.fleet.worker_api_key_file,
        &args.listening.tls_cert,
        &args.listening.tls_key,
    ];
    files.into_iter().flatten().cloned().collect()
}

/// Everything that a reload reads.
pub fn fresh(args: &ServeArgs) -> Result<Fresh, ConfigError> {
    let tls = match (&args.listening.tls_cert, &args.listening.tls_key) {
        (Some(cert), Some(key)) => Some(tls::read(cert, key).map_err(FileError::Tls)?),
        _ => None,
    };
    Ok(Fresh {
        workers: args.fleet.worker_urls()?,
        keys: api_keys(args)?,
        worker_authorization: worker_authorization(args)?,
        tls,
    })
}
