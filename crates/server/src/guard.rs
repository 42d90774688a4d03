//! Before a port is opened: is there anybody to keep out, and something to keep them out with?

use crate::credentials::{CredentialsError, Store};
use crate::settings::{Certificate, Listen, Problem, Settings};

/// Why the server will not listen.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// It would be open to other machines.
    #[error(transparent)]
    Open(#[from] Problem),
    /// The first user could not be made.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
}

/// Makes the first admin if one was asked for, refuses ports that would be open to other
/// machines, and sees to it that a store which is emptied later does not open them.
///
/// `opened` are the listeners that something speaks on, by the name of their setting.
pub fn guard(
    settings: &Settings,
    store: &Store,
    opened: &[(&'static str, &Listen)],
) -> Result<(), GuardError> {
    if let Some(password) = &settings.admin_password
        && store.add_first_admin(password)?
    {
        tracing::info!("made the user `admin`");
    }
    settings.check_open(opened.iter().copied(), !store.is_empty())?;
    let reachable = opened.iter().any(|(_, listen)| !listen.is_loopback());
    if reachable && settings.allow_open && store.is_empty() {
        tracing::warn!("other machines can reach this server and it asks for no credentials");
    }
    if reachable && !settings.allow_open {
        store.require_credentials();
        if settings.tls.certificate == Certificate::None {
            tracing::warn!(
                "other machines can reach this server without TLS: passwords cross the network in \
                 the clear; set `tls.cert` and `tls.key`, or `tls.self_signed`"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::CREDENTIALS_FILE;
    use crate::settings::{Environment, RawSettings};
    use std::path::Path;

    fn try_with(variables: &[(&str, &str)]) -> (Result<(), GuardError>, Store, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join(CREDENTIALS_FILE)).unwrap();
        let env: Environment = [("HOME", "/h")].iter().chain(variables).copied().collect();
        let none = Some(Path::new("/dev/null"));
        let settings = Settings::load(none, RawSettings::default(), &env).unwrap();
        let result = guard(&settings, &store, &[("http", &settings.listeners.http)]);
        (result, store, dir)
    }

    #[test]
    fn loopback_is_open_and_stays_so() {
        let (result, store, _dir) = try_with(&[]);
        assert!(result.is_ok() && store.is_open());
    }

    #[test]
    fn other_machines_need_credentials() {
        let (result, _, _dir) = try_with(&[("MALOTE_HTTP", ":8080")]);
        assert!(matches!(result, Err(GuardError::Open(_))));
        let (result, store, _dir) =
            try_with(&[("MALOTE_HTTP", ":8080"), ("MALOTE_ALLOW_OPEN", "true")]);
        assert!(result.is_ok() && store.is_open());
    }

    #[test]
    fn removing_the_last_user_does_not_open_the_door() {
        let (result, store, _dir) =
            try_with(&[("MALOTE_HTTP", ":8080"), ("MALOTE_ADMIN_PASSWORD", "x")]);
        assert!(result.is_ok() && !store.is_open());
        store.remove_user("admin").unwrap();
        assert!(store.is_empty() && !store.is_open());
    }
}
