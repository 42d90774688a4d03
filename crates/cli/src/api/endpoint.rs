//! The address of a server.

use super::error::ApiError;

/// The parts of a server's URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// The URL as the user wrote it, for error messages.
    pub url: String,
    pub tls: bool,
    pub host: String,
    pub port: u16,
    /// Prefix of every path, without a slash at its end.
    pub base: String,
}

impl Endpoint {
    /// Parses `http://host:port/base` or `https://…`. `host:port` alone means `http://`.
    pub(super) fn parse(url: &str) -> Result<Self, ApiError> {
        let invalid = || {
            let why = format!(
                "`{url}` is not the address of a server: write http://HOST:PORT or https://HOST:PORT"
            );
            ApiError::Usage(why)
        };
        let (tls, rest) = match url.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some(_) => return Err(invalid()),
            None => (false, url),
        };
        let (authority, base) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.contains('@') || base.contains(['?', '#']) {
            return Err(invalid());
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                (host, port.parse().map_err(|_| invalid())?)
            }
            _ => (authority, if tls { 443 } else { 80 }),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() || authority.parse::<hyper::http::uri::Authority>().is_err() {
            return Err(invalid());
        }
        let base = base.trim_end_matches('/').to_owned();
        Ok(Self { url: url.to_owned(), tls, host: host.to_owned(), port, base })
    }

    /// The value of the `Host` header.
    pub(super) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Option<(bool, String, u16, String)> {
        let endpoint = Endpoint::parse(url).ok()?;
        Some((endpoint.tls, endpoint.host, endpoint.port, endpoint.base))
    }

    #[test]
    fn addresses_are_parsed() {
        let is =
            |tls, host: &str, port, base: &str| Some((tls, host.to_owned(), port, base.to_owned()));
        assert_eq!(parsed("http://127.0.0.1:8080"), is(false, "127.0.0.1", 8080, ""));
        assert_eq!(parsed("https://mq.example.com/"), is(true, "mq.example.com", 443, ""));
        assert_eq!(parsed("localhost:9"), is(false, "localhost", 9, ""));
        assert_eq!(parsed("http://[::1]:8080/mq/"), is(false, "::1", 8080, "/mq"));
        assert_eq!(parsed("http://[::1]"), is(false, "::1", 80, ""));
        for bad in
            ["", "http://", "amqp://x", "http://a:b", "http://u:p@h", "http://h/?q", "http://a b"]
        {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }
}
