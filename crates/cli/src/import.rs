//! `malote import`: definitions of RabbitMQ.

use std::path::PathBuf;

use crate::args::Remote;
use crate::failure::Failure;
use crate::files;

/// Import definitions that were exported from RabbitMQ
///
/// Creates users with their passwords, virtual hosts, permissions, policies, parameters, queues, exchanges and bindings. An
/// import can be repeated. Queues and exchanges that exist with other settings are left alone and listed. The caller must
/// be an administrator.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  rabbitmqctl export_definitions definitions.json
  malote import definitions.json")]
pub(crate) struct Import {
    #[command(flatten)]
    remote: Remote,
    /// JSON file; `-` reads standard input
    file: PathBuf,
    /// Import queues, exchanges, bindings, policies and parameters into this virtual host only
    #[arg(long)]
    vhost: Option<String>,
}

impl Import {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let Self { remote, file, vhost } = self;
        let bytes = files::read(&file)?;
        let name = file.display().to_string();
        serde_json::from_slice::<serde::de::IgnoredAny>(&bytes)
            .map_err(|error| Failure::Usage(format!("{name} is not JSON: {error}")))?;
        remote.run(|api, mut out| async move {
            let skipped = api.import_definitions(vhost.as_deref(), bytes).await?;
            for object in &skipped {
                out.text(format!("{object}\n"))?;
            }
            match skipped.len() {
                0 => out.note(format_args!("{name} imported")),
                left => out.note(format_args!("{name} imported; {left} left alone")),
            }
            Ok(())
        })
    }
}
