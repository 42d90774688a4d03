//! The grammar: `malote <noun> <verb>`, and who carries a command out.

use std::future::Future;

use clap::{Parser, Subcommand};
use malote_model::{QueueName, SessionId, TopicName};

use crate::api::{Api, ConnectArgs};
use crate::failure::Failure;
use crate::output::{Output, OutputArgs};
use crate::{
    audit, backup, bench, bridge, completions, config, dlq, health, key, peek, queue, receive,
    request, restore, rule, saga, send, serve, session, settle, subscription, tail, token, topic,
    topology, user, verify, version, work,
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
    Topic(topic::Topic),
    Subscription(subscription::Subscription),
    Rule(rule::Rule),
    Send(send::Send),
    Request(request::Request),
    Receive(receive::Receive),
    Work(work::Work),
    Bridge(bridge::Bridge),
    Settle(settle::Settle),
    Peek(peek::Peek),
    Tail(tail::Tail),
    Dlq(dlq::Dlq),
    Session(session::Session),
    Saga(saga::Saga),
    Apply(topology::Apply),
    Export(topology::Export),
    User(user::User),
    Key(key::Key),
    Token(token::Token),
    Audit(audit::Audit),
    Config(config::Config),
    Verify(verify::Verify),
    Backup(backup::Backup),
    Restore(restore::Restore),
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
            Self::Topic(command) => command.run(),
            Self::Subscription(command) => command.run(),
            Self::Rule(command) => command.run(),
            Self::Send(command) => command.run(),
            Self::Request(command) => command.run(),
            Self::Receive(command) => command.run(),
            Self::Work(command) => command.run(),
            Self::Bridge(command) => command.run(),
            Self::Settle(command) => command.run(),
            Self::Peek(command) => command.run(),
            Self::Tail(command) => command.run(),
            Self::Dlq(command) => command.run(),
            Self::Session(command) => command.run(),
            Self::Saga(command) => command.run(),
            Self::Apply(command) => command.run(),
            Self::Export(command) => command.run(),
            Self::User(command) => command.run(),
            Self::Key(command) => command.run(),
            Self::Token(command) => command.run(),
            Self::Audit(command) => command.run(),
            Self::Config(command) => command.run(),
            Self::Verify(command) => command.run(),
            Self::Backup(command) => command.run(),
            Self::Restore(command) => command.run(),
            Self::Health(command) => command.run(),
            Self::Bench(command) => command.run(),
            Self::Completions(command) => command.run(),
            Self::Version(command) => command.run(),
        }
    }
}

