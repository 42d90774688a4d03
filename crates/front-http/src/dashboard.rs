//! Serves the dashboard: the files of the folder `dashboard`, compiled into the binary.
//!
//! The files contain no data, so they need no credentials. The page is a client of the public API and sends its own.
//! `/` is the page, `/ui/…` its files and its other addresses: the page itself decides what they show.

use std::collections::HashMap;
use std::io::Write;
use std::sync::LazyLock;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use malote_model::Foreign;
use xxhash_rust::xxh3::xxh3_64;

use crate::Api;
use crate::problem::{Code, Problem};

macro_rules! files {
    ($($name:literal)+) => {
        /// Name and content. A test compares the names with the folder.
        const FILES: &[(&str, &[u8])] = &[$(
            ($name, include_bytes!(concat!("../../../dashboard/", $name))),
        )+];
    };
}

files! {
    "api.js"
    "app.js"
    "body.js"
    "components.js"
    "format.js"
    "html.js"
    "icon.svg"
    "index.html"
    "live.js"
    "message.js"
    "plot.js"
    "redrive.js"
    "router.js"
    "snippets.js"
    "style.css"
    "screens/audit.js"
    "screens/dead-letters.js"
    "screens/login.js"
    "screens/overview.js"
    "screens/publish.js"
    "screens/queue.js"
    "screens/queue-dead.js"
    "screens/queue-messages.js"
    "screens/queue-sessions.js"
    "screens/queue-settings.js"
    "screens/queues.js"
    "screens/session.js"
    "screens/topic.js"
    "screens/topics.js"
}

/// The page of all addresses.
const PAGE: &str = "index.html";

/// Everything comes from this server, nothing is inline, and no other page can embed the dashboard.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'";

/// A file as it is sent.
struct File {
    kind: &'static str,
    tag: String,
    plain: Bytes,
    zipped: Bytes,
}

/// Compressed once, when the first file is requested.
static SERVED: LazyLock<HashMap<&str, File>> = LazyLock::new(|| {
    FILES.iter().map(|&(name, content)| (name, File::new(name, content))).collect()
});

impl File {
    fn new(name: &str, content: &'static [u8]) -> Self {
        let mut zip = GzEncoder::new(Vec::new(), Compression::best());
        zip.write_all(content).expect("a Vec can be written");
        let zipped = zip.finish().expect("a Vec can be written").into();
        let kind = match name.rsplit('.').next() {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "text/html; charset=utf-8",
        };
        Self { kind, tag: format!("\"{:016x}\"", xxh3_64(content)), plain: content.into(), zipped }
    }

    fn answer(&self, headers: &HeaderMap) -> Response {
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let zips = text(header::ACCEPT_ENCODING).is_some_and(|kinds| kinds.contains("gzip"));
        // Proxies may mark the tag as weak.
        let known = text(header::IF_NONE_MATCH).is_some_and(|tags| tags.contains(&self.tag));
        let (status, body) = match (known, zips) {
            (true, _) => (StatusCode::NOT_MODIFIED, Bytes::new()),
            (false, true) => (StatusCode::OK, self.zipped.clone()),
            (false, false) => (StatusCode::OK, self.plain.clone()),
        };
        let mut response = (status, Body::from(body)).into_response();
        let mut set = |name: HeaderName, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                response.headers_mut().insert(name, value);
            }
        };
        set(header::CONTENT_TYPE, self.kind);
        set(header::ETAG, &self.tag);
        // The browser asks each time whether the file is still the same: a new version shows at once.
        set(header::CACHE_CONTROL, "no-cache");
        set(header::VARY, "accept-encoding");
        set(header::CONTENT_SECURITY_POLICY, POLICY);
        set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
        set(header::X_FRAME_OPTIONS, "DENY");
        set(header::REFERRER_POLICY, "no-referrer");
        if zips && !known {
            set(header::CONTENT_ENCODING, "gzip");
        }
        response
    }
}

/// The routes of the dashboard. They are no part of the API.
pub(crate) fn router() -> Router<Api> {
    Router::new().route("/", get(page)).route("/ui/{*path}", get(file))
}

async fn page(State(api): State<Api>, headers: HeaderMap) -> Response {
    serve(&api, PAGE, &headers)
}

async fn file(State(api): State<Api>, Path(path): Path<String>, headers: HeaderMap) -> Response {
    let name = match SERVED.get_key_value(path.as_str()) {
        Some((name, _)) => name,
        // A missing script must not be answered with a page.
        None if ["js", "css", "svg"].iter().any(|kind| path.ends_with(&format!(".{kind}"))) => {
            let why = "the dashboard has no such file; reload the page";
            return Problem::new(Code::RouteNotFound, why).into_response();
        }
        None => PAGE,
    };
    serve(&api, name, &headers)
}

fn serve(api: &Api, name: &'static str, headers: &HeaderMap) -> Response {
    let watch = api.metrics.request("dashboard");
    let response = match foreign(api, headers) {
        Some(problem) => problem.into_response(),
        None => SERVED[name].answer(headers),
    };
    watch.done(response.status().as_u16());
    response
}

/// Refuses foreign pages that load files. A link from a foreign page is followed: the files contain no data.
fn foreign(api: &Api, headers: &HeaderMap) -> Option<Problem> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let follows = text("sec-fetch-mode") == Some("navigate") && text("origin").is_none();
    match malote_http::check_origin(&api.limits.web, headers).err()? {
        Foreign::Site { .. } if follows => None,
        foreign @ Foreign::Host { .. } => {
            Some(Problem::new(Code::ForeignHost, foreign.to_string()))
        }
        foreign => Some(Problem::new(Code::CrossOrigin, foreign.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[allow(clippy::disallowed_methods, reason = "a test may read its sources")]
    fn names(dir: &Path, root: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => names(&path, root, found),
                // Tells Node, which runs the tests, that the files are modules.
                false if path.ends_with("package.json") => {}
                false => {
                    let name = path.strip_prefix(root).unwrap().to_str().unwrap();
                    found.insert(name.replace('\\', "/"));
                }
            }
        }
    }

    #[test]
    fn every_file_of_the_folder_is_served() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dashboard");
        let mut found = BTreeSet::new();
        names(&root, &root, &mut found);
        let listed: BTreeSet<String> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(listed, found);
    }

    #[test]
    fn nothing_is_inline_and_nothing_comes_from_elsewhere() {
        for (name, content) in FILES {
            let text = std::str::from_utf8(content).unwrap();
            for bad in ["innerHTML", "eval(", "document.write", "http-equiv", "@import"] {
                assert!(!text.contains(bad), "{name} contains {bad}");
            }
            if name.ends_with(".html") {
                assert!(!text.contains("<style") && !text.contains("style="), "{name}");
                assert!(!text.contains("http://") && !text.contains("https://"), "{name}");
                assert!(
                    text.matches("<script").count()
                        == text.matches("<script src=").count()
                            + text.matches("<script type=\"module\" src=").count()
                );
            }
        }
    }
}
