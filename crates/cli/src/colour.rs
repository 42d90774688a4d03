//! Colours: `--color`, `NO_COLOR` and `CLICOLOR_FORCE` decide, then whether the output is a terminal.

use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::sync::OnceLock;

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ColourChoice {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    Always,
    Never,
}

/// The choice of the user, for the whole process.
static CHOICE: OnceLock<ColourChoice> = OnceLock::new();

/// Sets the choice. Only the first call has an effect.
pub(crate) fn choose(choice: ColourChoice) {
    let _ = CHOICE.set(choice);
}

fn is_on(terminal: bool) -> bool {
    match CHOICE.get() {
        Some(ColourChoice::Always) => return true,
        Some(ColourChoice::Never) => return false,
        Some(ColourChoice::Auto) | None => {}
    }
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    match (set("CLICOLOR_FORCE"), set("NO_COLOR")) {
        (Some(force), _) if force != "0" => true,
        (_, Some(_)) => false,
        _ => terminal,
    }
}

pub(crate) fn on_stdout() -> bool {
    is_on(io::stdout().is_terminal())
}

pub(crate) fn on_stderr() -> bool {
    is_on(io::stderr().is_terminal())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    Bold,
    Red,
    Yellow,
    Green,
}

/// The text in a colour, or as it is.
pub(crate) fn paint(on: bool, colour: Option<Colour>, text: impl Display) -> String {
    let code = match colour {
        Some(colour) if on => match colour {
            Colour::Bold => "1",
            Colour::Red => "1;31",
            Colour::Yellow => "33",
            Colour::Green => "32",
        },
        _ => return text.to_string(),
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// What needs attention in a list stands out.
pub(crate) fn of_cell(column: &str, cell: &str) -> Option<Colour> {
    let is_zero = matches!(cell, "0" | "-");
    match column {
        "DEAD" | "REASON" if !is_zero => Some(Colour::Red),
        "FAILED" if !is_zero => Some(Colour::Yellow),
        "OUTCOME" if cell.starts_with("refused") => Some(Colour::Red),
        "STATE" | "STATUS" => match cell {
            "paused" | "compensating" | "delayed" | "abandoned" => Some(Colour::Yellow),
            "dead-lettered" | "compensated" | "unreadable" => Some(Colour::Red),
            "completed" | "done" => Some(Colour::Green),
            _ => None,
        },
        _ => None,
    }
}
