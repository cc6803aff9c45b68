use std::path::{Path, PathBuf};

use super::*;

fn read(dir: &Path) -> Result<SiteCard, ConfigError> {
    let mut options = CardOptions::new("tiny", 16.try_into().unwrap());
    options.capacity_blocks = 2048;
    SiteCard::read(dir, &ModelName::new("tiny").unwrap(), &options)
}

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tiny-chat")
}

#[test]
fn a_card_is_what_its_digest_names() {
    let card = read(&fixture()).unwrap();

    let decoded = Card::decode(&card.bytes).unwrap();
    assert_eq!(decoded.digest(), card.info.digest.0);
    assert_eq!(decoded.model, "tiny");
    assert_eq!(card.info.block_size.get(), 16);
    assert_eq!(card.info.capacity_blocks, Some(2048));
}

#[test]
fn a_directory_without_a_tokenizer_is_refused_by_key() {
    let empty = tempfile::tempdir().unwrap();

    let error = read(empty.path()).unwrap_err().to_string();

    assert!(error.starts_with("card.dir: "), "{error}");
    assert!(error.contains("tokenizer.json"), "{error}");
}

mod discovered {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::sync::watch;
    use tokio::task::JoinSet;

    use super::*;
    use crate::discovery;
    use crate::discovery::tests::{Store, model_card};

    /// A worker's system port: the model's files.
    struct Worker {
        base: String,
        asked: Arc<AtomicUsize>,
        _server: JoinSet<()>,
    }

    impl Worker {
        async fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let base = format!("http://{}", listener.local_addr().unwrap());
            let asked = Arc::new(AtomicUsize::new(0));
            let mut server = JoinSet::new();
            server.spawn(serve(listener, Arc::clone(&asked)));
            Self {
                base,
                asked,
                _server: server,
            }
        }
    }

    async fn serve(listener: TcpListener, asked: Arc<AtomicUsize>) {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = [0; 1024];
            let length = stream.read(&mut head).await.unwrap();
            let head = String::from_utf8_lossy(&head[..length]).into_owned();
            let name = head.split(' ').nth(1).unwrap_or_default();
            let body = std::fs::read(fixture().join(&name[1..])).unwrap();
            asked.fetch_add(1, Ordering::Relaxed);
            let answer = format!(
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.write_all(&body).await.unwrap();
        }
    }

    /// A relay's search for a card.
    struct Search {
        reports: watch::Receiver<CardReport>,
        _tasks: JoinSet<()>,
    }

    impl Search {
        fn start(site: &Store, state: &Path) -> Self {
            let (sender, sightings) = watch::channel(None);
            let (reports, receiver) = watch::channel(CardReport::default());
            let wanted = Wanted {
                model: ModelName::new("tiny-chat").unwrap(),
                overrides: Overrides {
                    time_zone: Some("UTC".into()),
                    ..Overrides::default()
                },
                capacity_blocks: None,
                state: state.to_owned(),
            };
            let mut tasks = JoinSet::new();
            let model = wanted.model.clone();
            tasks.spawn(discovery::watch(site.settings(), model, sender));
            tasks.spawn(follow(wanted, sightings, reports));
            Self {
                reports: receiver,
                _tasks: tasks,
            }
        }

        async fn until(&mut self, state: CardState) -> CardReport {
            self.until_that(|report| report.state == state).await
        }

        async fn until_that(&mut self, is: impl Fn(&CardReport) -> bool) -> CardReport {
            let found = self.reports.wait_for(is);
            let found = tokio::time::timeout(Duration::from_secs(20), found).await;
            found.expect("in time").unwrap().clone()
        }
    }

    fn digest(report: &CardReport) -> CardDigest {
        report.card.as_ref().unwrap().info.digest
    }

    fn capacity(report: &CardReport) -> Option<u64> {
        report.card.as_ref()?.info.capacity_blocks
    }

    #[tokio::test]
    async fn a_card_is_the_workers_and_outlives_worker_and_relay() {
        let (site, state) = (Store::new(), tempfile::tempdir().unwrap());
        let worker = Worker::start().await;
        let mut search = Search::start(&site, state.path());

        let before = search.reports.borrow().state;
        site.register_model(7, &model_card(&worker.base));
        let found = search.until(CardState::Current).await;
        site.register_model(8, &model_card(&worker.base));
        let two = search.until_that(|r| capacity(r) == Some(4096)).await;
        site.remove_model(7);
        site.remove_model(8);
        let dead = search.until(CardState::Remembered).await;
        drop(search);
        let asked = worker.asked.load(Ordering::Relaxed);
        drop(worker);
        let mut again = Search::start(&site, state.path());
        let remembered = again.until(CardState::Remembered).await;

        assert_eq!(before, CardState::Missing);
        let mut options = CardOptions::new("tiny-chat", 16.try_into().unwrap());
        options.time_zone = Some("UTC".into());
        let expected = Card::from_model_dir(&fixture(), options).unwrap();
        assert_eq!(digest(&found).0, expected.digest(), "as from its directory");
        assert_eq!(capacity(&found), Some(2048));
        assert_eq!(digest(&two), digest(&found), "more workers, the same card");
        assert_eq!(digest(&dead), digest(&found));
        assert_eq!(digest(&remembered), digest(&found));
        assert_eq!(asked, 3, "each file was asked for once");
    }

    #[tokio::test]
    async fn a_card_that_changes_has_another_digest() {
        let (site, state) = (Store::new(), tempfile::tempdir().unwrap());
        let worker = Worker::start().await;
        let mut card = model_card(&worker.base);
        site.register_model(7, &card);
        let mut search = Search::start(&site, state.path());
        let first = search.until(CardState::Current).await;

        card["runtime_config"]["reasoning_parser"] = "qwen3".into();
        site.register_model(7, &card);
        let other = |r: &CardReport| r.card.is_some() && digest(r) != digest(&first);
        let second = search.until_that(other).await;

        assert_eq!(second.state, CardState::Current);
        let decoded = Card::decode(&second.card.unwrap().bytes).unwrap();
        assert_eq!(decoded.chat.reasoning_parser.as_deref(), Some("qwen3"));
    }

    #[tokio::test]
    async fn what_can_not_be_a_card_says_why_and_withdraws_the_old_one() {
        let (site, state) = (Store::new(), tempfile::tempdir().unwrap());
        let worker = Worker::start().await;
        let good = model_card(&worker.base);
        site.register_model(7, &good);
        let mut search = Search::start(&site, state.path());
        search.until(CardState::Current).await;

        let told = |change: &dyn Fn(&mut Value)| {
            let mut card = good.clone();
            change(&mut card);
            site.register_model(7, &card);
        };
        told(&|card| card["model_input"] = "Text".into());
        let text = search.until(CardState::Unsupported).await;
        let zeros = format!("blake3:{}", "0".repeat(64));
        told(&|card| card["model_info"]["hf_config_json"]["checksum"] = zeros.clone().into());
        let damaged = search.until(CardState::Unreachable).await;
        told(&|card| card["prompt_formatter"] = json!(null));
        let bare = search.until(CardState::Current).await;

        assert_eq!(text.card, None);
        let reason = text.reason.unwrap();
        assert_eq!(reason, "the engine takes \"Text\" instead of tokens");
        assert_eq!(damaged.card, None);
        assert!(damaged.reason.unwrap().contains("another checksum"));
        assert!(bare.card.is_some() && bare.reason.is_none());
    }
}
