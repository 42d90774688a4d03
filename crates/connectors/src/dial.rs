//! Opens TCP streams to servers, with or without TLS.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Files with the system's trusted certificates, on various distributions.
const SYSTEM_BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/opt/homebrew/etc/ca-certificates/cert.pem",
];

/// The TLS settings of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TlsMode {
    /// No TLS: for emulators, and brokers on this machine.
    Off,
    /// TLS with the system's trusted certificates, or those in the file named by `SSL_CERT_FILE`.
    System,
    /// Also trusts these certificates, in PEM form.
    #[cfg_attr(not(feature = "servicebus"), allow(dead_code))]
    Authority(Vec<u8>),
    /// Also trusts the certificates in this PEM file, which is read for every connection.
    AuthorityFile(PathBuf),
}

/// Why no stream could be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DialError {
    /// The same attempt may succeed later.
    Unreachable(String),
    /// The settings must be changed.
    Misconfigured(String),
}

pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for S {}

/// Connects once, without a timeout.
pub(crate) async fn dial(
    host: &str,
    port: u16,
    tls: &TlsMode,
) -> Result<Box<dyn ByteStream>, DialError> {
    let unreachable = |error: std::io::Error| DialError::Unreachable(error.to_string());
    let tcp = TcpStream::connect((host, port)).await.map_err(unreachable)?;
    // Frames are combined before they are written, so waiting for more would only delay them.
    let _ = tcp.set_nodelay(true);
    let Some(connector) = tls_connector(tls).map_err(DialError::Misconfigured)? else {
        return Ok(Box::new(tcp));
    };
    let name = ServerName::try_from(host.to_owned()).map_err(|_| {
        DialError::Misconfigured(format!("`{host}` is not a valid host name for TLS"))
    })?;
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

/// The file with the system's trusted certificates.
fn system_bundle() -> Option<PathBuf> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let usual = SYSTEM_BUNDLES.iter().map(PathBuf::from);
    named.into_iter().chain(usual).find(|path| path.exists())
}

/// Decodes percent escapes; None if one is invalid.
pub(crate) fn percent_decode(text: &str) -> Option<String> {
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

/// Splits `HOST[:PORT]`. The colons of an IPv6 address are inside brackets. The error completes the sentence "the URL
/// …".
#[cfg(any(feature = "native", feature = "rabbitmq"))]
pub(crate) fn host_and_port(address: &str, default_port: u16) -> Result<(&str, u16), &'static str> {
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => {
            (host, port.parse().map_err(|_| "has a bad port")?)
        }
        _ => (address, default_port),
    };
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() { Err("has no host") } else { Ok((host, port)) }
}

/// A TLS connector with these settings; None if TLS is off.
pub(crate) fn tls_connector(tls: &TlsMode) -> Result<Option<TlsConnector>, String> {
    let own: Vec<CertificateDer<'static>> = match tls {
        TlsMode::Off => return Ok(None),
        TlsMode::System => Vec::new(),
        TlsMode::Authority(pem) => {
            CertificateDer::pem_slice_iter(pem).filter_map(Result::ok).collect()
        }
        TlsMode::AuthorityFile(path) => {
            let pem = CertificateDer::pem_file_iter(path);
            let pem = pem.map_err(|error| format!("{}: {error}", path.display()))?;
            pem.filter_map(Result::ok).collect()
        }
    };
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(own);
    if added == 0 && *tls != TlsMode::System {
        return Err("the authority contains no certificate in PEM form".to_owned());
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
