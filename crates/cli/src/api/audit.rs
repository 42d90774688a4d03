//! The audit log.

use malote_model::AuditAction;
use malote_wire_native::audit::AuditLines;

use super::path::Path;
use super::{Api, Result};

/// Which records to read.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuditLook {
    /// Those after this number; without it, the newest.
    pub after: Option<u64>,
    /// At most this number of them.
    pub max: u64,
    /// Only of callers with this name.
    pub caller: Option<String>,
    /// Only with this action.
    pub action: Option<AuditAction>,
    /// Only with this outcome.
    pub outcome: Option<&'static str>,
}

impl Api {
    /// `GET /audit`
    pub(crate) async fn audit(&self, look: &AuditLook) -> Result<AuditLines> {
        let path = Path::api().part("audit").query("max", look.max);
        let path = path.query_opt("after", look.after).query_opt("caller", look.caller.as_ref());
        self.get(path.query_opt("action", look.action).query_opt("outcome", look.outcome)).await
    }
}
