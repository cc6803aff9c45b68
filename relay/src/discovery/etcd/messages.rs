//! The messages of etcd's v3 API that are needed here, with the fields that are.

use prost::Message;

/// Who an answer is from, and as of when.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(int64, tag = "3")]
    pub(super) revision: i64,
}

/// Asks for the entries from a key up to another.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) limit: i64,
    /// As of when; now if zero.
    #[prost(int64, tag = "4")]
    pub(super) revision: i64,
}

/// Some of the entries that were asked for.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub(super) kvs: Vec<KeyValue>,
    /// Whether there are more than `limit`.
    #[prost(bool, tag = "3")]
    pub(super) more: bool,
}

/// An entry.
#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) value: Vec<u8>,
}

/// What a watch is told to do; here only to begin.
#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) create_request: Option<WatchCreateRequest>,
}

/// Asks for the changes of the entries from a key up to another.
#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchCreateRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    /// The first change that is wanted.
    #[prost(int64, tag = "3")]
    pub(super) start_revision: i64,
}

/// Some changes, or what became of the watch.
#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchResponse {
    #[prost(bool, tag = "4")]
    pub(super) canceled: bool,
    /// The first revision there still is, where the one wanted is no more.
    #[prost(int64, tag = "5")]
    pub(super) compact_revision: i64,
    #[prost(string, tag = "6")]
    pub(super) cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub(super) events: Vec<Event>,
}

/// A change.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    /// 0: written; 1: deleted.
    #[prost(int32, tag = "1")]
    pub(super) kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) kv: Option<KeyValue>,
}

impl Event {
    /// Whether the entry is gone, be it deleted or because its lease has ended.
    pub(super) const fn is_delete(&self) -> bool {
        self.kind == 1
    }
}

/// Asks for a token.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) password: String,
}

/// A token, to be shown with every further request.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub(super) token: String,
}
