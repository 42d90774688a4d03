//! The report of a benchmark: the conditions of the run, and one row for each measurement.

use std::io::{self, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

/// A line of the report: a measurement and its result.
pub struct Row {
    /// What was measured.
    pub what: String,
    /// The result with its unit.
    pub figure: String,
    /// A reference from the same run, or details.
    pub beside: String,
    /// The goal, or `reported` if there is none.
    pub goal: String,
    /// Whether the goal was met.
    pub met: bool,
    /// The measurement for programs.
    pub json: Value,
}

/// The results of a run.
pub struct BenchReport {
    conditions: Vec<(&'static str, String)>,
    rows: Vec<Row>,
}

impl BenchReport {
    /// Starts a report and records the state of the machine. `load_generator` says where the load comes from.
    pub fn new(dir: &Path, load_generator: &str) -> Self {
        let cores = std::thread::available_parallelism().map_or(0, |n| n.get());
        let conditions = vec![
            ("cores", format!("{cores}, load generator {load_generator}")),
            ("load before", load_average()),
            ("directory", dir.parent().unwrap_or(dir).display().to_string()),
            ("durability", "fsync before every answer".to_owned()),
        ];
        Self { conditions, rows: Vec::new() }
    }

    /// Adds a condition of the run.
    pub fn condition(&mut self, name: &'static str, text: String) {
        self.conditions.push((name, text));
    }

    /// Adds a measurement.
    pub fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Prints the report to standard output, as a table or as JSON.
    pub fn print(self, json: bool) -> io::Result<()> {
        self.write(&mut io::stdout().lock(), json)
    }

    fn write(self, out: &mut impl Write, json: bool) -> io::Result<()> {
        if json {
            let conditions = self.conditions.into_iter();
            let conditions: Map<_, _> =
                conditions.map(|(name, text)| (name.to_owned(), Value::String(text))).collect();
            let results: Vec<_> = self.rows.into_iter().map(|row| row.json).collect();
            return writeln!(out, "{:#}", json!({ "conditions": conditions, "results": results }));
        }
        for (name, text) in &self.conditions {
            writeln!(out, "{name:12} {text}")?;
        }
        writeln!(out)?;
        let head = ["MEASURED", "MALOTE", "BESIDE IT", "GOAL", "RESULT"].map(str::to_owned);
        let rows = self.rows.into_iter().map(|row| {
            let result = if row.met { "met" } else { "not met" };
            [row.what, row.figure, row.beside, row.goal, result.to_owned()]
        });
        let lines: Vec<[String; 5]> = std::iter::once(head).chain(rows).collect();
        let width = |column: usize| {
            lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default()
        };
        let widths: [usize; 5] = std::array::from_fn(width);
        for line in &lines {
            let cells = line.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
            writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// A number in thousands, such as `120k`.
pub fn thousands(n: f64) -> String {
    format!("{:.0}k", n / 1000.0)
}

fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(json: bool) -> String {
        let mut report =
            BenchReport { conditions: vec![("cores", "2".to_owned())], rows: Vec::new() };
        report.push(Row {
            what: "send".to_owned(),
            figure: "7 µs".to_owned(),
            beside: String::new(),
            goal: "≤ 5 µs".to_owned(),
            met: false,
            json: json!({ "what": "send", "p50_us": 7.0 }),
        });
        let mut out = Vec::new();
        report.write(&mut out, json).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_are_aligned() {
        let expected = "\
cores        2

MEASURED  MALOTE  BESIDE IT  GOAL    RESULT
send      7 µs               ≤ 5 µs  not met
";
        assert_eq!(written(false), expected);
    }

    #[test]
    fn json_has_the_conditions_and_the_results() {
        let value: Value = serde_json::from_str(&written(true)).unwrap();
        assert_eq!(
            value,
            json!({ "conditions": { "cores": "2" }, "results": [{ "what": "send", "p50_us": 7.0 }] })
        );
    }
}
