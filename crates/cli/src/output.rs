//! Writes data to standard output in the chosen format, and everything else to standard error.

use std::fmt::Display;
use std::io::{self, IsTerminal, StdoutLock, Write};

use serde::Serialize;

use crate::colour::{self, Colour};
use crate::table::{self, Layout};
use crate::when;

/// How data is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Aligned columns, for people
    Table,
    /// One JSON document
    Json,
    /// One JSON object per line
    Ndjson,
    /// Only names or ids, one per line
    Name,
}

/// An item of a list.
pub(crate) trait Row: Serialize + Sized {
    /// What an item is called, in the singular. Lists end with the number of items unless it is empty.
    const NOUN: &'static str = "";
    const HEAD: &'static [&'static str];

    /// One cell for each column of `HEAD`.
    fn row(&self) -> Vec<String>;

    /// What `-o name` writes.
    fn name(&self) -> String;

    /// The line below a list, on standard error.
    fn totals(items: &[Self]) -> Option<String> {
        (!Self::NOUN.is_empty()).then(|| when::count(items.len() as u64, Self::NOUN))
    }
}

/// An object that is shown on its own, with all its fields.
pub(crate) trait Facts: Serialize {
    /// Names and values.
    fn facts(&self) -> Vec<(&'static str, String)>;

    /// What `-o name` writes.
    fn name(&self) -> String;
}

/// Standard output in the chosen format, and standard error beside it.
pub(crate) struct Output {
    format: Format,
    out: StdoutLock<'static>,
    /// The header of a list that is written in parts has been written.
    has_header: bool,
}

impl Output {
    pub(crate) fn new(format: Format) -> Self {
        Self { format, out: io::stdout().lock(), has_header: false }
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// Writes a complete list.
    pub(crate) fn list<T: Row>(&mut self, items: &[T]) -> anyhow::Result<()> {
        match self.format {
            Format::Json => self.json(&items)?,
            _ => self.more(items)?,
        }
        self.out.flush()?;
        if self.format == Format::Table
            && !items.is_empty()
            && let Some(totals) = T::totals(items)
        {
            self.note(totals);
        }
        Ok(())
    }

    /// Writes a part of a list. The format `json` becomes one object per line.
    pub(crate) fn more<T: Row>(&mut self, items: &[T]) -> anyhow::Result<()> {
        match self.format {
            Format::Json | Format::Ndjson => {
                for item in items {
                    self.line(item)?;
                }
            }
            Format::Name => {
                for item in items {
                    writeln!(self.out, "{}", item.name())?;
                }
            }
            Format::Table if items.is_empty() => {}
            Format::Table => {
                let rows = items.iter().map(Row::row).collect();
                let layout = Layout::of_stdout();
                table::write_list(&mut self.out, layout, T::HEAD, rows, self.has_header)?;
                self.has_header = true;
            }
        }
        Ok(self.out.flush()?)
    }

    /// Writes one object with all its fields.
    pub(crate) fn one<T: Facts>(&mut self, item: &T) -> anyhow::Result<()> {
        match self.format {
            Format::Json => self.json(item)?,
            Format::Ndjson => self.line(item)?,
            Format::Name => writeln!(self.out, "{}", item.name())?,
            Format::Table => {
                table::write_facts(&mut self.out, Layout::of_stdout(), &item.facts())?;
            }
        }
        Ok(self.out.flush()?)
    }

    /// Reports a change: a sentence on standard error for people, the object on standard output for programs.
    pub(crate) fn changed<T: Facts>(
        &mut self,
        item: &T,
        summary: impl Display,
    ) -> anyhow::Result<()> {
        match self.format {
            Format::Table => self.note(summary),
            _ => self.one(item)?,
        }
        Ok(())
    }

    /// Reports a deletion: a sentence on standard error, or the name for `-o name`.
    pub(crate) fn removed(
        mut self,
        kind: &str,
        name: &(impl Display + ?Sized),
    ) -> anyhow::Result<()> {
        match self.format {
            Format::Name => self.text(format_args!("{name}\n")),
            _ => {
                self.note(format_args!("{kind} `{name}` deleted"));
                Ok(())
            }
        }
    }

    /// Writes an indented JSON document.
    pub(crate) fn json<T: Serialize + ?Sized>(&mut self, value: &T) -> anyhow::Result<()> {
        serde_json::to_writer_pretty(&mut self.out, value).map_err(io::Error::from)?;
        Ok(writeln!(self.out)?)
    }

    /// Writes a JSON object on one line.
    pub(crate) fn line<T: Serialize + ?Sized>(&mut self, value: &T) -> anyhow::Result<()> {
        serde_json::to_writer(&mut self.out, value).map_err(io::Error::from)?;
        Ok(writeln!(self.out)?)
    }

    pub(crate) fn text(&mut self, text: impl Display) -> anyhow::Result<()> {
        write!(self.out, "{text}")?;
        Ok(self.out.flush()?)
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.out.write_all(bytes)?;
        Ok(self.out.flush()?)
    }

    /// Starts the output again for `--watch`: a terminal is cleared, a table gets its header again.
    pub(crate) fn restart(&mut self) -> anyhow::Result<()> {
        self.has_header = false;
        if io::stdout().is_terminal() {
            self.text("\x1b[H\x1b[2J")?;
        }
        Ok(())
    }

    /// Writes a remark for people to standard error.
    pub(crate) fn note(&self, text: impl Display) {
        note(text);
    }
}

/// Writes a remark for people to standard error. A closed standard error is not a failure.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Writes an error, and below it how to fix it.
pub(crate) fn error(text: impl Display, fix: Option<&str>) {
    let label = colour::paint(colour::on_stderr(), Some(Colour::Red), "error:");
    note(format_args!("{label} {text}"));
    if let Some(fix) = fix {
        note(format_args!("hint: {fix}"));
    }
}
