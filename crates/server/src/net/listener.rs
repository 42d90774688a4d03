//! Opening a port, and the sentence to read when that fails.

use crate::settings::Listen;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// Connections that the system may hold for us between two accepts.
const BACKLOG: i32 = 1024;

/// When a silent connection is first asked whether its peer is still there.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);

/// How long accepting pauses after an error that will not go away by trying at once, such as too
/// many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a port could not be opened: one sentence that names the setting to change.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another program, perhaps another Malote, has it.
    #[error(
        "{addr} is taken by another program: stop it, or choose another port with \
         --{front} HOST:PORT (or --{front} off)"
    )]
    Taken {
        /// Name of the listener, which is also its flag.
        front: &'static str,
        /// The address asked for.
        addr: SocketAddr,
    },
    /// Ports below 1024 are for privileged programs.
    #[error("{addr} needs privileges: choose a port from 1024 upwards with --{front} HOST:PORT")]
    NotAllowed {
        /// Name of the listener, which is also its flag.
        front: &'static str,
        /// The address asked for.
        addr: SocketAddr,
    },
    /// The address is not one of this machine's.
    #[error(
        "this machine has no address {}: choose another with --{front} HOST:PORT", addr.ip()
    )]
    NotHere {
        /// Name of the listener, which is also its flag.
        front: &'static str,
        /// The address asked for.
        addr: SocketAddr,
    },
    /// The name leads nowhere.
    #[error("`{host}` is not an address of this machine ({why}): change --{front} HOST:PORT")]
    Unresolved {
        /// Name of the listener, which is also its flag.
        front: &'static str,
        /// The name asked for.
        host: String,
        /// What the resolver said.
        why: String,
    },
    /// Anything else.
    #[error("cannot listen on {addr} for --{front}: {source}")]
    Other {
        /// Name of the listener, which is also its flag.
        front: &'static str,
        /// The address asked for.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}

/// An open port.
#[derive(Debug)]
pub struct Listener {
    front: &'static str,
    inner: TcpListener,
    local: SocketAddr,
}

impl Listener {
    /// Opens the port of the listener called `front` (`http`, `amqp`, …); `None` when it is off.
    ///
    /// A name with several addresses is bound at the first that works.
    pub async fn bind(front: &'static str, listen: &Listen) -> Result<Option<Listener>, BindError> {
        let Listen::At { host, port } = listen else { return Ok(None) };
        let unresolved = |why: String| BindError::Unresolved { front, host: host.clone(), why };
        let found = tokio::net::lookup_host((host.as_str(), *port))
            .await
            .map_err(|error| unresolved(error.to_string()))?;
        let mut failed = None;
        for addr in found {
            // `localhost` was let through as loopback; a strange hosts file shall not widen it.
            if listen.is_loopback() && !addr.ip().to_canonical().is_loopback() {
                continue;
            }
            match open(addr).and_then(|inner| Ok((inner.local_addr()?, inner))) {
                Ok((local, inner)) => return Ok(Some(Listener { front, inner, local })),
                Err(error) => failed = failed.or(Some((addr, error))),
            }
        }
        let Some((addr, source)) = failed else {
            return Err(unresolved("it has no usable address".to_owned()));
        };
        Err(match source.kind() {
            ErrorKind::AddrInUse => BindError::Taken { front, addr },
            ErrorKind::PermissionDenied => BindError::NotAllowed { front, addr },
            ErrorKind::AddrNotAvailable => BindError::NotHere { front, addr },
            _ => BindError::Other { front, addr, source },
        })
    }

    /// Name of the listener.
    pub fn front(&self) -> &'static str {
        self.front
    }

    /// Where it listens, with the port that the system chose if it was asked to.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The next connection. Errors of one connection are passed over; those of the process are
    /// logged and waited out, so this never fails.
    pub(super) async fn accept(&self) -> (TcpStream, SocketAddr) {
        loop {
            match self.inner.accept().await {
                Ok((stream, remote)) => {
                    // Neither makes a connection unusable when it fails.
                    let _ = stream.set_nodelay(true);
                    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER);
                    let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
                    return (stream, remote);
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    let front = self.front;
                    tracing::warn!(front, %error, "cannot accept connections; trying again");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

fn open(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    // A restart must not wait for connections of the last run to fade.
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
    async fn a_taken_port_names_the_flag_to_change() {
        let first = bind("0").await.unwrap().unwrap();
        let addr = first.local_addr();
        assert_eq!(
            bind(&addr.to_string()).await.unwrap_err(),
            format!(
                "{addr} is taken by another program: stop it, or choose another port with \
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
    async fn a_foreign_address_is_told_apart_from_a_taken_one() {
        let error = bind("192.0.2.1:0").await.unwrap_err();
        assert_eq!(
            error,
            "this machine has no address 192.0.2.1: choose another with --http HOST:PORT"
        );
    }
}
