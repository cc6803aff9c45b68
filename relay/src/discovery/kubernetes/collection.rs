//! One collection of objects, followed: read whole, then watched from that version on.
//!
//! A watch that ends is taken up where it was, by the last version that it told: a change, or a
//! bookmark, by which the server says from where on it still can. Where that can't be, or where
//! a change can't be read, all is read anew. Then nothing has been missed, not even by a server
//! that has begun anew.

use std::marker::PhantomData;

use tokio::sync::mpsc;
use tokio::time::sleep;
use tracing::debug;

use super::api::{Api, ApiError};
use super::join::Heard;
use super::objects::{Bookmark, Object, Status, WatchEvent, WatchEventKind};
use super::{Collection, KubernetesSettings};
use crate::retry::Retry;

/// Most objects of a collection. One with more can't be read; what a watch adds beyond them is
/// passed over.
pub(super) const OBJECTS: usize = 65_536;

/// What a collection says of itself.
#[derive(Debug)]
pub(super) enum Told<T> {
    /// All objects there are; others are gone.
    All(Vec<T>),
    /// This one is new or has changed.
    Changed(T),
    /// The one of this name is gone.
    Gone(String),
    /// What was lost is followed again, and nothing was missed.
    Again,
    /// It can't be followed any more, for this reason.
    Lost(String),
}

impl<T> Told<T> {
    /// The same of what the objects say.
    pub(super) fn map<U>(self, say: impl FnMut(T) -> U) -> Told<U> {
        let mut say = say;
        match self {
            Self::All(objects) => Told::All(objects.into_iter().map(say).collect()),
            Self::Changed(object) => Told::Changed(say(object)),
            Self::Gone(name) => Told::Gone(name),
            Self::Again => Told::Again,
            Self::Lost(reason) => Told::Lost(reason),
        }
    }
}

/// Tells what a collection says, until nobody listens any more.
pub(super) async fn follow_collection<T: Object>(
    settings: &KubernetesSettings,
    collection: Collection,
    said: mpsc::Sender<Heard>,
    heard: fn(Told<T>) -> Heard,
) {
    let mut follower = Follower {
        api: Api::new(settings),
        collection,
        said,
        heard,
        version: None,
        is_lost: false,
        objects: PhantomData,
    };
    let mut retry = Retry::of_service();
    loop {
        let Err(error) = follower.attempt(|| retry.note_up()).await else {
            return;
        };
        if follower.end(&error).await.is_err() {
            return;
        }
        sleep(retry.next_delay()).await;
    }
}

/// A collection, and how far it has been followed.
struct Follower<'a, T> {
    api: Api<'a>,
    collection: Collection,
    said: mpsc::Sender<Heard>,
    heard: fn(Told<T>) -> Heard,
    /// Up to where all is told; `None` if all must be read.
    version: Option<String>,
    is_lost: bool,
    objects: PhantomData<T>,
}

/// Nobody listens any more.
#[derive(Debug)]
struct Closed;

impl<T: Object> Follower<'_, T> {
    /// Follows until something breaks; ends without an error when nobody listens any more.
    async fn attempt(&mut self, is_up: impl FnOnce()) -> Result<(), ApiError> {
        let mut connection = self.api.connect().await?;
        let version = match self.version.clone() {
            Some(version) => version,
            None => {
                let (version, all) = connection.all(&self.collection).await?;
                debug!(collection = %self.collection, version, objects = all.len(), "Listed");
                self.version = Some(version.clone());
                self.is_lost = false;
                if self.tell(Told::All(all)).await.is_err() {
                    return Ok(());
                }
                version
            }
        };
        let mut watch = connection.watch(&self.collection, &version).await?;
        is_up();
        if std::mem::take(&mut self.is_lost) && self.tell(Told::Again).await.is_err() {
            return Ok(());
        }
        loop {
            let line = watch.next().await?;
            let event: WatchEvent<'_> = serde_json::from_slice(&line)?;
            let (version, told) = read(&event)?;
            // An event that stays untold is told when the watch is taken up again.
            if let Some(told) = told
                && self.tell(told).await.is_err()
            {
                return Ok(());
            }
            self.version = Some(version);
        }
    }

    /// Takes note of what has ended an attempt.
    async fn end(&mut self, error: &ApiError) -> Result<(), Closed> {
        debug!(collection = %self.collection, %error, "A collection isn't followed any more");
        // A watch may end for no fault of anybody's; a list that fails is another thing.
        let is_usual = self.version.is_some() && error.is_usual();
        if error.spoils_version() {
            self.version = None;
        }
        if is_usual || std::mem::replace(&mut self.is_lost, true) {
            return Ok(());
        }
        let (url, collection) = (self.api.url(), &self.collection);
        let lost = Told::Lost(format!("{url}: {collection}: {error}"));
        self.tell(lost).await
    }

    async fn tell(&self, told: Told<T>) -> Result<(), Closed> {
        let heard = (self.heard)(told);
        self.said.send(heard).await.map_err(|_| Closed)
    }
}

/// What an event says, and up to which version all is told with it.
fn read<T: Object>(event: &WatchEvent<'_>) -> Result<(String, Option<Told<T>>), ApiError> {
    let object = event.object.get();
    let (version, told) = match event.kind {
        WatchEventKind::Bookmark => {
            let Bookmark { metadata } = serde_json::from_str(object)?;
            (metadata.resource_version, None)
        }
        WatchEventKind::Error => {
            let status: Status = serde_json::from_str(object)?;
            return Err(ApiError::of_watch(&status));
        }
        WatchEventKind::Added | WatchEventKind::Modified | WatchEventKind::Deleted => {
            let object: T = serde_json::from_str(object)?;
            let version = object.meta().resource_version.clone();
            let told = match event.kind {
                WatchEventKind::Deleted => Told::Gone(object.meta().name.clone()),
                _ => Told::Changed(object),
            };
            (version, Some(told))
        }
    };
    match version.is_empty() {
        true => Err(ApiError::NoVersion),
        false => Ok((version, told)),
    }
}
