//! What people and programs see: data on standard output in the format they asked for, everything else on
//! standard error.

use std::fmt::Display;
use std::io::{self, IsTerminal, StdoutLock, Write};

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

/// How data is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Aligned columns, for people
    Table,
    /// One JSON document
    Json,
    /// One JSON object on each line
    Ndjson,
    /// Only names or ids, one on each line
    Name,
}

/// The flag that every command with data has.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct OutputArgs {
    /// How to write data
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "table", global = true)]
    output: Format,
}

impl OutputArgs {
    /// The way out.
    pub(crate) fn open(&self) -> Output {
        Output { format: self.output, out: io::stdout().lock(), headed: false }
    }
}

/// Something that can stand in a list.
pub(crate) trait Row: Serialize {
    /// The columns.
    const HEAD: &'static [&'static str];
    /// One text for each column.
    fn row(&self) -> Vec<String>;
    /// What `-o name` writes.
    fn name(&self) -> String;
}

/// Something that can be shown alone, in full.
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
    /// A table that grows has its head already.
    headed: bool,
}

impl Output {
    /// The chosen format.
    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// A whole list.
    pub(crate) fn list<T: Row>(&mut self, items: &[T]) -> anyhow::Result<()> {
        match self.format {
            Format::Json => self.json(&items)?,
            _ => self.more(items)?,
        }
        Ok(self.out.flush()?)
    }

    /// A part of a list that goes on: `json` becomes one object on each line.
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
                let head = if self.headed { &[] } else { T::HEAD };
                self.headed = true;
                let rows = items.iter().map(Row::row).collect();
                write_table(&mut self.out, head, rows)?;
            }
        }
        Ok(self.out.flush()?)
    }

    /// One thing, in full.
    pub(crate) fn one<T: Facts>(&mut self, item: &T) -> anyhow::Result<()> {
        match self.format {
            Format::Json => self.json(item)?,
            Format::Ndjson => self.line(item)?,
            Format::Name => writeln!(self.out, "{}", item.name())?,
            Format::Table => {
                let rows = item.facts().into_iter().map(|(name, value)| vec![name.into(), value]);
                write_table(&mut self.out, &[], rows.collect())?;
            }
        }
        Ok(self.out.flush()?)
    }

    /// What a change left behind: people are told on standard error, programs get the thing itself.
    pub(crate) fn changed<T: Facts>(&mut self, item: &T, said: impl Display) -> anyhow::Result<()> {
        match self.format {
            Format::Table => self.note(said),
            _ => self.one(item)?,
        }
        Ok(())
    }

    /// What is gone: people are told on standard error, programs get its name if they asked for names.
    pub(crate) fn removed(
        mut self,
        kind: &str,
        name: &(impl Display + ?Sized),
    ) -> anyhow::Result<()> {
        match self.format {
            Format::Name => self.text(format_args!("{name}\n")),
            _ => {
                self.note(format_args!("{kind} `{name}` removed"));
                Ok(())
            }
        }
    }

    /// A JSON document, readable.
    pub(crate) fn json<T: Serialize + ?Sized>(&mut self, value: &T) -> anyhow::Result<()> {
        serde_json::to_writer_pretty(&mut self.out, value).map_err(io::Error::from)?;
        Ok(writeln!(self.out)?)
    }

    /// A JSON object on a line of its own.
    pub(crate) fn line<T: Serialize + ?Sized>(&mut self, value: &T) -> anyhow::Result<()> {
        serde_json::to_writer(&mut self.out, value).map_err(io::Error::from)?;
        Ok(writeln!(self.out)?)
    }

    /// Text as it is.
    pub(crate) fn text(&mut self, text: impl Display) -> anyhow::Result<()> {
        write!(self.out, "{text}")?;
        Ok(self.out.flush()?)
    }

    /// Bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.out.write_all(bytes)?;
        Ok(self.out.flush()?)
    }

    /// A remark for people.
    pub(crate) fn note(&self, text: impl Display) {
        note(text);
    }
}

/// A remark for people, on standard error. Nobody there to read it is no reason to fail.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Columns without borders; on a terminal long cells are wrapped, elsewhere a row is a line.
fn write_table(out: &mut impl Write, head: &[&str], rows: Vec<Vec<String>>) -> io::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(match io::stdout().is_terminal() {
        true => ContentArrangement::Dynamic,
        false => ContentArrangement::Disabled,
    });
    if !head.is_empty() {
        table.set_header(head.iter().copied());
    }
    let columns = rows.first().map_or(0, Vec::len);
    let numeric: Vec<bool> = (0..columns)
        .map(|at| rows.iter().all(|row| row.get(at).is_some_and(|cell| is_number(cell))))
        .collect();
    for row in rows {
        table.add_row(row.into_iter().enumerate().map(|(at, cell)| {
            let right = columns > 2 && numeric.get(at) == Some(&true);
            let side = if right { CellAlignment::Right } else { CellAlignment::Left };
            Cell::new(cell).set_alignment(side)
        }));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    for line in table.lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// A dash stands where there is no number.
fn is_number(text: &str) -> bool {
    text == "-" || !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether standard error wants colour: `NO_COLOR` and `CLICOLOR_FORCE` decide, then the terminal.
pub(crate) fn colour_on_stderr() -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    match (set("CLICOLOR_FORCE"), set("NO_COLOR")) {
        (Some(force), _) if force != "0" => true,
        (_, Some(_)) => false,
        _ => io::stderr().is_terminal(),
    }
}

/// An error as people see it, with what to do on a line of its own.
pub(crate) fn error(text: impl Display, fix: Option<&str>) {
    let (red, off) = if colour_on_stderr() { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
    note(format_args!("{red}error:{off} {text}"));
    if let Some(fix) = fix {
        note(format_args!("hint: {fix}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn columns_line_up_and_numbers_stand_right() {
        let mut out = Vec::new();
        let row =
            |name: &str, count: &str, rest: &str| vec![name.into(), count.into(), rest.into()];
        let rows = vec![row("orders", "7", "a"), row("e-mail", "1200", "b c")];
        write_table(&mut out, &["NAME", "READY", "REST"], rows).unwrap();
        let text = String::from_utf8(out).unwrap();
        expect![[r#"
            NAME    READY  REST
            orders      7  a
            e-mail   1200  b c
        "#]]
        .assert_eq(&text);
    }
}
