//! The settings of a topic. A topic (an exchange) stores no messages: it copies each message to the queues whose rules
//! match.

use std::fmt;

use crate::filter::{Filter, Rule};
use crate::ids::{QueueName, TopicName};
use crate::limits;
use crate::queue::{Dedup, Status};
use crate::refusal::Refusal;

/// A destination for messages: a queue, or a topic that copies them to queues.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// A queue, in which the message is stored.
    Queue(QueueName),
    /// Another topic, which routes the message again.
    Topic(TopicName),
}

impl From<QueueName> for Address {
    fn from(name: QueueName) -> Self {
        Self::Queue(name)
    }
}

impl From<TopicName> for Address {
    fn from(name: TopicName) -> Self {
        Self::Topic(name)
    }
}

impl Address {
    /// The kind and the name, for error messages.
    pub fn quoted(&self) -> String {
        match self {
            Self::Queue(name) => format!("queue `{name}`"),
            Self::Topic(name) => format!("topic `{name}`"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(name) => write!(f, "queue {name}"),
            Self::Topic(name) => write!(f, "topic {name}"),
        }
    }
}

/// The properties of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicSpec {
    /// Which filters its rules may have.
    pub kind: TopicKind,
    /// Delete the topic when its last rule is removed.
    pub auto_delete: bool,
    /// Accept messages only from other topics and queues.
    pub internal: bool,
    /// Whether and how duplicates are detected.
    pub dedup: Option<Dedup>,
    /// Whether clients may send to it.
    pub status: Status,
    /// The topic and its rules do not survive a restart of the broker.
    pub transient: bool,
    /// The topic that gets messages for which this topic has no matching rule.
    pub alternate: Option<TopicName>,
    /// What a hash topic hashes.
    pub hash_on: HashOn,
}

/// What a hash topic hashes to choose the target of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HashOn {
    /// The routing key.
    #[default]
    Key,
    /// The message id.
    MessageId,
    /// The correlation id.
    CorrelationId,
    /// A property. Messages without it are hashed as if it were empty.
    Property(String),
}

impl fmt::Display for HashOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key => f.write_str("key"),
            Self::MessageId => f.write_str("message_id"),
            Self::CorrelationId => f.write_str("correlation_id"),
            Self::Property(name) => write!(f, "property {name}"),
        }
    }
}

/// Which filters the rules of a topic may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopicKind {
    /// Any filter, in named rules. This is the kind of Service Bus topics, and the default.
    #[default]
    Filter,
    /// An exact key.
    Direct,
    /// No filter: every message matches.
    Fanout,
    /// Patterns over the words of the key.
    Topic,
    /// Values of properties.
    Headers,
    /// A weight. Each message goes to exactly one target, chosen by a hash: equal keys go to the same target while the
    /// rules do not change.
    Hash,
    /// No rules: the key of a message names its queue. The name is relative to the folder of the topic's own name.
    Queue,
}

impl TopicKind {
    /// The name of the kind.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Direct => "direct",
            Self::Fanout => "fanout",
            Self::Topic => "topic",
            Self::Headers => "headers",
            Self::Hash => "hash",
            Self::Queue => "queue",
        }
    }

    /// Whether its rules may have this filter.
    pub fn takes(self, filter: &Filter) -> bool {
        match self {
            Self::Filter => !matches!(filter, Filter::Weight(_)),
            Self::Direct => matches!(filter, Filter::Key(_)),
            Self::Fanout => matches!(filter, Filter::All),
            Self::Topic => matches!(filter, Filter::Pattern(_)),
            Self::Headers => matches!(filter, Filter::Headers(_)),
            Self::Hash => matches!(filter, Filter::Weight(_)),
            Self::Queue => false,
        }
    }

    /// The filters that it accepts, for an error message.
    const fn wants(self) -> &'static str {
        match self {
            Self::Filter => "any filter",
            Self::Direct => "a key",
            Self::Fanout => "the filter that takes everything",
            Self::Topic => "a pattern",
            Self::Headers => "headers",
            Self::Hash => "a weight",
            Self::Queue => "absent",
        }
    }
}

