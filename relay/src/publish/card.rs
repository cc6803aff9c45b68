//! Sends the cards that an edge asks for, one after the other, behind everything else.

use bytes::Bytes;
use kvgrid_core::view::CardDigest;
use kvgrid_proto::v1::CardHead;
use kvgrid_proto::v1::stream_head::Content;
use quinn::{Connection, WriteError};
use tokio::sync::mpsc;
use tracing::debug;

use super::Hub;
use super::feed::open;
use super::session::SessionError;

const PRIORITY: i32 = -20;

/// Sends until the session ends.
pub(super) async fn run(
    hub: Hub,
    connection: Connection,
    mut wanted: mpsc::Receiver<CardDigest>,
) -> Result<(), SessionError> {
    while let Some(digest) = wanted.recv().await {
        let card = hub.0.catalog.borrow().cards.get(&digest).cloned();
        match card {
            Some(card) => send(&connection, digest, card).await?,
            // The edge will see the next catalog.
            None => debug!(%digest, "Unknown card asked for"),
        }
    }
    Ok(())
}

async fn send(
    connection: &Connection,
    digest: CardDigest,
    card: Bytes,
) -> Result<(), SessionError> {
    let content = Content::Card(CardHead {
        digest: Bytes::copy_from_slice(&digest.0),
        length: card.len() as u64,
    });
    let mut stream = open(connection, PRIORITY, content).await?;
    match stream.write(card).await {
        Ok(()) => stream.finish(),
        Err(WriteError::Stopped(_)) => debug!(%digest, "Card not wanted any more"),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
