//! Questions to the user at the terminal.

use std::fmt::Display;
use std::io::{self, BufRead, IsTerminal, Write};

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use crate::failure::Failure;

/// The flag of commands that cannot be undone.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Yes {
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

impl Yes {
    /// Returns an error unless the user gave --yes or answers yes.
    pub(crate) fn confirm(self, question: impl Display) -> anyhow::Result<()> {
        if self.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            let why = format!("{question} There is no terminal to ask for confirmation: use --yes");
            return Err(Failure::Usage(why).into());
        }
        eprint!("{question} Continue? [y/N] ");
        io::stderr().flush()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        match answer.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Ok(()),
            _ => anyhow::bail!("nothing was changed"),
        }
    }
}

/// Reads a password without echo. `None` if standard input is not a terminal.
pub(crate) fn password(prompt: &str) -> anyhow::Result<Option<String>> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Ok(None);
    }
    eprint!("{prompt}: ");
    io::stderr().flush()?;
    let before = tcgetattr(&stdin)?;
    let mut hidden = before.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    tcsetattr(&stdin, OptionalActions::Drain, &hidden)?;
    let mut line = String::new();
    let read = stdin.lock().read_line(&mut line);
    tcsetattr(&stdin, OptionalActions::Drain, &before)?;
    eprintln!();
    read?;
    Ok(Some(line.trim_end_matches(['\r', '\n']).to_owned()))
}
