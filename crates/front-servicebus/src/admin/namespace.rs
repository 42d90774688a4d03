//! `$namespaceinfo`: what the namespace is.

use axum::http::StatusCode;
use axum::response::Response;

use super::Call;
use super::atom::{Entry, time};
use super::description::{Labels, Telling};

pub(super) fn get(call: &Call<'_>) -> Response {
    let host = call.place.host.rsplit_once(':').map_or(&*call.place.host, |(name, _)| name);
    let created_at = call.admin.started_at;
    let labels = Labels::new();
    let mut telling = Telling::new(&labels);
    telling.text("CreatedTime", &time(created_at));
    telling.text("MessagingSKU", "Standard");
    telling.text("ModifiedTime", &time(created_at));
    telling.text("Name", host);
    telling.text("NamespaceType", "Messaging");
    let entry = Entry {
        path: "$namespaceinfo".to_owned(),
        title: host.to_owned(),
        created_at,
        updated_at: created_at,
        kind: "NamespaceInfo",
        description: telling.done(),
    };
    entry.answer(&call.place, StatusCode::OK)
}
