//! A small HTTP client for tests and the demo, which reads server-sent events one by one.

use std::time::Duration;

use anyhow::{Context, bail};
use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// Time after which an answer that does not come is an error.
const PATIENCE: Duration = Duration::from_secs(60);

/// An HTTP client with kept-alive connections.
#[derive(Clone, Debug)]
pub struct Client {
    pool: Pool<HttpConnector, Full<Bytes>>,
}

/// An answer, whole.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// An answer that comes as events.
#[derive(Debug)]
pub struct Events {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    body: Incoming,
    buffer: BytesMut,
}

impl Default for Client {
    fn default() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self {
            pool: Pool::builder(TokioExecutor::new()).build(connector),
        }
    }
}

impl Client {
    /// Gets a page.
    pub async fn get(&self, url: &str) -> anyhow::Result<Answer> {
        let request = Request::get(url).body(Full::default())?;
        whole(self.send(request).await?).await
    }

    /// Posts JSON.
    pub async fn post(&self, url: &str, body: &Value) -> anyhow::Result<Answer> {
        self.call(Method::POST, url, &[], body).await
    }

    /// Sends JSON with headers.
    pub async fn call(
        &self,
        method: Method,
        url: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> anyhow::Result<Answer> {
        let mut request = Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = Full::from(body.to_string());
        let request = request
            .header(CONTENT_TYPE, "application/json")
            .body(body)?;
        whole(self.send(request).await?).await
    }

    /// Posts JSON and gets the answer as events.
    pub async fn stream(&self, url: &str, body: &Value) -> anyhow::Result<Events> {
        let request = Request::post(url)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(body.to_string()))?;
        let (head, body) = self.send(request).await?.into_parts();
        Ok(Events {
            status: head.status,
            headers: head.headers,
            body,
            buffer: BytesMut::new(),
        })
    }

    async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> anyhow::Result<http::Response<Incoming>> {
        let url = request.uri().clone();
        tokio::time::timeout(PATIENCE, self.pool.request(request))
            .await
            .with_context(|| format!("{url} does not answer"))?
            .with_context(|| format!("{url} can't be reached"))
    }
}

async fn whole(response: http::Response<Incoming>) -> anyhow::Result<Answer> {
    let (head, body) = response.into_parts();
    let body = tokio::time::timeout(PATIENCE, body.collect())
        .await
        .context("the answer does not end")?
        .context("the answer broke off")?;
    Ok(Answer {
        status: head.status,
        headers: head.headers,
        body: body.to_bytes(),
    })
}

impl Answer {
    /// The body as JSON.
    pub fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_slice(&self.body)
            .with_context(|| format!("{} is no JSON", String::from_utf8_lossy(&self.body)))
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Events {
    /// The data of the next event; `None` after the last one, which is `[DONE]` when the
    /// answer is whole.
    pub async fn next(&mut self) -> anyhow::Result<Option<String>> {
        loop {
            if let Some(event) = self.take_event()? {
                return Ok(Some(event));
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame())
                .await
                .context("the next event does not come")?;
            match frame {
                Some(frame) => {
                    if let Ok(data) = frame.context("the events broke off")?.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                None => return Ok(None),
            }
        }
    }

    /// All that has not been taken yet, as text: what went wrong, where there are no events.
    pub async fn rest(self) -> anyhow::Result<String> {
        let rest = tokio::time::timeout(PATIENCE, self.body.collect())
            .await
            .context("the answer does not end")?
            .context("the answer broke off")?;
        let bytes = [&self.buffer[..], &rest.to_bytes()].concat();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn take_event(&mut self) -> anyhow::Result<Option<String>> {
        let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") else {
            return Ok(None);
        };
        let event = self.buffer.split_to(end + 2);
        let text = std::str::from_utf8(&event)?.trim_end();
        match text.strip_prefix("data: ") {
            Some(data) => Ok(Some(data.to_owned())),
            None => bail!("{text:?} is no event with data"),
        }
    }
}
