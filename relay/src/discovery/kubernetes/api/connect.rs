//! A connection to the server, with or without TLS.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::rt::{Read, Write};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};
use tower::ServiceExt as _;
use tracing::debug;

use super::ApiError;
use crate::fetch::innermost;
use crate::secret::{self, TlsFiles};

/// How long a connection may be silent before it is asked whether it is still there.
const SILENT_AFTER: Duration = Duration::from_secs(10);

/// How often it is asked, and how many times it may not answer.
const ASKED: (Duration, u32) = (Duration::from_secs(5), 3);

/// A connection, by which one request at a time is made. It ends when this is dropped.
pub(super) struct Link {
    requests: SendRequest<Empty<Bytes>>,
    _driver: JoinSet<()>,
}

impl Link {
    /// Connects; `https` needs files.
    pub(super) async fn to(url: &Uri, tls: Option<&TlsFiles>) -> Result<Self, ApiError> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        // A watch may hear nothing for minutes, also from a server that is gone.
        tcp.set_keepalive(Some(SILENT_AFTER));
        tcp.set_keepalive_interval(Some(ASKED.0));
        tcp.set_keepalive_retries(Some(ASKED.1));
        let stream = tcp.oneshot(url.clone()).await;
        let stream = stream.map_err(|error| io::Error::other(innermost(&error)))?;
        let Some(files) = tls else {
            return Self::over(stream).await;
        };
        let connector = TlsConnector::from(Arc::new(config(files).await?));
        // A literal IPv6 address has brackets in a URI and none in a certificate.
        let host = url.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let stream = connector.connect(name, stream.into_inner()).await?;
        Self::over(TokioIo::new(stream)).await
    }

    async fn over<S>(stream: S) -> Result<Self, ApiError>
    where
        S: Read + Write + Unpin + Send + 'static,
    {
        let (requests, connection) = http1::handshake(stream).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // Whoever waits for an answer is told as well.
            if let Err(error) = connection.await {
                debug!(%error, "A connection to Kubernetes broke");
            }
        });
        Ok(Self {
            requests,
            _driver: driver,
        })
    }

    /// Sends a request, and waits for the head of its answer.
    pub(super) async fn send(
        &mut self,
        request: Request<Empty<Bytes>>,
    ) -> Result<Response<Incoming>, ApiError> {
        self.requests.ready().await?;
        Ok(self.requests.send_request(request).await?)
    }
}

/// Reads the files, which may have been replaced since the last time.
async fn config(files: &TlsFiles) -> Result<ClientConfig, ApiError> {
    let mut roots = RootCertStore::empty();
    let wrong = |path: &std::path::Path, error: &dyn std::error::Error| ApiError::Tls {
        path: path.display().to_string(),
        error: error.to_string(),
    };
    let chain = async |path: &std::path::Path| {
        let text = secret::read(path).await?;
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        match all {
            Ok(all) if all.is_empty() => Err(wrong(path, &io::Error::other("no certificate"))),
            Ok(all) => Ok(all),
            Err(error) => Err(wrong(path, &error)),
        }
    };
    for root in chain(&files.ca).await? {
        roots.add(root).map_err(|error| wrong(&files.ca, &error))?;
    }
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&files.ca, &error))?
        .with_root_certificates(roots);
    let Some((certificate, key)) = &files.identity else {
        return Ok(config.with_no_client_auth());
    };
    let text = secret::read(key).await?;
    let secret = PrivateKeyDer::from_pem_slice(&text).map_err(|error| wrong(key, &error))?;
    let config = config.with_client_auth_cert(chain(certificate).await?, secret);
    config.map_err(|error| wrong(certificate, &error))
}