/// A noun of the command line: verbs that each ask the server, as `malote NOUN VERB`.
macro_rules! noun {
    ($(#[$about:meta])* $noun:ident { $($verb:ident($args:ty),)+ }) => {
        $(#[$about])*
        #[derive(clap::Args)]
        pub(crate) struct $noun {
            #[command(flatten)]
            remote: $crate::args::Remote,
            #[command(subcommand)]
            verb: Verb,
        }

        #[derive(clap::Subcommand)]
        #[allow(clippy::large_enum_variant)] // one of them is made, once
        enum Verb { $($verb($args)),+ }

        impl $noun {
            pub(crate) fn run(self) -> anyhow::Result<()> {
                let Self { remote, verb } = self;
                remote.run(|api, out| async move {
                    match verb { $(Verb::$verb(verb) => verb.run(&api, out).await),+ }
                })
            }
        }
    };
}
pub(crate) use noun;

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

/// The name of a topic as an argument.
pub(crate) fn topic_name(text: &str) -> Result<TopicName, String> {
    TopicName::new(text).map_err(|refusal| refusal.to_string())
}

/// A session id as an argument.
pub(crate) fn session_id(text: &str) -> Result<SessionId, String> {
    SessionId::new(text).map_err(|refusal| refusal.to_string())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use clap::{Args, CommandFactory};
    use expect_test::expect_file;

    use super::*;

    #[test]
    fn the_grammar_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_setting_with_a_flag_is_a_flag_of_serve() {
        let cli = Cli::command();
        let serve = cli.find_subcommand("serve").unwrap();
        for key in malote_server::settings::KEYS {
            let Some(flag) = key.flag else { continue };
            let long = flag.trim_start_matches("--");
            assert!(serve.get_arguments().any(|arg| arg.get_long() == Some(long)), "{flag}");
        }
    }

    /// The reference page is the help text. `UPDATE_EXPECT=1 cargo test -p malote-cli` writes it anew.
    #[test]
    fn the_reference_page_is_current() {
        let mut page = String::from(
            "# The command line\n\nWritten by `UPDATE_EXPECT=1 cargo test -p malote-cli`; the help texts are the source.\n\n\
             Data goes to standard output, everything else to standard error. `-o json` is for programs. Durations are\n\
             written `500ms`, `30s`, `1m30s` or `PT30S`, sizes `64KiB` or `1MB`.\n\n\
             | exit code | means |\n|---|---|\n| 0 | done |\n| 1 | it failed |\n| 2 | it was asked wrongly |\n\
             | 3 | what was named does not exist |\n| 4 | it conflicts with what is there |\n\
             | 69 | the server cannot be reached |\n| 130 | interrupted |\n\n\
             | variable | means |\n|---|---|\n| `MALOTE_URL` | where the server is |\n\
             | `MALOTE_TOKEN`, `MALOTE_TOKEN_FILE` | a bearer token, or the file that holds it |\n\
             | `MALOTE_USER`, `MALOTE_PASSWORD`, `MALOTE_PASSWORD_FILE` | a user and its password |\n\
             | `NO_COLOR`, `CLICOLOR_FORCE` | no colour, or always |\n",
        );
        let common = Remote::augment_args(clap::Command::new("malote").disable_help_flag(true));
        let common = rendered(common.help_template("{all-args}"));
        write!(page, "\nCommands that talk to a server take these, wherever they stand:\n\n```text\n{common}\n```\n").unwrap();
        let mut cli = Cli::command();
        cli.build();
        write_help(&mut page, &mut cli, 2);
        expect_file!["../../../docs/reference/cli.md"].assert_eq(&page);
    }

    /// Every command on every page is one that this program takes.
    #[test]
    fn the_pages_show_commands_that_exist() {
        let pages = [
            include_str!("../../../README.md"),
            include_str!("../../../docs/tour.md"),
            include_str!("../../../docs/operations.md"),
            include_str!("../../../docs/guide/sessions.md"),
            include_str!("../../../docs/guide/ordering.md"),
            include_str!("../../../docs/guide/topics.md"),
            include_str!("../../../docs/guide/request-reply.md"),
            include_str!("../../../docs/guide/saga.md"),
            include_str!("../../../docs/guide/topology.md"),
            include_str!("../../../docs/guide/workers.md"),
            include_str!("../../../docs/guide/scaling.md"),
            include_str!("../../../CONTRIBUTING.md"),
        ];
        let mut seen = 0;
        for line in pages.iter().flat_map(|page| page.lines()) {
            let line = line.trim_end_matches(" &");
            let Some(rest) =
                line.strip_prefix("malote ").or_else(|| line.strip_prefix("sudo malote "))
            else {
                continue;
            };
            // A dependency of a program.
            if rest.starts_with('=') {
                continue;
            }
            let mut words = vec!["malote".to_owned(), String::new()];
            let mut quote = None;
            for c in rest.chars() {
                match (c, quote) {
                    // What a shell does with the output is not the command's.
                    ('|' | '>' | '&', None) => break,
                    ('\'' | '"', None) => quote = Some(c),
                    (c, Some(open)) if c == open => quote = None,
                    (' ', None) => words.push(String::new()),
                    (c, _) => words.last_mut().unwrap().push(c),
                }
            }
            words.retain(|word| !word.is_empty());
            if let Err(error) = Cli::try_parse_from(&words) {
                panic!("{line}\n{error}");
            }
            seen += 1;
        }
        assert!(seen > 40, "only {seen} commands were found");
    }

    fn rendered(command: clap::Command) -> String {
        let text = command.term_width(100).render_help().to_string();
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        lines.join("\n").trim().to_owned()
    }

    fn write_help(page: &mut String, command: &mut clap::Command, level: usize) {
        let name = command.get_bin_name().unwrap_or("malote").to_owned();
        let own = command.clone().mut_args(|arg| {
            let known = arg.is_global_set() || matches!(arg.get_id().as_str(), "help" | "version");
            let hidden = known || arg.is_hide_set();
            arg.hide(hidden)
        });
        writeln!(page, "\n{} {name}\n\n```text\n{}\n```", "#".repeat(level.min(3)), rendered(own))
            .unwrap();
        for sub in command.get_subcommands_mut().filter(|sub| sub.get_name() != "help") {
            write_help(page, sub, level + 1);
        }
    }
}
