//! As much of etcd's v3 API as discovery needs, over gRPC.
//!
//! The messages are written down here because the clients there are compile etcd's own protocol
//! files with `protoc`.

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use http::uri::PathAndQuery;
use prost::Message;
use thiserror::Error;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::EtcdSettings;
use super::messages::{
    AuthenticateRequest, AuthenticateResponse, Event, KeyValue, RangeRequest, RangeResponse,
    WatchCreateRequest, WatchRequest, WatchResponse,
};
use crate::fetch::innermost;
use crate::secret::{SecretError, TlsFiles};

/// How long a connection, an answer or a sign of life may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often a silent etcd must show that it is there.
const PING: Duration = Duration::from_secs(5);

/// Entries of one answer. Of the largest that etcd takes unless told otherwise, 1.5 MB, a full
/// answer would be refused; usual ones have two thousand bytes.
const PAGE: i64 = 256;

/// Most bytes of a message.
const MESSAGE_BYTES: usize = 64 << 20;

/// Most entries that are read.
const ENTRIES: usize = 1 << 20;

/// Why etcd can't be followed. Nothing that was known before is wrong because of it.
#[derive(Debug, Error)]
pub(super) enum EtcdError {
    /// No connection.
    #[error("{}", innermost(.0))]
    Transport(#[from] tonic::transport::Error),
    /// It refuses, or the connection is lost.
    #[error("{}: {}", .0.code(), .0.message())]
    Status(Box<Status>),
    /// The password or a file of TLS can't be read.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// It gives a token that can't be shown.
    #[error("its token can't be used")]
    Token,
    /// It doesn't answer.
    #[error("no answer within {PATIENCE:?}")]
    Silent,
    /// The changes since the revision that was read are no more.
    #[error("compacted up to revision {0}")]
    Compacted(i64),
    /// It ended the watch.
    #[error("the watch ended: {0}")]
    Ended(String),
    /// More entries than can be meant.
    #[error("more than {ENTRIES} entries")]
    TooMany,
}

impl From<Status> for EtcdError {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

/// A connection to one member.
pub(super) struct Client {
    grpc: Grpc<Channel>,
    token: Option<MetadataValue<Ascii>>,
}

impl Client {
    /// Connects, and says who it is if that is wanted.
    pub(super) async fn connect(
        settings: &EtcdSettings,
        endpoint: &str,
    ) -> Result<Self, EtcdError> {
        let mut endpoint = Endpoint::from_shared(endpoint.to_owned())?
            .connect_timeout(PATIENCE)
            .http2_keep_alive_interval(PING)
            .keep_alive_timeout(PATIENCE)
            .keep_alive_while_idle(true);
        if let Some(files) = &settings.tls {
            endpoint = endpoint.tls_config(tls(files).await?)?;
        }
        let channel = timeout(PATIENCE, endpoint.connect()).await;
        let channel = channel.map_err(|_| EtcdError::Silent)??;
        let mut client = Self {
            grpc: Grpc::new(channel).max_decoding_message_size(MESSAGE_BYTES),
            token: None,
        };
        if let Some((name, password)) = &settings.user {
            let request = AuthenticateRequest {
                name: name.clone(),
                password: password.read().await?,
            };
            let path = PathAndQuery::from_static("/etcdserverpb.Auth/Authenticate");
            let answer: AuthenticateResponse = client.ask(request, path).await?;
            let token = answer.token.parse().map_err(|_| EtcdError::Token)?;
            client.token = Some(token);
        }
        Ok(client)
    }

    /// All entries whose keys begin like this, and the revision as of which.
    pub(super) async fn all(&mut self, prefix: &str) -> Result<(i64, Vec<KeyValue>), EtcdError> {
        let mut request = RangeRequest {
            key: prefix.into(),
            range_end: end_of(prefix),
            limit: PAGE,
            revision: 0,
        };
        let mut all: Vec<KeyValue> = Vec::new();
        loop {
            let path = PathAndQuery::from_static("/etcdserverpb.KV/Range");
            let page: RangeResponse = self.ask(request.clone(), path).await?;
            if request.revision == 0 {
                request.revision = page.header.map_or(0, |header| header.revision);
            }
            let more = page.more;
            all.extend(page.kvs);
            match all.last() {
                Some(last) if more => {
                    request.key = last.key.clone();
                    // The first key after it.
                    request.key.push(0);
                }
                _ => return Ok((request.revision, all)),
            }
            if all.len() > ENTRIES {
                return Err(EtcdError::TooMany);
            }
        }
    }

    /// Watches the entries whose keys begin like this, from a revision on.
    pub(super) async fn watch(mut self, prefix: &str, from: i64) -> Result<Watch, EtcdError> {
        let request = WatchRequest {
            create_request: Some(WatchCreateRequest {
                key: prefix.into(),
                range_end: end_of(prefix),
                start_revision: from,
            }),
        };
        // The watch lasts as long as its requests go on.
        let requests = stream::once(async { request }).chain(stream::pending());
        let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
        self.grpc.ready().await?;
        let request = self.signed(requests);
        let answer = self.grpc.streaming(request, path, ProstCodec::default());
        let answer = timeout(PATIENCE, answer).await;
        let answers = answer.map_err(|_| EtcdError::Silent)??.into_inner();
        Ok(Watch {
            answers,
            _client: self,
        })
    }

    async fn ask<Q, A>(&mut self, request: Q, path: PathAndQuery) -> Result<A, EtcdError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let answer = async {
            self.grpc.ready().await?;
            let request = self.signed(request);
            let answer = self.grpc.unary(request, path, ProstCodec::default());
            Ok(answer.await?.into_inner())
        };
        timeout(PATIENCE, answer)
            .await
            .map_err(|_| EtcdError::Silent)?
    }

    /// A member without a leader knows nothing new, and is to say so.
    fn signed<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let metadata = request.metadata_mut();
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            metadata.insert("token", token.clone());
        }
        request
    }
}

/// Changes as they happen.
pub(super) struct Watch {
    answers: Streaming<WatchResponse>,
    _client: Client,
}

impl Watch {
    /// Waits for the next ones. Silence may be long, but not that of the connection.
    pub(super) async fn next(&mut self) -> Result<Vec<Event>, EtcdError> {
        loop {
            let answer = self.answers.message().await?;
            let answer = answer.ok_or_else(|| EtcdError::Ended("no reason given".into()))?;
            if answer.compact_revision > 0 {
                return Err(EtcdError::Compacted(answer.compact_revision));
            }
            if answer.canceled {
                return Err(EtcdError::Ended(answer.cancel_reason));
            }
            if !answer.events.is_empty() {
                return Ok(answer.events);
            }
        }
    }
}

async fn tls(files: &TlsFiles) -> Result<ClientTlsConfig, SecretError> {
    let ca = Certificate::from_pem(crate::secret::read(&files.ca).await?);
    let mut tls = ClientTlsConfig::new().ca_certificate(ca);
    if let Some((certificate, key)) = &files.identity {
        let certificate = crate::secret::read(certificate).await?;
        tls = tls.identity(Identity::from_pem(
            certificate,
            crate::secret::read(key).await?,
        ));
    }
    Ok(tls)
}

/// The first key after all that begin like this.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        // Ours end in a slash.
        *last = last.saturating_add(1);
    }
    end
}
