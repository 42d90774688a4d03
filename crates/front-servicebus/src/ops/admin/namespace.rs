//! `$namespaceinfo`: properties of the namespace.

use super::AdminCall;
use super::atom::{AtomEntry, time};
use super::description::{DescriptionWriter, Labels};

pub(super) fn get(call: &AdminCall<'_>) -> AtomEntry {
    let host = call.base_url.host.rsplit_once(':').map_or(&*call.base_url.host, |(name, _)| name);
    let created_at = call.admin.started_at;
    let labels = Labels::new();
    let mut writer = DescriptionWriter::new(&labels);
    writer.text("CreatedTime", &time(created_at));
    writer.text("MessagingSKU", "Standard");
    writer.text("ModifiedTime", &time(created_at));
    writer.text("Name", host);
    writer.text("NamespaceType", "Messaging");
    AtomEntry {
        path: "$namespaceinfo".to_owned(),
        title: host.to_owned(),
        created_at,
        updated_at: created_at,
        kind: "NamespaceInfo",
        description: writer.done(),
    }
}
