//! One certificate for all ports, which can be replaced while the server runs.
//!
//! It is read from the operator's files, or it is a self-signed certificate. The latter is created once and kept in the
//! data directory, so that clients that trust it also trust it after a restart.

use super::stream::PrefixedStream;
use crate::files::{self, Fingerprint};
use crate::reload::Reload;
use crate::settings::Certificate;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Files of the self-signed certificate in the data directory. Clients need the certificate.
const SELF_SIGNED_CERT: &str = "tls-self-signed.pem";
const SELF_SIGNED_KEY: &str = "tls-self-signed.key";
/// The names that the certificate was created for, one per line.
const SELF_SIGNED_NAMES: &str = "tls-self-signed.names";
/// Names of every self-signed certificate.
const LOOPBACK_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Why there is no usable certificate.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// The file contains no PEM item of the expected kind.
    #[error("{} contains no {wanted} in PEM format", path.display())]
    NotPem { path: PathBuf, wanted: &'static str },
    /// Certificate and key do not match, or use an unsupported algorithm.
    #[error("{} and {} cannot be used together: {why}", cert.display(), key.display())]
    Unusable { cert: PathBuf, key: PathBuf, why: String },
    /// The self-signed certificate could not be created or stored.
    #[error("cannot create a certificate in {}: {why}", data.display())]
    NotMade { data: PathBuf, why: String },
}

/// The TLS acceptor that all ports share.
#[derive(Debug)]
pub struct Tls {
    cert: PathBuf,
    key: PathBuf,
    config: ArcSwap<CertificateConfig>,
    seen: Mutex<Fingerprints>,
}

/// Content of the two files.
#[derive(Debug)]
struct CertificateConfig {
    server: Arc<ServerConfig>,
    /// The server's own certificate, without its chain.
    own: CertificateDer<'static>,
}

type Fingerprints = (Option<Fingerprint>, Option<Fingerprint>);

/// Result of a handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsInfo {
    /// The server name that the client sent (SNI).
    pub server_name: Option<String>,
    /// The protocol negotiated with ALPN.
    pub alpn: Option<Vec<u8>>,
}

impl Tls {
    /// Reads or creates the certificate; `None` if TLS is off.
    pub fn open(certificate: &Certificate, data: &Path) -> Result<Option<Arc<Tls>>, TlsError> {
        let (cert, key) = match certificate {
            Certificate::None => return Ok(None),
            Certificate::Files { cert, key } => (cert.clone(), key.clone()),
            Certificate::SelfSigned { names } => self_signed(data, names)?,
        };
        let seen = (files::fingerprint(&cert), files::fingerprint(&key));
        let config = read_config(&cert, &key)?;
        Ok(Some(Arc::new(Tls {
            cert,
            key,
            config: ArcSwap::from_pointee(config),
            seen: Mutex::new(seen),
        })))
    }

    /// The file of the certificate, which clients of a self-signed server must trust.
    pub fn certificate_path(&self) -> &Path {
        &self.cert
    }

    /// Whether the certificate is valid for this host name.
    pub fn is_for(&self, name: &str) -> bool {
        let config = self.config.load();
        let certificate = webpki::EndEntityCert::try_from(&config.own);
        let name = ServerName::try_from(name);
        matches!((certificate, name), (Ok(certificate), Ok(name))
            if certificate.verify_is_valid_for_subject_name(&name).is_ok())
    }

    /// Does the handshake, within `limit`.
    pub(super) async fn accept(
        &self,
        stream: PrefixedStream<TcpStream>,
        limit: Duration,
    ) -> io::Result<(TlsInfo, TlsStream<PrefixedStream<TcpStream>>)> {
        let acceptor = TlsAcceptor::from(self.config.load().server.clone());
        let stream = tokio::time::timeout(limit, acceptor.accept(stream))
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "TLS handshake timed out"))??;
        let (_, session) = stream.get_ref();
        let info = TlsInfo {
            server_name: session.server_name().map(str::to_owned),
            alpn: session.alpn_protocol().map(<[u8]>::to_vec),
        };
        Ok((info, stream))
    }
}

