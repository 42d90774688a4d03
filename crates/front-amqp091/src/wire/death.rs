//! The headers that record why a message was dead-lettered.
//!
//! `x-death` is an array with a table for each queue and reason, the newest event first. A repeated event increments the
//! `count` of its table and moves it to the front. `x-first-death-…` is set once, `x-last-death-…` on each event.

use super::table::{ArrayBuilder, FieldTable, FieldValue, TableRef};

const DEATHS: &str = "x-death";
/// Each with what it is called in an event.
const FIRST: [&str; 3] = ["x-first-death-exchange", "x-first-death-queue", "x-first-death-reason"];
const LAST: [&str; 3] = ["x-last-death-exchange", "x-last-death-queue", "x-last-death-reason"];
/// A message that was rejected between two visits of a queue was seen by a consumer: it does not circulate by itself.
const REJECTED: &str = "rejected";

/// A message leaves a queue for a dead-letter exchange.
#[derive(Debug, Clone, Copy)]
pub struct Death<'a> {
    /// `rejected`, `expired`, `maxlen` or `delivery_limit`.
    pub reason: &'a str,
    pub queue: &'a str,
    /// Where the message had been published to.
    pub exchange: &'a str,
    /// The keys that it had been published with: its own and `CC`, not `BCC`.
    pub routing_keys: &'a [&'a str],
    /// Seconds since 1970.
    pub time: u64,
    /// The property that is removed, if there was one.
    pub original_expiration: Option<&'a str>,
    /// How often it happened.
    pub count: u32,
}

impl Death<'_> {
    /// The headers of the message after this event.
    pub fn record(&self, headers: TableRef<'_>) -> FieldTable {
        let earlier = deaths(headers);
        let repeated = earlier.clone().find(|death| self.is_repetition_of(*death));
        let mut deaths = ArrayBuilder::default();
        let entry = repeated.map_or_else(|| self.entry(), |death| self.again(death));
        deaths.put(entry.as_table());
        for death in earlier.filter(|death| !self.is_repetition_of(*death)) {
            deaths.put(death);
        }
        let is_first = FIRST.iter().all(|name| headers.get(name).is_none());
        let written = |name: &str| {
            name == DEATHS || LAST.contains(&name) || (is_first && FIRST.contains(&name))
        };
        let mut table = FieldTable::builder();
        table.copy(headers, |name| !written(name));
        table.put(DEATHS, deaths.values());
        for (index, value) in [self.exchange, self.queue, self.reason].into_iter().enumerate() {
            if is_first {
                table.put(FIRST[index], value);
            }
            table.put(LAST[index], value);
        }
        table.build()
    }

    fn is_repetition_of(&self, death: TableRef<'_>) -> bool {
        let has = |name, text: &str| death.get(name).and_then(FieldValue::as_str) == Some(text);
        has("queue", self.queue) && has("reason", self.reason)
    }

    fn entry(&self) -> FieldTable {
        let keys: ArrayBuilder =
            self.routing_keys.iter().map(|key| FieldValue::from(*key)).collect();
        let mut entry = FieldTable::builder()
            .with("count", i64::from(self.count))
            .with("reason", self.reason)
            .with("queue", self.queue)
            .with("time", FieldValue::Timestamp(self.time))
            .with("exchange", self.exchange)
            .with("routing-keys", keys.values());
        if let Some(expiration) = self.original_expiration {
            entry.put("original-expiration", expiration);
        }
        entry.build()
    }

    /// The entry of the same event, counted up.
    fn again(&self, death: TableRef<'_>) -> FieldTable {
        let count = death.get("count").and_then(FieldValue::as_integer).unwrap_or(0);
        let count = count.saturating_add(self.count.into());
        let mut entry = FieldTable::builder().with("count", count);
        entry.copy(death, |name| name != "count");
        entry.build()
    }
}

