//! The broker URL of a worker, from the address of a server and the credentials of its context.

use std::fmt::Write;

use anyhow::Result;

use crate::api;
use crate::ask;
use crate::context::ServerAddress;
use crate::failure::Failure;

/// The URL for [`malote::Malote::connect`]. It takes `http://` and `https://`, too.
pub(super) fn of_server(server: &ServerAddress) -> Result<String> {
    let url = match server.url.contains(':') {
        // The command line takes an address without a scheme.
        true if !server.url.contains("://") && !server.url.starts_with("embedded:") => {
            format!("http://{}", server.url)
        }
        _ => server.url.clone(),
    };
    let url = url.trim_end_matches('/').to_owned();
    // Other brokers have their credentials in the URL.
    if !["http://", "https://", "malote://", "malote+tls://"].iter().any(|s| url.starts_with(s)) {
        return Ok(url);
    }
    if server.insecure {
        let why = "a worker always verifies the server's certificate: give the context --ca FILE instead of --insecure";
        return Err(Failure::Usage(why.into()).into());
    }
    let environment = std::env::var("MALOTE_USER").ok().filter(|user| !user.is_empty());
    let Some(user) = environment.or_else(|| server.user.clone()) else {
        if server.token.is_some() {
            let why = "a worker signs in with a user and a password, and the context has a token: use --broker malote://USER:PASSWORD@HOST:PORT";
            return Err(Failure::Usage(why.into()).into());
        }
        return Ok(with_ca(url, server));
    };
    if url.contains('@') {
        return Ok(with_ca(url, server));
    }
    let password = match api::secret("MALOTE_PASSWORD")? {
        Some(password) => Some(password),
        None => ask::password(&format!("password of {user}"))?,
    };
    let password = password.ok_or_else(|| {
        Failure::Usage("no password: set MALOTE_PASSWORD or MALOTE_PASSWORD_FILE".into())
    })?;
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", &url));
    let url = format!("{scheme}://{}:{}@{rest}", escaped(&user), escaped(&password));
    Ok(with_ca(url, server))
}

fn with_ca(url: String, server: &ServerAddress) -> String {
    match &server.ca {
        Some(path) => format!("{url}?ca={}", escaped(&path.display().to_string())),
        None => url,
    }
}

/// Percent-encoded, so that it can stand anywhere in a URL.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                out.push(char::from(byte));
            }
            byte => {
                let _ = write!(out, "%{byte:02X}"); // a String takes all
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_reaches_the_server_of_other_commands() {
        let of =
            |url: &str| of_server(&ServerAddress { url: url.into(), ..ServerAddress::default() });
        for (url, expected) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("https://mq.example.com/", "https://mq.example.com"),
            ("localhost:9", "http://localhost:9"),
            ("embedded:./data", "embedded:./data"),
            ("postgres://h/db", "postgres://h/db"),
        ] {
            assert_eq!(of(url).unwrap(), expected);
        }
        assert_eq!(escaped("p@ss:w/ö"), "p%40ss%3Aw/%C3%B6");
        let ca = Some("/etc/our ca.pem".into());
        let server = ServerAddress { url: "https://h".into(), ca, ..ServerAddress::default() };
        assert_eq!(of_server(&server).unwrap(), "https://h?ca=/etc/our%20ca.pem");
    }
}
