//! A connection to the frontend that acknowledges answers at once.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::Service;

/// Makes connections, each within a time.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    timeout: Duration,
}

impl Connector {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout }
    }
}

impl Service<Uri> for Connector {
    type Response = FrontendConnection;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<FrontendConnection>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let timeout = self.timeout;
        Box::pin(async move {
            let host = uri.host().unwrap_or_default();
            // A literal IPv6 address has brackets in a URI and none in a socket address.
            let host = host
                .trim_start_matches('[')
                .trim_end_matches(']')
                .to_owned();
            let connecting = TcpStream::connect((host, uri.port_u16().unwrap_or(80)));
            let stream = tokio::time::timeout(timeout, connecting)
                .await
                .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            stream.set_nodelay(true)?;
            Ok(FrontendConnection(TokioIo::new(stream)))
        })
    }
}

/// A TCP connection to the frontend.
#[derive(Debug)]
pub(super) struct FrontendConnection(TokioIo<TcpStream>);

impl Connection for FrontendConnection {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for FrontendConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // A frontend without TCP_NODELAY holds a small chunk back until the one before it is
        // acknowledged, and the kernel delays that by 40 ms. It forgets the option by itself,
        // so it is set before each read. Failing that, streams are slower, and no less right.
        #[cfg(target_os = "linux")]
        let _ = self.0.inner().set_quickack(true);
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl Write for FrontendConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, buffers)
    }
}
