//! `malote saga …`: where sagas stand.

use malote_model::{SessionId, limits};

use crate::api::Api;
use crate::api::sagas::{Saga as One, SagaInFull, SagaStep};
use crate::args::{noun, session_id};
use crate::output::{Facts, Output, Row};
use crate::when;

noun! {
    /// Look at sagas: steps that are all done or taken back
    Saga {
        Ls(Ls),
        Show(Show),
    }
}

/// List the sagas of a name
#[derive(clap::Args)]
pub(crate) struct Ls {
    /// The name of the saga, without `saga.`
    saga: String,
    /// Only those that are waiting, running, compensating, done or compensated
    #[arg(long, value_name = "STATUS", value_parser = ["waiting", "running", "compensating", "done", "compensated"])]
    status: Option<String>,
    /// Go on where an earlier list ended
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// Show at most so many
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    max: u64,
}

impl Ls {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let mut found: Vec<One> = Vec::new();
        let mut after = self.after;
        while (found.len() as u64) < self.max {
            let max = (self.max - found.len() as u64).min(limits::RECEIVE_BATCH_MAX as u64);
            let page = api.sagas(&self.saga, after.as_deref(), max).await?;
            let wanted = |saga: &One| self.status.as_ref().is_none_or(|s| *s == saga.status);
            found.extend(page.sagas.into_iter().filter(wanted));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        match (found.is_empty(), after) {
            (true, _) => out.note(format_args!("no sagas `{}`", self.saga)),
            (false, Some(after)) => {
                out.note(format_args!("there may be more: go on with --after '{after}'"));
            }
            (false, None) => {}
        }
        out.list(&found)
    }
}

fn time(at: Option<u64>) -> String {
    at.map_or_else(|| "-".to_owned(), when::shown)
}

fn or_dash(text: Option<&str>) -> String {
    text.unwrap_or("-").to_owned()
}

impl Row for One {
    const HEAD: &'static [&'static str] =
        &["ID", "STATUS", "STEP", "ATTEMPTS", "CHANGED", "NEXT", "ERROR"];

    fn row(&self) -> Vec<String> {
        vec![
            self.id.clone(),
            self.status.clone(),
            or_dash(self.step.as_deref()),
            self.attempts.to_string(),
            time(self.changed_at),
            match self.held_until {
                Some(_) => "now".to_owned(),
                None => time(self.delayed_until),
            },
            or_dash(self.error.as_deref()),
        ]
    }

    fn name(&self) -> String {
        self.id.clone()
    }
}

/// Show one saga, with its steps and its data
#[derive(clap::Args)]
pub(crate) struct Show {
    /// The name of the saga, without `saga.`
    saga: String,
    /// Its id
    #[arg(value_parser = session_id)]
    id: SessionId,
}

impl Show {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        out.one(&api.saga(&self.saga, &self.id).await?)
    }
}

fn step(step: &SagaStep) -> String {
    let mut text = format!("{}: {}", step.name, step.status);
    if step.attempts > 0 {
        text.push_str(&format!(", {} failed attempts", step.attempts));
    }
    if let Some(error) = &step.error {
        text.push_str(&format!(", {error}"));
    }
    if step.pivot {
        text.push_str(" (pivot)");
    }
    text
}

impl Facts for SagaInFull {
    fn facts(&self) -> Vec<(&'static str, String)> {
        let short = &self.short;
        let mut facts = vec![
            ("id", short.id.clone()),
            ("status", short.status.clone()),
            ("started", time(short.started_at)),
            ("changed", time(short.changed_at)),
            ("deadline", time(short.deadline)),
            ("held until", time(short.held_until)),
            ("delayed until", time(short.delayed_until)),
            ("error", or_dash(short.error.as_deref())),
        ];
        facts.extend(self.steps.iter().map(|one| ("step", step(one))));
        let data = self.data.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
        facts.push(("data", data));
        facts
    }

    fn name(&self) -> String {
        self.short.id.clone()
    }
}
