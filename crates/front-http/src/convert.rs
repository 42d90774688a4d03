//! Engine facts as answers of the API.

use malote_engine::{
    AcceptedSession, Binding, DeadLetter, Delivery, DiskFacts, MessageState, PeekedMessage,
    QueueFacts, Sent, SessionFacts, Stored, TopicFacts, Totals, Unreadable,
};
use malote_model::{Address, Refusal, Status, Timestamp};
use malote_wire_native::about::DiskUsage;
use malote_wire_native::frame::Encoding;
use malote_wire_native::message::{SentBatch, SentMessage};
use malote_wire_native::queue::{QueueCounts, QueueDepth, QueueInfo, QueueTotals, SessionCounts};
use malote_wire_native::receive::MessageStateWord;
use malote_wire_native::received::{DeadLetterInfo, DeathInfo, ReceivedMessage};
use malote_wire_native::rule::NamedRule;
use malote_wire_native::saga::{SagaDetails, SagaState, SagaSummary};
use malote_wire_native::session::{HeldSession, SessionInfo};
use malote_wire_native::settings::StatusWord;
use malote_wire_native::settle::LeaseResult;
use malote_wire_native::topic::{BoundRule, RuleCursor, RuleList, SubscriptionInfo};
use malote_wire_native::topic::{TopicCounters, TopicInfo};

use crate::problem::Problem;

pub(crate) fn queue_counts(facts: &QueueFacts) -> QueueCounts {
    QueueCounts {
        ready: facts.ready,
        locked: facts.locked,
        delayed: facts.delayed,
        scheduled: facts.scheduled,
        deferred: facts.deferred,
        dead_lettered: facts.dead_lettered,
        bytes: facts.bytes,
        oldest_at: facts.oldest_at.map(|at| at.0),
        consumers: facts.consumers,
        sessions: facts.sessions,
        sessions_held: facts.sessions_held,
        sessions_ready: facts.sessions_ready,
    }
}

/// The word for a status, as in the settings of a queue.
pub(crate) fn status_word(status: Status) -> String {
    StatusWord::from(status).as_str().to_owned()
}

pub(crate) fn queue_info(facts: QueueFacts) -> QueueInfo {
    let counts = queue_counts(&facts);
    QueueInfo {
        name: facts.name.as_str().to_owned(),
        created_at: facts.created_at.0,
        paused: facts.paused,
        spec: facts.spec.into(),
        counts,
        totals: totals(facts.totals),
    }
}

fn totals(totals: Totals) -> QueueTotals {
    let Totals {
        sent,
        delivered,
        redelivered,
        completed,
        abandoned,
        dead_lettered,
        deferred,
        expired,
        lost,
        sessions_lost,
    } = totals;
    QueueTotals {
        sent,
        delivered,
        redelivered,
        completed,
        abandoned,
        dead_lettered,
        deferred,
        expired,
        lost,
        sessions_lost,
    }
}

pub(crate) fn queue_depth(facts: &QueueFacts, now: Timestamp) -> QueueDepth {
    QueueDepth {
        ready: facts.ready,
        delayed: facts.delayed + facts.scheduled,
        in_flight: facts.locked,
        oldest_ms: facts.oldest_at.map_or(0, |at| now.0.saturating_sub(at.0)),
        sent: Some(facts.totals.sent),
        paused: facts.paused,
        sessions: facts.spec.sessions.required().then(|| SessionCounts {
            runnable: facts.sessions_ready,
            held: facts.sessions_held,
            other: facts.sessions.saturating_sub(facts.sessions_ready + facts.sessions_held),
        }),
    }
}

pub(crate) fn disk_usage(facts: DiskFacts) -> DiskUsage {
    DiskUsage {
        journal_bytes: facts.journal_bytes,
        live_bytes: facts.live_bytes,
        spare_bytes: facts.spare_bytes,
        snapshot_bytes: facts.snapshot_bytes,
        free_bytes: facts.free_bytes,
        publish_allowed: facts.publish_allowed,
        copied: facts.copied,
        recycled: facts.recycled,
        scrubbed_bytes: facts.scrubbed_bytes,
        damaged: facts.damaged,
        diverged: facts.diverged,
    }
}

pub(crate) fn topic_info(facts: TopicFacts) -> TopicInfo {
    let TopicFacts { name, spec, created_at, queues, rules, scheduled, waiting, totals, .. } =
        facts;
    TopicInfo {
        name: name.as_str().to_owned(),
        created_at: created_at.0,
        spec: spec.into(),
        queues,
        rules,
        scheduled,
        waiting,
        totals: TopicCounters { copies: totals.copies },
    }
}

