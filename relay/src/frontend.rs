//! Whether the frontend is there, and which models it lists.
//!
//! A frontend's death is not its workers': the site is not eligible while it is away, but what
//! its workers hold stays known.

use std::collections::BTreeSet;
use std::time::Duration;

use http::Uri;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};

use crate::fetch::{FetchError, Fetcher};

/// How long a frontend may take to list its models. A dead one refuses at once; one that is
/// only busy must not be taken for dead.
const PATIENCE: Duration = Duration::from_secs(2);

/// Most models that are taken note of.
const MODELS: usize = 1024;

/// What the frontend said last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Served {
    /// Whether it answered.
    pub(crate) reachable: bool,
    /// The models it listed; empty while it doesn't answer.
    pub(crate) models: BTreeSet<String>,
}

/// Asks a frontend over and over what it serves, and tells when that changes.
pub(crate) async fn watch_models(frontend: Uri, interval: Duration, served: watch::Sender<Served>) {
    let url = models_url(&frontend);
    let fetcher = Fetcher::new();
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let answer = fetcher.get(url.clone(), PATIENCE).await;
        let answer = answer
            .map_err(CheckError::from)
            .and_then(|body| parse(&body));
        served.send_if_modified(|last| note(last, &url, answer));
    }
}

/// Why a frontend counts as away.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    /// It gave no list.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// What it gave is no list of models.
    #[error("no list of models: {0}")]
    List(#[from] serde_json::Error),
}

#[derive(Deserialize)]
struct List {
    data: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    id: String,
}

fn parse(body: &[u8]) -> Result<BTreeSet<String>, CheckError> {
    let list: List = serde_json::from_slice(body)?;
    Ok(list
        .data
        .into_iter()
        .take(MODELS)
        .map(|model| model.id)
        .collect())
}

/// Updates what was last known, logs what changed, and says whether anything did.
fn note(last: &mut Served, url: &Uri, answer: Result<BTreeSet<String>, CheckError>) -> bool {
    let now = match answer {
        Ok(models) => Served {
            reachable: true,
            models,
        },
        Err(error) => {
            if last.reachable {
                warn!(%url, %error, "Frontend does not answer");
            }
            Served::default()
        }
    };
    if now == *last {
        return false;
    }
    if now.reachable {
        info!(%url, models = ?now.models, "Frontend serves");
    }
    *last = now;
    true
}

fn models_url(frontend: &Uri) -> Uri {
    let mut parts = frontend.clone().into_parts();
    parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/v1/models"));
    Uri::from_parts(parts).expect("an absolute address stays one with another path")
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;

    use super::*;

    /// Answers every connection's first request with this list, then closes it.
    async fn serve(listener: TcpListener, body: &'static str) {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = [0; 1024];
            let _ = stream.read(&mut head).await.unwrap();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    }

    const LIST: &str = r#"{"object":"list","data":[{"id":"tiny","object":"model"}]}"#;

    async fn watching(address: SocketAddr) -> (JoinSet<()>, watch::Receiver<Served>) {
        let url: Uri = format!("http://{address}").parse().unwrap();
        let (sender, receiver) = watch::channel(Served::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(watch_models(url, Duration::from_millis(10), sender));
        (tasks, receiver)
    }

    async fn until(served: &mut watch::Receiver<Served>, reachable: bool) -> Served {
        let reached = served.wait_for(|served| served.reachable == reachable);
        let reached = tokio::time::timeout(Duration::from_secs(20), reached).await;
        reached.expect("in time").unwrap().clone()
    }

    #[tokio::test]
    async fn a_frontend_that_dies_and_returns_is_noticed() {
        let listener = TcpListener::bind("127.0.7.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut frontend = JoinSet::new();
        frontend.spawn(serve(listener, LIST));
        let (_tasks, mut served) = watching(address).await;

        let alive = until(&mut served, true).await;
        frontend.shutdown().await;
        let dead = until(&mut served, false).await;
        frontend.spawn(serve(TcpListener::bind(address).await.unwrap(), LIST));
        let back = until(&mut served, true).await;

        assert_eq!(alive.models, BTreeSet::from(["tiny".to_owned()]));
        assert_eq!(dead, Served::default());
        assert_eq!(back, alive);
    }

    #[test]
    fn what_is_no_list_of_models_is_no_answer() {
        assert!(parse(b"<html>").is_err());
        assert!(parse(b"{\"data\":[{\"name\":\"x\"}]}").is_err());
        assert_eq!(parse(b"{\"data\":[]}").unwrap(), BTreeSet::new());
    }
}
