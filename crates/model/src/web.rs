//! Protects HTTP endpoints from requests that a foreign web page makes a browser send.
//!
//! A page can send requests to any server that the user's machine can reach, including a broker on loopback, and the
//! browser adds stored credentials. Every HTTP endpoint asks one [`WebGuard`] first. Browsers mark such requests with
//! headers that a page can neither set nor remove; other clients send none of them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Which web pages may call the broker, and under which host names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebGuard {
    /// Host names under which the broker may be called, without port; IP addresses are always allowed. Empty allows any
    /// name. An open broker on loopback should list `localhost`: otherwise a page can make its own name resolve to
    /// loopback (DNS rebinding) and pass as the broker's own origin.
    pub hosts: Vec<String>,
    /// Web origins, besides the broker's own, whose pages may call it: `https://ops.example.com`.
    pub origins: Vec<String>,
}

/// Why a request was refused as foreign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// The browser named the page's origin.
    Page {
        /// The page's origin.
        origin: String,
    },
    /// The browser reported only that the page has another origin.
    Site {
        /// The value of `Sec-Fetch-Site`.
        site: String,
    },
    /// The request uses a host name that is not the broker's.
    Host {
        /// The value of `Host`.
        host: String,
    },
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Foreign::Page { origin } => write!(f, "a page of {origin} may not call this broker"),
            Foreign::Site { site } => {
                write!(
                    f,
                    "a page of another origin may not call this broker (Sec-Fetch-Site: {site})"
                )
            }
            Foreign::Host { host } => write!(f, "`{host}` is not a name of this broker"),
        }
    }
}

impl std::error::Error for Foreign {}

impl WebGuard {
    /// Refuses pages of other origins, and host names that are not the broker's.
    ///
    /// `header` returns the value of a header, given its name in lower case.
    pub fn check<'a>(&self, header: impl Fn(&str) -> Option<&'a str>) -> Result<(), Foreign> {
        let host = header("host");
        if let Some(host) = host
            && !self.hosts.is_empty()
            && !is_address(host)
            && !self.hosts.iter().any(|own| own.eq_ignore_ascii_case(name_of(host)))
        {
            return Err(Foreign::Host { host: host.to_owned() });
        }
        let origin = header("origin");
        if let Some(origin) = origin {
            let authority = origin.split_once("://").map_or(origin, |(_, authority)| authority);
            if self.origins.iter().any(|allowed| allowed == origin) {
                return Ok(());
            }
            if host != Some(authority) {
                return Err(Foreign::Page { origin: origin.to_owned() });
            }
        }
        // Requests without `Origin`: images, frames, links and redirects. A page on another port of the same host is
        // `same-site`. `none` is an address that the user typed or bookmarked.
        match header("sec-fetch-site") {
            None | Some("same-origin" | "none") => Ok(()),
            Some(site) => Err(Foreign::Site { site: site.to_owned() }),
        }
    }

    /// Whether a browser sent the request. A page cannot set either header. Over plain HTTP to another machine,
    /// browsers omit the first one.
    pub fn is_browser<'a>(header: impl Fn(&str) -> Option<&'a str>) -> bool {
        header("sec-fetch-site").is_some()
            || header("user-agent").is_some_and(|agent| agent.starts_with("Mozilla/"))
    }

    /// Whether a `Host` value can only mean a nearby machine: an IP address, or a name without a dot, which cannot be
    /// registered.
    pub fn is_local_name(host: &str) -> bool {
        is_address(host) || !name_of(host).contains('.')
    }
}

/// `Host` without its port.
fn name_of(host: &str) -> &str {
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

/// Whether `Host` is an IP address, with or without a port.
fn is_address(host: &str) -> bool {
    host.parse::<SocketAddr>().is_ok() || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(guard: &WebGuard, headers: &[(&str, &'static str)]) -> Result<(), Foreign> {
        let get = |name: &str| headers.iter().find(|(have, _)| *have == name).map(|(_, v)| *v);
        guard.check(get)
    }

    #[test]
    fn pages_of_elsewhere_are_refused_and_other_clients_are_not() {
        let own = WebGuard { hosts: vec!["localhost".into()], origins: vec!["https://ops".into()] };
        let host = ("host", "localhost:8080");
        for good in [
            &[host][..],
            &[("host", "LOCALHOST")],
            &[("host", "127.0.0.1:8080")],
            &[("host", "[::1]:8080")],
            &[("host", "[::1]")],
            &[],
            &[host, ("origin", "http://localhost:8080")],
            &[host, ("origin", "http://localhost:8080"), ("sec-fetch-site", "same-origin")],
            &[host, ("sec-fetch-site", "none")],
            &[host, ("origin", "https://ops"), ("sec-fetch-site", "cross-site")],
        ] {
            assert_eq!(check(&own, good), Ok(()), "{good:?}");
        }
        for bad in [
            &[("host", "evil.example")][..],
            &[("host", "localhost.evil.example:8080")],
            &[host, ("origin", "http://evil.example")],
            &[host, ("origin", "null")],
            &[host, ("origin", "http://localhost:3000"), ("sec-fetch-site", "same-site")],
            &[host, ("sec-fetch-site", "cross-site")],
            &[host, ("sec-fetch-site", "same-site")],
            &[host, ("sec-fetch-site", "Cross-Site")],
            &[host, ("origin", "http://localhost:8080"), ("sec-fetch-site", "cross-site")],
            &[("host", "evil.example"), ("origin", "https://ops")],
        ] {
            assert!(check(&own, bad).is_err(), "{bad:?}");
        }
        assert_eq!(check(&WebGuard::default(), &[("host", "any.example")]), Ok(()));
    }

    #[test]
    fn names_that_anybody_may_register_are_not_local() {
        for (host, local) in [
            ("localhost:5672", true),
            ("malote", true),
            ("10.0.0.7:5672", true),
            ("[fe80::1]:5672", true),
            ("evil.example", false),
            ("10.0.0.7.evil.example:5672", false),
        ] {
            assert_eq!(WebGuard::is_local_name(host), local, "{host}");
        }
    }
}
