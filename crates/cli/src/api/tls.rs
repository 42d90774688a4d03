//! TLS of the client: which certificates it trusts.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_rustls::TlsConnector;

use crate::failure::Failure;
use crate::files;

/// Certificate bundles of common distributions.
const SYSTEM_BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/opt/homebrew/etc/ca-certificates/cert.pem",
];

/// A connector that trusts the system's certificates and those in `ca`, or any certificate if `insecure`.
pub(super) fn connector(ca: Option<&Path>, insecure: bool) -> anyhow::Result<TlsConnector> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .context("cannot set up TLS")?;
    let config = if insecure {
        let verifier = Arc::new(AnyCertificate { provider });
        builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
    } else {
        builder.with_root_certificates(roots(ca)?).with_no_client_auth()
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

fn roots(ca: Option<&Path>) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = ca {
        let added = add(&mut roots, path)?;
        if added == 0 {
            return Err(
                Failure::Usage(format!("{} contains no certificate", path.display())).into()
            );
        }
    }
    let from_environment = std::env::var_os("SSL_CERT_FILE").map(std::path::PathBuf::from);
    let defaults = SYSTEM_BUNDLES.iter().map(std::path::PathBuf::from);
    if let Some(bundle) = from_environment.into_iter().chain(defaults).find(|path| path.exists()) {
        add(&mut roots, &bundle)?;
    }
    Ok(roots)
}

fn add(roots: &mut RootCertStore, path: &Path) -> anyhow::Result<usize> {
    let bytes = files::read(path)?;
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(&bytes).filter_map(Result::ok).collect();
    Ok(roots.add_parsable_certificates(certificates).0)
}

/// `--insecure`: accepts any certificate, but verifies the signatures of the handshake.
#[derive(Debug)]
struct AnyCertificate {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
