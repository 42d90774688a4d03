//! TLS for the database's client, with what the other connectors trust.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::dial::{Tls, connector};

/// Makes streams that trust this.
#[derive(Clone)]
pub(super) struct Rustls(pub Tls);

impl MakeTlsConnect<Socket> for Rustls {
    type Stream = Protected;
    type TlsConnect = Named;
    type Error = io::Error;

    fn make_tls_connect(&mut self, domain: &str) -> io::Result<Named> {
        let connector = connector(&self.0).map_err(io::Error::other)?;
        let connector = connector.ok_or_else(|| io::Error::other("TLS is switched off"))?;
        let name = ServerName::try_from(domain.to_owned())
            .map_err(|_| io::Error::other(format!("`{domain}` cannot have a certificate")))?;
        Ok(Named { connector, name })
    }
}

/// A way to one server.
pub(super) struct Named {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl TlsConnect<Socket> for Named {
    type Stream = Protected;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Protected>> + Send>>;

    fn connect(self, stream: Socket) -> Self::Future {
        Box::pin(async move { self.connector.connect(self.name, stream).await.map(Protected) })
    }
}

/// A stream to the server that nobody else can read.
pub(super) struct Protected(TlsStream<Socket>);

impl tokio_postgres::tls::TlsStream for Protected {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Protected {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl AsyncWrite for Protected {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
