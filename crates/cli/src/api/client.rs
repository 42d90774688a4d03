//! A small HTTP/1.1 client: one connection, kept alive, one call at a time, every wait with an end.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, Response, header};
use hyper_util::rt::TokioIo;
use malote_wire_native::problem::ProblemBody;
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::error::ApiError;
use super::path::Path;

/// A server that is there takes a connection within this.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// The largest answer: a page of 1024 messages is far below it.
const ANSWER_BYTES_MAX: usize = 1 << 30;

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// As the user wrote it, for messages.
    pub url: String,
    /// Whether to speak TLS.
    pub tls: bool,
    host: String,
    port: u16,
    /// What stands before every path, without a slash at its end.
    base: String,
}

impl Endpoint {
    /// Reads `http://host:port/base` or `https://…`; `host:port` alone is `http://`.
    pub(super) fn parse(url: &str) -> Result<Self, ApiError> {
        let wrong = || {
            let why = format!(
                "`{url}` is not the address of a server: write http://HOST:PORT or https://HOST:PORT"
            );
            ApiError::Usage(why)
        };
        let (tls, rest) = match url.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some(_) => return Err(wrong()),
            None => (false, url),
        };
        let (authority, base) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.contains('@') || base.contains(['?', '#']) {
            return Err(wrong());
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                (host, port.parse().map_err(|_| wrong())?)
            }
            _ => (authority, if tls { 443 } else { 80 }),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() || authority.parse::<hyper::http::uri::Authority>().is_err() {
            return Err(wrong());
        }
        let base = base.trim_end_matches('/').to_owned();
        Ok(Self { url: url.to_owned(), tls, host: host.to_owned(), port, base })
    }

    /// As the `Host` header has it.
    fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

/// An answer, whole.
pub(super) struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// All of it.
    pub body: Bytes,
    url: String,
}

impl Answer {
    /// As JSON.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        let broken = |e| ApiError::Broken { url: self.url.clone(), why: format!("{e}") };
        serde_json::from_slice(&self.body).map_err(broken)
    }

    /// Itself, or the problem that it is.
    pub(super) fn checked(self) -> Result<Self, ApiError> {
        if self.status < 300 {
            return Ok(self);
        }
        match serde_json::from_slice::<ProblemBody>(&self.body) {
            Ok(problem) if !problem.code.is_empty() => {
                Err(ApiError::Refused(Box::new(ProblemBody { status: self.status, ..problem })))
            }
            _ => {
                let start: String = String::from_utf8_lossy(&self.body).chars().take(80).collect();
                let why = format!("status {} {}", self.status, start.trim());
                Err(ApiError::Broken { url: self.url, why: why.trim_end().to_owned() })
            }
        }
    }
}

