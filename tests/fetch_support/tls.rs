//! Origins behind TLS, with certificates made on the spot.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, crypto::aws_lc_rs};
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// An authority, and what it takes to trust it.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    file: NamedTempFile,
}

/// What is wrong with a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    None,
    Expired,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(certificate.pem().as_bytes()).unwrap();
        Self { issuer: Issuer::new(params, key), file }
    }

    /// A file for `ca_files`.
    pub fn file(&self) -> PathBuf {
        self.file.path().to_owned()
    }

    /// Accepts clients that ask for `name` by SNI, and no others.
    pub fn acceptor(&self, name: &str, flaw: Flaw) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        if flaw == Flaw::Expired {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        }
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let key = CertifiedKey::from_der(vec![certificate.der().clone()], key, &provider).unwrap();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(OnlyFor { name: name.to_owned(), key: Arc::new(key) }));
        TlsAcceptor::from(Arc::new(config))
    }
}

#[derive(Debug)]
struct OnlyFor {
    name: String,
    key: Arc<CertifiedKey>,
}

impl ResolvesServerCert for OnlyFor {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        (hello.server_name() == Some(&self.name)).then(|| Arc::clone(&self.key))
    }
}

/// An origin that knows no TLS newer than 1.0: it answers any hello with one of its own in that version.
pub async fn tls10_only() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut hello = [0; 1024];
            let _ = stream.read(&mut hello).await;
            // ServerHello: version 3.1, a random, no session, TLS_RSA_WITH_AES_128_CBC_SHA, no compression.
            let body = [&[3, 1][..], &[7; 32], &[0, 0x00, 0x2f, 0]].concat();
            let handshake = [&[2, 0, 0, body.len() as u8][..], &body].concat();
            let record = [&[22, 3, 1, 0, handshake.len() as u8][..], &handshake].concat();
            let _ = stream.write_all(&record).await;
            let _ = stream.read(&mut hello).await;
        }
    });
    port
}