/// A page of rules, without those of hidden queues. A full page may be followed by another.
pub(crate) fn rule_page(
    bindings: &[Binding],
    max: usize,
    visible: impl Fn(&Address) -> bool,
) -> RuleList {
    let names = |target: &Address| match target {
        Address::Queue(queue) => (queue.as_str().to_owned(), None),
        Address::Topic(topic) => (String::new(), Some(topic.as_str().to_owned())),
    };
    let last = bindings.last().filter(|_| bindings.len() >= max);
    let next = last.map(|last| {
        let (queue, to_topic) = names(&last.target);
        RuleCursor { queue, to_topic, rule: last.rule.name.clone() }
    });
    let bound = |binding: &Binding| {
        let (queue, to_topic) = names(&binding.target);
        BoundRule { queue, to_topic, rule: NamedRule::from(&binding.rule) }
    };
    let visible = bindings.iter().filter(|binding| visible(&binding.target));
    RuleList { rules: visible.map(bound).collect(), next }
}

/// A subscription, with its rules unless it is an item of a list.
pub(crate) fn subscription_info(
    topic: String,
    name: String,
    queue: QueueFacts,
    rules: Option<RuleList>,
) -> SubscriptionInfo {
    let (rules, next) = match rules {
        Some(RuleList { rules, next }) => {
            (Some(rules.into_iter().map(|bound| bound.rule).collect()), next)
        }
        None => (None, None),
    };
    SubscriptionInfo { topic, name, queue: queue_info(queue), rules, next }
}

pub(crate) fn sent_message(sent: Sent) -> SentMessage {
    let Sent { seq, message_id, duplicate, copies } = sent;
    SentMessage { seq: seq.0, id: message_id, duplicate, copies }
}

pub(crate) fn sent_batch(sent: Vec<Sent>) -> SentBatch {
    SentBatch { messages: sent.into_iter().map(sent_message).collect() }
}

/// A message that was delivered to a receiver.
pub(crate) fn delivered_message(delivery: Delivery, encoding: Encoding) -> ReceivedMessage {
    let Delivery { seq, lease, until, receives, failed, last, stored, .. } = delivery;
    ReceivedMessage {
        seq: seq.0,
        lease: lease.map(|lease| lease.to_string()),
        until: lease.map(|_| until.0),
        receives,
        failed,
        last,
        ..stored_message(stored, encoding)
    }
}

/// A message that was peeked.
pub(crate) fn peeked_message(seen: PeekedMessage) -> ReceivedMessage {
    let PeekedMessage { seq, state, receives, failed, due, stored, .. } = seen;
    let message = match stored {
        Ok(stored) => stored_message(stored, Encoding::Json),
        Err(Unreadable { text, dead, .. }) => ReceivedMessage {
            damaged: true,
            problem: Some(text),
            dead_letter: dead.map(|dead| dead_letter_info(*dead)),
            ..ReceivedMessage::default()
        },
    };
    ReceivedMessage {
        seq: seq.0,
        state: Some(state_word(state).as_str().into()),
        due: due.map(|due| due.0),
        receives,
        failed,
        ..message
    }
}

fn stored_message(stored: Stored, encoding: Encoding) -> ReceivedMessage {
    let Stored { message, enqueued_at, dead, deaths, .. } = stored;
    ReceivedMessage {
        enqueued_at: Some(enqueued_at.0),
        dead_letter: dead.map(dead_letter_info),
        deaths: death_list(deaths),
        ..ReceivedMessage::new(message, encoding)
    }
}

fn dead_letter_info(dead: DeadLetter) -> DeadLetterInfo {
    DeadLetterInfo {
        reason: dead.reason,
        text: dead.text,
        at: dead.at.0,
        from: dead.from.as_str().to_owned(),
        from_seq: dead.from_seq.0,
        receives: dead.receives,
        failed: dead.failed,
    }
}

/// One entry for each queue and reason, at the position of its newest occurrence.
fn death_list(deaths: Vec<DeadLetter>) -> Vec<DeathInfo> {
    let mut all: Vec<DeathInfo> = Vec::new();
    for DeadLetter { reason, text, at, from, .. } in deaths {
        let same = |known: &&mut DeathInfo| known.reason == reason && known.from == from.as_str();
        match all.iter_mut().find(same) {
            Some(known) => known.count += 1,
            None => {
                let from = from.as_str().to_owned();
                all.push(DeathInfo { reason, text, at: at.0, from, count: 1 });
            }
        }
    }
    all
}

