//! ISO 8601 durations: `PT1M`, `P14D`, `P10675199DT2H48M5.4775807S`.

/// Longer durations mean "never"; .NET writes its maximum.
const NEVER_MS: u64 = 10_000_000 * 24 * 3600 * 1000;

/// Parses a duration into milliseconds. The outer option is none if it is invalid, the inner one if it means "never".
pub fn parse_ms(text: &str) -> Option<Option<u64>> {
    let mut rest = text.strip_prefix('P')?;
    let (mut total, mut in_time, mut any) = (0_u64, false, false);
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('T').filter(|_| !in_time) {
            (rest, in_time) = (after, true);
            continue;
        }
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, unit) = rest.split_at(end);
        let unit_ms = match (unit.chars().next()?, in_time) {
            ('W', false) => 7 * 24 * 3_600_000,
            ('D', false) => 24 * 3_600_000,
            ('H', true) => 3_600_000,
            ('M', true) => 60_000,
            ('S', true) => 1_000,
            _ => return None,
        };
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let whole: u64 = whole.parse().ok()?;
        // Clients write fractions only for seconds. Three digits count.
        let part: u64 = match part {
            "" => 0,
            digits => format!("{:0<3.3}", digits).parse().ok()?,
        };
        total =
            total.checked_add(whole.checked_mul(unit_ms)?)?.checked_add(part * unit_ms / 1000)?;
        rest = &unit[1..];
        any = true;
    }
    any.then(|| (total < NEVER_MS).then_some(total))
}

/// Formats a duration. None is written as .NET's maximum.
pub fn format_ms(ms: Option<u64>) -> String {
    let Some(ms) = ms.filter(|ms| *ms < NEVER_MS) else {
        return "P10675199DT2H48M5.4775807S".to_owned();
    };
    let (days, rest) = (ms / 86_400_000, ms % 86_400_000);
    let (hours, rest) = (rest / 3_600_000, rest % 3_600_000);
    let (minutes, rest) = (rest / 60_000, rest % 60_000);
    let (seconds, part) = (rest / 1000, rest % 1000);
    let unit = |n: u64, unit: char| if n > 0 { format!("{n}{unit}") } else { String::new() };
    let seconds = match part {
        0 => unit(seconds, 'S'),
        part => format!("{seconds}.{part:03}S"),
    };
    let time = format!("{}{}{seconds}", unit(hours, 'H'), unit(minutes, 'M'));
    match (unit(days, 'D'), time.is_empty()) {
        (days, true) if days.is_empty() => "PT0S".to_owned(),
        (days, true) => format!("P{days}"),
        (days, false) => format!("P{days}T{time}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_round_trip() {
        for text in [
            "PT1M",
            "PT30S",
            "PT0.500S",
            "P1DT1H",
            "P14D",
            "P10675199DT2H48M5.4775807S",
            "PT0S",
            "P1DT2H3M4.005S",
        ] {
            assert_eq!(format_ms(parse_ms(text).unwrap()), text);
        }
    }

    #[test]
    fn durations_are_parsed_and_the_maximum_means_never() {
        for (text, ms) in [
            ("PT1M", Some(60_000)),
            ("PT30S", Some(30_000)),
            ("PT0.5S", Some(500)),
            ("P1DT1H", Some(25 * 3_600_000)),
            ("P2W", Some(14 * 24 * 3_600_000)),
            ("P10675199DT2H48M5.4775807S", None),
        ] {
            assert_eq!(parse_ms(text), Some(ms), "{text}");
        }
        for text in ["", "P", "PT", "1M", "PT1", "P1M", "PTxS", "PT99999999999999999999S", "PT1H1D"]
        {
            assert_eq!(parse_ms(text), None, "{text}");
        }
    }
}
