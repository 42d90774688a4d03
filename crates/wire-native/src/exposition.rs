//! Metrics pages for Prometheus: its text format 0.0.4 or, on request, OpenMetrics 1.0.
//!
//! Both formats have the same samples. The HELP and TYPE lines and the end of the page differ. All names get the
//! prefix `malote_`. <https://prometheus.io/docs/instrumenting/exposition_formats/>

use std::fmt::{Display, Write as _};

/// The format of a metrics page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The text format, version 0.0.4, which every scraper reads.
    #[default]
    Classic,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Never decreases. Its samples are called `NAME_total`.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts values by size. [`write_histogram`] writes its samples.
    Histogram,
    /// A constant 1 whose labels carry the information. Its sample is called `NAME_info`.
    Info,
}

impl Format {
    /// The best format for an `Accept` header: OpenMetrics if the header names it with at least the quality of plain
    /// text.
    pub fn of_accept(accept: &str) -> Self {
        let (mut open, mut classic) = (0, [None; 3]);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let (mut quality, mut version) = (1000, None);
            for part in parts {
                match part.split_once('=') {
                    Some(("q", text)) => quality = thousandths(text),
                    Some(("version", text)) => version = Some(text.trim_matches('"')),
                    _ => {}
                }
            }
            let ours = |number: &str| version.is_none_or(|version| version == number);
            match kind.as_str() {
                "application/openmetrics-text" if ours("1.0.0") => open = open.max(quality),
                "text/plain" if ours("0.0.4") => classic[0] = classic[0].max(Some(quality)),
                "text/*" => classic[1] = Some(quality),
                "*/*" => classic[2] = Some(quality),
                _ => {}
            }
        }
        // The most specific range applies.
        let plain = classic.into_iter().flatten().next().unwrap_or(0);
        if open > 0 && open >= plain { Self::OpenMetrics } else { Self::Classic }
    }

    /// The `Content-Type` of a page in this format.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A quality between 0 and 1 in thousandths; unreadable text counts as 1.
fn thousandths(text: &str) -> u32 {
    let quality = text.trim().parse::<f64>().unwrap_or(1.0);
    (quality.clamp(0.0, 1.0) * 1000.0) as u32
}

/// Writes the HELP and TYPE lines of a metric. All samples of the metric must follow before the next metric.
pub fn write_head(out: &mut String, format: Format, name: &str, kind: Kind, help: &str) {
    let (suffix, word) = match (format, kind) {
        (Format::OpenMetrics, Kind::Counter) => ("", "counter"),
        (Format::Classic, Kind::Counter) => ("_total", "counter"),
        (_, Kind::Gauge) => ("", "gauge"),
        (_, Kind::Histogram) => ("", "histogram"),
        (Format::OpenMetrics, Kind::Info) => ("", "info"),
        (Format::Classic, Kind::Info) => ("_info", "gauge"),
    };
    let _ =
        write!(out, "# HELP malote_{name}{suffix} {help}.\n# TYPE malote_{name}{suffix} {word}\n");
}

/// Writes one sample. `name` includes the suffix of its kind.
pub fn write_sample(out: &mut String, name: &str, labels: &[(&str, &str)], value: impl Display) {
    let _ = write!(out, "malote_{name}");
    for (nth, (label, text)) in labels.iter().enumerate() {
        let _ = write!(out, "{}{label}=\"", if nth == 0 { '{' } else { ',' });
        for c in text.chars() {
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                '\n' => out.push_str("\\n"),
                c => out.push(c),
            }
        }
        out.push('"');
    }
    let _ = writeln!(out, "{} {value}", if labels.is_empty() { "" } else { "}" });
}

/// Writes the samples of one histogram. `counts` has one count for each bucket that ends at one of `ends`, not
/// cumulative, and one for larger values.
pub fn write_histogram(
    out: &mut String,
    name: &str,
    labels: &[(&str, &str)],
    ends: &[f64],
    counts: &[u64],
    sum: f64,
) {
    assert_eq!(
        counts.len(),
        ends.len() + 1,
        "one count for each bucket, and one for larger values"
    );
    let (bucket, mut so_far) = (format!("{name}_bucket"), 0);
    // `{:?}` writes 1 as "1.0", the only spelling that OpenMetrics allows.
    let ends = ends.iter().map(|end| format!("{end:?}")).chain(["+Inf".to_owned()]);
    for (end, count) in ends.zip(counts) {
        so_far += count;
        let labels: Vec<_> = labels.iter().copied().chain([("le", end.as_str())]).collect();
        write_sample(out, &bucket, &labels, so_far);
    }
    write_sample(out, &format!("{name}_sum"), labels, sum);
    write_sample(out, &format!("{name}_count"), labels, so_far);
}

