//! The broker URL of a worker, from the address of a server and the caller's credentials.

use anyhow::Result;

use crate::api::{CredentialArgs, Credentials, encode};
use crate::context::ServerAddress;
use crate::failure::Failure;

/// The URL for [`malote::Malote::connect`]. It takes `http://` and `https://`, too.
pub(super) fn of_server(server: &ServerAddress, credentials: &CredentialArgs) -> Result<String> {
    let url = match server.url.contains(':') {
        // The command line accepts an address without a scheme.
        true if !server.url.contains("://") && !server.url.starts_with("embedded:") => {
            format!("http://{}", server.url)
        }
        _ => server.url.clone(),
    };
    let url = url.trim_end_matches('/');
    // Other brokers have their credentials in the URL.
    let native = ["http", "https", "malote", "malote+tls"];
    let Some((scheme, rest)) = url.split_once("://").filter(|(it, _)| native.contains(it)) else {
        return Ok(url.to_owned());
    };
    if server.insecure {
        let why = "a worker always verifies the server's certificate: give the context --ca FILE instead of --insecure";
        return Err(Failure::Usage(why.into()).into());
    }
    let user_info = match rest.contains('@') {
        true => String::new(),
        false => credentials.resolve(server)?.map_or(String::new(), |it| user_info(&it)),
    };
    let query = server
        .ca
        .as_ref()
        .map_or(String::new(), |path| format!("?ca={}", encode(&path.display().to_string())));
    Ok(format!("{scheme}://{user_info}{rest}{query}"))
}

fn user_info(credentials: &Credentials) -> String {
    match credentials {
        Credentials::Token(token) => format!("{}@", encode(token)),
        Credentials::Password { user, password } => {
            format!("{}:{}@", encode(user), encode(password))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url_of(server: ServerAddress) -> String {
        of_server(&server, &CredentialArgs::default()).unwrap()
    }

    #[test]
    fn a_worker_reaches_the_server_of_other_commands() {
        for (url, expected) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("https://mq.example.com/", "https://mq.example.com"),
            ("localhost:9", "http://localhost:9"),
            ("http://TOKEN@h:9", "http://TOKEN@h:9"),
            ("embedded:./data", "embedded:./data"),
            ("postgres://h/db", "postgres://h/db"),
        ] {
            assert_eq!(url_of(ServerAddress { url: url.into(), ..Default::default() }), expected);
        }
    }

    #[test]
    fn the_context_of_a_server_is_used() {
        let (url, ca) = ("https://h".to_owned(), Some("/etc/our ca.pem".into()));
        let server = ServerAddress { url, ca, ..ServerAddress::default() };
        assert_eq!(url_of(server.clone()), "https://h?ca=%2Fetc%2Four%20ca.pem");
        let server = ServerAddress { token: Some("a/b@c".into()), ..server };
        assert_eq!(url_of(server.clone()), "https://a%2Fb%40c@h?ca=%2Fetc%2Four%20ca.pem");
        let server = ServerAddress { insecure: true, ..server };
        assert!(of_server(&server, &CredentialArgs::default()).is_err());
    }

    #[test]
    fn credentials_are_percent_encoded() {
        let (user, password) = ("ana".to_owned(), "p@ss:w/ö".to_owned());
        assert_eq!(
            user_info(&Credentials::Password { user, password }),
            "ana:p%40ss%3Aw%2F%C3%B6@"
        );
    }
}
