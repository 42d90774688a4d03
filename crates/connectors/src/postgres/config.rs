//! Parses `postgres://` URLs.

use std::time::Duration;

use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use super::tls::PgTls;
use crate::broker::BrokerError;
use crate::dial::{TlsMode, percent_decode};

/// How long connecting may take, unless the URL sets it.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// A server that does not acknowledge data for this long counts as gone.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// A parsed URL.
pub(super) struct PgConfig {
    pub postgres: tokio_postgres::Config,
    pub tls: PgTls,
    /// `pooled=true`: a connection pool may use another connection for each transaction. Then the connector neither
    /// listens nor prepares statements, and the leases of a crashed worker end only with their locks.
    pub pooled: bool,
}

impl PgConfig {
    /// Parses a URL of libpq, with the additional options `pooled=true` and `sslrootcert=FILE`.
    pub(super) fn parse(url: &str) -> Result<Self, BrokerError> {
        let invalid = |why: String| BrokerError::Refused {
            code: "bad_url".into(),
            text: format!(
                "the URL {why}: write postgres://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]…]/DATABASE[?sslmode=…&sslrootcert=FILE&pooled=true]"
            ),
        };
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut pooled, mut authority, mut verified, mut libpq_options) =
            (false, None, false, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("pooled", "true")) => pooled = true,
                Some(("pooled", "false")) => pooled = false,
                Some(("pooled", _)) => {
                    return Err(invalid(
                        "has an option `pooled` that is neither true nor false".into(),
                    ));
                }
                Some(("sslrootcert", file)) => {
                    let file = percent_decode(file);
                    authority =
                        Some(file.ok_or_else(|| invalid("contains a bad percent escape".into()))?);
                }
                // Certificates are always verified here, so `require` does the same as these two.
                Some(("sslmode", "verify-full" | "verify-ca")) => {
                    verified = true;
                    libpq_options.push("sslmode=require");
                }
                _ => libpq_options.push(pair),
            }
        }
        let url = if libpq_options.is_empty() {
            base.to_owned()
        } else {
            format!("{base}?{}", libpq_options.join("&"))
        };
        let mut postgres: tokio_postgres::Config = url
            .parse()
            .map_err(|error: tokio_postgres::Error| invalid(super::error::text(&error)))?;
        if postgres.get_dbname().is_none() {
            return Err(invalid("names no database".into()));
        }
        if authority.is_some() && !verified && postgres.get_ssl_mode() != SslMode::Require {
            postgres.ssl_mode(SslMode::Require);
        }
        // Unknown certificates are refused. With `prefer`, that would exclude servers with a self-signed certificate,
        // which libpq accepts. So `prefer` means `disable` for this machine and `require` for all others.
        if postgres.get_ssl_mode() == SslMode::Prefer {
            postgres.ssl_mode(SslMode::Disable);
            let is_local = |host: &Host| match host {
                Host::Tcp(name) => {
                    name == "localhost"
                        || name.parse().is_ok_and(|at: std::net::IpAddr| at.is_loopback())
                }
                Host::Unix(_) => true,
            };
            if !postgres.get_hosts().iter().all(is_local) {
                postgres.ssl_mode(SslMode::Require);
            }
        }
        // A standby cannot store messages.
        postgres.target_session_attrs(TargetSessionAttrs::ReadWrite);
        if postgres.get_connect_timeout().is_none() {
            postgres.connect_timeout(CONNECT_MAX);
        }
        if postgres.get_application_name().is_none() {
            postgres.application_name("malote");
        }
        if postgres.get_tcp_user_timeout().is_none() {
            postgres.tcp_user_timeout(SILENCE_MAX);
        }
        let tls = match authority {
            Some(file) => TlsMode::AuthorityFile(file.into()),
            None => TlsMode::System,
        };
        Ok(Self { postgres, tls: PgTls(tls), pooled })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed() {
        let config =
            PgConfig::parse("postgres://u:p@one.example,two.example:5433/db?pooled=true").unwrap();
        assert!(config.pooled);
        assert_eq!(config.postgres.get_hosts().len(), 2);
        assert_eq!(config.postgres.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        // Without an explicit setting, connections to other machines use TLS.
        assert_eq!(config.postgres.get_ssl_mode(), SslMode::Require);
        let plain = PgConfig::parse("postgres://u@one.example/db?sslmode=disable").unwrap();
        assert_eq!(plain.postgres.get_ssl_mode(), SslMode::Disable);
        let local = PgConfig::parse("postgresql://u@127.0.0.1/db?application_name=x").unwrap();
        assert_eq!(local.postgres.get_ssl_mode(), SslMode::Disable);
        assert_eq!(local.postgres.get_application_name(), Some("x"));
        let verified_url =
            PgConfig::parse("postgres://h/db?sslmode=verify-full&sslrootcert=/etc/our%20ca.pem")
                .unwrap();
        assert_eq!(verified_url.tls.0, TlsMode::AuthorityFile("/etc/our ca.pem".into()));
        for bad in [
            "postgres://h",
            "postgres://h/db?pooled=2",
            "postgres://h:x/db",
            "postgres://h/db?color=red",
        ] {
            let Err(error) = PgConfig::parse(bad) else { panic!("{bad} was taken") };
            assert!(error.to_string().contains("write postgres://"), "{error}");
        }
    }
}
