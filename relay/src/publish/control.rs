//! What is said on the control stream: hello, then catalog, members, load and how pools are fed,
//! whenever they change.
//!
//! Only the latest of each is ever written. While the stream is blocked nothing gathers.

use std::sync::Arc;
use std::time::Duration;

use kvgrid_core::EdgeId;
use kvgrid_proto::frame::CONTROL_LIMIT;
use kvgrid_proto::v1::relay_frame::Frame;
use kvgrid_proto::v1::{self, RelayFrame};
use kvgrid_proto::{facts_to_wire, load_to_wire, members_to_wire, model_to_wire, pool_to_wire};
use kvgrid_runtime::frames::{WriteFrameError, write_frame};
use quinn::SendStream;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::session::SessionError;
use super::{Catalog, Hub, Pools};

/// Before everything else on the connection.
const PRIORITY: i32 = 30;
/// A changed load is told no more often than this.
const LOAD_PAUSE: Duration = Duration::from_millis(100);
/// An unchanged load is told as often as this, since an old one counts as unknown.
const LOAD_REPEAT: Duration = Duration::from_secs(1);

/// Writes to one edge until its stream ends.
pub(super) async fn run(
    hub: Hub,
    edge: EdgeId,
    mut stream: SendStream,
) -> Result<(), SessionError> {
    // It fails only on a stream that is closed, which the first write will say.
    let _ = stream.set_priority(PRIORITY);
    let mut catalogs = hub.0.catalog.subscribe();
    let mut pools = hub.0.pools.subscribe();
    let mut loads = hub.0.load.subscribe();
    let mut leaving = hub.0.leaving.subscribe();
    let mut members = hub.0.members.subscribe();
    let mut facts = hub.0.facts.subscribe();
    let hello = Frame::Hello(v1::RelayHello {
        software: concat!("kvgrid/", env!("CARGO_PKG_VERSION")).into(),
        incarnation: hub.0.config.incarnation,
    });
    write(&mut stream, hello).await?;
    catalogs.mark_changed();
    loads.mark_changed();
    members.mark_changed();
    facts.mark_changed();
    if *leaving.borrow() {
        leaving.mark_changed();
    }
    let now = Instant::now();
    let mut told_at = now.checked_sub(LOAD_PAUSE).unwrap_or(now);
    loop {
        // Waiting for a change is cancel safe. What readers must know soonest comes first. The
        // senders are in the hub, which this task holds, so none of them is ever gone.
        tokio::select! {
            biased;
            _ = leaving.changed() => {
                leaving.mark_unchanged();
                let reason = "the relay stops".into();
                write(&mut stream, Frame::Leaving(v1::Leaving { reason })).await?;
            }
            _ = async { tokio::select! { _ = catalogs.changed() => {}, _ = pools.changed() => {} } } => {
                let catalog = Arc::clone(&catalogs.borrow_and_update());
                let pools = Arc::clone(&pools.borrow_and_update());
                write(&mut stream, Frame::Catalog(wire_catalog(&catalog, &pools))).await?;
            }
            _ = members.changed() => {
                let members = Arc::clone(&members.borrow_and_update());
                let all = members.iter().map(|(relay, addresses)| (relay, addresses));
                for frame in members_to_wire(all) {
                    write(&mut stream, Frame::Members(frame)).await?;
                }
            }
            () = load_is_due(&mut loads, told_at) => {
                loads.mark_unchanged();
                told_at = Instant::now();
                write(&mut stream, Frame::Load(load_for(&hub, &edge))).await?;
            }
            _ = facts.changed() => {
                let facts = Arc::clone(&facts.borrow_and_update());
                let facts = facts_to_wire(&facts, hub.0.config.clock.now());
                write(&mut stream, Frame::Facts(facts)).await?;
            }
        }
    }
}

/// Waits until the load has changed and its pause is over, or until it has to be repeated.
async fn load_is_due(
    loads: &mut tokio::sync::watch::Receiver<kvgrid_core::load::LoadSample>,
    told_at: Instant,
) {
    tokio::time::sleep_until(told_at + LOAD_PAUSE).await;
    if !matches!(loads.has_changed(), Ok(false)) {
        return;
    }
    tokio::select! {
        _ = loads.changed() => {}
        () = tokio::time::sleep_until(told_at + LOAD_REPEAT) => {}
    }
}

/// The load as this edge has to see it.
fn load_for(hub: &Hub, edge: &EdgeId) -> v1::Load {
    let config = &hub.0.config;
    let now = config.clock.now();
    // The echo comes first: what it includes is then in the counts for certain.
    let echo = config.gateway.echo(edge, now);
    let mut sample = hub.0.load.borrow().clone();
    sample.gateway = config.gateway.load(now);
    sample.at = now;
    sample.echo = echo;
    load_to_wire(&sample, now)
}

fn wire_catalog(catalog: &Catalog, pools: &Pools) -> v1::Catalog {
    v1::Catalog {
        models: catalog.models.iter().map(model_to_wire).collect(),
        pools: pools
            .values()
            .map(|pool| pool_to_wire(&pool.view()))
            .collect(),
    }
}

async fn write(stream: &mut SendStream, frame: Frame) -> Result<(), SessionError> {
    let frame = RelayFrame { frame: Some(frame) };
    match write_frame(stream, &frame, CONTROL_LIMIT).await {
        Ok(()) => Ok(()),
        // Nothing was written, so the stream is still good, and the edge keeps what it knows.
        Err(WriteFrameError::Frame(error)) => {
            warn!(%error, "Too much to tell an edge in one frame");
            Ok(())
        }
        Err(error @ WriteFrameError::Stream(_)) => {
            debug!(%error, "Control stream ended");
            Err(error.into())
        }
    }
}
