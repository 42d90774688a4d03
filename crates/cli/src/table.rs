//! Aligned columns without borders.
//!
//! A cell never wraps, so that ids can be copied. On a terminal, the last column of a list is cut at the right edge.

use std::io::{self, IsTerminal, Write};

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::colour::{self, Colour};

/// Space between two columns.
const GAP: usize = 2;
/// The last column keeps at least this many characters, even if the line becomes longer than the terminal is wide.
const LAST_WIDTH_MIN: usize = 16;

/// Where the lines go.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    /// Columns of the terminal. `None` without a terminal, and for a terminal that reports no size.
    pub width: Option<usize>,
    pub colour: bool,
}

impl Layout {
    pub(crate) fn of_stdout() -> Self {
        let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
        let width = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
        let width = width.filter(|_| io::stdout().is_terminal());
        Self { width, colour: colour::on_stdout() }
    }
}

/// Writes a list. Without a head it continues an earlier list.
pub(crate) fn write_list(
    out: &mut impl Write,
    layout: Layout,
    head: &[&str],
    mut rows: Vec<Vec<String>>,
    is_continued: bool,
) -> io::Result<()> {
    let columns = head.len();
    let mut widths: Vec<usize> = head.iter().map(|name| name.width()).collect();
    let mut numeric = vec![!rows.is_empty(); columns];
    for row in &rows {
        for (at, cell) in row.iter().enumerate() {
            widths[at] = widths[at].max(cell.width());
            numeric[at] &= is_number(cell);
        }
    }
    if let (Some(terminal), Some((last, others))) = (layout.width, widths.split_last_mut()) {
        let taken: usize = others.iter().map(|width| width + GAP).sum();
        let room = terminal.saturating_sub(taken).max(LAST_WIDTH_MIN);
        if *last > room {
            *last = room;
            rows.iter_mut().for_each(|row| cut(&mut row[columns - 1], room));
        }
    }
    let mut line = |cells: &[String], paint: &dyn Fn(usize) -> Option<Colour>| {
        let mut text = String::new();
        for (at, cell) in cells.iter().enumerate() {
            let fill = " ".repeat(widths[at] - cell.width());
            let painted = colour::paint(layout.colour, paint(at), cell);
            let right = columns > 2 && numeric[at];
            let (before, after) = if right { (fill.as_str(), "") } else { ("", fill.as_str()) };
            text.push_str(&format!("{before}{painted}{after}{:GAP$}", ""));
        }
        writeln!(out, "{}", text.trim_end())
    };
    if !is_continued {
        let names: Vec<String> = head.iter().map(|name| (*name).to_owned()).collect();
        line(&names, &|_| Some(Colour::Bold))?;
    }
    for row in &rows {
        line(row, &|at| colour::of_cell(head[at], &row[at]))?;
    }
    Ok(())
}

/// Writes names with their values.
pub(crate) fn write_facts(
    out: &mut impl Write,
    layout: Layout,
    facts: &[(&str, String)],
) -> io::Result<()> {
    let width = facts.iter().map(|(name, _)| name.width()).max().unwrap_or_default() + GAP;
    for (name, value) in facts {
        let fill = " ".repeat(width - name.width());
        let painted = colour::paint(layout.colour, Some(Colour::Bold), name);
        writeln!(out, "{}", format!("{painted}{fill}{value}").trim_end())?;
    }
    Ok(())
}

fn cut(cell: &mut String, width_max: usize) {
    if cell.width() <= width_max {
        return;
    }
    let mut width = 0;
    let kept = cell.chars().take_while(|c| {
        width += c.width().unwrap_or_default();
        width < width_max
    });
    let mut kept: String = kept.collect();
    kept.push('…');
    *cell = kept;
}

/// A dash marks a missing number.
fn is_number(text: &str) -> bool {
    text == "-" || !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn written(width: Option<usize>, head: &[&str], rows: &[&[&str]]) -> String {
        let rows = rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect());
        let mut out = Vec::new();
        let layout = Layout { width, colour: false };
        write_list(&mut out, layout, head, rows.collect(), false).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_are_aligned_and_numbers_are_right_aligned() {
        let rows: [&[&str]; 2] = [&["orders", "7", "a"], &["e-mail", "1200", "b c"]];
        expect![[r#"
            NAME    READY  REST
            orders      7  a
            e-mail   1200  b c
        "#]]
        .assert_eq(&written(None, &["NAME", "READY", "REST"], &rows));
    }

    #[test]
    fn only_the_last_column_is_cut_and_nothing_wraps() {
        let id = "0199a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b";
        let rows: [&[&str]; 1] = [&["1", id, "a body that is longer than the terminal is wide"]];
        let text = written(Some(60), &["SEQ", "ID", "BODY"], &rows);
        let line = text.lines().nth(1).unwrap();
        assert!(line.contains(id) && line.ends_with('…'), "{line}");
        assert_eq!((line.chars().count(), text.lines().count()), (60, 2), "{text}");
        // Wide characters count twice.
        let rows: [&[&str]; 1] = [&["漢字", "x"]];
        assert_eq!(written(None, &["A", "B"], &rows), "A     B\n漢字  x\n");
    }
}
