//! Packets as bytes.
//!
//! ```text
//! version, kind, sender, its incarnation, receiver, kind's own, [count, updates]
//! sender           name, generation, addresses      (length-prefixed texts, big endian)
//! receiver         name, generation
//! kind's own       a probe's number, or the relay a probe is about and the number
//! update           name, generation, addresses, incarnation, state
//! ```
//!
//! Only senders and updates carry addresses: nothing is learnt from whom a packet is for.
//! Decoding takes no more memory than the packet's length allows, whatever it says of itself.

use bytes::{Buf, BufMut};
use foca::{Codec, Header, Member as Update, Message, State};
use thiserror::Error;

use super::address::{AddressError, Addresses};
use super::config::PACKET_BYTES;
use super::identity::{Identity, Member};
use crate::id::{NameError, RelayId};

/// The form of packets. Another one is refused whole.
const VERSION: u8 = 1;

/// Why bytes are no packet.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// The packet ends early.
    #[error("the packet ends early")]
    Short,
    /// Bytes are left after the last update.
    #[error("{0} bytes are left over")]
    Trailing(usize),
    /// The packet is of another version.
    #[error("version {0} is unknown")]
    Version(u8),
    /// The kind of message is unknown, or one that is never sent.
    #[error("message kind {0} is unknown")]
    Kind(u8),
    /// An update has an unknown state.
    #[error("state {0} is unknown")]
    State(u8),
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
    /// A relay's name is not one.
    #[error(transparent)]
    Name(#[from] NameError),
    /// An address is not one.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// What is encoded doesn't fit the space that is left; the sender stops there.
    #[error("no room")]
    Full,
}

/// The codec that foca drives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire;

impl Codec<Identity> for Wire {
    type Error = WireError;

    fn encode_header(
        &mut self,
        header: &Header<Identity>,
        buf: impl BufMut,
    ) -> Result<(), WireError> {
        let mut bytes = Vec::with_capacity(256);
        bytes.put_u8(VERSION);
        bytes.put_u8(kind(&header.message)?);
        put_member(&mut bytes, &header.src);
        bytes.put_u16(header.src_incarnation);
        put_name(&mut bytes, &header.dst);
        put_message(&mut bytes, &header.message);
        put_all(&bytes, buf)
    }

    fn decode_header(&mut self, mut buf: impl Buf) -> Result<Header<Identity>, WireError> {
        let [version, kind] = take(&mut buf)?;
        if version != VERSION {
            return Err(WireError::Version(version));
        }
        Ok(Header {
            src: take_member(&mut buf)?,
            src_incarnation: u16::from_be_bytes(take(&mut buf)?),
            dst: take_name(&mut buf)?,
            message: take_message(kind, &mut buf)?,
        })
    }

    fn encode_member(
        &mut self,
        update: &Update<Identity>,
        buf: impl BufMut,
    ) -> Result<(), WireError> {
        let mut bytes = Vec::with_capacity(128);
        put_member(&mut bytes, update.id());
        bytes.put_u16(update.incarnation());
        bytes.put_u8(match update.state() {
            State::Alive => 0,
            State::Suspect => 1,
            State::Down => 2,
        });
        put_all(&bytes, buf)
    }

    fn decode_member(&mut self, mut buf: impl Buf) -> Result<Update<Identity>, WireError> {
        let identity = take_member(&mut buf)?;
        let incarnation = u16::from_be_bytes(take(&mut buf)?);
        let [state] = take(&mut buf)?;
        let state = match state {
            0 => State::Alive,
            1 => State::Suspect,
            2 => State::Down,
            unknown => return Err(WireError::State(unknown)),
        };
        Ok(Update::new(identity, incarnation, state))
    }
}

/// A whole packet, known to be well formed.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) header: Header<Identity>,
    pub(super) updates: Vec<Update<Identity>>,
}

impl Packet {
    pub(super) fn decode(mut bytes: &[u8]) -> Result<Self, WireError> {
        let header = Wire.decode_header(&mut bytes)?;
        let mut updates = Vec::new();
        if !bytes.is_empty() {
            for _ in 0..u16::from_be_bytes(take(&mut bytes)?) {
                updates.push(Wire.decode_member(&mut bytes)?);
            }
        }
        let bare = matches!(header.message, Message::Announce);
        if !bytes.is_empty() || (bare && !updates.is_empty()) {
            return Err(WireError::Trailing(bytes.len()));
        }
        Ok(Self { header, updates })
    }

    /// The packet's bytes, with as many of its updates as fit.
    pub(super) fn encode(&self) -> Result<Vec<u8>, WireError> {
        let mut buf = Vec::with_capacity(PACKET_BYTES).limit(PACKET_BYTES);
        Wire.encode_header(&self.header, &mut buf)?;
        if self.header.message == Message::Announce {
            return Ok(buf.into_inner());
        }
        let at = buf.get_ref().len();
        put_all(&[0, 0], &mut buf)?;
        let fitting = self
            .updates
            .iter()
            .take_while(|update| Wire.encode_member(update, &mut buf).is_ok());
        let count = u16::try_from(fitting.count()).map_err(|_| WireError::Full)?;
        let mut bytes = buf.into_inner();
        bytes[at..at + 2].copy_from_slice(&count.to_be_bytes());
        Ok(bytes)
    }
}

