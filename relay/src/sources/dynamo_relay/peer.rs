//! The peer's calls, and what every message of it must have.

use std::time::Duration;

use kvgrid_core::event::Refusal;
use thiserror::Error;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

use super::v1::kv_event_relay_client::KvEventRelayClient;
use super::v1::{self, ProducerIdentity, RelayIdentity};
use crate::config::PeerSettings;

/// What marks all messages of the contract.
pub(super) const MARKER: u32 = 0x4b56_5231;
/// The only version of the protocol.
pub(super) const VERSION: u32 = 1;
/// The trailer by which the peer says why it has ended a call.
const REASON: &str = "kv-relay-error-reason";
/// How we call ourselves in the peer's log.
const SUBSCRIBER: &str = "kvgrid-relay";

const CONNECT: Duration = Duration::from_secs(5);
/// How long an answer that is no stream may take, or a stream to begin.
const ANSWER: Duration = Duration::from_secs(10);
/// A connection on which nothing comes is asked whether it is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// What may be under way of a stream, so that a snapshot needs few round trips.
const WINDOW: u32 = 4 << 20;

/// Why a call has ended, in a word for metrics and a text for people.
#[derive(Debug, Error)]
#[error("{reason}: {detail}")]
pub(super) struct End {
    /// One of few words.
    pub(super) reason: &'static str,
    detail: String,
    /// What was refused, if we have ended it.
    pub(super) refusal: Option<Refusal>,
}

impl End {
    /// We have ended it, for something in it is refused.
    pub(super) fn refused(refusal: Refusal, detail: &impl ToString) -> Self {
        Self {
            reason: refusal.name(),
            detail: detail.to_string(),
            refusal: Some(refusal),
        }
    }

    /// It has ended for another reason.
    pub(super) fn other(reason: &'static str, detail: &impl ToString) -> Self {
        Self {
            reason,
            detail: detail.to_string(),
            refusal: None,
        }
    }

    /// The peer was silent for too long.
    pub(super) fn silent() -> Self {
        Self::other("silent", &"nothing was heard for too long")
    }
}

impl From<Status> for End {
    /// The trailer says the reason; without one, or with one not known here, the status does.
    fn from(status: Status) -> Self {
        let trailer = status.metadata().get(REASON);
        let told = trailer.and_then(|value| value.to_str().ok());
        let reason = told.and_then(reason_word);
        Self::other(
            reason.unwrap_or_else(|| status_word(status.code())),
            &format!("{told:?} {status}"),
        )
    }
}

fn reason_word(name: &str) -> Option<&'static str> {
    Some(match name {
        "RELAY_ERROR_REASON_CONTRACT_MISMATCH" => "contract_mismatch",
        "RELAY_ERROR_REASON_INVALID_REQUEST" => "invalid_request",
        "RELAY_ERROR_REASON_UNSUPPORTED_FEATURE" => "unsupported_feature",
        "RELAY_ERROR_REASON_POOL_NOT_FOUND" => "pool_not_found",
        "RELAY_ERROR_REASON_PRODUCER_CHANGED" => "producer_changed",
        "RELAY_ERROR_REASON_RESOURCE_LIMIT" => "resource_limit",
        "RELAY_ERROR_REASON_SUBSCRIBER_LAGGED" => "subscriber_lagged",
        "RELAY_ERROR_REASON_SNAPSHOT_PROGRESS_TIMEOUT" => "snapshot_progress_timeout",
        "RELAY_ERROR_REASON_PUBLICATION_UNAVAILABLE" => "publication_unavailable",
        "RELAY_ERROR_REASON_INVALID_PUBLICATION" => "invalid_publication",
        "RELAY_ERROR_REASON_INTERNAL" => "internal",
        _ => return None,
    })
}

const fn status_word(code: Code) -> &'static str {
    match code {
        Code::Unavailable => "unavailable",
        Code::Unimplemented => "unimplemented",
        // Mostly a message over our bound.
        Code::OutOfRange | Code::ResourceExhausted => "too_large",
        Code::DeadlineExceeded | Code::Cancelled => "cancelled",
        _ => "failed",
    }
}

