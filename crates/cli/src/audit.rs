//! `malote audit`: logins and administrative actions.

use std::time::Duration;

use malote_model::AuditAction;
use malote_model::audit::{OBJECT_BYTES_MAX, clean};
use malote_wire_native::audit::AuditLine;
use serde::Serialize;

use crate::api::AuditFilter;
use crate::args::Remote;
use crate::output::Row;
use crate::when;

/// How often --follow asks for new records.
const FOLLOW_EVERY: Duration = Duration::from_millis(500);
/// Records in one response.
const PAGE_MAX: u64 = 1024;

/// Show logins and administrative actions
///
/// Needs permission to manage everything. The server returns the newest 10,000 records; older ones are in `audit.log` in
/// its data directory. Logins and refusals appear after about a second, because identical ones are counted together.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  malote audit --follow
  malote audit --refused --action login
  malote audit --caller ana --after 0 -o ndjson")]
pub(crate) struct Audit {
    #[command(flatten)]
    remote: Remote,
    /// Continue with new records until Ctrl-C
    #[arg(short, long)]
    follow: bool,
    /// Only records of this caller
    #[arg(long, value_name = "NAME")]
    caller: Option<String>,
    /// Only this action, such as login, grant, declare, delete, purge or redrive
    #[arg(long, value_name = "ACTION", value_parser = action)]
    action: Option<AuditAction>,
    /// Only refused actions
    #[arg(long)]
    refused: bool,
    /// Maximum number of records, the newest ones
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=PAGE_MAX))]
    max: u64,
    /// Show all records after this sequence number instead
    #[arg(long, value_name = "SEQ", conflicts_with = "max")]
    after: Option<u64>,
}

fn action(text: &str) -> Result<AuditAction, String> {
    text.parse().map_err(|error: malote_model::audit::UnknownWord| error.to_string())
}

impl Audit {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let Self { remote, follow, caller, action, refused, max, after } = self;
        let outcome = refused.then_some("refused");
        remote.run(|api, mut out| async move {
            let mut filter = AuditFilter { after, max, caller, action, outcome };
            if after.is_some() {
                filter.max = PAGE_MAX;
            }
            loop {
                let page = api.audit(&filter).await?;
                let rows: Vec<AuditRow> = page.records.into_iter().map(AuditRow).collect();
                match follow || filter.after.is_some() {
                    true => out.more(&rows)?,
                    false => out.list(&rows)?,
                }
                let paging = filter.after.is_some();
                (filter.after, filter.max) = (Some(page.last), PAGE_MAX);
                match page.next {
                    Some(_) if paging || follow => {}
                    _ if follow => tokio::time::sleep(FOLLOW_EVERY).await,
                    _ => return Ok(()),
                }
            }
        })
    }
}

/// A record in a list.
#[derive(Serialize)]
#[serde(transparent)]
struct AuditRow(AuditLine);

impl Row for AuditRow {
    const HEAD: &'static [&'static str] =
        &["SEQ", "TIME", "CALLER", "ADDRESS", "PROTOCOL", "ACTION", "OBJECT", "OUTCOME", "DETAIL"];

    fn row(&self) -> Vec<String> {
        let line = &self.0;
        let caller = match (&line.credential, line.kind.as_str()) {
            (Some(credential), kind) => format!("{} ({kind} {credential})", line.caller),
            (None, "user" | "anonymous") => line.caller.clone(),
            (None, kind) => format!("{} ({kind})", line.caller),
        };
        let mut outcome = line.outcome.clone();
        if let Some(reason) = &line.reason {
            outcome.push_str(&format!(": {reason}"));
        }
        if line.count > 1 {
            outcome.push_str(&format!(" ({} times)", line.count));
        }
        let address = line.address.map_or_else(|| "-".to_owned(), |address| address.to_string());
        let object = if line.object.is_empty() { "-" } else { &line.object };
        let cells =
            [&caller, &address, &line.protocol, &line.action, object, &outcome, &line.detail];
        // Control characters must not reach the terminal, even from another server.
        let cells = cells.iter().map(|cell| clean(cell, OBJECT_BYTES_MAX));
        [line.seq.to_string(), when::format_time(line.at)].into_iter().chain(cells).collect()
    }

    fn name(&self) -> String {
        self.0.seq.to_string()
    }
}
