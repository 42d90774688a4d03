//! What a `postgres://` URL says.

use std::time::Duration;

use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use super::tls::Rustls;
use crate::broker::BrokerError;
use crate::dial::{Tls, unescaped};

/// How long a server may take to let us in, unless the URL says it.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// A server that does not acknowledge for so long is gone.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// How the database is reached.
pub(super) struct Config {
    pub postgres: tokio_postgres::Config,
    pub tls: Rustls,
    /// `pooled=true`: behind a pool that gives each transaction another connection. Nobody listens, statements have no
    /// names, and a worker that vanishes is noticed when its locks run out.
    pub pooled: bool,
}

impl Config {
    /// The URLs of libpq, and `pooled=true` and `sslrootcert=FILE`.
    pub(super) fn of(url: &str) -> Result<Self, BrokerError> {
        let wrong = |why: String| BrokerError::Refused {
            code: "bad_url".into(),
            text: format!(
                "the URL {why}: write postgres://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]…]/DATABASE[?sslmode=…&sslrootcert=FILE&pooled=true]"
            ),
        };
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut pooled, mut authority, mut verified, mut theirs) =
            (false, None, false, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("pooled", "true")) => pooled = true,
                Some(("pooled", "false")) => pooled = false,
                Some(("pooled", _)) => {
                    return Err(wrong("has a `pooled` that is no true or false".into()));
                }
                Some(("sslrootcert", file)) => {
                    let file = unescaped(file);
                    authority = Some(file.ok_or_else(|| wrong("has a bad escape".into()))?);
                }
                // Certificates are always looked at here: these two are what `require` does.
                Some(("sslmode", "verify-full" | "verify-ca")) => {
                    verified = true;
                    theirs.push("sslmode=require");
                }
                _ => theirs.push(pair),
            }
        }
        let url = if theirs.is_empty() {
            base.to_owned()
        } else {
            format!("{base}?{}", theirs.join("&"))
        };
        let mut postgres: tokio_postgres::Config = url
            .parse()
            .map_err(|error: tokio_postgres::Error| wrong(super::error::text(&error)))?;
        if postgres.get_dbname().is_none() {
            return Err(wrong("names no database".into()));
        }
        if authority.is_some() && !verified && postgres.get_ssl_mode() != SslMode::Require {
            postgres.ssl_mode(SslMode::Require);
        }
        // A certificate that nobody knows is refused. Where TLS is only preferred, that would shut out servers with one
        // of their own, which libpq would talk to: so it is asked for, or not used.
        if postgres.get_ssl_mode() == SslMode::Prefer {
            postgres.ssl_mode(SslMode::Disable);
            let is_here = |host: &Host| match host {
                Host::Tcp(name) => {
                    name == "localhost"
                        || name.parse().is_ok_and(|at: std::net::IpAddr| at.is_loopback())
                }
                Host::Unix(_) => true,
            };
            if !postgres.get_hosts().iter().all(is_here) {
                postgres.ssl_mode(SslMode::Require);
            }
        }
        // A standby takes no messages.
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
            Some(file) => Tls::AuthorityFile(file.into()),
            None => Tls::System,
        };
        Ok(Self { postgres, tls: Rustls(tls), pooled })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        let config =
            Config::of("postgres://u:p@one.example,two.example:5433/db?pooled=true").unwrap();
        assert!(config.pooled);
        assert_eq!(config.postgres.get_hosts().len(), 2);
        assert_eq!(config.postgres.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        // Nothing leaves this machine in the open unless somebody says so.
        assert_eq!(config.postgres.get_ssl_mode(), SslMode::Require);
        let open = Config::of("postgres://u@one.example/db?sslmode=disable").unwrap();
        assert_eq!(open.postgres.get_ssl_mode(), SslMode::Disable);
        let here = Config::of("postgresql://u@127.0.0.1/db?application_name=x").unwrap();
        assert_eq!(here.postgres.get_ssl_mode(), SslMode::Disable);
        assert_eq!(here.postgres.get_application_name(), Some("x"));
        let own = Config::of("postgres://h/db?sslmode=verify-full&sslrootcert=/etc/our%20ca.pem")
            .unwrap();
        assert_eq!(own.tls.0, Tls::AuthorityFile("/etc/our ca.pem".into()));
        for bad in [
            "postgres://h",
            "postgres://h/db?pooled=2",
            "postgres://h:x/db",
            "postgres://h/db?color=red",
        ] {
            let Err(error) = Config::of(bad) else { panic!("{bad} was taken") };
            assert!(error.to_string().contains("write postgres://"), "{error}");
        }
    }
}