/// Ends the page.
pub fn write_end(out: &mut String, format: Format) {
    if format == Format::OpenMetrics {
        out.push_str("# EOF\n");
    }
}

/// A page that can be written in either format.
#[derive(Clone, Debug, Default)]
pub struct Page(Vec<Metric>);

#[derive(Clone, Debug)]
struct Metric {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    samples: String,
}

impl Page {
    /// Starts a metric. Samples that follow belong to it.
    pub fn head(&mut self, name: &'static str, kind: Kind, help: &'static str) {
        self.0.push(Metric { name, kind, help, samples: String::new() });
    }

    /// Adds a sample to the last metric.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        let Some(Metric { name, kind, samples, .. }) = self.0.last_mut() else { return };
        let suffix = match kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        write_sample(samples, &format!("{name}{suffix}"), labels, value);
    }

    /// Adds a histogram to the last metric: see [`write_histogram`].
    pub fn histogram(&mut self, labels: &[(&str, &str)], ends: &[f64], counts: &[u64], sum: f64) {
        let Some(Metric { name, samples, .. }) = self.0.last_mut() else { return };
        write_histogram(samples, name, labels, ends, counts, sum);
    }

    /// Writes the metrics without the end of the page, so that more can follow.
    pub fn write(&self, out: &mut String, format: Format) {
        for Metric { name, kind, help, samples } in &self.0 {
            write_head(out, format, name, *kind, help);
            out.push_str(samples);
        }
    }

    /// Writes the whole page.
    pub fn render(&self, format: Format) -> String {
        let mut out = String::new();
        self.write(&mut out, format);
        write_end(&mut out, format);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_used_only_on_request() {
        use Format::{Classic, OpenMetrics};
        let prometheus_2 = "application/openmetrics-text;version=1.0.0,\
            application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
            application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
            text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, format) in [
            ("", Classic),
            ("*/*", Classic),
            ("text/plain", Classic),
            ("text/plain; version=0.0.4", Classic),
            ("application/json", Classic),
            ("text/html,application/xhtml+xml,*/*;q=0.8", Classic),
            ("application/openmetrics-text", OpenMetrics),
            ("Application/OpenMetrics-Text; version=\"1.0.0\"", OpenMetrics),
            ("application/openmetrics-text;version=0.0.1", Classic),
            ("application/openmetrics-text;q=0", Classic),
            ("application/openmetrics-text;q=0.5,text/plain", Classic),
            ("application/openmetrics-text;q=0.5,*/*;q=0.1", OpenMetrics),
            (prometheus_2, OpenMetrics),
            (prometheus_3, OpenMetrics),
        ] {
            assert_eq!(Format::of_accept(accept), format, "{accept}");
        }
    }

    #[test]
    fn a_page_is_written_in_both_formats() {
        let mut page = Page::default();
        page.head("sent", Kind::Counter, "Messages sent");
        page.sample(&[("queue", "a\"\\\nb")], 3);
        page.head("build", Kind::Info, "The version that runs");
        page.sample(&[("version", "1")], 1);
        page.head("took_seconds", Kind::Histogram, "How long it took");
        page.histogram(&[], &[0.5, 1.0], &[2, 0, 1], 7.5);
        let samples = [
            "malote_sent_total{queue=\"a\\\"\\\\\\nb\"} 3\n",
            "malote_build_info{version=\"1\"} 1\n",
            "malote_took_seconds_bucket{le=\"0.5\"} 2\nmalote_took_seconds_bucket{le=\"1.0\"} 2\n\
             malote_took_seconds_bucket{le=\"+Inf\"} 3\nmalote_took_seconds_sum 7.5\nmalote_took_seconds_count 3\n",
        ];
        let heads = |names: [(&str, &str, &str); 3]| {
            let head = |(name, kind, help): (&str, &str, &str)| {
                format!("# HELP malote_{name} {help}.\n# TYPE malote_{name} {kind}\n")
            };
            names.map(head).into_iter().zip(samples).map(|(a, b)| a + b).collect::<String>()
        };
        let took = ("took_seconds", "histogram", "How long it took");
        let classic = heads([
            ("sent_total", "counter", "Messages sent"),
            ("build_info", "gauge", "The version that runs"),
            took,
        ]);
        let open = heads([
            ("sent", "counter", "Messages sent"),
            ("build", "info", "The version that runs"),
            took,
        ]);
        assert_eq!(page.render(Format::Classic), classic);
        assert_eq!(page.render(Format::OpenMetrics), open + "# EOF\n");
    }
}
