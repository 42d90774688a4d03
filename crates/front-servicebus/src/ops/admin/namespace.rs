//! `$namespaceinfo`: what the namespace is.

use super::Call;
use super::atom::{Entry, time};
use super::description::{Labels, Telling};

pub(super) fn get(call: &Call<'_>) -> Entry {
    let host = call.place.host.rsplit_once(':').map_or(&*call.place.host, |(name, _)| name);
    let created_at = call.admin.started_at;
    let labels = Labels::new();
    let mut telling = Telling::new(&labels);
    telling.text("CreatedTime", &time(created_at));
    telling.text("MessagingSKU", "Standard");
    telling.text("ModifiedTime", &time(created_at));
    telling.text("Name", host);
    telling.text("NamespaceType", "Messaging");
    Entry {
        path: "$namespaceinfo".to_owned(),
        title: host.to_owned(),
        created_at,
        updated_at: created_at,
        kind: "NamespaceInfo",
        description: telling.done(),
    }
}
