//! The client side of HTTP/1.1 for our own programs: one connection, one request at a time.
//!
//! The caller opens TLS streams, sets time limits, and decides when to connect again.

use std::io;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A connection of a client. Dropping it closes it.
pub struct ClientConnection {
    sender: SendRequest<Full<Bytes>>,
}

/// A request got no response.
#[derive(Debug)]
pub enum SendError {
    /// The server had closed the connection before the request was sent. It can be sent over another connection.
    NotSent(Box<Request<Full<Bytes>>>),
    /// The connection failed afterwards, so the server may have handled the request.
    Failed(hyper::Error),
}

impl std::fmt::Display for SendError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotSent(_) => f.write_str("the server closed the connection"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SendError {}

impl ClientConnection {
    /// Connects over TCP, without TLS.
    pub async fn connect(host: &str, port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        Self::over(stream).await.map_err(io::Error::other)
    }

    /// Uses a stream that is connected already, such as a TLS stream.
    pub async fn over<S>(stream: S) -> Result<Self, hyper::Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // The task ends with the sender. The request reports errors of the connection.
        tokio::spawn(async { drop(connection.await) });
        Ok(Self { sender })
    }

    /// Sends a request. Returns when the head of the response has arrived.
    pub async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, SendError> {
        if self.sender.ready().await.is_err() {
            return Err(SendError::NotSent(Box::new(request)));
        }
        self.sender.try_send_request(request).await.map_err(|mut error| {
            match error.take_message() {
                Some(request) => SendError::NotSent(Box::new(request)),
                None => SendError::Failed(error.into_error()),
            }
        })
    }
}

/// Reads a whole body. A body of more than `bytes_max` is an error.
pub async fn read_body(
    body: Incoming,
    bytes_max: usize,
) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
    Ok(Limited::new(body, bytes_max).collect().await?.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";

    fn request() -> Request<Full<Bytes>> {
        Request::get("/").header("host", "x").body(Full::default()).unwrap()
    }

    /// Answers this many requests, then closes the connection.
    async fn server(answers: usize) -> (u16, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            for _ in 0..answers {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                stream.write_all(OK).await.unwrap();
            }
        });
        (port, served)
    }

    #[tokio::test]
    async fn a_connection_is_used_again_and_a_request_on_a_closed_one_comes_back() {
        let (port, served) = server(2).await;
        let mut connection = ClientConnection::connect("127.0.0.1", port).await.unwrap();
        for _ in 0..2 {
            let response = connection.send(request()).await.unwrap();
            assert_eq!(read_body(response.into_body(), 5).await.unwrap(), "hello");
        }
        served.await.unwrap();
        let refused = connection.send(request()).await.unwrap_err();
        assert!(matches!(refused, SendError::NotSent(_)), "{refused:?}");
    }

    #[tokio::test]
    async fn a_body_over_the_bound_is_refused() {
        let (port, _served) = server(1).await;
        let mut connection = ClientConnection::connect("127.0.0.1", port).await.unwrap();
        let response = connection.send(request()).await.unwrap();
        assert!(read_body(response.into_body(), 4).await.is_err());
    }
}
