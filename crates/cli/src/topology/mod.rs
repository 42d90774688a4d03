//! `malote apply` and `malote export`: queues, topics, subscriptions and rules as a file.
//!
//! `file.rs` reads and writes the file, `live.rs` reads the objects of the server, `plan.rs` compares both, and `steps.rs`
//! applies the plan.

mod file;
mod live;
mod plan;
mod steps;

use std::collections::BTreeMap;
use std::path::PathBuf;

use plan::Plan;
use serde_json::{Map, Value};

use crate::args::Remote;
use crate::ask::Yes;
use crate::failure::Failure;
use crate::output::Format;
use crate::when::count;

/// Fields and values.
type Fields = Map<String, Value>;

/// All declared objects. Specifications are complete: every field has a value.
#[derive(Clone, Debug, Default, PartialEq)]
struct Topology {
    queues: BTreeMap<String, Fields>,
    topics: BTreeMap<String, Topic>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Topic {
    spec: Fields,
    subscriptions: BTreeMap<String, Subscription>,
    /// Rules of other queues, by queue and name.
    bindings: BTreeMap<String, Rules>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Subscription {
    spec: Fields,
    rules: Rules,
}

/// `{"filter": …, "action": …}` by name.
type Rules = BTreeMap<String, Fields>;

/// Create and change queues, topics, subscriptions and rules to match a file
///
/// Prints the differences and applies them. If one of them cannot be applied, none is. Nothing is deleted without
/// --prune.
#[derive(clap::Args)]
pub(crate) struct Apply {
    #[command(flatten)]
    remote: Remote,
    /// TOML or JSON file; `-` reads standard input
    file: PathBuf,
    /// Print the differences without applying them
    #[arg(long)]
    dry_run: bool,
    /// Delete objects that are not in the file
    #[arg(long)]
    prune: bool,
    #[command(flatten)]
    yes: Yes,
}

impl Apply {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let Self { remote, file, dry_run, prune, yes } = self;
        let desired = file::read(&file)?;
        remote.run(|api, mut out| async move {
            let current = live::read(&api).await?;
            let plan = Plan::between(&current, &desired, prune)?;
            steps::check_rules(&api, &plan).await?;
            out.list(&plan.changes)?;
            let refused = plan.changes.iter().filter(|change| change.is_refused()).count() as u64;
            if refused > 0 {
                let what = count(refused, "change");
                let why =
                    format!("{what} cannot be applied to existing objects; nothing was changed");
                return Err(Failure::Conflict(why).into());
            }
            if plan.changes.is_empty() {
                out.note("no changes");
                return Ok(());
            }
            if dry_run {
                out.note(format_args!("{} to apply", count(plan.changes.len() as u64, "change")));
                return Ok(());
            }
            let removed = plan.changes.iter().filter(|change| change.is_removal()).count() as u64;
            if removed > 0 {
                let what = count(removed, "object");
                yes.confirm(format_args!("This deletes {what} with all messages."))?;
            }
            steps::apply(&api, &plan).await?;
            out.note(format_args!("{} applied", count(plan.changes.len() as u64, "change")));
            Ok(())
        })
    }
}

/// Write queues, topics, subscriptions and rules in the format of `malote apply`
///
/// Writes TOML, or JSON with -o json. Settings with their default values are omitted.
#[derive(clap::Args)]
pub(crate) struct Export {
    #[command(flatten)]
    remote: Remote,
}

impl Export {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        self.remote.run(|api, mut out| async move {
            let document = file::document(&live::read(&api).await?)?;
            match out.format() {
                Format::Json | Format::Ndjson => out.json(&document),
                Format::Table | Format::Name => out.text(file::toml_of(&document)?),
            }
        })
    }
}
