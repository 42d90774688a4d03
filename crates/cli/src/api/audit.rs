//! Calls about the audit log.

use malote_model::AuditAction;
use malote_wire_native::audit::AuditLines;

use super::path::Path;
use super::{Api, Result};

/// Which records to read.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuditFilter {
    /// Only records after this number. Without it, the newest.
    pub after: Option<u64>,
    /// Largest number of records.
    pub max: u64,
    pub caller: Option<String>,
    pub action: Option<AuditAction>,
    pub outcome: Option<&'static str>,
}

impl Api {
    /// `GET /audit`
    pub(crate) async fn audit(&self, filter: &AuditFilter) -> Result<AuditLines> {
        let path = Path::api().part("audit").query("max", filter.max);
        let path =
            path.query_opt("after", filter.after).query_opt("caller", filter.caller.as_ref());
        self.get(path.query_opt("action", filter.action).query_opt("outcome", filter.outcome)).await
    }
}
