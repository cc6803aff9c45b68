//! A site's event plane over NATS: one connection for all its publishers.
//!
//! All that the scope's endpoints publish is subscribed to from the start, so that a publisher
//! is heard from its first message on, even if discovery shows it a moment later: what comes
//! of publishers that nobody listens to yet is kept for a while. NATS has no memory either,
//! and drops what a slow reader doesn't take; both show up as gaps.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::{Client, ConnectOptions, Event, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::SelectAll;
use kvgrid_core::event::dynamo::Envelope;
use kvgrid_core::event::{Refusal, Refusals};
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::discovery::Scope;
use crate::retry::Retry;
use crate::secret::{Secret, SecretError, TlsFiles};
use crate::sources::{FeedId, SourceEvent};

mod pending;
mod subject;
#[cfg(test)]
mod tests;

use pending::Pending;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);

/// How often a silent server must show that it is there.
const PING: Duration = Duration::from_secs(5);

/// Messages of a subscription that wait for the hub; more are dropped, and missed by number.
const SUBSCRIPTION_CAPACITY: usize = 8192;

/// Messages that wait for their follower; while it is full, all others wait.
const MAILBOX_CAPACITY: usize = 64;

/// Followers that wait to be known here.
const JOIN_CAPACITY: usize = 64;

/// Most subjects beside those of the scope.
const SUBJECTS: usize = 1024;

/// Where a site's NATS is and how to get in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NatsSettings {
    /// Servers, `nats://host:port` or `tls://host:port`.
    pub(crate) servers: Vec<String>,
    /// Who to be, if they want to know.
    pub(crate) login: Option<NatsLogin>,
    /// Whom to trust beside those whom the system trusts.
    pub(crate) tls: Option<TlsFiles>,
}

/// Who the relay is to a NATS server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NatsLogin {
    /// A user.
    User {
        /// Its name.
        name: String,
        /// Its password.
        password: Secret,
    },
    /// Who has this token.
    Token(Secret),
    /// Who has these credentials, as `nsc` writes them.
    Credentials(Secret),
}

/// Messages of one publisher with their numbers. It ends with the connection.
pub(super) type Mailbox = mpsc::Receiver<(u64, Bytes)>;

/// The way to a running connection.
#[derive(Clone)]
pub(super) struct Hub {
    joins: mpsc::Sender<Join>,
    up: watch::Receiver<bool>,
}

struct Join {
    publisher: u64,
    subject: String,
    mailbox: mpsc::Sender<(u64, Bytes)>,
}

impl Hub {
    /// Listens to one publisher, as soon as there is a connection.
    pub(super) async fn open(&self, publisher: u64, subject: String) -> Mailbox {
        let (mailbox, messages) = mpsc::channel(MAILBOX_CAPACITY);
        let join = Join {
            publisher,
            subject,
            mailbox,
        };
        // Both fail only if the connection's task has ended, and then the mailbox ends as well.
        let _ = self.up.clone().wait_for(|up| *up).await;
        let _ = self.joins.send(join).await;
        messages
    }
}

