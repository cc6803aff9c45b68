//! As much of Kubernetes' API as discovery needs: collections are listed in pages and watched.
//!
//! A client library there is needs fifty crates that nothing else here needs.

use std::time::Duration;

use bytes::Bytes;
use form_urlencoded::Serializer;
use http::header::{ACCEPT, AUTHORIZATION, HOST, USER_AGENT};
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::collection::OBJECTS;
use super::objects::{Page, Status};
use super::{Collection, KubernetesSettings};

mod connect;
mod error;
mod lines;

use connect::Link;
use lines::Lines;

pub(super) use error::ApiError;

/// How long a connection or an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a watch is asked to last. The server ends it then, and nothing is lost by that.
const WATCH: Duration = Duration::from_secs(300);

/// Objects of one page. Of the largest that Kubernetes takes, 1.5 MB, a full page would be
/// refused; usual ones have some ten thousand bytes.
const PAGE: usize = 256;

/// Most bytes of a page.
const PAGE_BYTES: usize = 64 << 20;

/// Most bytes of a refusal that are read; what is longer is named by its status alone.
const REFUSAL_BYTES: usize = 64 << 10;

/// A server, and who to be there.
pub(super) struct Api<'a> {
    settings: &'a KubernetesSettings,
}

impl<'a> Api<'a> {
    pub(super) fn new(settings: &'a KubernetesSettings) -> Self {
        Self { settings }
    }

    /// Where it is.
    pub(super) fn url(&self) -> &str {
        &self.settings.url
    }

    /// Connects.
    pub(super) async fn connect(&self) -> Result<Connection<'a>, ApiError> {
        let url: Uri = self.settings.url.parse()?;
        let host = url.authority().map(|authority| authority.as_str());
        let host = HeaderValue::from_str(host.unwrap_or_default()).map_err(http::Error::from)?;
        let link = Link::to(&url, self.settings.tls.as_ref());
        let link = timeout(PATIENCE, link).await;
        Ok(Connection {
            settings: self.settings,
            host,
            link: link.map_err(|_| ApiError::Silent(PATIENCE))??,
        })
    }
}

/// A connection to the server.
pub(super) struct Connection<'a> {
    settings: &'a KubernetesSettings,
    host: HeaderValue,
    link: Link,
}

impl Connection<'_> {
    /// All objects of a collection, and the version of it that they are.
    pub(super) async fn all<T: DeserializeOwned>(
        &mut self,
        collection: &Collection,
    ) -> Result<(String, Vec<T>), ApiError> {
        let (mut all, mut next) = (Vec::new(), String::new());
        loop {
            let mut query = vec![("limit", PAGE.to_string())];
            if !next.is_empty() {
                query.push(("continue", next));
            }
            let page: Page<T> = self.page(collection, query).await?;
            all.extend(page.items);
            if all.len() > OBJECTS {
                return Err(ApiError::TooMany);
            }
            next = page.metadata.next;
            if next.is_empty() {
                return match page.metadata.resource_version {
                    version if version.is_empty() => Err(ApiError::NoVersion),
                    version => Ok((version, all)),
                };
            }
        }
    }

    async fn page<T: DeserializeOwned>(
        &mut self,
        collection: &Collection,
        query: Vec<(&str, String)>,
    ) -> Result<Page<T>, ApiError> {
        let answer = async {
            let answer = self.get(collection, query).await?;
            let body = Limited::new(answer.into_body(), PAGE_BYTES);
            let whole = body.collect().await.map_err(ApiError::of_page)?;
            Ok(serde_json::from_slice(&whole.to_bytes())?)
        };
        let answer = timeout(PATIENCE, answer).await;
        answer.map_err(|_| ApiError::Silent(PATIENCE))?
    }

    /// Watches a collection from a version on.
    pub(super) async fn watch(
        mut self,
        collection: &Collection,
        version: &str,
    ) -> Result<Watch, ApiError> {
        let query = vec![
            ("watch", "1".to_owned()),
            ("allowWatchBookmarks", "true".to_owned()),
            ("resourceVersion", version.to_owned()),
            ("timeoutSeconds", WATCH.as_secs().to_string()),
        ];
        let answer = timeout(PATIENCE, self.get(collection, query)).await;
        let answer = answer.map_err(|_| ApiError::Silent(PATIENCE))??;
        Ok(Watch {
            lines: Lines::new(answer.into_body()),
            _link: self.link,
        })
    }

    async fn get(
        &mut self,
        collection: &Collection,
        query: Vec<(&str, String)>,
    ) -> Result<Response<Incoming>, ApiError> {
        let mut request = Request::get(target(collection, query))
            .header(HOST, self.host.clone())
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, "kvgrid-relay");
        if let Some(token) = &self.settings.token {
            let token = format!("Bearer {}", token.read().await?.trim());
            let mut token: HeaderValue = token.parse().map_err(|_| ApiError::Token)?;
            token.set_sensitive(true);
            request = request.header(AUTHORIZATION, token);
        }
        let answer = self.link.send(request.body(Empty::<Bytes>::new())?).await?;
        match answer.status() {
            StatusCode::OK => Ok(answer),
            status => Err(ApiError::refused(status, &message(answer).await)),
        }
    }
}

fn target(collection: &Collection, query: Vec<(&str, String)>) -> String {
    let selector = collection.selector.clone();
    let selector = selector.map(|selector| ("labelSelector", selector));
    let query = Serializer::new(String::new())
        .extend_pairs(query.into_iter().chain(selector))
        .finish();
    format!("{}?{query}", collection.path())
}

/// What the server says of its refusal, if it says something.
async fn message(answer: Response<Incoming>) -> String {
    let body = Limited::new(answer.into_body(), REFUSAL_BYTES);
    let whole = body.collect().await.map(|body| body.to_bytes());
    let status = whole.map(|whole| serde_json::from_slice(&whole).unwrap_or_default());
    let Status { message, .. } = status.unwrap_or_default();
    message
}

/// Changes as they happen.
pub(super) struct Watch {
    lines: Lines,
    _link: Link,
}

impl Watch {
    /// Waits for the next one, which stands in one line. A watch that has been silent for
    /// longer than it was to last is dead.
    pub(super) async fn next(&mut self) -> Result<Bytes, ApiError> {
        let patience = WATCH + PATIENCE;
        let line = timeout(patience, self.lines.next()).await;
        line.map_err(|_| ApiError::Silent(patience))?
    }
}
