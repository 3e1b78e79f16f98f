//! TLS on the public listener and towards workers.

use std::{path::PathBuf, sync::Arc};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use tempfile::TempDir;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

use super::support::{bodies, eventually, gateway::Gateway, worker::FakeWorker};

/// An authority of the test's own, with files of what it signs.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    dir: TempDir,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem, dir: tempfile::tempdir().unwrap() }
    }

    fn put(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Certificate and key for 127.0.0.1.
    fn sign(&self) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// The same in the files that a gateway is told of.
    fn write_pair(&self) -> (String, String) {
        let (certificate, key) = self.sign();
        let (cert, key) = (self.put("cert.pem", &certificate.pem()), self.put("key.pem", &key.serialize_pem()));
        (cert.to_str().unwrap().to_owned(), key.to_str().unwrap().to_owned())
    }

    /// A client that trusts this authority alone, and keeps no connection.
    fn client(&self) -> reqwest::Client {
        let authority = reqwest::Certificate::from_pem(self.pem.as_bytes()).unwrap();
        let builder = reqwest::Client::builder().no_proxy().tls_certs_only([authority]);
        builder.pool_max_idle_per_host(0).build().unwrap()
    }
}

#[tokio::test]
async fn clients_are_served_over_tls_by_http2_and_a_new_certificate_is_taken_on_sighup() {
    let (worker, authority, next) = (FakeWorker::start().await, Authority::new(), Authority::new());
    let (cert, key) = authority.write_pair();
    let list = authority.put("workers", &worker.url());
    let flags = ["--workers-file", list.to_str().unwrap(), "--tls-cert", &cert, "--tls-key", &key];
    let gateway = Gateway::start(&flags, &[]).await;
    let url = format!("https://{}", gateway.public);
    let client = authority.client();
    eventually("a healthy worker", || async {
        client.get(format!("{url}/ready")).send().await.unwrap().status() == 200
    })
    .await;
    let request = client.post(format!("{url}/v1/chat/completions")).body(bodies::plain());
    let response = request.send().await.unwrap();
    assert_eq!((response.status().as_u16(), response.version()), (200, http::Version::HTTP_2));
    // Nothing is served in the clear.
    let plain = reqwest::Client::builder().no_proxy().build().unwrap();
    assert!(plain.get(format!("http://{}/health", gateway.public)).send().await.is_err());

    let (certificate, new_key) = next.sign();
    std::fs::write(&cert, certificate.pem()).unwrap();
    gateway.signal(libc::SIGHUP);
    gateway.log.wait_for("configuration not read again").await;
    assert!(client.get(format!("{url}/health")).send().await.is_ok(), "half a new pair is not used");
    std::fs::write(&key, new_key.serialize_pem()).unwrap();
    std::fs::write(&list, "nonsense").unwrap();
    gateway.signal(libc::SIGHUP);
    gateway.log.wait_for_another("configuration not read again", 1).await;
    assert!(client.get(format!("{url}/health")).send().await.is_ok(), "nor a whole one beside another mistake");
    std::fs::write(&list, worker.url()).unwrap();
    gateway.signal(libc::SIGHUP);
    gateway.log.wait_for("configuration read again").await;
    assert!(next.client().get(format!("{url}/health")).send().await.is_ok());
    assert!(client.get(format!("{url}/health")).send().await.is_err(), "the old one is still shown");
}

#[tokio::test]
async fn workers_are_reached_over_tls_by_the_authority_that_is_named_and_no_other() {
    let (worker, authority) = (FakeWorker::start().await, Authority::new());
    let behind = worker.address;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let (certificate, key) = authority.sign();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut worker = TcpStream::connect(behind).await.unwrap();
                let _ = copy_bidirectional(&mut stream, &mut worker).await;
            });
        }
    });
    let ca = authority.put("ca.pem", &authority.pem);
    let gateway = Gateway::passthrough(&url, &["--worker-ca-file", ca.to_str().unwrap()]).await;
    assert_eq!(gateway.chat(bodies::plain()).await.0, 200);
    assert_eq!(worker.seen().len(), 1);

    let stranger = Gateway::start(&["--worker", &url], &[]).await;
    assert_eq!(stranger.chat(bodies::plain()).await.0, 503);
    assert_eq!(worker.seen().len(), 1);
}
