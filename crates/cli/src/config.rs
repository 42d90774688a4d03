//! `malote config …`: the settings of the server, and where each value comes from.

use clap::Subcommand;
use malote_server::settings::{Entry, Environment, RawSettings, Settings};
use serde::Serialize;

use crate::args::GlobalArgs;
use crate::output::{Format, Output, Row};
use crate::settings::SettingsArgs;

/// Show and check the settings of the server
#[derive(clap::Args)]
pub(crate) struct Config {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Print the effective settings with their origins
    Print(SettingsArgs),
    /// Check the settings and report all errors
    Check(SettingsArgs),
    /// Print a malote.toml with every setting at its default
    Default,
}

impl Config {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut out = self.global.open_output();
        match self.verb {
            Verb::Print(args) => {
                let settings = args.load()?;
                match out.format() {
                    Format::Table => out.text(settings.to_toml().trim_start()),
                    _ => list_settings(&mut out, settings.entries()),
                }
            }
            Verb::Check(args) => {
                args.load()?;
                out.note("the settings are valid");
                Ok(())
            }
            Verb::Default => {
                let env = Environment::of_process();
                let places = ["HOME", "XDG_DATA_HOME", "STATE_DIRECTORY"];
                let places: Environment =
                    places.iter().filter_map(|name| Some((*name, env.get(name)?))).collect();
                let settings =
                    Settings::load(Some("/dev/null".as_ref()), RawSettings::default(), &places)?;
                match out.format() {
                    Format::Table => out.text(template(settings.entries())),
                    _ => list_settings(&mut out, settings.entries()),
                }
            }
        }
    }
}

/// A settings file with every line commented out and explained.
fn template(entries: &[Entry]) -> String {
    let mut text = String::from("# malote.toml: remove the # before a setting to change it.\n");
    let mut section = "";
    for Entry { key, value, .. } in entries {
        let (table, name) = key.name.split_once('.').unwrap_or(("", key.name));
        if table != section {
            section = table;
            text.push_str(&format!("\n[{table}]\n"));
        }
        let value = value.as_deref().unwrap_or("");
        let bare = value == "true" || value == "false" || value.parse::<u32>().is_ok();
        let quote = if bare { "" } else { "\"" };
        text.push_str(&format!("\n# {}\n# {name} = {quote}{value}{quote}\n", key.help));
    }
    text
}

fn list_settings(out: &mut Output, entries: &[Entry]) -> anyhow::Result<()> {
    let row = |entry: &Entry| SettingRow {
        name: entry.key.name,
        value: entry.value.clone(),
        origin: entry.origin.to_string(),
        variable: entry.key.variable,
        flag: entry.key.flag,
    };
    out.list(&entries.iter().map(row).collect::<Vec<_>>())
}

/// A setting in a list.
#[derive(Serialize)]
struct SettingRow {
    name: &'static str,
    value: Option<String>,
    origin: String,
    variable: &'static str,
    flag: Option<&'static str>,
}

impl Row for SettingRow {
    const HEAD: &'static [&'static str] = &["NAME", "VALUE", "ORIGIN"];

    fn row(&self) -> Vec<String> {
        vec![self.name.to_owned(), self.value.clone().unwrap_or_default(), self.origin.clone()]
    }

    fn name(&self) -> String {
        self.name.to_owned()
    }
}
