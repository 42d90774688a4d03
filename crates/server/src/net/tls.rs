//! One certificate for every port, replaced while the server runs.
//!
//! The operator's own files, or a self-signed pair that is made once and kept in the data
//! directory, so that a client which trusts it today trusts it after a restart.

use super::stream::Prefixed;
use crate::files::{self, Fingerprint};
use crate::reload::Reload;
use crate::settings::Certificate;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Files of the self-signed pair, in the data directory. Give the certificate to clients.
const SELF_SIGNED_CERT: &str = "tls-self-signed.pem";
const SELF_SIGNED_KEY: &str = "tls-self-signed.key";

/// Why there is no usable certificate.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file holds something else.
    #[error("{} holds no {wanted} in PEM form", path.display())]
    NotPem {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        wanted: &'static str,
    },
    /// Certificate and key do not fit, or use something we do not speak.
    #[error("{} and {} cannot be used together: {why}", cert.display(), key.display())]
    Unusable {
        /// The certificate.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
        /// What the TLS library said.
        why: String,
    },
    /// The self-signed pair could not be made or kept.
    #[error("cannot make a certificate in {}: {why}", data.display())]
    NotMade {
        /// The data directory.
        data: PathBuf,
        /// What went wrong.
        why: String,
    },
}

/// The acceptor that all ports share.
#[derive(Debug)]
pub struct Tls {
    cert: PathBuf,
    key: PathBuf,
    config: ArcSwap<ServerConfig>,
    seen: Mutex<Seen>,
}

type Seen = (Option<Fingerprint>, Option<Fingerprint>);

/// What the handshake told about a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsInfo {
    /// The name the client asked for, if it sent one.
    pub server_name: Option<String>,
    /// The protocol agreed on by ALPN, if any.
    pub alpn: Option<Vec<u8>>,
}

impl Tls {
    /// Reads or makes the certificate; `None` when TLS is not wanted. `hosts` are names that a
    /// self-signed certificate is made for, besides this machine's loopback ones.
    pub fn open(
        certificate: &Certificate,
        data: &Path,
        hosts: &[String],
    ) -> Result<Option<Arc<Tls>>, TlsError> {
        let (cert, key) = match certificate {
            Certificate::None => return Ok(None),
            Certificate::Files { cert, key } => (cert.clone(), key.clone()),
            Certificate::SelfSigned => self_signed(data, hosts)?,
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

    /// The certificate's file: what clients of a self-signed server are to trust.
    pub fn certificate_path(&self) -> &Path {
        &self.cert
    }

    /// Does the handshake, within `limit`.
    pub(super) async fn accept(
        &self,
        stream: Prefixed<TcpStream>,
        limit: Duration,
    ) -> io::Result<(TlsInfo, TlsStream<Prefixed<TcpStream>>)> {
        let acceptor = TlsAcceptor::from(self.config.load_full());
        let stream =
            tokio::time::timeout(limit, acceptor.accept(stream)).await.map_err(|_| {
                io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long")
            })??;
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
        // `seen` moves on success only: of two files replaced one after the other, the first look
        // may find a pair that does not fit, and must look again.
        let config = read_config(&self.cert, &self.key).map_err(|error| error.to_string())?;
        self.config.store(Arc::new(config));
        *seen = now;
        Ok(true)
    }
}

fn read_config(cert: &Path, key: &Path) -> Result<ServerConfig, TlsError> {
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
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(unusable)?;
    // Clients that name no protocol are served as well; AMQP and Kafka ones never do.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// The kept pair, made if it is not there.
///
/// It has rcgen's default validity, which ends in 4096: it is trusted by being handed over, and
/// an end date would only make it fail on a Sunday.
fn self_signed(data: &Path, hosts: &[String]) -> Result<(PathBuf, PathBuf), TlsError> {
    let (cert, key) = (data.join(SELF_SIGNED_CERT), data.join(SELF_SIGNED_KEY));
    if files::exists(&cert) && files::exists(&key) {
        return Ok((cert, key));
    }
    let not_made = |why: String| TlsError::NotMade { data: data.to_owned(), why };
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    names.extend(hosts.iter().filter(|host| !names.contains(host)).cloned().collect::<Vec<_>>());
    let pair = rcgen::generate_simple_self_signed(names).map_err(|e| not_made(e.to_string()))?;
    files::create_private_dir(data)
        .and_then(|()| files::write_private(&key, pair.signing_key.serialize_pem().as_bytes()))
        .and_then(|()| files::write_private(&cert, pair.cert.pem().as_bytes()))
        .map_err(|error| not_made(error.to_string()))?;
    Ok((cert, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_self_signed_pair_is_kept_over_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Tls::open(&Certificate::SelfSigned, dir.path(), &["mq.example.org".into()]);
        let first = open().unwrap().unwrap();
        let bytes = files::read(first.certificate_path()).unwrap();
        let second = open().unwrap().unwrap();
        assert_eq!(files::read(second.certificate_path()).unwrap(), bytes);
        assert!(!files::readable_by_others(&dir.path().join(SELF_SIGNED_KEY)));
    }

    #[test]
    fn a_new_certificate_is_taken_up_and_a_broken_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let tls = Tls::open(&Certificate::SelfSigned, dir.path(), &[]).unwrap().unwrap();
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
        let error = Tls::open(&files, dir.path(), &[]).unwrap_err().to_string();
        assert_eq!(error, format!("{} holds no certificate in PEM form", cert.display()));
        let missing =
            Certificate::Files { cert: dir.path().join("none"), key: dir.path().join("none") };
        let error = Tls::open(&missing, dir.path(), &[]).unwrap_err().to_string();
        assert!(error.starts_with("cannot read "), "{error}");
    }
}
