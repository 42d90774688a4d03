//! The grammar: `malote <noun> <verb>`, and who carries a command out.

use std::future::Future;

use clap::{Parser, Subcommand};
use malote_model::{QueueName, SessionId};

use crate::api::{Api, ConnectArgs};
use crate::failure::Failure;
use crate::output::{Output, OutputArgs};
use crate::{
    bench, completions, config, dlq, health, key, peek, queue, receive, send, serve, session,
    settle, tail, token, user, verify, version,
};

/// A durable message broker: queues with FIFO sessions, dead letters, delays and schedules
#[derive(Parser)]
#[command(name = "malote", version, arg_required_else_help = true, propagate_version = false)]
#[command(
    after_help = "Start with `malote serve`, then `malote send orders hello --create` and `malote receive orders`."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
#[allow(clippy::large_enum_variant)] // there is one of it
pub(crate) enum Command {
    Serve(serve::Serve),
    Queue(queue::Queue),
    Send(send::Send),
    Receive(receive::Receive),
    Settle(settle::Settle),
    Peek(peek::Peek),
    Tail(tail::Tail),
    Dlq(dlq::Dlq),
    Session(session::Session),
    User(user::User),
    Key(key::Key),
    Token(token::Token),
    Config(config::Config),
    Verify(verify::Verify),
    Health(health::Health),
    Bench(bench::Bench),
    Completions(completions::Completions),
    Version(version::Version),
}

impl Command {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Serve(command) => command.run(),
            Self::Queue(command) => command.run(),
            Self::Send(command) => command.run(),
            Self::Receive(command) => command.run(),
            Self::Settle(command) => command.run(),
            Self::Peek(command) => command.run(),
            Self::Tail(command) => command.run(),
            Self::Dlq(command) => command.run(),
            Self::Session(command) => command.run(),
            Self::User(command) => command.run(),
            Self::Key(command) => command.run(),
            Self::Token(command) => command.run(),
            Self::Config(command) => command.run(),
            Self::Verify(command) => command.run(),
            Self::Health(command) => command.run(),
            Self::Bench(command) => command.run(),
            Self::Completions(command) => command.run(),
            Self::Version(command) => command.run(),
        }
    }
}

/// What every command that talks to a server takes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Remote {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl Remote {
    /// Talks to the server; Ctrl-C ends it.
    pub(crate) fn run<F>(&self, talk: impl FnOnce(Api, Output) -> F) -> anyhow::Result<()>
    where
        F: Future<Output = anyhow::Result<()>>,
    {
        self.run_to_the_end(|api, out| async {
            tokio::select! {
                done = talk(api, out) => done,
                () = interrupted() => Err(Failure::Interrupted.into()),
            }
        })
    }

    /// Talks to the server; Ctrl-C is the command's own to look at.
    pub(crate) fn run_to_the_end<F>(
        &self,
        talk: impl FnOnce(Api, Output) -> F,
    ) -> anyhow::Result<()>
    where
        F: Future<Output = anyhow::Result<()>>,
    {
        let (api, out) = (self.connect.open()?, self.output.open());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(talk(api, out))
    }
}

/// Ends when the user presses Ctrl-C.
pub(crate) async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        // Without a handler the signal ends the process by itself.
        std::future::pending::<()>().await;
    }
}

/// The name of a queue as an argument.
pub(crate) fn queue_name(text: &str) -> Result<QueueName, String> {
    QueueName::new(text).map_err(|refusal| refusal.to_string())
}

/// A session id as an argument.
pub(crate) fn session_id(text: &str) -> Result<SessionId, String> {
    SessionId::new(text).map_err(|refusal| refusal.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_holds_together() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
