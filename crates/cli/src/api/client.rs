//! Calls to one server, over one persistent connection. Every wait has a time limit.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, header};
use malote_http::{ClientConnection, SendError, read_body};
use malote_server::settings::format_duration;
use malote_wire_native::problem::ProblemBody;
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::endpoint::Endpoint;
use super::error::ApiError;
use super::path::Path;

/// Time limit for a TCP connection, and for a TLS handshake.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// The largest response: a page of 1024 messages is far smaller.
const RESPONSE_BYTES_MAX: usize = 1 << 30;

/// A complete response.
pub(super) struct ApiResponse {
    pub status: u16,
    pub body: Bytes,
    url: String,
}

impl ApiResponse {
    /// Decodes the body.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        let broken = |e| ApiError::Broken { url: self.url.clone(), why: format!("{e}") };
        serde_json::from_slice(&self.body).map_err(broken)
    }

    /// Turns an error status into an error.
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

/// Content type and bytes of a request.
type RequestBody = Option<(&'static str, Bytes)>;

/// A client of one server. It connects with the first call, and again after the server closed the connection.
pub(super) struct Client {
    endpoint: Endpoint,
    authorization: Option<String>,
    tls: Option<TlsConnector>,
    timeout: Duration,
    connection: Mutex<Option<ClientConnection>>,
}

impl Client {
    pub(super) fn new(
        endpoint: Endpoint,
        authorization: Option<String>,
        tls: Option<TlsConnector>,
        timeout: Duration,
    ) -> Self {
        Self { endpoint, authorization, tls, timeout, connection: Mutex::new(None) }
    }

    /// Calls the server. An error status is an error. `session_token` proves that the caller holds the session.
    pub(super) async fn call(
        &self,
        method: Method,
        path: Path,
        body: RequestBody,
        session_token: Option<&str>,
    ) -> Result<ApiResponse, ApiError> {
        self.call_and_wait(method, path, body, session_token, Duration::ZERO).await
    }

    /// A call that the server answers after `wait` at the latest, and then within the usual time limit.
    pub(super) async fn call_and_wait(
        &self,
        method: Method,
        path: Path,
        body: RequestBody,
        session_token: Option<&str>,
        wait: Duration,
    ) -> Result<ApiResponse, ApiError> {
        self.exchange(method, path, body, session_token, wait).await?.checked()
    }

    /// A `GET` whose response is not checked: the caller interprets the status.
    pub(super) async fn get_unchecked(&self, path: Path) -> Result<ApiResponse, ApiError> {
        self.exchange(Method::GET, path, None, None, Duration::ZERO).await
    }

    /// A call whose response is not checked.
    pub(super) async fn call_unchecked(
        &self,
        method: Method,
        path: Path,
        body: RequestBody,
    ) -> Result<ApiResponse, ApiError> {
        self.exchange(method, path, body, None, Duration::ZERO).await
    }

    /// A `GET` with a response of any size, which is passed to `write` in pieces. The time limit applies to each piece.
    /// Returns the number of bytes, or the error of `write`.
    pub(super) async fn download(
        &self,
        path: Path,
        mut write: impl FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<Result<u64, std::io::Error>, ApiError> {
        let request = self.request(Method::GET, &path, None, None)?;
        let late = |_| self.timed_out(self.timeout);
        let response = timeout(self.timeout, self.send(request)).await.map_err(late)??;
        if response.status().as_u16() >= 300 {
            let response = timeout(self.timeout, self.read(response)).await.map_err(late)??;
            response.checked()?;
            return Ok(Ok(0));
        }
        let mut body = response.into_body();
        let mut bytes = 0;
        while let Some(frame) = timeout(self.timeout, body.frame()).await.map_err(late)? {
            let frame = frame.map_err(|error| self.cut_off(&error))?;
            let Ok(data) = frame.into_data() else { continue };
            bytes += data.len() as u64;
            if let Err(error) = write(&data) {
                return Ok(Err(error));
            }
        }
        Ok(Ok(bytes))
    }

    async fn exchange(
        &self,
        method: Method,
        path: Path,
        body: RequestBody,
        session_token: Option<&str>,
        wait: Duration,
    ) -> Result<ApiResponse, ApiError> {
        let request = self.request(method, &path, body, session_token)?;
        let limit = self.timeout.saturating_add(wait);
        let whole = async { self.read(self.send(request).await?).await };
        timeout(limit, whole).await.map_err(|_| self.timed_out(limit))?
    }

    fn request(
        &self,
        method: Method,
        path: &Path,
        body: RequestBody,
        session_token: Option<&str>,
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
        if let Some(token) = session_token {
            builder = builder.header("malote-session-token", token);
        }
        let bytes = body.map_or_else(Bytes::new, |(content_type, bytes)| {
            if let Some(headers) = builder.headers_mut() {
                let value = header::HeaderValue::from_static(content_type);
                headers.insert(header::CONTENT_TYPE, value);
            }
            bytes
        });
        let invalid = |_| {
            ApiError::Usage(
                "the token or password contains characters that are not allowed in a header".into(),
            )
        };
        builder.body(Full::new(bytes)).map_err(invalid)
    }

    /// Uses the open connection. If the server has closed it, the request is sent over a new one.
    async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, ApiError> {
        let mut open = self.connection.lock().await;
        if let Some(mut connection) = open.take() {
            match connection.send(request).await {
                Ok(response) => {
                    *open = Some(connection);
                    return Ok(response);
                }
                Err(SendError::NotSent(unsent)) => request = *unsent,
                Err(SendError::Failed(error)) => return Err(self.unreachable(error.to_string())),
            }
        }
        let mut connection = self.connect().await?;
        let response = connection.send(request).await;
        let response = response.map_err(|error| self.unreachable(error.to_string()))?;
        *open = Some(connection);
        Ok(response)
    }

    async fn read(&self, response: Response<Incoming>) -> Result<ApiResponse, ApiError> {
        let status = response.status().as_u16();
        let body = read_body(response.into_body(), RESPONSE_BYTES_MAX).await;
        let body = body.map_err(|error| self.cut_off(&error))?;
        Ok(ApiResponse { status, body, url: self.endpoint.url.clone() })
    }

    async fn connect(&self) -> Result<ClientConnection, ApiError> {
        let Endpoint { host, port, .. } = &self.endpoint;
        let tcp = timeout(CONNECT_TIME_MAX, TcpStream::connect((host.as_str(), *port))).await;
        let tcp =
            tcp.map_err(|_| self.unreachable("it does not accept a connection".to_owned()))?;
        let tcp = tcp.map_err(|error| self.unreachable(reason(&error)))?;
        tcp.set_nodelay(true).map_err(|error| self.unreachable(reason(&error)))?;
        let connection = match &self.tls {
            None => ClientConnection::over(tcp).await,
            Some(tls) => {
                let name = ServerName::try_from(host.clone()).map_err(|_| {
                    ApiError::Usage(format!("`{host}` is not a name that a certificate can have"))
                })?;
                let stream = timeout(CONNECT_TIME_MAX, tls.connect(name, tcp)).await;
                let silent = |_| self.unreachable("it does not speak TLS".to_owned());
                let stream = stream.map_err(silent)?.map_err(|error| self.tls_failed(&error))?;
                ClientConnection::over(stream).await
            }
        };
        connection.map_err(|error| self.unreachable(error.to_string()))
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
            None => return self.unreachable(reason(error)),
        };
        ApiError::Tls { url: self.endpoint.url.clone(), why }
    }

    fn timed_out(&self, after: Duration) -> ApiError {
        ApiError::TimedOut { url: self.endpoint.url.clone(), after: format_duration(after) }
    }

    fn cut_off(&self, error: &impl std::fmt::Display) -> ApiError {
        self.unreachable(format!("the response was cut off: {error}"))
    }

    fn unreachable(&self, why: String) -> ApiError {
        ApiError::Unreachable { url: self.endpoint.url.clone(), why }
    }
}

/// The text of an I/O error, without its number if it is a refused connection.
fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        _ => error.to_string(),
    }
}