/// The recorded events, newest first. Anything else that a publisher put there is skipped.
fn deaths(headers: TableRef<'_>) -> impl Iterator<Item = TableRef<'_>> + Clone {
    let array = headers.get(DEATHS).and_then(FieldValue::as_array).unwrap_or_default();
    array.filter_map(FieldValue::as_table)
}

/// Whether a message dead-lettered for `reason` would circulate: it was in this queue before, and no consumer rejected it
/// since.
pub fn would_circulate(headers: TableRef<'_>, reason: &str, queue: &str) -> bool {
    let has = |death: TableRef<'_>, name, text: &str| {
        death.get(name).and_then(FieldValue::as_str) == Some(text)
    };
    if reason == REJECTED {
        return false;
    }
    for death in deaths(headers) {
        if has(death, "reason", REJECTED) {
            return false;
        }
        if has(death, "queue", queue) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn death<'a>(reason: &'a str, queue: &'a str) -> Death<'a> {
        Death {
            reason,
            queue,
            exchange: "ex",
            routing_keys: &["key", "copy"],
            time: 5,
            original_expiration: None,
            count: 1,
        }
    }

    /// Reasons, queues and counts, newest first.
    fn history(headers: &FieldTable) -> Vec<(String, String, i64)> {
        let text = |death: TableRef<'_>, name| {
            death.get(name).and_then(FieldValue::as_str).unwrap_or_default().to_owned()
        };
        let count = |death: TableRef<'_>| death.get("count").and_then(FieldValue::as_integer);
        deaths(headers.as_table())
            .map(|death| (text(death, "reason"), text(death, "queue"), count(death).unwrap_or(0)))
            .collect()
    }

    #[test]
    fn the_first_event_is_recorded_in_full() {
        let event = Death { original_expiration: Some("100"), ..death("expired", "work") };
        let headers = FieldTable::builder().with("mine", true).build();
        expect![[r#"{"mine": Bool(true), "x-death": Array([Table({"count": I64(1), "reason": String("expired"), "queue": String("work"), "time": Timestamp(5), "exchange": String("ex"), "routing-keys": Array([String("key"), String("copy")]), "original-expiration": String("100")})]), "x-first-death-exchange": String("ex"), "x-last-death-exchange": String("ex"), "x-first-death-queue": String("work"), "x-last-death-queue": String("work"), "x-first-death-reason": String("expired"), "x-last-death-reason": String("expired")}"#]]
        .assert_eq(&format!("{:?}", event.record(headers.as_table())));
    }

    #[test]
    fn a_repeated_event_is_counted_and_moves_to_the_front() {
        let mut headers = FieldTable::default();
        for (reason, queue) in
            [("rejected", "work"), ("expired", "retry"), ("rejected", "work"), ("maxlen", "work")]
        {
            headers = death(reason, queue).record(headers.as_table());
        }
        let expected = [("maxlen", "work", 1), ("rejected", "work", 2), ("expired", "retry", 1)];
        let expected = expected.map(|(reason, queue, count)| (reason.into(), queue.into(), count));
        assert_eq!(history(&headers), expected);
        assert_eq!(headers.get("x-first-death-reason"), Some("rejected".into()));
        assert_eq!(headers.get("x-last-death-reason"), Some("maxlen".into()));
        let names = headers.fields().map(|field| field.name).collect::<Vec<_>>();
        assert_eq!(names.len(), 7, "{names:?}");
        // Time and keys are those of the first event.
        let later = Death { time: 99, routing_keys: &[], ..death("maxlen", "work") };
        let again = later.record(headers.as_table());
        let entry = deaths(again.as_table()).next().unwrap();
        assert_eq!(entry.get("time"), Some(FieldValue::Timestamp(5)));
        assert_eq!(entry.get("routing-keys").unwrap().as_array().unwrap().count(), 2);
    }

    #[test]
    fn headers_of_a_publisher_do_no_harm() {
        let odd = FieldTable::builder().with("x-death", "odd").build();
        assert_eq!(history(&death("maxlen", "q").record(odd.as_table())).len(), 1);
        let odd = ArrayBuilder::default().with(1_i32).with(TableRef::default());
        let odd = FieldTable::builder().with("x-death", odd.values()).build();
        let recorded = history(&death("maxlen", "q").record(odd.as_table()));
        assert_eq!(recorded[0], ("maxlen".into(), "q".into(), 1));
        let most = FieldTable::builder()
            .with("count", i64::MAX)
            .with("queue", "q")
            .with("reason", "maxlen")
            .build();
        let most = ArrayBuilder::default().with(most.as_table());
        let most = FieldTable::builder().with("x-death", most.values()).build();
        assert_eq!(history(&death("maxlen", "q").record(most.as_table()))[0].2, i64::MAX);
    }

    #[test]
    fn a_cycle_without_a_consumer_is_recognised() {
        let after = |events: &[(&str, &str)]| {
            events.iter().fold(FieldTable::default(), |headers, (reason, queue)| {
                death(reason, queue).record(headers.as_table())
            })
        };
        let circulates = |events: &[(&str, &str)], reason, queue| {
            would_circulate(after(events).as_table(), reason, queue)
        };
        assert!(circulates(&[("expired", "a")], "expired", "a"));
        assert!(circulates(&[("expired", "a"), ("expired", "b")], "expired", "a"));
        assert!(!circulates(&[("expired", "a")], "expired", "b"));
        assert!(!circulates(&[("expired", "a")], "rejected", "a"));
        // work is rejected to retry, and expires there.
        assert!(!circulates(&[("rejected", "work"), ("expired", "retry")], "expired", "work"));
        // Rejected in `a` before `b` was visited for the last time.
        assert!(circulates(&[("rejected", "a"), ("expired", "b")], "expired", "b"));
    }
}
