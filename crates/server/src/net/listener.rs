//! Opens a port, with error messages that name the setting to change.

use crate::settings::Listen;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// Connections that the system may queue before they are accepted.
const BACKLOG: i32 = 1024;

/// Idle time after which TCP keep-alive starts.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);

/// Pause after an accept error that would recur immediately, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address is in use, perhaps by another Malote.
    #[error(
        "{addr} is in use by another program: stop it, or choose another port with \
         --{front} HOST:PORT (or --{front} off)"
    )]
    Taken {
        /// Name of the listener, which is also its flag.
        front: &'static str,
        addr: SocketAddr,
    },
    /// Ports below 1024 need privileges.
    #[error(
        "permission denied for {addr}: choose a port of 1024 or above with --{front} HOST:PORT"
    )]
    NotAllowed { front: &'static str, addr: SocketAddr },
    /// The address does not belong to this machine.
    #[error(
        "{} is not an address of this machine: choose another with --{front} HOST:PORT", addr.ip()
    )]
    NotHere { front: &'static str, addr: SocketAddr },
    /// The host name cannot be resolved.
    #[error(
        "cannot resolve `{host}` to an address of this machine ({why}): change --{front} HOST:PORT"
    )]
    Unresolved { front: &'static str, host: String, why: String },
    #[error("cannot listen on {addr} for --{front}: {source}")]
    Other { front: &'static str, addr: SocketAddr, source: io::Error },
}

#[derive(Debug)]
pub struct Listener {
    front: &'static str,
    inner: TcpListener,
    local: SocketAddr,
}

impl Listener {
    /// Opens the port of the listener `front` (`http`, `amqp`, …); `None` if it is off.
    ///
    /// If the name has several addresses, the first one that works is used.
    pub async fn bind(front: &'static str, listen: &Listen) -> Result<Option<Listener>, BindError> {
        let Listen::At { host, port } = listen else { return Ok(None) };
        let unresolved = |why: String| BindError::Unresolved { front, host: host.clone(), why };
        let found = tokio::net::lookup_host((host.as_str(), *port))
            .await
            .map_err(|error| unresolved(error.to_string()))?;
        let mut failed = None;
        for addr in found {
            // `localhost` counts as loopback, so an unusual hosts file must not widen it.
            if listen.is_loopback() && !addr.ip().to_canonical().is_loopback() {
                continue;
            }
            match open(addr).and_then(|inner| Ok((inner.local_addr()?, inner))) {
                Ok((local, inner)) => return Ok(Some(Listener { front, inner, local })),
                Err(error) => failed = failed.or(Some((addr, error))),
            }
        }
        let Some((addr, source)) = failed else {
            return Err(unresolved("no usable address".to_owned()));
        };
        Err(match source.kind() {
            ErrorKind::AddrInUse => BindError::Taken { front, addr },
            ErrorKind::PermissionDenied => BindError::NotAllowed { front, addr },
            ErrorKind::AddrNotAvailable => BindError::NotHere { front, addr },
            _ => BindError::Other { front, addr, source },
        })
    }

    pub fn front(&self) -> &'static str {
        self.front
    }

    /// The address, with the actual port if it was 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Accepts the next connection. Errors of a single connection are ignored. Errors of the process are logged and
    /// waited out, so this never fails.
    pub(super) async fn accept(&self) -> (TcpStream, SocketAddr) {
        loop {
            match self.inner.accept().await {
                Ok((stream, remote)) => {
                    // The connection is usable even if these fail.
                    let _ = stream.set_nodelay(true);
                    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER);
                    let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
                    return (stream, remote);
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    let front = self.front;
                    tracing::warn!(front, %error, "cannot accept connections; retrying");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

fn open(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    // A restart must not wait for old connections in TIME_WAIT.
    socket.set_reuse_address(true)?;
    if addr.is_ipv6() && addr.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn bind(text: &str) -> Result<Option<Listener>, String> {
        Listener::bind("http", &text.parse().unwrap()).await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn the_error_for_a_port_in_use_names_the_flag() {
        let first = bind("0").await.unwrap().unwrap();
        let addr = first.local_addr();
        assert_eq!(
            bind(&addr.to_string()).await.unwrap_err(),
            format!(
                "{addr} is in use by another program: stop it, or choose another port with \
                 --http HOST:PORT (or --http off)"
            )
        );
    }

    #[tokio::test]
    async fn off_opens_nothing_and_localhost_is_this_machine() {
        assert!(bind("off").await.unwrap().is_none());
        let local = bind("localhost:0").await.unwrap().unwrap();
        assert!(local.local_addr().ip().is_loopback());
    }

    #[tokio::test]
    async fn a_foreign_address_and_a_port_in_use_have_different_errors() {
        let error = bind("192.0.2.1:0").await.unwrap_err();
        assert_eq!(
            error,
            "192.0.2.1 is not an address of this machine: choose another with --http HOST:PORT"
        );
    }
}
