//! Atom entries and feeds, which contain the descriptions.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use malote_model::Timestamp;

use super::path::{PageRange, escape};
use crate::wire::xml::escaped;

const ATOM: &str = "http://www.w3.org/2005/Atom";
const CONNECT: &str = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect";
const INSTANCE: &str = "http://www.w3.org/2001/XMLSchema-instance";

/// The URL that the caller used; all links start with it.
#[derive(Debug, Clone)]
pub(super) struct BaseUrl {
    /// Scheme and host.
    pub base: String,
    /// Host and port.
    pub host: String,
    /// The API version, as the caller wrote it.
    pub version: String,
}

impl BaseUrl {
    fn link(&self, path: &str, page: Option<PageRange>) -> String {
        let page = page.map(|page| format!("&$skip={}&$top={}", page.skip, page.top));
        let version = escape(&self.version);
        let (base, page) = (&self.base, page.unwrap_or_default());
        escaped(&format!("{base}/{}?api-version={version}{page}", escape(path)))
    }
}

/// An entity with its description.
pub(super) struct AtomEntry {
    /// Relative to the root of the namespace.
    pub path: String,
    pub title: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// Name of the element with the description.
    pub kind: &'static str,
    /// Content of that element.
    pub description: String,
}

impl AtomEntry {
    fn put(&self, out: &mut String, base_url: &BaseUrl, namespace: &str) {
        let AtomEntry { path, title, kind, description, .. } = self;
        let link = base_url.link(path, None);
        let (title, host) = (escaped(title), escaped(&base_url.host));
        let (created, updated) = (time(self.created_at), time(self.updated_at));
        out.push_str(&format!(
            "<entry{namespace}><id>{link}</id><title type=\"text\">{title}</title>\
             <published>{created}</published><updated>{updated}</updated>\
             <author><name>{host}</name></author><link rel=\"self\" href=\"{link}\"/>\
             <content type=\"application/xml\">\
             <{kind} xmlns=\"{CONNECT}\" xmlns:i=\"{INSTANCE}\">{description}</{kind}>\
             </content></entry>"
        ));
    }

    pub fn answer(&self, base_url: &BaseUrl, status: StatusCode) -> Response {
        let mut out = String::new();
        self.put(&mut out, base_url, &format!(" xmlns=\"{ATOM}\""));
        answer(status, "entry", out)
    }
}

/// A page of entries, with a link to the next page if there is one.
pub(super) fn feed(
    base_url: &BaseUrl,
    path: &str,
    title: &str,
    now: Timestamp,
    page: PageRange,
    (entries, more): (Vec<AtomEntry>, bool),
) -> Response {
    let link = base_url.link(path, Some(page));
    let next = PageRange { skip: page.skip.saturating_add(entries.len()), ..page };
    let next = more.then(|| {
        // Clients expect the next page in the second link.
        format!("<link rel=\"next\" href=\"{}\"/>", base_url.link(path, Some(next)))
    });
    let (updated, next) = (time(now), next.unwrap_or_default());
    let title = escaped(title);
    let mut out = format!(
        "<feed xmlns=\"{ATOM}\"><title type=\"text\">{title}</title><id>{link}</id>\
         <updated>{updated}</updated><link rel=\"self\" href=\"{link}\"/>{next}"
    );
    entries.iter().for_each(|entry| entry.put(&mut out, base_url, ""));
    out.push_str("</feed>");
    answer(StatusCode::OK, "feed", out)
}

/// What the service returns for an entity that does not exist. Clients recognize its title.
pub(super) fn empty_feed(base_url: &BaseUrl, now: Timestamp) -> Response {
    let updated = time(now);
    let link = base_url.link("", None);
    let out = format!(
        "<feed xmlns=\"{ATOM}\"><title type=\"text\">Publicly Listed Services</title>\
         <subtitle type=\"text\">This is the list of publicly-listed services currently available.</subtitle>\
         <id>{link}</id><updated>{updated}</updated><generator>Service Bus</generator>\
         <link rel=\"self\" href=\"{link}\"/></feed>"
    );
    answer(StatusCode::OK, "feed", out)
}

fn answer(status: StatusCode, kind: &str, text: String) -> Response {
    let mut response = (status, text).into_response();
    let kind = format!("application/atom+xml;type={kind};charset=utf-8");
    if let Ok(kind) = HeaderValue::from_str(&kind) {
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    response
}

/// UTC with milliseconds, which every client can parse.
pub(super) fn time(at: Timestamp) -> String {
    let ms = i64::try_from(at.0).unwrap_or(i64::MAX);
    let at = jiff::Timestamp::from_millisecond(ms).unwrap_or(jiff::Timestamp::MAX);
    format!("{at:.3}")
}
