//! The cost of publishing to a topic with few and with many rules.

use std::path::Path;
use std::sync::Arc;

use malote_engine::Engine;
use malote_measure::ProcessCpu;
use malote_model::{
    Correlation, Filter, Headers, HeadersMatch, QueueName, QueueSpec, Rule, SqlFilter, TopicKind,
    TopicName, TopicSpec, Value,
};

use super::engine::{body, open, queue};

/// Kinds of filters.
pub(super) const KINDS: [&str; 5] = ["direct", "topic", "correlation", "headers", "sql"];

/// Messages per measurement.
const PUBLISHED: usize = 20_000;
/// Messages per measurement if every rule is tried.
const PUBLISHED_ONE_BY_ONE: usize = 200;
const BATCH: usize = 100;

/// Whether the engine has no index for filters of this kind and tries each of them.
pub(super) fn tried_one_by_one(kind: &str) -> bool {
    matches!(kind, "headers" | "sql")
}

/// CPU time, in nanoseconds, of one publish to a topic of which one rule matches.
pub(super) fn cost(
    runtime: &tokio::runtime::Runtime,
    dir: &Path,
    kind: &str,
    rules: usize,
) -> anyhow::Result<f64> {
    let (engine, running, _data) = open(dir, QueueSpec::default(), runtime)?;
    let published = if tried_one_by_one(kind) { PUBLISHED_ONE_BY_ONE } else { PUBLISHED };
    let cpu_ns = runtime.block_on(async {
        let topic = TopicName::new("bench")?;
        let spec = TopicSpec { kind: TopicKind::Filter, ..TopicSpec::default() };
        engine.declare_topic(topic.clone(), spec).await?;
        bind(&engine, &topic, kind, rules).await?;
        let cpu = ProcessCpu::start();
        for batch in 0..published.div_ceil(BATCH) {
            let messages = (0..BATCH).map(|n| {
                // Spreads the messages over all rules.
                let n = (batch * BATCH + n).wrapping_mul(2_654_435_761) % rules;
                let mut message = body(100);
                message.key = Some(format!("word.{n}.end"));
                message.subject = Some(format!("subject-{n}"));
                message.properties.set("n", Value::I64(n as i64));
                (topic.clone(), message)
            });
            engine.send(messages.collect()).await?;
        }
        let sent = published.div_ceil(BATCH) * BATCH;
        anyhow::Ok(cpu.elapsed().as_nanos() as f64 / sent as f64)
    })?;
    runtime.block_on(running.stop());
    Ok(cpu_ns)
}

async fn bind(engine: &Engine, topic: &TopicName, kind: &str, rules: usize) -> anyhow::Result<()> {
    let to: QueueName = queue();
    let mut waiting = Vec::new();
    for n in 0..rules {
        let filter = match kind {
            "direct" => Filter::Key(format!("word.{n}.end")),
            "topic" => Filter::Pattern(format!("*.{n}.#")),
            "correlation" => Filter::Correlation(Arc::new(Correlation {
                subject: Some(format!("subject-{n}")),
                ..Correlation::default()
            })),
            "headers" => Filter::Headers(Headers {
                mode: HeadersMatch::All,
                values: vec![("n".into(), Some(Value::I64(n as i64)))],
            }),
            _ => Filter::Sql(SqlFilter::new(&format!("n = {n}"), Vec::new())?),
        };
        let rule = Rule { name: n.to_string(), filter, action: None };
        let (engine, topic, to) = (engine.clone(), topic.clone(), to.clone());
        waiting.push(tokio::spawn(async move { engine.bind(topic, to, rule).await }));
        if waiting.len() == 1000 {
            for bound in waiting.drain(..) {
                bound.await??;
            }
        }
    }
    for bound in waiting {
        bound.await??;
    }
    Ok(())
}