/// Dynamo's relay; clones share a connection, which is made when it is needed.
#[derive(Clone)]
pub(super) struct Peer {
    client: KvEventRelayClient<Channel>,
}

impl Peer {
    pub(super) fn new(settings: &PeerSettings) -> Result<Self, tonic::transport::Error> {
        let channel = Endpoint::from_shared(settings.url.to_string())?
            .connect_timeout(CONNECT)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .connect_lazy();
        let client = KvEventRelayClient::new(channel);
        Ok(Self {
            client: client.max_decoding_message_size(settings.message_bytes),
        })
    }

    /// Asks who it is.
    pub(super) async fn info(&mut self) -> Result<RelayIdentity, End> {
        let request = v1::RelayInfoRequest {
            contract_marker: MARKER,
        };
        let info = in_time(self.client.get_relay_info(request)).await?;
        check(info.contract_marker, info.protocol_version, info.relay)
    }

    /// Its pools, whenever they change.
    pub(super) async fn catalog(&mut self) -> Result<Streaming<v1::KvPoolCatalogUpdate>, End> {
        let request = v1::WatchKvPoolCatalogRequest {
            subscriber_id: SUBSCRIBER.to_owned(),
            contract_marker: MARKER,
        };
        in_time(self.client.watch_kv_pool_catalog(request)).await
    }

    /// One life of one pool's filter.
    pub(super) async fn pool(
        &mut self,
        producer: ProducerIdentity,
    ) -> Result<Streaming<v1::FilterUpdate>, End> {
        let request = v1::SubscribeKvPoolRequest {
            subscriber_id: SUBSCRIBER.to_owned(),
            expected_producer: Some(producer),
            contract_marker: MARKER,
        };
        in_time(self.client.subscribe_kv_pool(request)).await
    }

    /// Which models it finds served.
    pub(super) async fn readiness(&mut self) -> Result<Streaming<v1::ServingReadinessUpdate>, End> {
        let request = v1::SubscribeServingReadinessRequest {
            subscriber_id: SUBSCRIBER.to_owned(),
            contract_marker: MARKER,
        };
        in_time(self.client.subscribe_serving_readiness(request)).await
    }

    /// How full its pools are.
    pub(super) async fn load(&mut self) -> Result<Streaming<v1::KvPoolLoadUpdate>, End> {
        let request = v1::SubscribeKvPoolLoadRequest {
            subscriber_id: SUBSCRIBER.to_owned(),
            contract_marker: MARKER,
        };
        in_time(self.client.subscribe_kv_pool_load(request)).await
    }
}

/// Checks what every message has; gives who says it.
pub(super) fn check(
    marker: u32,
    version: u32,
    relay: Option<RelayIdentity>,
) -> Result<RelayIdentity, End> {
    if marker != MARKER {
        let detail = format!("marker {marker:#x} is not {MARKER:#x}");
        return Err(End::refused(Refusal::Contract, &detail));
    }
    if version != VERSION {
        let detail = format!("protocol version {version} is not {VERSION}");
        return Err(End::refused(Refusal::Contract, &detail));
    }
    relay.ok_or_else(|| End::refused(Refusal::Malformed, &"it does not say who speaks"))
}

/// The next message, in so long.
pub(super) async fn next<T>(stream: &mut Streaming<T>, patience: Duration) -> Result<T, End> {
    match timeout(patience, stream.message()).await {
        Err(_) => Err(End::silent()),
        Ok(message) => ended(message),
    }
}

/// A message, or why there is none.
pub(super) fn ended<T>(message: Result<Option<T>, Status>) -> Result<T, End> {
    message?.ok_or_else(|| End::other("finished", &"the peer has ended the stream"))
}

async fn in_time<T>(
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, End> {
    match timeout(ANSWER, call).await {
        Err(_) => Err(End::silent()),
        Ok(answer) => Ok(answer?.into_inner()),
    }
}
