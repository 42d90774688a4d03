//! `malote saga …`: the progress of sagas, on the server or in a database.

mod database;

use malote::SagaSummary;
use malote::saga::SagaStep;
use malote_model::SessionId;
use malote_wire_native::saga::SagaDetails;

use self::database::DatabaseArgs;
use crate::api::{Api, ApiError};
use crate::args::{noun, session_id};
use crate::failure::Failure;
use crate::output::{Facts, Output, Row};
use crate::pages::Pages;
use crate::when;

noun! {
    /// Show sagas: steps that are all done or compensated
    Saga {
        #[command(visible_alias = "list")]
        Ls(Ls),
        #[command(visible_alias = "get")]
        Show(Show),
    }
}

/// List the sagas with a name
#[derive(clap::Args)]
pub(crate) struct Ls {
    /// Name of the saga, without `saga.`
    saga: String,
    /// Only sagas with this status
    #[arg(long, value_name = "STATUS", value_parser = ["waiting", "running", "compensating", "done", "compensated"])]
    status: Option<String>,
    #[command(flatten)]
    pages: Pages,
    #[command(flatten)]
    database: DatabaseArgs,
}

impl Ls {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let database = self.database.open().await?;
        let wanted = |saga: &SagaSummary| self.status.as_ref().is_none_or(|s| *s == saga.status);
        let page = async |after: Option<String>, max| {
            let (mut sagas, next) = match &database {
                Some(database) => database.page(&self.saga, after.as_deref(), max).await?,
                None => {
                    let page = api.sagas(&self.saga, after.as_deref(), max).await;
                    let page = page.map_err(|error| known(error, &self.saga))?;
                    (page.sagas, page.next)
                }
            };
            sagas.retain(wanted);
            Ok((sagas, next))
        };
        self.pages.list(&mut out, format!("no sagas `{}`", self.saga), page).await
    }
}

/// The user asked for a saga, so the error must not name a queue.
fn known(error: ApiError, saga: &str) -> anyhow::Error {
    match error {
        ApiError::Refused(problem) if problem.code == "queue_not_found" => {
            let why = format!("no saga `{saga}` was ever started on this server");
            Failure::NotFound(why).into()
        }
        error => error.into(),
    }
}

fn or_dash(text: Option<&str>) -> String {
    text.unwrap_or("-").to_owned()
}

impl Row for SagaSummary {
    const NOUN: &'static str = "saga";
    const HEAD: &'static [&'static str] =
        &["ID", "STATUS", "STEP", "ATTEMPTS", "CHANGED", "NEXT", "ERROR"];

    fn row(&self) -> Vec<String> {
        vec![
            self.id.clone(),
            self.status.clone(),
            or_dash(self.step.as_deref()),
            self.attempts.to_string(),
            when::time_or_dash(self.changed_at),
            match self.held_until {
                Some(_) => "now".to_owned(),
                None => when::time_or_dash(self.delayed_until),
            },
            or_dash(self.error.as_deref()),
        ]
    }

    fn name(&self) -> String {
        self.id.clone()
    }
}

/// Show a saga with its steps and its data
#[derive(clap::Args)]
pub(crate) struct Show {
    /// Name of the saga, without `saga.`
    saga: String,
    /// Id of the saga
    #[arg(value_parser = session_id)]
    id: SessionId,
    #[command(flatten)]
    database: DatabaseArgs,
}

impl Show {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let saga = match self.database.open().await? {
            Some(database) => database.one(&self.saga, self.id.as_str()).await?,
            None => {
                let shown = api.saga(&self.saga, &self.id).await;
                shown.map_err(|error| known(error, &self.saga))?
            }
        };
        out.one(&saga)
    }
}

fn step(step: &SagaStep) -> String {
    let mut text = format!("{}: {}", step.name, step.status.word());
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

impl Facts for SagaDetails {
    fn facts(&self) -> Vec<(&'static str, String)> {
        let short = &self.summary;
        let mut facts = vec![
            ("id", short.id.clone()),
            ("status", short.status.clone()),
            ("started", when::time_or_dash(short.started_at)),
            ("changed", when::time_or_dash(short.changed_at)),
            ("deadline", when::time_or_dash(short.deadline)),
            ("held until", when::time_or_dash(short.held_until)),
            ("delayed until", when::time_or_dash(short.delayed_until)),
            ("error", or_dash(short.error.as_deref())),
        ];
        facts.extend(self.steps.iter().map(|one| ("step", step(one))));
        let data = self.data.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
        facts.push(("data", data));
        facts
    }

    fn name(&self) -> String {
        self.summary.id.clone()
    }
}
