//! `malote overview`: all queues together, and what needs attention.

use malote_wire_native::overview::{AttentionItem, AttentionKind, Overview};

use crate::args::Remote;
use crate::output::Facts;
use crate::watch::WatchArgs;
use crate::when;

/// Show the state of the broker: counts, rates, connections, and what needs attention
#[derive(clap::Args)]
pub(crate) struct ShowOverview {
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    watch: WatchArgs,
}

impl ShowOverview {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let watch = self.watch;
        self.remote.run(|api, mut out| async move {
            watch.run(&mut out, async |out| out.one(&api.overview().await?)).await
        })
    }
}

impl Facts for Overview {
    fn facts(&self) -> Vec<(&'static str, String)> {
        let counts = &self.counts;
        let rate = |rate: f64| format!("{rate:.1}/s");
        let connections = self.connections.iter().filter(|(_, count)| **count > 0);
        let connections: Vec<String> =
            connections.map(|(protocol, count)| format!("{count} {protocol}")).collect();
        let mut facts = vec![
            ("server", format!("malote {}", self.version)),
            ("queues", when::grouped(self.queues)),
            ("ready", when::grouped(counts.ready)),
            ("locked", when::grouped(counts.locked)),
            ("later", when::grouped(counts.delayed + counts.scheduled)),
            ("deferred", when::grouped(counts.deferred)),
            ("dead letters", when::grouped(counts.dead_lettered)),
            ("oldest", counts.oldest_at.map_or_else(|| "-".to_owned(), when::age)),
            ("sent", rate(self.rates.sent)),
            ("delivered", rate(self.rates.delivered)),
            ("completed", rate(self.rates.completed)),
            ("connections", connections.join(", ")),
            ("journal", when::bytes(self.disk.journal_bytes)),
            ("disk free", when::bytes(self.disk.free_bytes)),
        ];
        facts.extend(self.attention.iter().map(|item| ("attention", attention(item))));
        if self.attention_more > 0 {
            facts.push(("attention", format!("{} more", self.attention_more)));
        }
        facts
    }

    fn name(&self) -> String {
        self.version.clone()
    }
}

/// One line about something that needs attention.
fn attention(item: &AttentionItem) -> String {
    let messages = || when::count(item.count, "message");
    let what = match item.kind {
        AttentionKind::DiskFull => "the disk is too full to send".to_owned(),
        AttentionKind::Diverged => "a replay of the journal gave another state".to_owned(),
        AttentionKind::Damaged => "parts of the journal are damaged".to_owned(),
        AttentionKind::DeadLettersGrow => {
            format!("{}, and more are added", when::count(item.count, "dead letter"))
        }
        AttentionKind::Stuck => format!("{} ready, none is delivered", messages()),
        AttentionKind::Backlog => format!("high backlog: {}", messages()),
        AttentionKind::Paused => format!("paused with {}", messages()),
        AttentionKind::DeadLetters => when::count(item.count, "dead letter"),
    };
    match &item.queue {
        Some(queue) => format!("{queue}: {what}"),
        None => what,
    }
}