impl Reload for Tls {
    fn name(&self) -> &'static str {
        "certificate"
    }

    fn reload(&self, force: bool) -> Result<bool, String> {
        let mut seen = self.seen.lock();
        let now = (files::fingerprint(&self.cert), files::fingerprint(&self.key));
        if !force && *seen == now {
            return Ok(false);
        }
        // `seen` changes only on success. If the two files are replaced one after the other, the first check may find a
        // mismatched pair, and the next check must try again.
        let config = read_config(&self.cert, &self.key).map_err(|error| error.to_string())?;
        self.config.store(Arc::new(config));
        *seen = now;
        Ok(true)
    }
}

fn read_config(cert: &Path, key: &Path) -> Result<CertificateConfig, TlsError> {
    let read = |path: &Path| {
        files::read(path).map_err(|source| TlsError::Unreadable { path: path.to_owned(), source })
    };
    let not_pem = |path: &Path, wanted| TlsError::NotPem { path: path.to_owned(), wanted };

    let chain = CertificateDer::pem_slice_iter(&read(cert)?)
        .collect::<Result<Vec<_>, pem::Error>>()
        .ok()
        .filter(|chain| !chain.is_empty())
        .ok_or_else(|| not_pem(cert, "certificate"))?;
    let private =
        PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|_| not_pem(key, "private key"))?;

    let unusable = |error: rustls::Error| TlsError::Unusable {
        cert: cert.to_owned(),
        key: key.to_owned(),
        why: error.to_string(),
    };
    let own = chain[0].clone().into_owned();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(unusable)?;
    // Clients without ALPN are accepted as well; AMQP clients never use it.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(CertificateConfig { server: Arc::new(config), own })
}

/// The stored pair. It is created if it does not exist or was created for other names.
///
/// It has rcgen's default validity, until 4096: clients trust it because they were given it, so an expiry date would
/// only cause an outage.
fn self_signed(data: &Path, names: &[String]) -> Result<(PathBuf, PathBuf), TlsError> {
    let (cert, key) = (data.join(SELF_SIGNED_CERT), data.join(SELF_SIGNED_KEY));
    let mut all: Vec<String> = LOOPBACK_NAMES.map(str::to_owned).to_vec();
    for name in names.iter().filter(|name| !LOOPBACK_NAMES.contains(&name.as_str())) {
        all.push(name.clone());
    }
    let exists = files::exists(&cert) && files::exists(&key);
    if exists && names_of_kept(data) == all {
        return Ok((cert, key));
    }
    if exists {
        tracing::warn!(
            certificate = %cert.display(),
            "the names of the self-signed certificate changed; created a new one, which clients must trust"
        );
    }
    let not_made = |why: String| TlsError::NotMade { data: data.to_owned(), why };
    let pair =
        rcgen::generate_simple_self_signed(all.clone()).map_err(|e| not_made(e.to_string()))?;
    // The names are written last: if the process ends before, they do not match, and the pair is created again.
    files::create_private_dir(data)
        .and_then(|()| files::write_private(&key, pair.signing_key.serialize_pem().as_bytes()))
        .and_then(|()| files::write_private(&cert, pair.cert.pem().as_bytes()))
        .and_then(|()| {
            files::write_private(&data.join(SELF_SIGNED_NAMES), all.join("\n").as_bytes())
        })
        .map_err(|error| not_made(error.to_string()))?;
    Ok((cert, key))
}

