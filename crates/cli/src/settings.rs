//! The settings of the server as flags. The flags are generated from the table of settings, so that a new setting needs
//! no change here.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches};
use malote_server::settings::{
    Environment, KEYS, Key, LISTS, RawSettings, Settings, SettingsError,
};

/// The values of the flags, not yet checked.
#[derive(Clone, Debug, Default)]
pub(crate) struct SettingsArgs {
    config: Option<PathBuf>,
    flags: RawSettings,
}

impl SettingsArgs {
    /// Loads the settings. Flags win over the environment, then the file, then the defaults.
    pub(crate) fn load(self) -> Result<Settings, SettingsError> {
        Settings::load(self.config.as_deref(), self.flags, &Environment::of_process())
    }
}

/// Flags that can be given without a value.
const SWITCHES: [&str; 3] = ["allow_open", "tls.self_signed", "tls.required"];

fn arg(key: &Key) -> Option<Arg> {
    let long = key.flag?.trim_start_matches("--");
    let help = format!("{} [env: {}]", key.help, key.variable);
    let arg =
        Arg::new(key.name).long(long).help(help).action(ArgAction::Set).help_heading("Settings");
    Some(if SWITCHES.contains(&key.name) {
        arg.num_args(0..=1).require_equals(true).default_missing_value("true").value_name("YES|NO")
    } else if LISTS.contains(&key.name) {
        arg.action(ArgAction::Append).value_name("NAME")
    } else {
        arg.value_name(match key.name.rsplit(['.', '_']).next() {
            Some("http" | "sqs" | "amqp" | "amqps" | "admin" | "management") => "ADDRESS",
            Some("data") => "DIR",
            Some("cert" | "key" | "config") => "FILE",
            Some("timeout") => "TIME",
            _ => "VALUE",
        })
    })
}

impl clap::Args for SettingsArgs {
    fn augment_args(command: clap::Command) -> clap::Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("Settings file [env: MALOTE_CONFIG]")
            .help_heading("Settings");
        command.arg(config).args(KEYS.iter().filter_map(arg))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for SettingsArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = Self::default();
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.config = matches.get_one::<PathBuf>("config").cloned();
        for key in KEYS.iter().filter(|key| key.flag.is_some()) {
            if let Some(values) = matches.get_many::<String>(key.name) {
                let values: Vec<&str> = values.map(String::as_str).collect();
                *self.flags.field(key.name) = Some(values.join(","));
            }
        }
        Ok(())
    }
}
