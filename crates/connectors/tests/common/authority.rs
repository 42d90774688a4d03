//! A certificate authority for test servers.
#![allow(clippy::disallowed_methods)] // test code

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

/// An authority's certificate in a file, and a server certificate for `localhost` that it signed.
pub struct TestAuthority {
    pub file: PathBuf,
    pub certificate: String,
    pub key: String,
    _dir: TempDir,
}

impl TestAuthority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let server = CertificateParams::new(["localhost".to_owned()]).unwrap();
        let certificate = server.signed_by(&key, &issuer).unwrap().pem();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("our ca.pem");
        std::fs::write(&file, issuer.pem()).unwrap();
        Self { file, certificate, key: key.serialize_pem(), _dir: dir }
    }

    /// The file's path, escaped for a URL.
    pub fn in_url(&self) -> String {
        self.file.display().to_string().replace(' ', "%20")
    }
}
