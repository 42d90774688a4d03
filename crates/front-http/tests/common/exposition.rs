//! A strict parser of pages for Prometheus. It refuses what the text format 0.0.4 or OpenMetrics 1.0 does not allow.

use std::collections::{BTreeMap, BTreeSet};

/// Names and values.
type Labels = Vec<(String, String)>;

/// Samples by name, then by labels in order.
pub type Samples = BTreeMap<String, BTreeMap<Vec<(String, String)>, f64>>;

/// Parses a page, or returns the error.
pub fn read(text: &str, open_metrics: bool) -> Result<Samples, String> {
    let mut lines: Vec<&str> = text.split('\n').collect();
    if lines.pop() != Some("") {
        return Err("the last line has no end".into());
    }
    match (open_metrics, lines.last()) {
        (true, Some(&"# EOF")) => drop(lines.pop()),
        (true, last) => return Err(format!("OpenMetrics ends with # EOF, not with {last:?}")),
        (false, _) => {}
    }
    let (mut samples, mut seen) = (Samples::new(), BTreeSet::new());
    let mut at = 0;
    while at < lines.len() {
        let help = lines[at].strip_prefix("# HELP ").ok_or(format!("no HELP: {}", lines[at]))?;
        let (family, text) = help.split_once(' ').ok_or("a HELP without text")?;
        let kind = lines.get(at + 1).and_then(|line| line.strip_prefix("# TYPE "));
        let (of, kind) = kind.and_then(|kind| kind.split_once(' ')).ok_or("no TYPE after HELP")?;
        if of != family || !is_name(family) || text.is_empty() {
            return Err(format!("HELP of {family}, TYPE of {of}"));
        }
        if !seen.insert(family) {
            return Err(format!("{family} is there twice"));
        }
        let kinds: &[&str] = match open_metrics {
            true => &["counter", "gauge", "histogram", "info"],
            false => &["counter", "gauge", "histogram"],
        };
        if !kinds.contains(&kind) {
            return Err(format!("{family} is a {kind}"));
        }
        at += 2;
        let mut own = Samples::new();
        while let Some(line) = lines.get(at).filter(|line| !line.starts_with('#')) {
            let (name, labels, value) = sample(line).ok_or(format!("no sample: {line:?}"))?;
            let fits = match (kind, open_metrics) {
                ("counter", true) => name == format!("{family}_total"),
                ("counter", false) => name == family && family.ends_with("_total"),
                ("info", _) => name == format!("{family}_info") && value == 1.0,
                ("histogram", _) => ["_bucket", "_sum", "_count"]
                    .map(|end| format!("{family}{end}"))
                    .contains(&name),
                _ => name == family,
            };
            if !fits || kind == "counter" && (value.is_nan() || value < 0.0) {
                return Err(format!("{name} {value} is no sample of the {kind} {family}"));
            }
            if own.entry(name.clone()).or_default().insert(labels, value).is_some() {
                return Err(format!("twice: {line}"));
            }
            at += 1;
        }
        if kind == "histogram" {
            check_histogram(family, &own)?;
        }
        samples.extend(own);
    }
    Ok(samples)
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn sample(line: &str) -> Option<(String, Labels, f64)> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, value) = rest.split_once("=\"")?;
            if !is_name(label) || labels.iter().any(|(other, _)| other == label) {
                return None;
            }
            let (mut text, mut chars) = (String::new(), value.char_indices());
            let closed = loop {
                match chars.next()? {
                    (at, '"') => break at + 1,
                    (_, '\\') => text.push(match chars.next()?.1 {
                        'n' => '\n',
                        c @ ('"' | '\\') => c,
                        _ => return None,
                    }),
                    (_, c) => text.push(c),
                }
            };
            labels.push((label.to_owned(), text));
            rest = &value[closed..];
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => break,
            }
        }
        rest = rest.strip_prefix('}')?;
    }
    let value = rest.strip_prefix(' ')?;
    let plain = value.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
    let value = if plain { value.parse().ok()? } else { return None };
    is_name(name).then_some((name.to_owned(), labels, value))
}

/// Buckets increase up to `+Inf`, which counts all. Their bounds are written as OpenMetrics requires.
fn check_histogram(family: &str, own: &Samples) -> Result<(), String> {
    let none = BTreeMap::new();
    let of = |end: &str| own.get(&format!("{family}{end}")).unwrap_or(&none);
    let mut series: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
    for (labels, count) in of("_bucket") {
        let mut labels = labels.clone();
        let le = labels.iter().position(|(name, _)| name == "le").ok_or("a bucket without le")?;
        let (_, le) = labels.remove(le);
        let end = match le.as_str() {
            "+Inf" => f64::INFINITY,
            text => text.parse::<f64>().map_err(|error| error.to_string())?,
        };
        if le != "+Inf" && (format!("{end:?}") != le || end > 1e300) {
            return Err(format!("{family}: {le} is no end of a bucket"));
        }
        series.entry(labels).or_default().push((end, *count));
    }
    if of("_sum").len() != series.len() || of("_count").len() != series.len() {
        return Err(format!("{family}: not as many sums and counts as series"));
    }
    for (labels, mut buckets) in series {
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        let all = of("_count").get(&labels).ok_or(format!("{family}: no count"))?;
        if !buckets.is_sorted_by(|a, b| a.1 <= b.1)
            || buckets.last() != Some(&(f64::INFINITY, *all))
        {
            return Err(format!("{family}{labels:?}: {buckets:?} of {all}"));
        }
    }
    Ok(())
}
