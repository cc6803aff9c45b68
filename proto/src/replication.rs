//! Replication's messages on the wire: requests on the control stream, frames on a
//! subscription's stream, chunks on streams of their own.

use std::sync::Arc;

use bytes::Bytes;
use kvgrid_core::PoolId;
use kvgrid_core::filter::{Form, Geometry, Header};
use kvgrid_core::replication::{
    Announced, Begin, Chunk, Completeness, Delta, Digests, End, Epoch, Frame, Request, Resume, Seq,
    Status, SubscriptionId,
};

use crate::convert::{ConvertError, required};
use crate::v1;

/// A replica's request, as the edge writes it.
pub fn request_to_wire(pool: PoolId, request: Request) -> v1::edge_frame::Frame {
    match request {
        Request::Subscribe {
            subscription,
            form,
            resume,
        } => v1::edge_frame::Frame::Subscribe(v1::Subscribe {
            pool_id: pool.0,
            subscription: subscription.0,
            form: form_to_wire(form).into(),
            resume: resume.map(|resume| v1::Resume {
                epoch: resume.epoch.to_bits(),
                sequence: resume.seq.0,
                missing: resume.missing,
            }),
        }),
        Request::Audit { subscription } => v1::edge_frame::Frame::Audit(v1::Audit {
            pool_id: pool.0,
            subscription: subscription.0,
        }),
    }
}

/// A subscription, as the relay reads it.
pub fn subscribe_from_wire(wire: v1::Subscribe) -> Result<(PoolId, Request), ConvertError> {
    let resume = |wire: v1::Resume| {
        Ok(Resume {
            epoch: epoch(wire.epoch, "subscribe.resume.epoch")?,
            seq: Seq(wire.sequence),
            missing: wire.missing,
        })
    };
    let request = Request::Subscribe {
        subscription: SubscriptionId(wire.subscription),
        form: form_from_wire(&wire),
        resume: wire.resume.map(resume).transpose()?,
    };
    Ok((PoolId(wire.pool_id), request))
}

fn form_to_wire(form: Form) -> v1::Form {
    match form {
        Form::Filter => v1::Form::Filter,
        Form::Exact => v1::Form::Exact,
    }
}

/// Of an older edge a filter; what a newer one may want beyond these is answered with a filter
/// as well.
fn form_from_wire(wire: &v1::Subscribe) -> Form {
    match v1::Form::try_from(wire.form) {
        Ok(v1::Form::Exact) => Form::Exact,
        Ok(v1::Form::Filter) | Err(_) => Form::Filter,
    }
}

/// A request for digests, as the relay reads it.
pub fn audit_from_wire(wire: &v1::Audit) -> (PoolId, Request) {
    let subscription = SubscriptionId(wire.subscription);
    (PoolId(wire.pool_id), Request::Audit { subscription })
}

/// A frame, as the relay writes it.
pub fn frame_to_wire(frame: Frame) -> v1::PoolFrame {
    let frame = match frame {
        Frame::Begin(begin) => v1::pool_frame::Frame::Begin(begin_to_wire(begin)),
        Frame::Delta(delta) => v1::pool_frame::Frame::Delta(delta_to_wire(&delta)),
        Frame::Status(status) => v1::pool_frame::Frame::Status(status_to_wire(&status)),
        Frame::Digests(digests) => v1::pool_frame::Frame::Digests(v1::Digests {
            epoch: digests.epoch.to_bits(),
            sequence: digests.seq.0,
            digests: digests.digests,
        }),
        Frame::End(end) => v1::pool_frame::Frame::End(v1::SnapshotEnd {
            epoch: end.epoch.to_bits(),
            sequence: end.seq.0,
            digest: end.digest,
        }),
    };
    v1::PoolFrame { frame: Some(frame) }
}

