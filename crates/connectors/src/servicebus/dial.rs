//! A stream to the server: TCP, and TLS over it.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::config::{Config, Tls};
use super::error::{Error, Result};

/// Where distributions keep what they trust.
const SYSTEM_BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/opt/homebrew/etc/ca-certificates/cert.pem",
];

/// Any stream.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Connects once.
pub(super) async fn dial(config: &Config) -> Result<Box<dyn Stream>> {
    let unreachable = |why: String| {
        let to = format!("{}:{}", config.host, config.port);
        Error::Unreachable { to, why }
    };
    let connecting = async {
        let tcp = TcpStream::connect((config.host.as_str(), config.port))
            .await
            .map_err(|error| unreachable(error.to_string()))?;
        // Frames are put together before they are written; waiting for more only delays them.
        let _ = tcp.set_nodelay(true);
        let Some(tls) = connector(&config.tls).map_err(&unreachable)? else {
            return Ok(Box::new(tcp) as Box<dyn Stream>);
        };
        let name = ServerName::try_from(config.host.clone())
            .map_err(|_| Error::Config(format!("`{}` cannot have a certificate", config.host)))?;
        let stream =
            tls.connect(name, tcp).await.map_err(|error| unreachable(error.to_string()))?;
        Ok(Box::new(stream) as Box<dyn Stream>)
    };
    tokio::time::timeout(config.timeout, connecting)
        .await
        .unwrap_or_else(|_| Err(unreachable("no answer in time".to_owned())))
}

fn connector(tls: &Tls) -> std::result::Result<Option<TlsConnector>, String> {
    let own = match tls {
        Tls::Off => return Ok(None),
        Tls::System => &[][..],
        Tls::Authority(pem) => pem,
    };
    let mut roots = RootCertStore::empty();
    let own: Vec<_> = CertificateDer::pem_slice_iter(own).filter_map(|one| one.ok()).collect();
    let (added, _) = roots.add_parsable_certificates(own);
    if added == 0 && *tls != Tls::System {
        return Err("the authority holds no certificate in PEM form".to_owned());
    }
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let usual = SYSTEM_BUNDLES.iter().map(PathBuf::from);
    if let Some(bundle) = named.into_iter().chain(usual).find(|path| path.exists()) {
        let trusted = CertificateDer::pem_file_iter(&bundle)
            .map_err(|error| format!("{}: {error}", bundle.display()))?;
        roots.add_parsable_certificates(trusted.filter_map(|one| one.ok()));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Some(TlsConnector::from(Arc::new(config))))
}