/// The relay that a message is about, beside its sender and receiver.
pub(super) const fn third_party(message: &Message<Identity>) -> Option<&Identity> {
    match message {
        Message::PingReq { target: about, .. }
        | Message::IndirectPing { origin: about, .. }
        | Message::IndirectAck { target: about, .. }
        | Message::ForwardedAck { origin: about, .. } => Some(about),
        Message::Ping(_)
        | Message::Ack(_)
        | Message::Announce
        | Message::Feed
        | Message::Gossip
        | Message::Broadcast
        | Message::TurnUndead => None,
    }
}

const fn kind(message: &Message<Identity>) -> Result<u8, WireError> {
    Ok(match message {
        Message::Ping(_) => 1,
        Message::Ack(_) => 2,
        Message::PingReq { .. } => 3,
        Message::IndirectPing { .. } => 4,
        Message::IndirectAck { .. } => 5,
        Message::ForwardedAck { .. } => 6,
        Message::Announce => 7,
        Message::Feed => 8,
        Message::Gossip => 9,
        Message::TurnUndead => 10,
        // We have no broadcasts of our own.
        Message::Broadcast => return Err(WireError::Kind(0)),
    })
}

fn put_message(bytes: &mut Vec<u8>, message: &Message<Identity>) {
    if let Some(about) = third_party(message) {
        put_name(bytes, about);
    }
    match message {
        Message::Ping(number)
        | Message::Ack(number)
        | Message::PingReq {
            probe_number: number,
            ..
        }
        | Message::IndirectPing {
            probe_number: number,
            ..
        }
        | Message::IndirectAck {
            probe_number: number,
            ..
        }
        | Message::ForwardedAck {
            probe_number: number,
            ..
        } => bytes.put_u8(*number),
        Message::Announce
        | Message::Feed
        | Message::Gossip
        | Message::Broadcast
        | Message::TurnUndead => {}
    }
}

fn take_message(kind: u8, buf: &mut impl Buf) -> Result<Message<Identity>, WireError> {
    let number = |buf: &mut _| take(buf).map(|[number]| number);
    Ok(match kind {
        1 => Message::Ping(number(buf)?),
        2 => Message::Ack(number(buf)?),
        3 => Message::PingReq {
            target: take_name(buf)?,
            probe_number: number(buf)?,
        },
        4 => Message::IndirectPing {
            origin: take_name(buf)?,
            probe_number: number(buf)?,
        },
        5 => Message::IndirectAck {
            target: take_name(buf)?,
            probe_number: number(buf)?,
        },
        6 => Message::ForwardedAck {
            origin: take_name(buf)?,
            probe_number: number(buf)?,
        },
        7 => Message::Announce,
        8 => Message::Feed,
        9 => Message::Gossip,
        10 => Message::TurnUndead,
        unknown => return Err(WireError::Kind(unknown)),
    })
}

fn put_name(bytes: &mut Vec<u8>, identity: &Identity) {
    put_text(bytes, identity.0.relay.as_str());
    bytes.put_u64(identity.0.generation);
}

fn put_member(bytes: &mut Vec<u8>, identity: &Identity) {
    put_name(bytes, identity);
    let addresses = identity.0.addresses.iter();
    bytes.put_u8(u8::try_from(addresses.len()).unwrap_or(u8::MAX));
    for (scope, address) in addresses {
        put_text(bytes, scope.as_str());
        put_text(bytes, address);
    }
}

/// Names, scopes and addresses are far shorter than 256 bytes by construction.
fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.put_u8(u8::try_from(text.len()).unwrap_or(u8::MAX));
    bytes.put_slice(text.as_bytes());
}

fn put_all(bytes: &[u8], mut buf: impl BufMut) -> Result<(), WireError> {
    if buf.remaining_mut() < bytes.len() {
        return Err(WireError::Full);
    }
    buf.put_slice(bytes);
    Ok(())
}

/// An identity without its addresses.
fn take_name(buf: &mut impl Buf) -> Result<Identity, WireError> {
    let mut space = [0; 255];
    let relay = RelayId::new(take_text(buf, &mut space)?)?;
    Ok(Identity(Member {
        relay,
        generation: u64::from_be_bytes(take(buf)?),
        addresses: Addresses::none(),
    }))
}

fn take_member(buf: &mut impl Buf) -> Result<Identity, WireError> {
    let mut identity = take_name(buf)?;
    let [count] = take(buf)?;
    let mut entries = Vec::new();
    for _ in 0..count {
        let (mut scope, mut address) = ([0; 255], [0; 255]);
        entries.push((
            take_text(buf, &mut scope)?.to_owned(),
            take_text(buf, &mut address)?.to_owned(),
        ));
    }
    let entries = entries.iter().map(|(s, a)| (s.as_str(), a.as_str()));
    identity.0.addresses = Addresses::new(entries)?;
    Ok(identity)
}

fn take_text<'a>(buf: &mut impl Buf, space: &'a mut [u8; 255]) -> Result<&'a str, WireError> {
    let [length] = take(buf)?;
    let text = &mut space[..usize::from(length)];
    buf.try_copy_to_slice(text).map_err(|_| WireError::Short)?;
    str::from_utf8(text).map_err(|_| WireError::Text)
}

fn take<const N: usize>(buf: &mut impl Buf) -> Result<[u8; N], WireError> {
    let mut bytes = [0; N];
    buf.try_copy_to_slice(&mut bytes)
        .map_err(|_| WireError::Short)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
