//! Reading the audit log.

use axum::Json as Answer;
use axum::extract::State;
use malote_model::audit::AuditQuery;
use malote_model::{Action, AuditAction};
use malote_wire_native::audit::AuditLines;
use serde::Deserialize;

use crate::Api;
use crate::extract::{Caller, Query};
use crate::limits::{PAGE_DEFAULT, PAGE_MAX};
use crate::problem::{Code, Problem};
use crate::requests::check_range;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordsQuery {
    after: Option<u64>,
    max: Option<u64>,
    caller: Option<String>,
    action: Option<String>,
    outcome: Option<String>,
}

impl RecordsQuery {
    fn read(self) -> Result<AuditQuery, Problem> {
        let wrong = |why: String| Problem::new(Code::BadQuery, why);
        let max = self.max.unwrap_or(PAGE_DEFAULT as u64);
        check_range("max", max, 1, PAGE_MAX as u64)?;
        let action = self.action.as_deref().map(str::parse::<AuditAction>).transpose();
        let action = action.map_err(|error| wrong(format!("`action`: {error}")))?;
        let known = ["done", "refused", "unknown"];
        if let Some(outcome) = self.outcome.as_deref().filter(|word| !known.contains(word)) {
            let shown: String = outcome.chars().take(64).collect();
            let why = format!("`outcome`: `{shown}` is not one of: {}", known.join(", "));
            return Err(wrong(why));
        }
        let Self { after, caller, outcome, .. } = self;
        Ok(AuditQuery { after, max: max as usize, caller, action, outcome })
    }
}

/// A page of the audit log. It contains all queues and callers, so it needs the grant to manage everything.
pub async fn records(
    State(api): State<Api>,
    Caller(caller): Caller,
    Query(query): Query<RecordsQuery>,
) -> Result<Answer<AuditLines>, Problem> {
    api.allow_everywhere(&caller, Action::Manage)?;
    let query = query.read()?;
    Ok(Answer(api.access.audit().read(&query).into()))
}