fn state_word(state: MessageState) -> MessageStateWord {
    match state {
        MessageState::Ready => MessageStateWord::Ready,
        MessageState::Locked => MessageStateWord::Locked,
        MessageState::Delayed => MessageStateWord::Delayed,
        MessageState::Scheduled => MessageStateWord::Scheduled,
        MessageState::Deferred => MessageStateWord::Deferred,
    }
}

pub(crate) fn message_state(word: MessageStateWord) -> MessageState {
    match word {
        MessageStateWord::Ready => MessageState::Ready,
        MessageStateWord::Locked => MessageState::Locked,
        MessageStateWord::Delayed => MessageState::Delayed,
        MessageStateWord::Scheduled => MessageState::Scheduled,
        MessageStateWord::Deferred => MessageState::Deferred,
    }
}

pub(crate) fn held_session(held: AcceptedSession) -> HeldSession {
    HeldSession {
        session: held.session.as_str().to_owned(),
        token: held.hold.to_string(),
        until: held.until.0,
    }
}

pub(crate) fn session_info(facts: SessionFacts) -> SessionInfo {
    SessionInfo {
        session: facts.session.as_str().to_owned(),
        messages: facts.messages,
        locked: facts.locked,
        held_until: facts.held_until.map(|at| at.0),
        state_bytes: facts.state_bytes,
        first: facts.first.map(|seq| seq.0),
        delayed_until: facts.delayed_until.map(|at| at.0),
    }
}

pub(crate) fn settle_result(lease: String, result: Result<(), Refusal>) -> LeaseResult {
    match result {
        Ok(()) => LeaseResult { lease, ok: true, until: None, problem: None },
        Err(refusal) => failed_lease(lease, &refusal.into()),
    }
}

pub(crate) fn renew_result(lease: String, result: Result<Timestamp, Refusal>) -> LeaseResult {
    match result {
        Ok(until) => LeaseResult { lease, ok: true, until: Some(until.0), problem: None },
        Err(refusal) => failed_lease(lease, &refusal.into()),
    }
}

pub(crate) fn failed_lease(lease: String, problem: &Problem) -> LeaseResult {
    LeaseResult { lease, ok: false, until: None, problem: Some(Box::new(problem.body())) }
}

/// A saga with a state, a session, or both.
pub(crate) fn saga_summary(
    id: &str,
    state: Option<&SagaState>,
    session: Option<&SessionFacts>,
) -> SagaSummary {
    SagaSummary {
        held_until: session.and_then(|session| session.held_until).map(|at| at.0),
        delayed_until: session.and_then(|session| session.delayed_until).map(|at| at.0),
        ..SagaSummary::new(id, state)
    }
}

pub(crate) fn saga_details(
    id: &str,
    state: Option<SagaState>,
    session: Option<&SessionFacts>,
) -> SagaDetails {
    let summary = saga_summary(id, state.as_ref(), session);
    let (steps, data) = match state {
        Some(state) => (state.steps, Some(state.data)),
        None => (Vec::new(), None),
    };
    SagaDetails { summary, steps, data }
}

#[cfg(test)]
mod tests {
    use malote_model::{QueueName, Seq};

    use super::*;

    #[test]
    fn a_damaged_message_is_shown_as_such() {
        let (reason, text) = ("Damaged".to_owned(), "in 00000001.log".to_owned());
        let dead = DeadLetter::once(reason, text, Timestamp(5), QueueName::new("q").unwrap());
        let unreadable =
            Unreadable { text: "in 00000001.log".into(), dead: Some(Box::new(dead)), gone: false };
        let (seq, state, due, stored) = (Seq(7), MessageState::Ready, None, Err(unreadable));
        let (deferred, receives, failed, first_at) = (false, 1, 0, None);
        let seen = PeekedMessage { seq, state, deferred, receives, failed, first_at, due, stored };
        let json = serde_json::to_value(peeked_message(seen)).unwrap();
        assert_eq!((&json["seq"], &json["damaged"]), (&7.into(), &true.into()));
        assert_eq!(json["problem"], "in 00000001.log");
        assert_eq!(json["dead_letter"]["reason"], "Damaged");
        assert!(json.get("body").is_none() && json.get("body_base64").is_none());
    }

    #[test]
    fn totals_have_the_names_and_the_order_of_the_engine() {
        let json = serde_json::to_string(&totals(Totals::default())).unwrap();
        let names: Vec<String> = Totals::NAMES.iter().map(|name| format!("\"{name}\":0")).collect();
        assert_eq!(json, format!("{{{}}}", names.join(",")));
    }
}
