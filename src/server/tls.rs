//! TLS of the public listener: certificate and key from PEM files, which may be replaced while connections go on.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use rustls::{
    ServerConfig,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
};
use tokio_rustls::TlsAcceptor;

/// Why certificate and key are of no use, with the file that is at fault.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{path}: {what} cannot be read: {source}; PEM is needed, as `-----BEGIN ...`")]
    Pem { path: PathBuf, what: &'static str, source: pem::Error },
    #[error("{0} holds no certificate")]
    NoCertificate(PathBuf),
    #[error("{cert} and {key} cannot be used together: {source}")]
    Pair { cert: PathBuf, key: PathBuf, source: rustls::Error },
}

/// What new connections are greeted with.
pub struct Tls(ArcSwap<ServerConfig>);

impl Tls {
    pub fn new(config: Arc<ServerConfig>) -> Self {
        Tls(ArcSwap::new(config))
    }

    /// For connections from now on.
    pub fn replace(&self, config: Arc<ServerConfig>) {
        self.0.store(config);
    }

    /// For one connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.load_full())
    }
}

/// Reads a certificate chain and its key. TLS 1.2 and 1.3; HTTP/2 and HTTP/1.1 are offered.
pub fn read(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let unreadable = |path: &Path, what| {
        let path = path.to_owned();
        move |source| TlsError::Pem { path, what, source }
    };
    let chain = CertificateDer::pem_file_iter(cert).map_err(unreadable(cert, "the certificate"))?;
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(unreadable(cert, "the certificate"))?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate(cert.into()));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(unreadable(key, "the private key"))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
        .map_err(|source| TlsError::Pair { cert: cert.into(), key: key.into(), source });
    let mut config = config?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_pair_of_certificate_and_key_is_refused_with_the_file_that_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let pair = || rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let (one, other) = (pair(), pair());
        let cert = put("cert", &one.cert.pem());
        let key = put("key", &one.signing_key.serialize_pem());
        assert!(read(&cert, &key).is_ok());
        let wrong = put("wrong", &other.signing_key.serialize_pem());
        assert!(matches!(read(&cert, &wrong), Err(TlsError::Pair { .. })));
        let empty = put("empty", "nothing\n");
        assert!(matches!(read(&empty, &key), Err(TlsError::NoCertificate(path)) if path == empty));
        assert!(matches!(read(&cert, &empty), Err(TlsError::Pem { path, .. }) if path == empty));
        assert!(matches!(read(dir.path().join("none").as_path(), &key), Err(TlsError::Pem { .. })));
    }
}
