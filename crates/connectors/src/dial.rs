//! A stream to a server: TCP, and TLS over it.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Where distributions keep what they trust.
const SYSTEM_BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/opt/homebrew/etc/ca-certificates/cert.pem",
];

/// How a stream is protected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tls {
    /// Not at all: emulators, and brokers on this machine.
    Off,
    /// By a certificate that the system trusts; the environment's `SSL_CERT_FILE` names another bundle.
    System,
    /// By one that the system or these authorities vouch for, in PEM form.
    #[cfg_attr(not(feature = "servicebus"), allow(dead_code))]
    Authority(Vec<u8>),
    /// The same, in a file that is read with every connection.
    AuthorityFile(PathBuf),
}

/// Why there is no stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DialError {
    /// It may work later.
    Unreachable(String),
    /// Not as it is set up.
    Wrong(String),
}

/// Any stream.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Connects once, for as long as it takes.
pub(crate) async fn dial(host: &str, port: u16, tls: &Tls) -> Result<Box<dyn Stream>, DialError> {
    let unreachable = |error: std::io::Error| DialError::Unreachable(error.to_string());
    let tcp = TcpStream::connect((host, port)).await.map_err(unreachable)?;
    // Frames are put together before they are written; waiting for more only delays them.
    let _ = tcp.set_nodelay(true);
    let Some(connector) = connector(tls).map_err(DialError::Wrong)? else {
        return Ok(Box::new(tcp));
    };
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| DialError::Wrong(format!("`{host}` cannot have a certificate")))?;
    let handshake = |error: std::io::Error| {
        let of_tls = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
        match of_tls {
            Some(rustls::Error::InvalidMessage(_)) => {
                DialError::Unreachable(format!("the server does not speak TLS: {error}"))
            }
            _ => unreachable(error),
        }
    };
    Ok(Box::new(connector.connect(name, tcp).await.map_err(handshake)?))
}

/// The bundle of what the system trusts.
fn system_bundle() -> Option<PathBuf> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let usual = SYSTEM_BUNDLES.iter().map(PathBuf::from);
    named.into_iter().chain(usual).find(|path| path.exists())
}

/// Text with its %XX read.
pub(crate) fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |b: u8| char::from(b).to_digit(16);
        let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
        bytes.push((high * 16 + low) as u8);
    }
    String::from_utf8(bytes).ok()
}

/// What makes streams that are protected like this; none if they are not to be.
pub(crate) fn connector(tls: &Tls) -> Result<Option<TlsConnector>, String> {
    let own: Vec<CertificateDer<'static>> = match tls {
        Tls::Off => return Ok(None),
        Tls::System => Vec::new(),
        Tls::Authority(pem) => CertificateDer::pem_slice_iter(pem).filter_map(Result::ok).collect(),
        Tls::AuthorityFile(path) => {
            let pem = CertificateDer::pem_file_iter(path);
            let pem = pem.map_err(|error| format!("{}: {error}", path.display()))?;
            pem.filter_map(Result::ok).collect()
        }
    };
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(own);
    if added == 0 && *tls != Tls::System {
        return Err("the authority holds no certificate in PEM form".to_owned());
    }
    if let Some(bundle) = system_bundle() {
        let trusted = CertificateDer::pem_file_iter(&bundle)
            .map_err(|error| format!("{}: {error}", bundle.display()))?;
        roots.add_parsable_certificates(trusted.filter_map(Result::ok));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Some(TlsConnector::from(Arc::new(config))))
}
