//! As much of NATS as the tests' witness needs: to hear one subject.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream};
use tokio::net::TcpStream;

/// A subscription with a connection of its own.
pub(super) struct Subscription {
    stream: BufStream<TcpStream>,
}

impl Subscription {
    /// Subscribes, and waits until that is in place.
    pub(super) async fn open(server: SocketAddr, subject: &str) -> Result<Self> {
        let stream = BufStream::new(TcpStream::connect(server).await?);
        let mut subscription = Self { stream };
        let greeting = subscription.line().await?;
        ensure!(greeting.starts_with("INFO "), "not NATS: {greeting}");
        let hello = format!("CONNECT {{\"verbose\":false}}\r\nSUB {subject} 1\r\nPING\r\n");
        subscription.stream.write_all(hello.as_bytes()).await?;
        subscription.stream.flush().await?;
        loop {
            let line = subscription.line().await?;
            if line == "PONG" {
                return Ok(subscription);
            }
            ensure!(!line.starts_with("-ERR"), "{line}");
        }
    }

    /// The next message.
    pub(super) async fn next(&mut self) -> Result<Vec<u8>> {
        loop {
            let line = self.line().await?;
            if let Some(head) = line.strip_prefix("MSG ") {
                let length = head
                    .rsplit(' ')
                    .next()
                    .context("a message without length")?;
                let mut body = vec![0; length.parse()?];
                self.stream.read_exact(&mut body).await?;
                self.line().await?;
                return Ok(body);
            }
            if line == "PING" {
                self.stream.write_all(b"PONG\r\n").await?;
                self.stream.flush().await?;
            }
            if line.starts_with("-ERR") {
                bail!("{line}");
            }
        }
    }

    async fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let length = self.stream.read_line(&mut line).await?;
        ensure!(length > 0, "NATS has closed the connection");
        Ok(line.trim_end().to_owned())
    }
}
