//! Clients of the API.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::fake::Edge;

/// An answer, whole.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        Some(self.headers.get(name)?.to_str().unwrap())
    }
}

pub(super) fn body() -> Value {
    json!({"model": "tiny-chat", "messages": [{"role": "user", "content": "hi"}]})
}

pub(super) fn post(path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    Request::builder()
        .method(Method::POST)
        .uri(path)
        .header("content-type", "application/json")
        .body(Full::new(body.into()))
        .unwrap()
}

pub(super) fn chat() -> Request<Full<Bytes>> {
    post("/v1/chat/completions", body().to_string())
}

impl Edge {
    /// Sends a request and gives the head of the answer; the body is still to be read.
    pub(super) async fn begin(&self, mut request: Request<Full<Bytes>>) -> Response<Incoming> {
        let uri = format!("http://{}{}", self.address, request.uri());
        *request.uri_mut() = uri.parse().unwrap();
        let client = Client::builder(TokioExecutor::new()).build_http();
        client.request(request).await.unwrap()
    }

    /// Sends a request and reads the whole answer.
    pub(super) async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let (head, body) = self.begin(request).await.into_parts();
        Answer {
            status: head.status,
            headers: head.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        let request = Request::builder().uri(path);
        self.send(request.body(Full::default()).unwrap()).await
    }
}

/// A connection on which bytes are written and read as they are.
pub(super) async fn raw(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

/// Reads until the text has come, and gives everything read.
pub(super) async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut read = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let so_far = String::from_utf8_lossy(&read).into_owned();
        if so_far.contains(text) {
            return so_far;
        }
        let length = stream.read(&mut chunk).await.unwrap();
        assert!(length > 0, "closed after {so_far:?}");
        read.extend_from_slice(&chunk[..length]);
    }
}

/// The bytes of a chat request.
pub(super) fn raw_chat() -> Vec<u8> {
    let body = body().to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: edge\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.into_bytes(), body.into_bytes()].concat()
}
