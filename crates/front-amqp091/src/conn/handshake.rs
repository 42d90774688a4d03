//! The handshake: start, login, limits, virtual host. Nothing else happens on the connection meanwhile, so it is written
//! as one function from the protocol header to `open-ok`.

use std::io;
use std::net::IpAddr;

use bytes::{Bytes, BytesMut};
use malote_model::{AuditAction, AuditEntry, AuditProtocol, CallerKind, Principal};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use crate::names::VirtualHost;
use crate::refusal::failed;
use crate::wire::error::{Exception, ReplyCode};
use crate::wire::frame::{FrameDecoder, FrameKind, PROTOCOL_HEADER, put_method};
use crate::wire::method::{DecodeMethod as _, EncodeMethod, Method, connection};
use crate::wire::table::{FieldTable, TableRef};
use crate::{Front, Peer, limits};

/// Clients read the product and the version to choose what they may use: Celery, for example, sets its prefetch count for
/// the channel only if the product is RabbitMQ.
const PRODUCT: &str = "RabbitMQ";
pub(crate) const VERSION: &str = "3.13.7";
pub(crate) const CLUSTER_NAME: &str = "malote@localhost";

/// The result of a handshake, with the bytes that the client sent early.
pub(crate) struct Handshake {
    pub session: Session,
    pub input: BytesMut,
    pub decoder: FrameDecoder,
}

/// What was negotiated.
#[derive(Debug)]
pub(crate) struct Session {
    pub who: Principal,
    /// The user name that the client gave.
    pub user: String,
    pub host: VirtualHost,
    pub channel_max: u16,
    pub frame_max: u32,
    /// Seconds; 0 for none.
    pub heartbeat: u16,
    pub capabilities: Capabilities,
    /// How the client signed in.
    pub mechanism: String,
    pub client_properties: FieldTable,
    /// The front end that administrative operations are recorded for.
    pub protocol: AuditProtocol,
}

/// What the client understands, of what changes the server's behaviour.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Capabilities {
    pub authentication_failure_close: bool,
    pub consumer_cancel_notify: bool,
    pub connection_blocked: bool,
}

impl Capabilities {
    fn of(client: &FieldTable) -> Self {
        let table = client.get("capabilities").and_then(|value| value.as_table());
        let has = |name: &str| table.and_then(|table| table.get(name)?.as_bool()).unwrap_or(false);
        Self {
            authentication_failure_close: has("authentication_failure_close"),
            consumer_cancel_notify: has("consumer_cancel_notify"),
            connection_blocked: has("connection.blocked"),
        }
    }
}

/// Runs the handshake. `None` if the connection is over, and everything has been said.
pub(crate) async fn shake_hands<S>(
    stream: &mut S,
    front: &Front,
    peer: &Peer,
) -> io::Result<Option<Handshake>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut header = [0; PROTOCOL_HEADER.len()];
    stream.read_exact(&mut header).await?;
    if header != PROTOCOL_HEADER {
        stream.write_all(&PROTOCOL_HEADER).await?;
        stream.shutdown().await?;
        return Ok(None);
    }
    let mut wire = Wire { stream, input: BytesMut::new(), decoder: FrameDecoder::default() };
    match wire.negotiate(front, peer).await {
        Ok(session) => {
            let Wire { input, decoder, .. } = wire;
            Ok(Some(Handshake { session, input, decoder }))
        }
        Err(Ended::Io(error)) => Err(error),
        Err(Ended::Closed) => Ok(None),
        Err(Ended::Dropped) => {
            sleep(limits::REFUSAL_PAUSE).await;
            Ok(None)
        }
        Err(Ended::Refused(exception)) => {
            wire.send(&exception.connection_close()).await?;
            // The client may not answer. It has received the reason in any case.
            let _ = timeout(limits::CLOSE_TIMEOUT, wire.close_ok()).await;
            let _ = wire.stream.shutdown().await;
            Ok(None)
        }
    }
}

/// Why a handshake did not succeed.
enum Ended {
    Io(io::Error),
    /// The client closed the connection.
    Closed,
    /// The client understands no close method now: wait and drop the connection.
    Dropped,
    Refused(Exception),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Exception> for Ended {
    fn from(exception: Exception) -> Self {
        Self::Refused(exception)
    }
}

struct Wire<'s, S> {
    stream: &'s mut S,
    input: BytesMut,
    decoder: FrameDecoder,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<'_, S> {
    async fn send(&mut self, method: &impl EncodeMethod) -> io::Result<()> {
        let mut out = BytesMut::new();
        put_method(&mut out, 0, method);
        self.stream.write_all(&out).await
    }

    /// The next method on channel 0.
    async fn receive(&mut self) -> Result<Method, Ended> {
        loop {
            match self.decoder.decode(&mut self.input)? {
                Some(frame) if frame.kind == FrameKind::Heartbeat => {}
                Some(frame) if frame.kind == FrameKind::Method && frame.channel == 0 => {
                    return Ok(Method::decode(&frame.payload)?);
                }
                Some(frame) => {
                    let detail =
                        format!("unexpected frame on channel {} before open", frame.channel);
                    return Err(Exception::new(ReplyCode::ChannelError, detail).into());
                }
                None => {
                    self.input.reserve(4096);
                    if self.stream.read_buf(&mut self.input).await? == 0 {
                        return Err(Ended::Closed);
                    }
                }
            }
        }
    }

    async fn close_ok(&mut self) -> Result<(), Ended> {
        while !matches!(self.receive().await?, Method::ConnectionCloseOk(_)) {}
        Ok(())
    }

