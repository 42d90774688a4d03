//! Groups dead letters by queue, reason and text. Texts that differ only in digits are in one group: `order 17 failed`.

use std::collections::HashMap;

use malote_engine::PeekedMessage;
use malote_model::QueueName;
use malote_wire_native::overview::DeadLetterGroup;

/// Characters of a text that distinguish groups, and that are shown.
const TEXT_MAX: usize = 300;

/// The groups found so far. The page of dead letters bounds their number.
#[derive(Default)]
pub(super) struct Groups {
    pub read: usize,
    groups: HashMap<(QueueName, String, String), DeadLetterGroup>,
}

impl Groups {
    pub fn add(&mut self, queue: &QueueName, message: &PeekedMessage) {
        self.read += 1;
        let (reason, text, at) = match message.dead() {
            Some(dead) => (dead.reason.clone(), shortened(&dead.text), dead.at.0),
            // Sent to the dead-letter set by a client.
            None => (String::new(), String::new(), 0),
        };
        let key = (queue.clone(), reason.clone(), without_digits(&text));
        let group = self.groups.entry(key).or_insert_with(|| DeadLetterGroup {
            queue: queue.as_str().to_owned(),
            reason,
            first_at: at,
            ..DeadLetterGroup::default()
        });
        if at >= group.last_at {
            (group.last_at, group.text) = (at, text);
        }
        group.first_at = group.first_at.min(at);
        group.seqs.push(message.seq.0);
    }

    /// The groups, largest first.
    pub fn finish(self) -> Vec<DeadLetterGroup> {
        let mut groups: Vec<DeadLetterGroup> = self.groups.into_values().collect();
        groups.sort_by(|a, b| {
            let name = |group: &DeadLetterGroup| {
                (group.queue.clone(), group.reason.clone(), group.text.clone())
            };
            b.seqs.len().cmp(&a.seqs.len()).then_with(|| name(a).cmp(&name(b)))
        });
        groups
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}

/// Replaces each number by `#`.
fn without_digits(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_ascii_digit() {
            true if out.ends_with('#') => {}
            true => out.push('#'),
            false => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_do_not_distinguish_texts() {
        assert_eq!(without_digits("order 17 failed after 3.5 s"), "order # failed after #.# s");
        assert_eq!(without_digits(""), "");
        assert_eq!(shortened(&"ä".repeat(400)).chars().count(), TEXT_MAX);
    }
}