/// A frame, as the edge reads it; `None` if it is of a kind that we don't know.
pub fn frame_from_wire(wire: v1::PoolFrame) -> Result<Option<Frame>, ConvertError> {
    let Some(frame) = wire.frame else {
        return Ok(None);
    };
    Ok(Some(match frame {
        v1::pool_frame::Frame::Begin(begin) => Frame::Begin(begin_from_wire(begin)?),
        v1::pool_frame::Frame::Delta(delta) => Frame::Delta(Arc::new(delta_from_wire(&delta)?)),
        v1::pool_frame::Frame::Status(status) => Frame::Status(status_from_wire(&status)?),
        v1::pool_frame::Frame::Digests(digests) => Frame::Digests(Digests {
            epoch: epoch(digests.epoch, "digests.epoch")?,
            seq: Seq(digests.sequence),
            digests: digests.digests,
        }),
        v1::pool_frame::Frame::End(end) => Frame::End(End {
            epoch: epoch(end.epoch, "snapshot end.epoch")?,
            seq: Seq(end.sequence),
            digest: end.digest,
        }),
    }))
}

/// A chunk, as the relay writes it.
pub fn chunk_to_wire(
    pool: PoolId,
    subscription: SubscriptionId,
    chunk: &Chunk,
) -> v1::SnapshotChunk {
    v1::SnapshotChunk {
        pool_id: pool.0,
        subscription: subscription.0,
        epoch: chunk.epoch.to_bits(),
        index: chunk.index,
        cut: chunk.cut.0,
        classes: copied(&chunk.classes),
        digest: chunk.digest,
    }
}

/// A chunk, as the edge reads it.
pub fn chunk_from_wire(
    wire: &v1::SnapshotChunk,
) -> Result<(PoolId, SubscriptionId, Chunk), ConvertError> {
    let chunk = Chunk {
        epoch: epoch(wire.epoch, "chunk.epoch")?,
        index: wire.index,
        cut: Seq(wire.cut),
        classes: Arc::from(wire.classes.as_ref()),
        digest: wire.digest,
    };
    let subscription = SubscriptionId(wire.subscription);
    Ok((PoolId(wire.pool_id), subscription, chunk))
}

fn begin_to_wire(begin: Begin) -> v1::SnapshotBegin {
    let header = begin.geometry.header();
    let (all, chunks) = match begin.chunks {
        Announced::All => (true, Vec::new()),
        Announced::Only(chunks) => (false, chunks),
    };
    v1::SnapshotBegin {
        epoch: begin.epoch.to_bits(),
        sequence: begin.seq.0,
        geometry: Some(v1::Geometry {
            chunks: header.chunks,
            chunk_buckets: header.chunk_buckets,
            slots: header.slots,
            fingerprint_bits: header.fingerprint_bits,
            key_id: header.key_id,
        }),
        all,
        chunks,
    }
}

fn begin_from_wire(wire: v1::SnapshotBegin) -> Result<Begin, ConvertError> {
    let geometry = required(wire.geometry, "snapshot begin.geometry")?;
    let header = Header {
        chunks: geometry.chunks,
        chunk_buckets: geometry.chunk_buckets,
        slots: geometry.slots,
        fingerprint_bits: geometry.fingerprint_bits,
        key_id: geometry.key_id,
    };
    Ok(Begin {
        epoch: epoch(wire.epoch, "snapshot begin.epoch")?,
        seq: Seq(wire.sequence),
        geometry: Geometry::from_header(header)
            .map_err(|error| ConvertError::invalid("snapshot begin.geometry", error))?,
        chunks: if wire.all {
            Announced::All
        } else {
            Announced::Only(wire.chunks)
        },
    })
}

fn delta_to_wire(delta: &Delta) -> v1::Delta {
    v1::Delta {
        epoch: delta.epoch.to_bits(),
        base: delta.base.0,
        sequence: delta.seq.0,
        adds: copied(&delta.adds),
        removes: copied(&delta.removes),
        digest: delta.digest,
    }
}

fn delta_from_wire(wire: &v1::Delta) -> Result<Delta, ConvertError> {
    Ok(Delta {
        epoch: epoch(wire.epoch, "delta.epoch")?,
        base: Seq(wire.base),
        seq: Seq(wire.sequence),
        adds: Arc::from(wire.adds.as_ref()),
        removes: Arc::from(wire.removes.as_ref()),
        digest: wire.digest,
    })
}

