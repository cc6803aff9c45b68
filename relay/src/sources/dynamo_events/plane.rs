//! How a publisher is heard, whatever carries its messages.

use bytes::Bytes;
use kvgrid_core::event::dynamo::Envelope;
use tracing::debug;

use super::nats::{Hub, Mailbox};
use crate::discovery::Transport;
use crate::sources::zmq::{Heard, Subscription};

/// All ways to hear publishers that there are here.
#[derive(Clone)]
pub(super) struct Plane {
    /// The site's NATS, where it is told.
    pub(super) nats: Option<Hub>,
}

/// Whom to listen to, and for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Voice {
    /// Its own id, which all its messages bear.
    pub(super) publisher: u64,
    pub(super) transport: Transport,
    pub(super) topic: &'static str,
}

impl Plane {
    /// Whether a publisher can be heard at all.
    pub(super) const fn hears(&self, transport: &Transport) -> bool {
        match transport {
            Transport::Zmq(_) => true,
            Transport::Nats(_) => self.nats.is_some(),
            Transport::Other(_) => false,
        }
    }

    /// Begins to listen, and goes on trying until it succeeds.
    pub(super) async fn listen(&self, voice: &Voice) -> Ear {
        match (&voice.transport, &self.nats) {
            (Transport::Zmq(endpoint), _) => {
                Ear::Zmq(Subscription::open(endpoint, voice.topic).await)
            }
            (Transport::Nats(prefix), Some(hub)) => {
                let subject = format!("{prefix}.{}", voice.topic);
                Ear::Nats(hub.open(voice.publisher, subject).await)
            }
            // Such a one is not followed: see `hears`.
            _ => std::future::pending().await,
        }
    }
}

/// A publisher that is listened to.
pub(super) enum Ear {
    Zmq(Subscription),
    Nats(Mailbox),
}

/// What is heard.
pub(super) enum Sound {
    Message(Message),
    /// Something that is no message.
    Noise,
    /// Nothing more, and some may be missed from here on.
    Disconnected,
}

impl Ear {
    /// Waits for what comes next. May be dropped while it waits: nothing is lost.
    pub(super) async fn hear(&mut self) -> Sound {
        match self {
            Self::Zmq(subscription) => match subscription.hear().await {
                Heard::Message(message) => Sound::Message(Message {
                    sequence: message.sequence,
                    bytes: message.payload,
                    framed: true,
                }),
                Heard::Noise => Sound::Noise,
                Heard::Disconnected => Sound::Disconnected,
            },
            Self::Nats(mailbox) => match mailbox.recv().await {
                Some((sequence, bytes)) => Sound::Message(Message {
                    sequence,
                    bytes,
                    framed: false,
                }),
                None => Sound::Disconnected,
            },
        }
    }
}

/// A message, not yet understood.
pub(super) struct Message {
    /// Its number, as its carrier says.
    pub(super) sequence: u64,
    pub(super) bytes: Bytes,
    /// Whether a frame is around it.
    pub(super) framed: bool,
}

impl Message {
    /// What it says of itself; `None` if that can't be read or contradicts its carrier.
    pub(super) fn envelope(&self) -> Option<Envelope<'_>> {
        let read = match self.framed {
            true => Envelope::from_frame(&self.bytes),
            false => Envelope::from_message(&self.bytes),
        };
        match read {
            Ok(envelope) => Some(envelope).filter(|e| e.sequence == self.sequence),
            Err(error) => {
                debug!(sequence = self.sequence, %error, "Message not understood");
                None
            }
        }
    }
}