    async fn negotiate(&mut self, front: &Front, peer: &Peer) -> Result<Session, Ended> {
        self.send(&start()).await?;
        let Method::ConnectionStartOk(start_ok) = self.receive().await? else {
            return Err(unexpected().into());
        };
        let capabilities = Capabilities::of(&start_ok.client_properties);
        let (who, user) = match login(front, peer.address, &start_ok).await {
            Some(caller) => caller,
            None if capabilities.authentication_failure_close => {
                let detail = format!(
                    "Login was refused using authentication mechanism {}. For details see the broker logfile.",
                    start_ok.mechanism
                );
                let refused = Exception::new(ReplyCode::AccessRefused, detail);
                return Err(refused.closing_connection().into());
            }
            None => return Err(Ended::Dropped),
        };
        let (channel_max, frame_max) = (limits::CHANNEL_MAX, limits::FRAME_BYTES_MAX);
        let heartbeat = limits::HEARTBEAT_S;
        self.send(&connection::Tune { channel_max, frame_max, heartbeat }).await?;
        let tune_ok = match self.receive().await? {
            Method::ConnectionTuneOk(tune_ok) => tune_ok,
            _ => return Err(unexpected().into()),
        };
        // A client may only lower the limits; 0 would be "no limit".
        let frame_range = limits::FRAME_BYTES_MIN..=frame_max;
        if tune_ok.channel_max > channel_max || !frame_range.contains(&tune_ok.frame_max) {
            return Err(Ended::Dropped);
        }
        let channel_max = if tune_ok.channel_max == 0 { channel_max } else { tune_ok.channel_max };
        self.decoder.set_frame_max(tune_ok.frame_max);
        let host = match self.receive().await? {
            Method::ConnectionOpen(open) => VirtualHost::new(&open.virtual_host),
            Method::ConnectionClose(_) => {
                self.send(&connection::CloseOk {}).await?;
                return Err(Ended::Closed);
            }
            _ => return Err(unexpected().into()),
        };
        let exists = front.has_vhost(host.name()).await;
        let exists = exists.map_err(|error| failed(&host, &error).closing_connection())?;
        if !exists {
            let detail = format!("vhost {} not found", host.name());
            let refused = Exception::new(ReplyCode::NotAllowed, detail);
            return Err(refused.caused_by(connection::Open::ID).into());
        }
        if !front.users.may_enter(&who, host.name()) {
            let detail = format!("access to vhost '{}' refused for user '{user}'", host.name());
            let refused = Exception::new(ReplyCode::NotAllowed, detail);
            return Err(refused.caused_by(connection::Open::ID).into());
        }
        self.send(&connection::OpenOk::default()).await?;
        let (frame_max, heartbeat) = (tune_ok.frame_max, tune_ok.heartbeat);
        Ok(Session {
            who,
            user,
            host,
            channel_max,
            frame_max,
            heartbeat,
            capabilities,
            mechanism: start_ok.mechanism.as_str().to_owned(),
            client_properties: start_ok.client_properties.as_table().to_owned(),
            protocol: AuditProtocol::Rabbitmq,
        })
    }
}

fn unexpected() -> Exception {
    Exception::new(ReplyCode::CommandInvalid, "unexpected method during the handshake")
}

fn start() -> connection::Start {
    let mut capabilities = FieldTable::builder();
    for name in [
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    ] {
        capabilities.put(name, true);
    }
    let capabilities = capabilities.build();
    let information = concat!("Malote ", env!("CARGO_PKG_VERSION"));
    let server_properties = FieldTable::builder()
        .with("capabilities", capabilities.as_table())
        .with("cluster_name", CLUSTER_NAME)
        .with("copyright", "Apache-2.0")
        .with("information", information)
        .with("platform", "Malote")
        .with("product", PRODUCT)
        .with("version", VERSION)
        .build();
    connection::Start {
        version_major: 0,
        version_minor: 9,
        server_properties,
        mechanisms: Bytes::from_static(b"PLAIN AMQPLAIN"),
        locales: Bytes::from_static(b"en_US"),
    }
}

/// User and password of a response, if the mechanism is known and the response has its form.
pub fn credentials(start_ok: &connection::StartOk) -> Option<(String, String)> {
    match start_ok.mechanism.as_str() {
        "PLAIN" => {
            let mut parts = std::str::from_utf8(&start_ok.response).ok()?.split('\0');
            let (_, user, password) = (parts.next()?, parts.next()?, parts.next()?);
            parts.next().is_none().then(|| (user.to_owned(), password.to_owned()))
        }
        "AMQPLAIN" => {
            let table = TableRef::parse(&start_ok.response).ok()?;
            let text = |name: &str| Some(table.get(name)?.as_str()?.to_owned());
            Some((text("LOGIN")?, text("PASSWORD")?))
        }
        _ => None,
    }
}

/// Verifies the caller, and records the login.
async fn login(
    front: &Front,
    peer: IpAddr,
    start_ok: &connection::StartOk,
) -> Option<(Principal, String)> {
    let audit = front.access.audit();
    let entry = || AuditEntry::new(AuditProtocol::Rabbitmq, AuditAction::Login).from(peer);
    let Some((user, password)) = credentials(start_ok) else {
        audit.record(entry().refused("unknown_mechanism"));
        return None;
    };
    let who = front.verify(&user, &password, peer).await;
    match &who {
        Some(who) => audit.signed_in(who, peer, AuditProtocol::Rabbitmq),
        None => {
            audit.record(entry().claimed(&user, CallerKind::User).refused("wrong_credentials"));
        }
    }
    who.map(|who| (who, user))
}
