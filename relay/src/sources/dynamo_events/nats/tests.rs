//! The hub against a server that speaks as much of NATS as it needs.

use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::*;

const INFO: &[u8] = b"INFO {\"server_id\":\"a\",\"version\":\"2.9.0\",\"proto\":1,\
    \"max_payload\":1048576,\"host\":\"a\",\"port\":1}\r\n";
const PATIENCE: Duration = Duration::from_secs(20);
const SUBJECT: &str = "namespace.prod.component.backend.endpoint.generate.kv-events";
const FEED: FeedId = FeedId {
    source: 0,
    endpoint: 0,
};

/// A server's end of one client's connection.
struct Server {
    client: OwnedWriteHalf,
    subscriptions: mpsc::Receiver<String>,
    _reader: JoinSet<()>,
}

impl Server {
    async fn accept(listener: &TcpListener) -> Self {
        let (stream, _) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
        let (reader, mut client) = TcpStream::into_split(stream);
        client.write_all(INFO).await.unwrap();
        let (told, subscriptions) = mpsc::channel(16);
        let (pongs, mut wanted) = mpsc::channel(16);
        let mut lines = BufReader::new(reader).lines();
        let mut task = JoinSet::new();
        task.spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                if line.starts_with("PING") {
                    pongs.send(()).await.unwrap();
                } else if line.starts_with("SUB") {
                    told.send(line).await.unwrap();
                }
            }
        });
        // The first ping is part of the handshake.
        wanted.recv().await.unwrap();
        client.write_all(b"PONG\r\n").await.unwrap();
        Self {
            client,
            subscriptions,
            _reader: task,
        }
    }

    /// Waits for a subscription, and gives its number.
    async fn subscribed(&mut self, subject: &str) -> String {
        loop {
            let line = timeout(PATIENCE, self.subscriptions.recv()).await;
            let line = line.expect("in time").unwrap();
            let words: Vec<_> = line.split_whitespace().collect();
            if words[1] == subject {
                return words[2].to_owned();
            }
        }
    }

    async fn publish(&mut self, subscription: &str, body: &[u8]) {
        let head = format!("MSG {SUBJECT} {subscription} {}\r\n", body.len());
        let message = [head.as_bytes(), body, b"\r\n"].concat();
        self.client.write_all(&message).await.unwrap();
    }
}

fn message(publisher: u64, sequence: u64) -> Vec<u8> {
    // A payload of bytes is told from a list by how it is written.
    let mut bytes = rmp_serde::to_vec_named(&json!({"publisher_id": publisher,
        "sequence": sequence, "published_at": 0, "topic": "kv-events"}))
    .unwrap();
    bytes[0] += 1;
    bytes.extend(b"\xa7payload\xc4\x00");
    bytes
}

struct Rig {
    listener: TcpListener,
    hub: Hub,
    events: mpsc::Receiver<SourceEvent>,
    _task: JoinSet<()>,
}

impl Rig {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let settings = NatsSettings {
            servers: vec![format!("nats://{}", listener.local_addr().unwrap())],
            login: None,
            tls: None,
        };
        let scope = Scope {
            namespace: "prod".into(),
            component: None,
            endpoint: None,
        };
        let (sender, events) = mpsc::channel(4);
        let (hub, connection) = Connection::new(settings, &scope, &["kv-events"], (sender, FEED));
        let mut task = JoinSet::new();
        task.spawn(connection.run());
        Self {
            listener,
            hub,
            events,
            _task: task,
        }
    }
}

const WIDE: &str = "namespace.prod.component.*.endpoint.*.kv-events";

async fn next(mailbox: &mut Mailbox) -> Option<u64> {
    let heard = timeout(PATIENCE, mailbox.recv()).await.expect("in time");
    heard.map(|(sequence, _)| sequence)
}

#[tokio::test]
async fn a_publisher_is_heard_from_before_anybody_listens_to_it() {
    let rig = Rig::start().await;
    let mut server = Server::accept(&rig.listener).await;
    let wide = server.subscribed(WIDE).await;

    for sequence in 0..3 {
        server.publish(&wide, &message(7, sequence)).await;
        server.publish(&wide, &message(8, sequence + 50)).await;
    }
    let mut mailbox = rig.hub.open(7, SUBJECT.to_owned()).await;
    server.publish(&wide, &message(7, 3)).await;
    let mut heard = Vec::new();
    for _ in 0..4 {
        heard.push(next(&mut mailbox).await.unwrap());
    }

    assert_eq!(heard, [0, 1, 2, 3]);
}

#[tokio::test]
async fn a_lost_connection_ends_mailboxes_and_is_made_anew() {
    let rig = Rig::start().await;
    let mut server = Server::accept(&rig.listener).await;
    let wide = server.subscribed(WIDE).await;
    let mut mailbox = rig.hub.open(7, SUBJECT.to_owned()).await;
    server.publish(&wide, &message(7, 0)).await;
    let before = next(&mut mailbox).await;

    drop(server);
    let end = next(&mut mailbox).await;
    let _server = answer_all(rig.listener, "namespace.odd.kv-events", message(7, 9));
    // The first may still be of a connection that the library gives up.
    let again = loop {
        let mut mailbox = rig.hub.open(7, "namespace.odd.kv-events".to_owned()).await;
        if let Some(sequence) = next(&mut mailbox).await {
            break sequence;
        }
    };

    assert_eq!((before, end, again), (Some(0), None, 9));
}

/// A server for any number of clients that tells each who subscribes to this one message.
fn answer_all(listener: TcpListener, subject: &'static str, body: Vec<u8>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut clients = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let body = body.clone();
            clients.spawn(async move {
                let (reader, mut client) = stream.into_split();
                let mut lines = BufReader::new(reader).lines();
                let _ = client.write_all(INFO).await;
                while let Ok(Some(line)) = lines.next_line().await {
                    let words: Vec<_> = line.split_whitespace().collect();
                    let answer = match words.as_slice() {
                        ["PING"] => b"PONG\r\n".to_vec(),
                        ["SUB", of, number] if *of == subject => {
                            let head = format!("MSG {of} {number} {}\r\n", body.len());
                            [head.as_bytes(), &body, b"\r\n"].concat()
                        }
                        _ => continue,
                    };
                    let _ = client.write_all(&answer).await;
                }
            });
        }
    });
    tasks
}

#[tokio::test]
async fn what_is_no_message_is_counted() {
    let mut rig = Rig::start().await;
    let mut server = Server::accept(&rig.listener).await;
    let wide = server.subscribed(WIDE).await;

    server.publish(&wide, b"\xc1").await;

    let told = timeout(PATIENCE, rig.events.recv()).await.expect("in time");
    let Some(SourceEvent::Refused { refused, .. }) = told else {
        panic!("{told:?}");
    };
    assert_eq!(refused.of(Refusal::Malformed), 1);
}