fn status_to_wire(status: &Status) -> v1::PoolStatus {
    let position = |(publisher, sequence): &(u64, u64)| v1::SourcePosition {
        publisher: *publisher,
        sequence: *sequence,
    };
    v1::PoolStatus {
        epoch: status.epoch.to_bits(),
        sequence: status.seq.0,
        completeness: completeness_to_wire(status.completeness).into(),
        all: status.all,
        applied: status.applied.iter().map(position).collect(),
    }
}

fn status_from_wire(wire: &v1::PoolStatus) -> Result<Status, ConvertError> {
    let position = |wire: &v1::SourcePosition| (wire.publisher, wire.sequence);
    Ok(Status {
        epoch: epoch(wire.epoch, "status.epoch")?,
        seq: Seq(wire.sequence),
        completeness: completeness_from_wire(wire.completeness()),
        all: wire.all,
        applied: wire.applied.iter().map(position).collect(),
    })
}

fn completeness_to_wire(completeness: Completeness) -> v1::Completeness {
    match completeness {
        Completeness::None => v1::Completeness::None,
        Completeness::Partial => v1::Completeness::Partial,
        Completeness::Incomplete => v1::Completeness::Incomplete,
        Completeness::Whole => v1::Completeness::Whole,
    }
}

/// What a newer relay calls otherwise promises nothing that we know.
fn completeness_from_wire(wire: v1::Completeness) -> Completeness {
    match wire {
        v1::Completeness::Unspecified | v1::Completeness::None => Completeness::None,
        v1::Completeness::Partial => Completeness::Partial,
        v1::Completeness::Incomplete => Completeness::Incomplete,
        v1::Completeness::Whole => Completeness::Whole,
    }
}

fn epoch(bits: u64, field: &'static str) -> Result<Epoch, ConvertError> {
    Epoch::from_bits(bits).ok_or_else(|| ConvertError::invalid(field, "0 names no epoch"))
}