/// The names of the stored pair. Earlier versions stored no list and used loopback names only.
fn names_of_kept(data: &Path) -> Vec<String> {
    match files::read_text(&data.join(SELF_SIGNED_NAMES)) {
        Ok(text) => text.lines().map(str::to_owned).collect(),
        Err(_) => LOOPBACK_NAMES.map(str::to_owned).to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_self_signed_pair_is_kept_over_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let first = open(dir.path(), &["mq.example.org"]);
        let second = open(dir.path(), &["mq.example.org"]);
        assert_eq!(first, second);
        assert!(!files::readable_by_others(&dir.path().join(SELF_SIGNED_KEY)));
        let names = vec!["mq.example.org".to_owned()];
        let tls = Tls::open(&Certificate::SelfSigned { names }, dir.path()).unwrap().unwrap();
        assert!(tls.is_for("mq.example.org") && tls.is_for("MQ.example.org"));
        assert!(!tls.is_for("other.example.org") && !tls.is_for("not a name"));
    }

    /// Opens a self-signed server and returns its certificate.
    fn open(data: &Path, names: &[&str]) -> Vec<u8> {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let tls = Tls::open(&Certificate::SelfSigned { names }, data).unwrap().unwrap();
        files::read(tls.certificate_path()).unwrap()
    }

    /// Whether a client that trusts the certificate accepts the server under this name.
    fn reaches(pem: &[u8], name: &str) -> bool {
        let cert = CertificateDer::from_pem_slice(pem).unwrap();
        let cert = rustls::server::ParsedCertificate::try_from(&cert).unwrap();
        let name = rustls::pki_types::ServerName::try_from(name.to_owned()).unwrap();
        rustls::client::verify_server_name(&cert, &name).is_ok()
    }

    #[test]
    fn a_self_signed_certificate_is_for_its_names_and_made_anew_when_they_change() {
        let dir = tempfile::tempdir().unwrap();
        let plain = open(dir.path(), &[]);
        assert!(reaches(&plain, "localhost") && reaches(&plain, "127.0.0.1"));
        assert!(!reaches(&plain, "broker"));
        // As an earlier version left it.
        files::remove(&dir.path().join(SELF_SIGNED_NAMES)).unwrap();
        assert_eq!(open(dir.path(), &[]), plain);
        let named = open(dir.path(), &["broker", "10.0.0.7", "fd00::7"]);
        assert_ne!(named, plain);
        for name in ["localhost", "127.0.0.1", "::1", "broker", "10.0.0.7", "fd00::7"] {
            assert!(reaches(&named, name), "{name}");
        }
        assert!(!reaches(&named, "other"));
        assert_eq!(open(dir.path(), &["broker", "10.0.0.7", "fd00::7"]), named);
        let fewer = open(dir.path(), &["broker"]);
        assert!(
            reaches(&fewer, "broker") && !reaches(&fewer, "10.0.0.7"),
            "names can be taken away"
        );
        // The process ended while it replaced the pair.
        files::remove(&dir.path().join(SELF_SIGNED_NAMES)).unwrap();
        let again = open(dir.path(), &["broker"]);
        assert!(again != fewer && reaches(&again, "broker"));
    }

    #[test]
    fn a_new_certificate_is_taken_up_and_a_broken_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let tls =
            Tls::open(&Certificate::SelfSigned { names: Vec::new() }, dir.path()).unwrap().unwrap();
        assert_eq!(tls.reload(false), Ok(false));
        let before = tls.config.load_full();

        let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        files::write_private(&tls.cert, other.cert.pem().as_bytes()).unwrap();
        let error = tls.reload(false).unwrap_err();
        assert!(error.contains("cannot be used together"), "{error}");
        assert!(Arc::ptr_eq(&before, &tls.config.load_full()));

        files::write_private(&tls.key, other.signing_key.serialize_pem().as_bytes()).unwrap();
        assert_eq!(tls.reload(false), Ok(true));
        assert!(!Arc::ptr_eq(&before, &tls.config.load_full()));
        assert_eq!(tls.reload(true), Ok(true));
    }

    #[test]
    fn a_file_without_pem_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = (dir.path().join("c"), dir.path().join("k"));
        files::write_private(&cert, b"hello").unwrap();
        files::write_private(&key, b"hello").unwrap();
        let files = Certificate::Files { cert: cert.clone(), key };
        let error = Tls::open(&files, dir.path()).unwrap_err().to_string();
        assert_eq!(error, format!("{} contains no certificate in PEM format", cert.display()));
        let missing =
            Certificate::Files { cert: dir.path().join("none"), key: dir.path().join("none") };
        let error = Tls::open(&missing, dir.path()).unwrap_err().to_string();
        assert!(error.starts_with("cannot read "), "{error}");
    }
}