impl TopicSpec {
    /// The first field in which `asked` differs: its name, its current value, and the value asked for.
    pub fn difference(&self, asked: &Self) -> Option<(&'static str, String, String)> {
        let Self { kind, auto_delete, internal, dedup, status, transient, alternate, hash_on } =
            self;
        let word = |kind: TopicKind| kind.word().to_owned();
        if *kind != asked.kind {
            return Some(("kind", word(*kind), word(asked.kind)));
        }
        let flags = [
            ("auto_delete", *auto_delete, asked.auto_delete),
            ("internal", *internal, asked.internal),
            ("transient", *transient, asked.transient),
        ];
        if let Some((field, is, asked)) = flags.into_iter().find(|(_, is, asked)| is != asked) {
            return Some((field, is.to_string(), asked.to_string()));
        }
        let shown = |dedup: &Option<Dedup>| dedup.map_or("none".into(), |dedup| dedup.to_string());
        if *dedup != asked.dedup {
            return Some(("dedup", shown(dedup), shown(&asked.dedup)));
        }
        let shown = |topic: &Option<TopicName>| {
            topic.as_ref().map_or("none".to_owned(), |topic| topic.to_string())
        };
        if *alternate != asked.alternate {
            return Some(("alternate", shown(alternate), shown(&asked.alternate)));
        }
        if *hash_on != asked.hash_on {
            return Some(("hash_on", hash_on.to_string(), asked.hash_on.to_string()));
        }
        let word = |status: Status| status.word().to_owned();
        (*status != asked.status).then(|| ("status", word(*status), word(asked.status)))
    }

    /// Returns a refusal if the specification is invalid.
    pub fn check(&self) -> Result<(), Refusal> {
        if let HashOn::Property(name) = &self.hash_on
            && (name.is_empty() || name.len() > limits::RULE_NAME_BYTES_MAX)
        {
            let why =
                format!("a property name must have 1 to {} bytes", limits::RULE_NAME_BYTES_MAX);
            return Err(Refusal::BadSpec { field: "hash_on", why });
        }
        if self.hash_on != HashOn::Key && self.kind != TopicKind::Hash {
            let why = "is only for hash topics".into();
            return Err(Refusal::BadSpec { field: "hash_on", why });
        }
        match &self.dedup {
            Some(dedup) if dedup.per_session => {
                let why = "per_session is for queues: a topic has no sessions".into();
                Err(Refusal::BadSpec { field: "dedup", why })
            }
            Some(dedup) => dedup.check(),
            None => Ok(()),
        }
    }

    /// Returns a refusal if the rule is invalid, or not possible on a topic of this kind.
    pub fn check_rule(&self, rule: &Rule) -> Result<(), Refusal> {
        if !self.kind.takes(&rule.filter) {
            let (kind, wants) = (self.kind.word(), self.kind.wants());
            let why = format!("must be {wants} on a {kind} topic, not {}", rule.filter.word());
            return Err(Refusal::BadSpec { field: "filter", why });
        }
        if rule.action.is_some() && self.kind != TopicKind::Filter {
            let why = "is only allowed on a filter topic".into();
            return Err(Refusal::BadSpec { field: "action", why });
        }
        rule.check()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::filter::{Correlation, Headers};
    use crate::sql::{SqlAction, SqlFilter};

    #[test]
    fn a_difference_names_the_field() {
        let have = TopicSpec::default();
        assert_eq!(have.difference(&have.clone()), None);
        let asked = TopicSpec { kind: TopicKind::Direct, internal: true, ..have.clone() };
        assert_eq!(have.difference(&asked), Some(("kind", "filter".into(), "direct".into())));
        let asked = TopicSpec { auto_delete: true, ..have.clone() };
        assert_eq!(have.difference(&asked), Some(("auto_delete", "false".into(), "true".into())));
        let asked = TopicSpec { internal: true, ..have.clone() };
        assert_eq!(have.difference(&asked), Some(("internal", "false".into(), "true".into())));
    }

    #[test]
    fn kinds_take_their_filters_only() {
        let filters = [
            Filter::All,
            Filter::None,
            Filter::Key("k".into()),
            Filter::Pattern("a.#".into()),
            Filter::Headers(Headers::default()),
            Filter::Correlation(Arc::new(Correlation::default())),
            Filter::Sql(SqlFilter::new("a = 1", vec![]).unwrap()),
            Filter::Weight(1),
        ];
        let kinds = [
            (TopicKind::Filter, 0..7),
            (TopicKind::Direct, 2..3),
            (TopicKind::Fanout, 0..1),
            (TopicKind::Topic, 3..4),
            (TopicKind::Headers, 4..5),
            (TopicKind::Hash, 7..8),
            (TopicKind::Queue, 0..0),
        ];
        for (kind, takes) in kinds {
            for (i, filter) in filters.iter().enumerate() {
                let spec = TopicSpec { kind, ..TopicSpec::default() };
                let rule = Rule { name: "r".into(), filter: filter.clone(), action: None };
                assert_eq!(
                    spec.check_rule(&rule).is_ok(),
                    takes.contains(&i),
                    "{kind:?} {filter:?}"
                );
            }
        }
        let action = Some(SqlAction::new("SET a = 1", vec![]).unwrap());
        let rule = Rule { name: "r".into(), filter: Filter::Key("k".into()), action };
        TopicSpec::default().check_rule(&rule).unwrap();
        let direct = TopicSpec { kind: TopicKind::Direct, ..TopicSpec::default() };
        direct.check_rule(&rule).unwrap_err();
    }
}
