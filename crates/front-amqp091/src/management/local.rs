//! A client inside the process: a request that changes something runs as a method of AMQP, on a connection of its own.
//! RabbitMQ does the same, so the checks, the errors and the audit records are those of the method.

use bytes::{Bytes, BytesMut};
use malote_model::AuditProtocol;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::error::ApiError;
use super::request::Caller;
use super::state::ManagementState;
use crate::conn::handshake::{Capabilities, Session};
use crate::listen::{Opened, serve_session};
use crate::names::VirtualHost;
use crate::wire::content::put_content;
use crate::wire::error::ReplyCode;
use crate::wire::frame::{Frame, FrameDecoder, FrameKind, put_method};
use crate::wire::method::{EncodeMethod, Method, basic, channel, connection};
use crate::wire::properties::{ContentHeader, Properties};
use crate::wire::table::FieldTable;
use crate::{Peer, limits};

/// Bytes that are on their way in one direction.
const PIPE_BYTES: usize = 64 << 10;
const CHANNEL: u16 = 1;

/// Why a method failed.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The server closed the channel or the connection, with this code and text.
    Refused { code: u16, text: String },
    /// The server ended the connection without a word.
    Ended,
}

impl From<CallError> for ApiError {
    fn from(error: CallError) -> Self {
        let (code, text) = match error {
            CallError::Refused { code, text } => (code, text),
            CallError::Ended => {
                return Self::new(
                    axum::http::StatusCode::SERVICE_UNAVAILABLE,
                    "unavailable",
                    "the broker is stopping",
                );
            }
        };
        let detail =
            Value::from(text.split_once(" - ").map_or(text.as_str(), |(_, detail)| detail));
        match code {
            code if code == ReplyCode::NotFound.code() => Self::missing(detail),
            code if code == ReplyCode::AccessRefused.code() => Self::not_authorised(detail),
            _ => Self::bad_request(detail),
        }
    }
}

/// A message that `basic.get` or `basic.return` brought.
pub(crate) struct Content {
    pub method: Method,
    pub properties: Properties,
    pub body: Bytes,
}

/// An open connection with one channel.
pub(crate) struct LocalClient {
    stream: DuplexStream,
    input: BytesMut,
    decoder: FrameDecoder,
}

impl LocalClient {
    /// Connects as the caller.
    pub async fn open(
        state: &ManagementState,
        caller: &Caller,
        host: &VirtualHost,
    ) -> Result<Self, ApiError> {
        // As at the end of a handshake.
        if !state.front.users.may_enter(&caller.principal, host.name()) {
            let (host, user) = (host.name(), &caller.user);
            let reason = format!("access to vhost '{host}' refused for user '{user}'");
            return Err(ApiError::not_authorised(reason));
        }
        let session = Session {
            who: caller.principal.clone(),
            user: caller.user.clone(),
            host: host.clone(),
            channel_max: CHANNEL,
            frame_max: limits::FRAME_BYTES_MAX,
            heartbeat: 0,
            capabilities: Capabilities::default(),
            mechanism: String::new(),
            client_properties: FieldTable::default(),
            protocol: AuditProtocol::RabbitmqManagement,
        };
        let (stream, theirs) = tokio::io::duplex(PIPE_BYTES);
        let decoder = || {
            let mut decoder = FrameDecoder::default();
            decoder.set_frame_max(limits::FRAME_BYTES_MAX);
            decoder
        };
        let peer = Peer { address: caller.peer, ..Peer::local() };
        let opened = Opened { session, peer, input: BytesMut::new(), decoder: decoder() };
        let front = state.front.clone();
        tokio::spawn(async move {
            // It ends with the client's half of the pipe.
            serve_session(theirs, front, opened, CancellationToken::new(), false).await
        });
        let mut client = Self { stream, input: BytesMut::new(), decoder: decoder() };
        client.call(&channel::Open::default()).await?;
        Ok(client)
    }

    /// Sends a method and returns its reply.
    pub async fn call(&mut self, method: &impl EncodeMethod) -> Result<Method, CallError> {
        self.send(method).await?;
        self.reply().await
    }

    /// Sends a method that has no reply.
    pub async fn send(&mut self, method: &impl EncodeMethod) -> Result<(), CallError> {
        let mut out = BytesMut::new();
        put_method(&mut out, CHANNEL, method);
        self.write(&out).await
    }

    pub async fn publish(
        &mut self,
        publish: &basic::Publish,
        properties: &Properties,
        body: &[u8],
    ) -> Result<(), CallError> {
        let mut out = BytesMut::new();
        put_content(&mut out, CHANNEL, limits::FRAME_BYTES_MAX, publish, properties, body);
        self.write(&out).await
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), CallError> {
        self.stream.write_all(bytes).await.map_err(|_| CallError::Ended)
    }

    /// The next method.
    pub async fn reply(&mut self) -> Result<Method, CallError> {
        loop {
            let frame = self.frame().await?;
            if frame.kind != FrameKind::Method {
                continue;
            }
            let method = Method::decode(&frame.payload).map_err(|_| CallError::Ended)?;
            let (code, text) = match &method {
                Method::ChannelClose(close) => (close.reply_code, &close.reply_text),
                Method::ConnectionClose(close) => (close.reply_code, &close.reply_text),
                _ => return Ok(method),
            };
            return Err(CallError::Refused { code, text: text.as_str().to_owned() });
        }
    }

    /// The content of a method that was just received.
    pub async fn content(&mut self, method: Method) -> Result<Content, CallError> {
        let header = self.frame().await?;
        let header = ContentHeader::decode(&header.payload).map_err(|_| CallError::Ended)?;
        let size = usize::try_from(header.body_size).map_err(|_| CallError::Ended)?;
        let mut body = BytesMut::new();
        while body.len() < size {
            body.extend_from_slice(&self.frame().await?.payload);
        }
        Ok(Content { method, properties: header.properties, body: body.freeze() })
    }

    async fn frame(&mut self) -> Result<Frame, CallError> {
        loop {
            match self.decoder.decode(&mut self.input) {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => {}
                Err(_) => return Err(CallError::Ended),
            }
            self.input.reserve(PIPE_BYTES);
            match self.stream.read_buf(&mut self.input).await {
                Ok(0) | Err(_) => return Err(CallError::Ended),
                Ok(_) => {}
            }
        }
    }

    /// Closes the connection in an orderly way: messages that were not acknowledged return to their queues, uncounted.
    pub async fn close(mut self) {
        let mut out = BytesMut::new();
        put_method(&mut out, 0, &connection::Close::default());
        let closed = async {
            self.write(&out).await?;
            while !matches!(self.reply().await?, Method::ConnectionCloseOk(_)) {}
            Ok::<(), CallError>(())
        };
        // An error means that it is closed already.
        let _ = timeout(limits::CLOSE_TIMEOUT, closed).await;
    }
}

/// Runs one method on a connection of its own.
pub(crate) async fn run(
    state: &ManagementState,
    caller: &Caller,
    host: &VirtualHost,
    method: &impl EncodeMethod,
) -> Result<Method, ApiError> {
    let mut client = LocalClient::open(state, caller, host).await?;
    let reply = client.call(method).await;
    client.close().await;
    Ok(reply?)
}