/// Why there is no connection.
#[derive(Debug, Error)]
enum NatsError {
    /// None can be made.
    #[error(transparent)]
    Connect(#[from] async_nats::ConnectError),
    /// A subscription is refused.
    #[error(transparent)]
    Subscribe(#[from] async_nats::SubscribeError),
    /// What the relay needs to get in can't be read.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The credentials are none.
    #[error("credentials: {0}")]
    Credentials(std::io::Error),
    /// It broke, or the server refused something.
    #[error("disconnected")]
    Disconnected,
}

/// The task that has the connection.
pub(super) struct Connection {
    settings: NatsSettings,
    /// What is subscribed to from the start.
    subjects: Vec<String>,
    joins: mpsc::Receiver<Join>,
    up: watch::Sender<bool>,
    mailboxes: BTreeMap<u64, mpsc::Sender<(u64, Bytes)>>,
    pending: Pending,
    /// Where refusals are told, and of which feed.
    events: mpsc::Sender<SourceEvent>,
    feed: FeedId,
}

/// A connection that is up.
struct Link {
    client: Client,
    /// Ends with the connection.
    down: CancellationToken,
    messages: SelectAll<Subscriber>,
    subjects: Vec<String>,
}

impl Connection {
    /// A connection that is yet to be made, and the way to it.
    pub(super) fn new(
        settings: NatsSettings,
        scope: &Scope,
        topics: &[&str],
        (events, feed): (mpsc::Sender<SourceEvent>, FeedId),
    ) -> (Hub, Self) {
        let (joins, wanted) = mpsc::channel(JOIN_CAPACITY);
        let up = watch::Sender::new(false);
        let hub = Hub {
            joins,
            up: up.subscribe(),
        };
        let connection = Self {
            settings,
            subjects: topics
                .iter()
                .flat_map(|topic| subject::of_scope(scope, topic))
                .collect(),
            joins: wanted,
            up,
            mailboxes: BTreeMap::new(),
            pending: Pending::default(),
            events,
            feed,
        };
        (hub, connection)
    }

    /// Connects again and again, for ever.
    pub(super) async fn run(mut self) {
        let mut retry = Retry::of_service();
        let mut was_up = true;
        loop {
            let error = match self.connect().await {
                Ok(link) => {
                    retry.note_up();
                    info!("NATS connected");
                    was_up = true;
                    self.up.send_replace(true);
                    let error = self.serve(link).await;
                    self.up.send_replace(false);
                    self.mailboxes.clear();
                    self.pending = Pending::default();
                    error
                }
                Err(error) => error,
            };
            match std::mem::take(&mut was_up) {
                true => warn!(%error, "NATS is not there"),
                false => debug!(%error, "NATS is not there"),
            }
            sleep(retry.next_delay()).await;
        }
    }

    async fn connect(&self) -> Result<Link, NatsError> {
        let down = CancellationToken::new();
        let options = options(&self.settings, down.clone()).await?;
        let client = options.connect(&self.settings.servers).await?;
        let mut link = Link {
            client,
            down,
            messages: SelectAll::new(),
            subjects: Vec::new(),
        };
        for subject in &self.subjects {
            link.subscribe(subject).await?;
        }
        Ok(link)
    }

    /// Hands out messages until the connection breaks.
    async fn serve(&mut self, mut link: Link) -> NatsError {
        loop {
            // All arms may be dropped while they wait. Who joins comes first, for what it is
            // there to hear may be next.
            tokio::select! {
                biased;
                () = link.down.cancelled() => return NatsError::Disconnected,
                Some(join) = self.joins.recv() => {
                    if let Err(error) = self.join(join, &mut link).await {
                        return error;
                    }
                }
                message = link.messages.next() => match message {
                    Some(message) => self.hand_out(message.payload).await,
                    None => return NatsError::Disconnected,
                },
            }
        }
    }

    async fn join(&mut self, join: Join, link: &mut Link) -> Result<(), NatsError> {
        link.subscribe(&join.subject).await?;
        self.mailboxes.retain(|_, mailbox| !mailbox.is_closed());
        for message in self.pending.take(join.publisher) {
            // It fails only if its follower is gone.
            let _ = join.mailbox.send(message).await;
        }
        self.mailboxes.insert(join.publisher, join.mailbox);
        Ok(())
    }

    async fn hand_out(&mut self, bytes: Bytes) {
        let read = Envelope::from_message(&bytes).map(|e| (e.publisher, e.sequence));
        let (publisher, sequence) = match read {
            Ok(read) => read,
            Err(error) => {
                debug!(%error, "Message not understood");
                // Whose it was is not known; its next message will show that one is missing.
                let mut refused = Refusals::default();
                refused.count(Refusal::Malformed);
                let feed = self.feed;
                let _ = self
                    .events
                    .send(SourceEvent::Refused { feed, refused })
                    .await;
                return;
            }
        };
        let message = (sequence, bytes);
        let refused = match self.mailboxes.get(&publisher) {
            Some(mailbox) => mailbox.send(message).await.err(),
            None => Some(mpsc::error::SendError(message)),
        };
        if let Some(mpsc::error::SendError(message)) = refused {
            self.mailboxes.remove(&publisher);
            self.pending.put(publisher, message, Instant::now());
        }
    }
}

impl Link {
    /// Subscribes, unless what is subscribed to already covers it.
    async fn subscribe(&mut self, subject: &str) -> Result<(), NatsError> {
        if self
            .subjects
            .iter()
            .any(|all| subject::covers(all, subject))
        {
            return Ok(());
        }
        if self.subjects.len() >= SUBJECTS {
            warn!(subject, "Too many subjects: not subscribed to");
            return Ok(());
        }
        let subscriber = self.client.subscribe(subject.to_owned()).await?;
        self.messages.push(subscriber);
        self.subjects.push(subject.to_owned());
        Ok(())
    }
}

async fn options(
    settings: &NatsSettings,
    down: CancellationToken,
) -> Result<ConnectOptions, NatsError> {
    let mut options = match &settings.login {
        None => ConnectOptions::new(),
        Some(NatsLogin::User { name, password }) => {
            ConnectOptions::with_user_and_password(name.clone(), password.read().await?)
        }
        Some(NatsLogin::Token(token)) => ConnectOptions::with_token(token.read().await?),
        Some(NatsLogin::Credentials(credentials)) => {
            ConnectOptions::with_credentials(&credentials.read().await?)
                .map_err(NatsError::Credentials)?
        }
    };
    if let Some(files) = &settings.tls {
        options = options
            .require_tls(true)
            .add_root_certificates(files.ca.clone());
        if let Some((certificate, key)) = &files.identity {
            options = options.add_client_certificate(certificate.clone(), key.clone());
        }
    }
    Ok(options
        .name("kvgrid-relay")
        .connection_timeout(CONNECT)
        .ping_interval(PING)
        .subscription_capacity(SUBSCRIPTION_CAPACITY)
        // The library would go on with what it was told at first; secrets may have changed.
        .max_reconnects(1)
        .event_callback(move |event| {
            let down = down.clone();
            async move { note(&event, &down) }
        }))
}

/// A server's error may be that it refuses a subscription: then nothing would be heard of it.
fn note(event: &Event, down: &CancellationToken) {
    match event {
        Event::Connected | Event::LameDuckMode | Event::Draining => {}
        Event::SlowConsumer(_) => warn!("NATS messages dropped: the relay is too slow"),
        Event::Disconnected | Event::Closed => down.cancel(),
        Event::ServerError(error) => {
            warn!(%error, "NATS refuses");
            down.cancel();
        }
        Event::ClientError(error) => debug!(%error, "NATS"),
    }
}
