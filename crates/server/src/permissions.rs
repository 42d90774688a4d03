//! The permissions of the credential store together with the audit log, for the front ends.

use std::sync::Arc;

use malote_model::Audit;
use malote_model::access::{Access, Action, Changed, Denied, Principal, Resource};

use crate::audit::AuditLog;
use crate::credentials::Store;

pub struct Permissions {
    pub store: Arc<Store>,
    pub audit: Arc<AuditLog>,
}

impl Access for Permissions {
    fn check(&self, who: &Principal, action: Action, on: Resource<'_>) -> Result<(), Denied> {
        self.store.check(who, action, on)
    }

    fn knows(&self, who: &Principal) -> bool {
        self.store.knows(who)
    }

    fn version(&self) -> u64 {
        self.store.version()
    }

    fn changed(&self, seen: u64) -> Changed<'_> {
        self.store.changed(seen)
    }

    fn audit(&self) -> &dyn Audit {
        &*self.audit
    }
}
