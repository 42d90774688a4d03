//! The grammar of the command line: `malote <noun> <verb>`, and the flags that commands share.

use std::future::Future;

use clap::{Parser, Subcommand};
use malote_model::{QueueName, SessionId, TopicName};

use crate::api::{Api, ConnectArgs};
use crate::colour::ColourChoice;
use crate::context::{ContextCommand, ServerAddress};
use crate::failure::Failure;
use crate::output::{Format, Output};
use crate::{
    audit, backup, bench, bridge, completions, config, dlq, health, import, key, overview, peek,
    queue, receive, request, restore, rule, saga, send, serve, session, settle, subscription, tail,
    token, topic, topology, user, verify, version, work,
};

/// A durable message broker: queues with FIFO sessions, dead letters, delays and schedules
#[derive(Parser)]
#[command(name = "malote", version, arg_required_else_help = true, propagate_version = false)]
#[command(
    after_help = "Start with `malote serve`, then `malote send orders hello --create` and `malote receive orders`."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags that every command takes, before or after its name.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct GlobalArgs {
    /// Address of the server [env: MALOTE_URL] [default: the current context, or http://127.0.0.1:8080]
    #[arg(long, value_name = "URL", global = true, help_heading = "Global options")]
    pub(crate) url: Option<String>,
    /// Context to use, see `malote context` [env: MALOTE_CONTEXT]
    #[arg(
        long,
        value_name = "NAME",
        global = true,
        conflicts_with = "url",
        help_heading = "Global options"
    )]
    pub(crate) context: Option<String>,
    /// Output format
    #[arg(
        short,
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "table",
        global = true,
        help_heading = "Global options"
    )]
    pub(crate) output: Format,
    /// When to use colors
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value = "auto",
        global = true,
        help_heading = "Global options"
    )]
    pub(crate) color: ColourChoice,
}

impl GlobalArgs {
    pub(crate) fn open_output(&self) -> Output {
        Output::new(self.output)
    }

    pub(crate) fn server(&self) -> anyhow::Result<ServerAddress> {
        ServerAddress::resolve(self.url.as_deref(), self.context.as_deref())
    }
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
    Import(import::Import),
    User(user::User),
    Key(key::Key),
    Token(token::Token),
    Audit(audit::Audit),
    Overview(overview::ShowOverview),
    Context(ContextCommand),
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
            Self::Import(command) => command.run(),
            Self::User(command) => command.run(),
            Self::Key(command) => command.run(),
            Self::Token(command) => command.run(),
            Self::Audit(command) => command.run(),
            Self::Overview(command) => command.run(),
            Self::Context(command) => command.run(),
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

/// Defines `malote NOUN VERB`, where each verb talks to the server.
macro_rules! noun {
    ($(#[$about:meta])* $noun:ident { $($(#[$of_verb:meta])* $verb:ident($args:ty),)+ }) => {
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
        enum Verb { $($(#[$of_verb])* $verb($args)),+ }

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

/// The flags of every command that talks to a server.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Remote {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    global: GlobalArgs,
}

impl Remote {
    /// Runs an exchange with the server. Ctrl-C interrupts it.
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

    /// Runs an exchange with the server that handles Ctrl-C itself.
    pub(crate) fn run_to_the_end<F>(
        &self,
        talk: impl FnOnce(Api, Output) -> F,
    ) -> anyhow::Result<()>
    where
        F: Future<Output = anyhow::Result<()>>,
    {
        let api = self.connect.open(&self.global.server()?)?;
        let out = self.global.open_output();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(talk(api, out))
    }
}

/// Returns when the user presses Ctrl-C.
pub(crate) async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        // Without a signal handler, the signal ends the process.
        std::future::pending::<()>().await;
    }
}

pub(crate) fn queue_name(text: &str) -> Result<QueueName, String> {
    QueueName::new(text).map_err(|refusal| refusal.to_string())
}

pub(crate) fn topic_name(text: &str) -> Result<TopicName, String> {
    TopicName::new(text).map_err(|refusal| refusal.to_string())
}

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

    /// The reference page consists of the help texts. `UPDATE_EXPECT=1 cargo test -p malote-cli` writes it.
    #[test]
    fn the_reference_page_is_current() {
        let mut page = String::from(
            "# Command-line reference\n\nThis page is generated from the help texts by\n\
             `UPDATE_EXPECT=1 cargo test -p malote-cli`.\n\n\
             Data goes to standard output, everything else to standard error. Use `-o json` in scripts. Durations are\n\
             written `500ms`, `30s`, `1m30s` or `PT30S`, sizes `64KiB` or `1MB`.\n\n\
             | exit code | meaning |\n|---|---|\n| 0 | success |\n| 1 | failure |\n| 2 | wrong usage |\n\
             | 3 | not found |\n| 4 | conflict with an existing object or lock |\n\
             | 69 | the server cannot be reached |\n| 130 | interrupted |\n\n\
             | variable | meaning |\n|---|---|\n| `MALOTE_URL` | address of the server |\n\
             | `MALOTE_CONTEXT` | name of the context to use |\n\
             | `MALOTE_TOKEN`, `MALOTE_TOKEN_FILE` | bearer token, or a file with it |\n\
             | `MALOTE_USER`, `MALOTE_PASSWORD`, `MALOTE_PASSWORD_FILE` | user name and password |\n\
             | `NO_COLOR`, `CLICOLOR_FORCE` | never or always use colors |\n\n\
             A command finds its server in this order: `--url`, `--context`, `MALOTE_URL`, `MALOTE_CONTEXT`, the current\n\
             context, `http://127.0.0.1:8080`.\n",
        );
        let common = Remote::augment_args(clap::Command::new("malote").disable_help_flag(true));
        let common = rendered(common.help_template("{all-args}"));
        write!(page, "\nEvery command takes the global options, before or after its name. Commands that talk to a server also take\nthe server options.\n\n```text\n{common}\n```\n").unwrap();
        let mut cli = Cli::command();
        cli.build();
        write_help(&mut page, &mut cli, 2);
        expect_file!["../../../docs/reference/cli.md"].assert_eq(&page);
    }

    /// Every command in the documentation can be parsed.
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
            include_str!("../../../docs/guide/exactly-once.md"),
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
                    // Redirections and pipes are not part of the command.
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
        let documented = |sub: &&mut clap::Command| sub.get_name() != "help" && !sub.is_hide_set();
        for sub in command.get_subcommands_mut().filter(documented) {
            write_help(page, sub, level + 1);
        }
    }
}
