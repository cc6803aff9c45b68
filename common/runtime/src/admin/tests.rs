use std::sync::atomic::{AtomicBool, Ordering};

use prometheus_client::metrics::counter::Counter;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::http::listen;

/// A running admin server, spoken to in raw bytes.
struct Served {
    address: std::net::SocketAddr,
    tasks: Tasks,
}

impl Served {
    fn start(admin: Admin) -> Self {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let tasks = Tasks::new();
        tasks.spawn("admin", admin.serve(listener, tasks.clone()));
        Self { address, tasks }
    }

    async fn ask(&self, method: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn get(&self, path: &str) -> String {
        self.ask("GET", path).await
    }
}

fn admin() -> Admin {
    Admin::new(Health::new(|| Ok(())), Arc::new(Registry::default()))
}

#[tokio::test]
async fn readiness_is_asked_each_time_and_says_what_is_missing() {
    let open = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&open);
    let health = Health::new(move || match asked.load(Ordering::SeqCst) {
        true => Ok(()),
        false => Err("no site is in view".into()),
    });
    let served = Served::start(Admin::new(health, Arc::new(Registry::default())));

    let before = served.get("/readyz").await;
    open.store(true, Ordering::SeqCst);

    assert!(before.starts_with("HTTP/1.1 503 "), "{before}");
    assert!(before.ends_with("\r\n\r\nno site is in view\n"), "{before}");
    assert!(served.get("/readyz").await.starts_with("HTTP/1.1 200 "));
    assert!(served.get("/livez").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn metrics_are_shown_as_they_are_now() {
    let mut registry = Registry::with_prefix("kvgrid");
    let requests = Counter::<u64>::default();
    registry.register("requests", "Requests", requests.clone());
    let served = Served::start(Admin::new(Health::new(|| Ok(())), Arc::new(registry)));

    requests.inc();

    let page = served.get("/metrics").await;
    assert!(page.contains("\nkvgrid_requests_total 1\n"), "{page}");
}

#[tokio::test]
async fn a_daemon_adds_its_own_pages() {
    let admin = admin().route("/echo", |head| {
        json(
            StatusCode::OK,
            head.uri.query().unwrap_or_default().to_owned(),
        )
    });
    let served = Served::start(admin);

    let page = served.get("/echo?a=b").await;

    assert!(page.contains("content-type: application/json"), "{page}");
    assert!(page.ends_with("\r\n\r\na=b"), "{page}");
}

#[tokio::test]
async fn other_paths_and_methods_are_refused() {
    let served = Served::start(admin());

    assert!(served.get("/").await.starts_with("HTTP/1.1 404 "));
    let post = served.ask("POST", "/livez").await;
    assert!(post.starts_with("HTTP/1.1 405 "), "{post}");
    assert!(post.contains("allow: GET, HEAD"), "{post}");
}

#[tokio::test]
async fn an_idle_connection_does_not_hold_up_the_end() {
    let served = Served::start(admin());
    let mut idle = TcpStream::connect(served.address).await.unwrap();
    idle.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    let mut first = [0; 16];
    idle.read_exact(&mut first).await.unwrap();

    assert!(served.tasks.finish(Duration::from_secs(5)).await);
}
