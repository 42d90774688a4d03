//! `malote completions`: shell completions.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;

/// Print a completion script for a shell
#[derive(clap::Args)]
#[command(after_help = "Examples:
  malote completions bash > ~/.local/share/bash-completion/completions/malote
  malote completions zsh > ~/.zfunc/_malote
  malote completions fish > ~/.config/fish/completions/malote.fish")]
pub(crate) struct Completions {
    /// Shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "malote", &mut script);
        Ok(std::io::Write::write_all(&mut std::io::stdout(), &script)?)
    }
}
