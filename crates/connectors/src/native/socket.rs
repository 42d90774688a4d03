//! The WebSocket of a native connection: opening it up to the welcome frame, and closing it.

use std::time::Duration;

use futures_util::StreamExt;
use malote_wire_native::frame::Welcome;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use super::codec::{ServerFrame, decode};
use super::url::NativeUrl;
use crate::broker::BrokerError;
use crate::dial::{ByteStream, DialError, dial};

/// The largest WebSocket message of the server: the largest delivery plus overhead.
const MESSAGE_BYTES_MAX: usize = 96 << 20;
/// How long connecting may take, including the welcome frame.
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(10);

pub(super) type Socket = WebSocketStream<Box<dyn ByteStream>>;

/// Closes a socket and waits until the server has released what is still leased. If the process ended earlier, the
/// server would count the messages as failed.
pub(super) async fn close(socket: &mut Socket) {
    if socket.close(None).await.is_ok() {
        while let Some(Ok(_)) = socket.next().await {}
    }
}

/// Opens a socket and reads the welcome frame.
pub(super) async fn open(url: &NativeUrl) -> Result<(Socket, Welcome), BrokerError> {
    let unreachable = |text: String| BrokerError::Unreachable { text };
    let opened = timeout(CONNECT_MAX, async {
        let dialed = dial(&url.host, url.port, &url.tls).await;
        let at = |why| format!("{}:{}: {why}", url.host, url.port);
        let stream = dialed.map_err(|error| match error {
            DialError::Unreachable(why) => unreachable(at(why)),
            DialError::Misconfigured(why) => {
                BrokerError::Refused { code: "bad_tls".into(), text: at(why) }
            }
        })?;
        let invalid = |e: &dyn std::fmt::Display| BrokerError::Refused {
            code: "bad_url".into(),
            text: format!("{}:{}: {e}", url.host, url.port),
        };
        let mut request = url.url().into_client_request().map_err(|e| invalid(&e))?;
        let headers = request.headers_mut();
        let protocol = "malote.v1.msgpack".parse().map_err(|e| invalid(&e))?;
        headers.insert("sec-websocket-protocol", protocol);
        if let Some(basic) = url.authorization() {
            headers.insert("authorization", basic.parse().map_err(|e| invalid(&e))?);
        }
        let config = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE_BYTES_MAX))
            .max_frame_size(Some(MESSAGE_BYTES_MAX));
        let (mut socket, _) =
            tokio_tungstenite::client_async_with_config(request, stream, Some(config))
                .await
                .map_err(refused_upgrade)?;
        loop {
            match socket.next().await {
                Some(Ok(Message::Binary(bytes))) => {
                    let frames = decode(&bytes).map_err(|e| unreachable(e.to_string()))?;
                    if let Some(ServerFrame::Welcome(welcome)) = frames.into_iter().next() {
                        return Ok((socket, welcome));
                    }
                    return Err(unreachable("the server sent no welcome frame".into()));
                }
                Some(Ok(_)) => {}
                Some(Err(e)) => return Err(unreachable(e.to_string())),
                None => return Err(unreachable("the server closed the connection".into())),
            }
        }
    });
    opened
        .await
        .unwrap_or_else(|_| Err(unreachable(format!("{}:{} did not answer", url.host, url.port))))
}

fn refused_upgrade(error: tokio_tungstenite::tungstenite::Error) -> BrokerError {
    use tokio_tungstenite::tungstenite::Error;
    match error {
        Error::Http(response) if response.status().is_client_error() => {
            let code = match response.status().as_u16() {
                401 => "unauthenticated",
                403 => "forbidden",
                429 => {
                    return BrokerError::Busy {
                        text: "the server has too many connections".into(),
                    };
                }
                _ => "not_malote",
            };
            let text = format!(
                "the server answered {}: check that it is Malote, and check user and password",
                response.status()
            );
            BrokerError::Refused { code: code.into(), text }
        }
        error => BrokerError::Unreachable { text: error.to_string() },
    }
}
