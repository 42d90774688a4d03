//! `malote health`: whether the server is ready, and the state of its queues.

use std::time::Duration;

use malote_model::QueueName;
use malote_wire_native::about::HealthReport;
use serde::Serialize;
use tokio::time::Instant;

use crate::api::{Api, ApiError};
use crate::args::{Remote, queue_name};
use crate::failure::Failure;
use crate::output::Facts;
use crate::when;

/// Check whether the server is ready and no queue has a high backlog
///
/// Exits with 1 if the server is not ready or a queue has a warning or an error.
#[derive(clap::Args)]
pub(crate) struct Health {
    #[command(flatten)]
    remote: Remote,
    /// Check this queue instead of all
    #[arg(value_parser = queue_name)]
    queue: Option<QueueName>,
    /// Check only whether the server is ready
    #[arg(long, conflicts_with = "queue")]
    ready: bool,
    /// How long to wait for the server to become ready
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = when::duration)]
    wait: Duration,
}

/// Pause between two requests to a server that is not ready.
const AGAIN: Duration = Duration::from_millis(50);

impl Health {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let Self { remote, queue, ready: only_ready, wait } = self;
        remote.run(|api, mut out| async move {
            let (ready, said) = ready(&api, wait).await?;
            let queues =
                if ready && !only_ready { Some(api.health(queue.as_ref()).await?) } else { None };
            let report = ServerHealth { ready, said: said.trim().to_owned(), queues };
            out.one(&report)?;
            match &report.queues {
                Some(health) if health.status == "OK" => Ok(()),
                Some(health) => {
                    let why = health.message.clone().unwrap_or_else(|| health.status.clone());
                    Err(Failure::Unhealthy(why).into())
                }
                None if ready => Ok(()),
                None => Err(Failure::Unhealthy("the server is not ready".into()).into()),
            }
        })
    }
}

async fn ready(api: &Api, wait: Duration) -> Result<(bool, String), ApiError> {
    let until = Instant::now() + wait;
    loop {
        let late = Instant::now() >= until;
        match api.ready().await {
            Ok((true, said)) => return Ok((true, said)),
            answer if late => return answer,
            _ => tokio::time::sleep(AGAIN).await,
        }
    }
}

#[derive(Serialize)]
struct ServerHealth {
    ready: bool,
    #[serde(skip)]
    said: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    queues: Option<HealthReport>,
}

impl Facts for ServerHealth {
    fn facts(&self) -> Vec<(&'static str, String)> {
        let ready = match self.ready {
            true => "yes".to_owned(),
            false => format!("no: {}", self.said.replace('\n', ", ")),
        };
        let mut facts = vec![("ready", ready)];
        if let Some(HealthReport { status, message, message_count }) = &self.queues {
            facts.push(("queues", status.clone()));
            if let Some(message) = message {
                facts.push(("because", message.clone()));
            }
            if let Some(count) = message_count {
                facts.push(("messages", count.to_string()));
            }
        }
        facts
    }

    fn name(&self) -> String {
        match &self.queues {
            Some(health) => health.status.clone(),
            None => if self.ready { "OK" } else { "Error" }.to_owned(),
        }
    }
}