fn copied(bytes: &Arc<[u8]>) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn epochs() -> impl Strategy<Value = Epoch> {
        (1..=u64::MAX).prop_map(|bits| Epoch::from_bits(bits).unwrap())
    }

    fn bytes() -> impl Strategy<Value = Arc<[u8]>> {
        prop::collection::vec(any::<u8>(), 0..64).prop_map(Arc::from)
    }

    fn forms() -> impl Strategy<Value = Form> {
        prop_oneof![Just(Form::Filter), Just(Form::Exact)]
    }

    fn geometries() -> impl Strategy<Value = Geometry> {
        (0..1_000_000_u64, any::<u64>(), forms())
            .prop_map(|(n, key, form)| Geometry::for_capacity(n, key).with_form(form))
    }

    fn announced() -> impl Strategy<Value = Announced> {
        let some = prop::collection::vec(any::<u32>(), 0..8).prop_map(Announced::Only);
        prop_oneof![Just(Announced::All), some]
    }

    fn completenesses() -> impl Strategy<Value = Completeness> {
        prop_oneof![
            Just(Completeness::None),
            Just(Completeness::Partial),
            Just(Completeness::Incomplete),
            Just(Completeness::Whole),
        ]
    }

    fn frames() -> impl Strategy<Value = Frame> {
        let begin = (epochs(), any::<u64>(), geometries(), announced()).prop_map(
            |(epoch, seq, geometry, chunks)| {
                Frame::Begin(Begin {
                    epoch,
                    seq: Seq(seq),
                    geometry,
                    chunks,
                })
            },
        );
        let delta = (epochs(), any::<[u64; 3]>(), bytes(), bytes()).prop_map(
            |(epoch, [base, seq, digest], adds, removes)| {
                Frame::Delta(Arc::new(Delta {
                    epoch,
                    base: Seq(base),
                    seq: Seq(seq),
                    adds,
                    removes,
                    digest,
                }))
            },
        );
        let applied = prop::collection::vec(any::<(u64, u64)>(), 0..4);
        let status = (
            epochs(),
            any::<u64>(),
            completenesses(),
            any::<bool>(),
            applied,
        )
            .prop_map(|(epoch, seq, completeness, all, applied)| {
                Frame::Status(Status {
                    epoch,
                    seq: Seq(seq),
                    completeness,
                    all,
                    applied,
                })
            });
        let digests = (
            epochs(),
            any::<u64>(),
            prop::collection::vec(any::<u64>(), 0..8),
        )
            .prop_map(|(epoch, seq, digests)| {
                Frame::Digests(Digests {
                    epoch,
                    seq: Seq(seq),
                    digests,
                })
            });
        let end = (epochs(), any::<u64>(), any::<u64>()).prop_map(|(epoch, seq, digest)| {
            Frame::End(End {
                epoch,
                seq: Seq(seq),
                digest,
            })
        });
        prop_oneof![begin, delta, status, digests, end]
    }

    fn requests() -> impl Strategy<Value = Request> {
        let missing = prop::collection::vec(any::<u32>(), 0..8);
        let resume = (epochs(), any::<u64>(), missing).prop_map(|(epoch, seq, missing)| Resume {
            epoch,
            seq: Seq(seq),
            missing,
        });
        let subscribe =
            (any::<u64>(), forms(), prop::option::of(resume)).prop_map(|(id, form, resume)| {
                Request::Subscribe {
                    subscription: SubscriptionId(id),
                    form,
                    resume,
                }
            });
        let audit = any::<u64>().prop_map(|id| Request::Audit {
            subscription: SubscriptionId(id),
        });
        prop_oneof![subscribe, audit]
    }

    proptest! {
        #[test]
        fn a_frame_survives_the_wire(frame in frames()) {
            let wire = frame_to_wire(frame.clone());

            prop_assert_eq!(frame_from_wire(wire).unwrap(), Some(frame));
        }

        #[test]
        fn a_chunk_survives_the_wire(
            epoch in epochs(), index: u32, cut: u64, classes in bytes(), digest: u64, pool: u64,
        ) {
            let chunk = Chunk { epoch, index, cut: Seq(cut), classes, digest };

            let id = SubscriptionId(digest ^ pool);
            let wire = chunk_to_wire(PoolId(pool), id, &chunk);

            prop_assert_eq!(chunk_from_wire(&wire).unwrap(), (PoolId(pool), id, chunk));
        }

        #[test]
        fn a_request_survives_the_wire(request in requests(), pool: u64) {
            let read = match request_to_wire(PoolId(pool), request.clone()) {
                v1::edge_frame::Frame::Subscribe(wire) => subscribe_from_wire(wire).unwrap(),
                v1::edge_frame::Frame::Audit(wire) => audit_from_wire(&wire),
                other => panic!("{other:?}"),
            };

            prop_assert_eq!(read, (PoolId(pool), request));
        }
    }

    #[test]
    fn a_form_that_nobody_names_or_knows_is_a_filter() {
        for form in [0, 99, -1] {
            let wire = v1::Subscribe {
                form,
                ..v1::Subscribe::default()
            };

            let (_, request) = subscribe_from_wire(wire).unwrap();

            let form = Form::Filter;
            let subscription = SubscriptionId(0);
            let expected = Request::Subscribe {
                subscription,
                form,
                resume: None,
            };
            assert_eq!(request, expected);
        }
    }

    #[test]
    fn a_geometry_that_makes_no_sense_is_refused_by_name() {
        let wire = v1::SnapshotBegin {
            epoch: 1,
            geometry: Some(v1::Geometry {
                chunks: 0,
                ..v1::Geometry::default()
            }),
            ..v1::SnapshotBegin::default()
        };

        let error = begin_from_wire(wire).unwrap_err().to_string();

        assert!(
            error.starts_with("snapshot begin.geometry: 0 chunks"),
            "{error}"
        );
    }
}
