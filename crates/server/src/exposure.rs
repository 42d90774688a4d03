//! Refuses to open ports to other machines without credentials.

use std::path::PathBuf;

use crate::credentials::{CREDENTIALS_FILE, CredentialsError, Store};
use crate::settings::{Certificate, Listen, Settings, SettingsProblem};

/// Why the server refuses to listen.
#[derive(Debug, thiserror::Error)]
pub enum ExposureError {
    /// A port would be open to other machines without credentials.
    #[error(transparent)]
    Open(#[from] SettingsProblem),
    /// The server had credentials before and has none now.
    #[error(
        "the data directory {} had credentials and has none now: {} is gone or empty. \
         Put it back or add a user (`malote user add NAME --admin`); \
         to serve everyone without credentials, run `malote user open`",
        data.display(), CREDENTIALS_FILE
    )]
    CredentialsGone { data: PathBuf },
    /// The first user could not be created.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
}

/// Creates the first admin if one was configured, and refuses ports that would be open to other machines. Also ensures
/// that removing the last credential later does not open them.
///
/// `opened` are the listeners in use, by the name of their setting.
pub fn check_exposure(
    settings: &Settings,
    store: &Store,
    opened: &[(&'static str, &Listen)],
) -> Result<(), ExposureError> {
    if let Some(password) = &settings.admin_password
        && store.add_first_admin(password)?
    {
        tracing::info!("created the user `admin`");
    }
    store.remember_credentials()?;
    if store.is_empty() && store.had_credentials() {
        return Err(ExposureError::CredentialsGone { data: settings.data.clone() });
    }
    settings.check_open(opened.iter().copied(), !store.is_empty())?;
    let reachable = opened.iter().any(|(_, listen)| !listen.is_loopback());
    if reachable && settings.allow_open && store.is_empty() {
        tracing::warn!("other machines can reach this server without credentials");
    }
    if reachable && !settings.allow_open {
        store.require_credentials();
        if settings.tls.certificate == Certificate::None {
            tracing::warn!(
                "other machines can reach this server without TLS: passwords are sent in clear text; \
                 set `tls.cert` and `tls.key`, or `tls.self_signed`"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Environment, RawSettings};
    use std::path::Path;

    fn try_with(
        variables: &[(&str, &str)],
    ) -> (Result<(), ExposureError>, Store, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join(CREDENTIALS_FILE)).unwrap();
        let env: Environment = [("HOME", "/h")].iter().chain(variables).copied().collect();
        let none = Some(Path::new("/dev/null"));
        let settings = Settings::load(none, RawSettings::default(), &env).unwrap();
        let result = check_exposure(&settings, &store, &[("http", &settings.listeners.http)]);
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
        assert!(matches!(result, Err(ExposureError::Open(_))));
        let (result, store, _dir) =
            try_with(&[("MALOTE_HTTP", ":8080"), ("MALOTE_ALLOW_OPEN", "true")]);
        assert!(result.is_ok() && store.is_open());
    }

    #[test]
    fn removing_the_last_user_does_not_open_the_server() {
        let (result, store, _dir) =
            try_with(&[("MALOTE_HTTP", ":8080"), ("MALOTE_ADMIN_PASSWORD", "x")]);
        assert!(result.is_ok() && !store.is_open());
        store.remove_user("admin").unwrap();
        assert!(store.is_empty() && !store.is_open());
    }

    /// Starts in a directory with these settings, like a new process.
    fn start(dir: &Path, variables: &[(&str, &str)]) -> (Result<(), ExposureError>, Store) {
        let store = Store::open(dir.join(CREDENTIALS_FILE)).unwrap();
        let env: Environment = [("HOME", "/h")].iter().chain(variables).copied().collect();
        let none = Some(Path::new("/dev/null"));
        let settings = Settings::load(none, RawSettings::default(), &env).unwrap();
        let result = check_exposure(&settings, &store, &[("http", &settings.listeners.http)]);
        (result, store)
    }

    #[test]
    fn missing_credentials_do_not_open_the_server_on_loopback() {
        let dir = tempfile::tempdir().unwrap();
        let (result, store) = start(dir.path(), &[]);
        assert!(result.is_ok() && store.is_open(), "a fresh directory is open");
        store.add_user("ana", None, Vec::new()).unwrap();
        // The last user is removed while the server runs, by this or another process.
        store.remove_user("ana").unwrap();
        assert!(store.is_empty() && !store.is_open());
        for variables in [&[][..], &[("MALOTE_ALLOW_OPEN", "true")]] {
            let (result, store) = start(dir.path(), variables);
            let text = result.unwrap_err().to_string();
            assert!(text.contains("malote user open"), "{text}");
            assert!(!store.is_open());
        }
        // The same without the file.
        crate::files::remove(&dir.path().join(CREDENTIALS_FILE)).unwrap();
        let (result, store) = start(dir.path(), &[]);
        assert!(matches!(result, Err(ExposureError::CredentialsGone { .. })) && !store.is_open());
        // Either of the remedies that the message names.
        store.add_user("bob", None, Vec::new()).unwrap();
        assert!(start(dir.path(), &[]).0.is_ok());
        assert!(matches!(store.reopen(), Err(CredentialsError::NotEmpty { count: 1 })));
        store.remove_user("bob").unwrap();
        store.reopen().unwrap();
        let (result, store) = start(dir.path(), &[]);
        assert!(result.is_ok() && store.is_open());
    }

    #[test]
    fn a_file_of_an_older_version_counts_as_credentials() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CREDENTIALS_FILE);
        crate::files::write_private(&path, b"version = 1\n[[user]]\nname = \"ana\"\n").unwrap();
        assert!(start(dir.path(), &[]).0.is_ok());
        crate::files::remove(&path).unwrap();
        assert!(start(dir.path(), &[]).0.is_err());
    }
}