type Body = Option<(&'static str, Bytes)>;

/// A connection to one server, made when first needed and again when it was closed.
pub(super) struct Client {
    endpoint: Endpoint,
    authorization: Option<String>,
    tls: Option<TlsConnector>,
    timeout: Duration,
    kept: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

impl Client {
    /// Connects to nobody yet.
    pub(super) fn new(
        endpoint: Endpoint,
        authorization: Option<String>,
        tls: Option<TlsConnector>,
        timeout: Duration,
    ) -> Self {
        Self { endpoint, authorization, tls, timeout, kept: Mutex::new(None) }
    }

    /// A call; an answer that is a problem is an error. `token` is the proof of a session's hold.
    pub(super) async fn call(
        &self,
        method: Method,
        path: Path,
        body: Body,
        token: Option<&str>,
    ) -> Result<Answer, ApiError> {
        self.call_patiently(method, path, body, token, Duration::ZERO).await
    }

    /// A call that the server was asked to take its time for.
    pub(super) async fn call_patiently(
        &self,
        method: Method,
        path: Path,
        body: Body,
        token: Option<&str>,
        patience: Duration,
    ) -> Result<Answer, ApiError> {
        self.exchange(method, path, body, token, patience).await?.checked()
    }

    /// A `GET` whose answer means something whatever its status.
    pub(super) async fn ask(&self, path: Path) -> Result<Answer, ApiError> {
        self.exchange(Method::GET, path, None, None, Duration::ZERO).await
    }

    /// A `GET` whose answer is taken piece by piece; a pause longer than any wait ends it. Tells its length.
    pub(super) async fn download(
        &self,
        path: Path,
        mut take: impl FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<Result<u64, std::io::Error>, ApiError> {
        let request = self.request(Method::GET, &path, None, None)?;
        let late = |_| ApiError::TimedOut {
            url: self.endpoint.url.clone(),
            after: malote_server::settings::format_duration(self.timeout),
        };
        let cut = |e| self.unreachable(format!("the answer was cut off: {e}"));
        let response = timeout(self.timeout, self.send(request)).await.map_err(late)??;
        let status = response.status().as_u16();
        let mut body = response.into_body();
        if status >= 300 {
            let all = Limited::new(body, ANSWER_BYTES_MAX).collect();
            let all = timeout(self.timeout, all).await.map_err(late)?;
            let body = all.map_err(|e| self.unreachable(e.to_string()))?.to_bytes();
            let url = self.endpoint.url.clone();
            Answer { status, body, url }.checked()?;
            return Ok(Ok(0));
        }
        let mut bytes = 0;
        while let Some(frame) = timeout(self.timeout, body.frame()).await.map_err(late)? {
            let Ok(data) = frame.map_err(cut)?.into_data() else { continue };
            bytes += data.len() as u64;
            if let Err(error) = take(&data) {
                return Ok(Err(error));
            }
        }
        Ok(Ok(bytes))
    }

    async fn exchange(
        &self,
        method: Method,
        path: Path,
        body: Body,
        token: Option<&str>,
        patience: Duration,
    ) -> Result<Answer, ApiError> {
        let request = self.request(method, &path, body, token)?;
        let patience = self.timeout.saturating_add(patience);
        let late = |_| ApiError::TimedOut {
            url: self.endpoint.url.clone(),
            after: malote_server::settings::format_duration(patience),
        };
        let whole = async {
            let response = self.send(request).await?;
            let status = response.status().as_u16();
            let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
            let cut = |e| self.unreachable(format!("the answer was cut off: {e}"));
            Ok(Answer {
                status,
                body: body.map_err(cut)?.to_bytes(),
                url: self.endpoint.url.clone(),
            })
        };
        timeout(patience, whole).await.map_err(late)?
    }

    fn request(
        &self,
        method: Method,
        path: &Path,
        body: Body,
        token: Option<&str>,
    ) -> Result<Request<Full<Bytes>>, ApiError> {
        let mut builder = Request::builder()
            .method(method)
            .uri(format!("{}{}", self.endpoint.base, path.as_str()))
            .header(header::HOST, self.endpoint.authority())
            .header(header::USER_AGENT, concat!("malote/", env!("CARGO_PKG_VERSION")))
            .header(header::ACCEPT, "application/json");
        if let Some(authorization) = &self.authorization {
            builder = builder.header(header::AUTHORIZATION, authorization);
        }
        if let Some(token) = token {
            builder = builder.header("malote-session-token", token);
        }
        let bytes = body.map_or_else(Bytes::new, |(kind, bytes)| {
            let headers = builder.headers_mut().expect("nothing was wrong with it so far");
            headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
            bytes
        });
        let wrong = |_| {
            ApiError::Usage("the token or password holds characters that cannot be sent".into())
        };
        builder.body(Full::new(bytes)).map_err(wrong)
    }

    /// Over the kept connection; a server may close that at any time, so what was not sent goes over a new one.
    async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<hyper::body::Incoming>, ApiError> {
        let mut kept = self.kept.lock().await;
        if let Some(mut sender) = kept.take()
            && sender.ready().await.is_ok()
        {
            match sender.try_send_request(request).await {
                Ok(response) => {
                    *kept = Some(sender);
                    return Ok(response);
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(self.unreachable(error.into_error().to_string())),
                },
            }
        }
        let mut sender = self.connect().await?;
        let response = sender.send_request(request).await;
        let response = response.map_err(|error| self.unreachable(error.to_string()))?;
        *kept = Some(sender);
        Ok(response)
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, ApiError> {
        let Endpoint { host, port, .. } = &self.endpoint;
        let tcp = timeout(CONNECT_TIME_MAX, TcpStream::connect((host.as_str(), *port))).await;
        let tcp = tcp.map_err(|_| self.unreachable("it takes no connection".to_owned()))?;
        let tcp = tcp.map_err(|error| self.unreachable(plain(&error)))?;
        tcp.set_nodelay(true).map_err(|error| self.unreachable(plain(&error)))?;
        let Some(tls) = &self.tls else { return self.handshake(tcp).await };
        let name = ServerName::try_from(host.clone());
        let name = name.map_err(|_| {
            ApiError::Usage(format!("`{host}` is not a name that a certificate can have"))
        })?;
        let stream = timeout(CONNECT_TIME_MAX, tls.connect(name, tcp)).await;
        let stream = stream.map_err(|_| self.unreachable("it does not speak TLS".to_owned()))?;
        self.handshake(stream.map_err(|error| self.tls_failed(&error))?).await
    }

    fn tls_failed(&self, error: &std::io::Error) -> ApiError {
        use rustls::{CertificateError, Error};
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
        let why = match cause {
            Some(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
                "the server's certificate was issued by an unknown authority".to_owned()
            }
            Some(Error::InvalidCertificate(error)) => {
                format!("the server's certificate is not valid: {error}")
            }
            Some(Error::InvalidMessage(_)) => {
                "the server does not speak TLS on this port".to_owned()
            }
            Some(error) => error.to_string(),
            None => return self.unreachable(plain(error)),
        };
        ApiError::Tls { url: self.endpoint.url.clone(), why }
    }

    async fn handshake<S>(&self, stream: S) -> Result<SendRequest<Full<Bytes>>, ApiError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.unreachable(error.to_string()))?;
        // It ends with the sender; what goes wrong on it is told by the call.
        tokio::spawn(async { drop(connection.await) });
        Ok(sender)
    }

    fn unreachable(&self, why: String) -> ApiError {
        ApiError::Unreachable { url: self.endpoint.url.clone(), why }
    }
}

/// What the system said, without its number.
fn plain(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Option<(bool, String, u16, String)> {
        let endpoint = Endpoint::parse(url).ok()?;
        Some((endpoint.tls, endpoint.host, endpoint.port, endpoint.base))
    }

    #[test]
    fn addresses_are_read() {
        let is =
            |tls, host: &str, port, base: &str| Some((tls, host.to_owned(), port, base.to_owned()));
        assert_eq!(parsed("http://127.0.0.1:8080"), is(false, "127.0.0.1", 8080, ""));
        assert_eq!(parsed("https://mq.example.com/"), is(true, "mq.example.com", 443, ""));
        assert_eq!(parsed("localhost:9"), is(false, "localhost", 9, ""));
        assert_eq!(parsed("http://[::1]:8080/mq/"), is(false, "::1", 8080, "/mq"));
        assert_eq!(parsed("http://[::1]"), is(false, "::1", 80, ""));
        for bad in
            ["", "http://", "amqp://x", "http://a:b", "http://u:p@h", "http://h/?q", "http://a b"]
        {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }
}
