//! Names and numbers that identify things. They are newtypes, so that a sequence number is never mistaken for a time.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use crate::limits;
use crate::refusal::Refusal;

/// The sequence number of a message: unique in its queue and dense, across all priorities.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Seq(pub u64);

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Wall-clock milliseconds since 1970, from the engine's clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// This time plus `ms`. It saturates instead of wrapping.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The name of a queue. All protocols share one name space.
///
/// `orders/$deadletterqueue` is the dead-letter set of `orders`; other segments that begin with `$` are reserved.
/// `sales/Subscriptions/audit` is the subscription `audit` of the topic `sales`; the segment `Subscriptions` is
/// reserved too.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName(Arc<str>);

/// The last segment of the name of a dead-letter set.
pub const DEAD_LETTER_SEGMENT: &str = "$deadletterqueue";

/// The segment between a topic and its subscription, in exactly this case. Other cases are reserved as well: Service
/// Bus clients use any case, and names that they cannot tell apart must not exist.
pub const SUBSCRIPTION_SEGMENT: &str = "Subscriptions";

/// The last segment of the name of a topic's inbox.
const INBOX_SEGMENT: &str = "$inbox";

impl QueueName {
    /// Validates a name. Dead-letter names are valid: clients can receive from them.
    pub fn new(name: &str) -> Result<Self, Refusal> {
        let refuse = |why: &'static str| Err(Refusal::BadName { name: clip(name), why });
        let base = name.strip_suffix(DEAD_LETTER_SEGMENT).and_then(|rest| rest.strip_suffix('/'));
        let base = base.unwrap_or(name);
        let checked = match split_subscription(base) {
            Some((topic, subscription)) => check_topic(topic).and(check_subscription(subscription)),
            None => check_topic(base),
        };
        checked.map_or_else(refuse, |()| Ok(Self(name.into())))
    }

    /// The queue of a subscription.
    pub fn subscription(topic: &TopicName, subscription: &str) -> Result<Self, Refusal> {
        let name = format!("{topic}/{SUBSCRIPTION_SEGMENT}/{subscription}");
        match check_subscription(subscription) {
            Ok(()) => Ok(Self(name.into())),
            Err(why) => Err(Refusal::BadName { name: clip(&name), why }),
        }
    }

    /// The topic and the subscription that this queue belongs to. `None` for a subscription's dead-letter set.
    pub fn subscription_of(&self) -> Option<(TopicName, &str)> {
        if self.is_dead_letters() {
            return None;
        }
        let (topic, subscription) = split_subscription(&self.0)?;
        Some((TopicName(topic.into()), subscription))
    }

    /// Whether this is the queue of a subscription.
    pub fn is_subscription(&self) -> bool {
        !self.is_dead_letters() && split_subscription(&self.0).is_some()
    }

    /// The queue where a topic keeps messages that it has not routed yet. Users cannot write this name.
    pub fn inbox(topic: &TopicName) -> Self {
        Self(format!("{topic}/{INBOX_SEGMENT}").into())
    }

    /// Whether this is the inbox of a topic.
    pub fn is_inbox(&self) -> bool {
        self.0.strip_suffix(INBOX_SEGMENT).is_some_and(|rest| rest.ends_with('/'))
    }

    /// The topic whose inbox this is.
    pub fn inbox_of(&self) -> Option<TopicName> {
        let topic = self.0.strip_suffix(INBOX_SEGMENT)?.strip_suffix('/')?;
        Some(TopicName(topic.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The dead-letter set of this queue.
    #[must_use]
    pub fn dead_letters(&self) -> Self {
        if self.is_dead_letters() {
            return self.clone();
        }
        Self(format!("{}/{DEAD_LETTER_SEGMENT}", self.0).into())
    }

    /// Whether this is a dead-letter set.
    pub fn is_dead_letters(&self) -> bool {
        self.owner().is_some()
    }

    /// The queue that this dead-letter set belongs to.
    pub fn owner(&self) -> Option<&str> {
        self.0.strip_suffix(DEAD_LETTER_SEGMENT).and_then(|rest| rest.strip_suffix('/'))
    }
}

fn split_subscription(name: &str) -> Option<(&str, &str)> {
    let (before, subscription) = name.rsplit_once('/')?;
    let topic = before.strip_suffix(SUBSCRIPTION_SEGMENT)?.strip_suffix('/')?;
    Some((topic, subscription))
}

/// Checks a name without its reserved suffix. The error says what is wrong.
fn check_topic(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        return Err("is empty");
    }
    if name.len() > limits::QUEUE_NAME_BYTES_MAX {
        return Err("is longer than 260 bytes");
    }
    check_segments(name)
}

fn check_subscription(name: &str) -> Result<(), &'static str> {
    if name.contains('/') {
        return Err("has a slash in the name of a subscription");
    }
    if name.len() > limits::SUBSCRIPTION_NAME_BYTES_MAX {
        return Err("has a subscription longer than 128 bytes");
    }
    check_segments(name)
}

fn check_segments(name: &str) -> Result<(), &'static str> {
    if name.chars().any(|c| c.is_control() || c == '\\' || c == '?' || c == '#' || c == '@') {
        return Err("may not hold control characters or any of \\ ? # @");
    }
    if name.split('/').any(|segment| segment.is_empty() || segment == "." || segment == "..") {
        return Err("has an empty segment between slashes, or one that is . or ..");
    }
    if name.split('/').any(|segment| segment.starts_with('$')) {
        return Err("has a segment that begins with $, which is reserved");
    }
    if name.split('/').any(|segment| segment.eq_ignore_ascii_case(SUBSCRIPTION_SEGMENT)) {
        return Err(
            "has a segment Subscriptions, which stands only between a topic and a subscription",
        );
    }
    Ok(())
}

/// The name of a topic (an exchange). Topics and queues share one name space and the same rules.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName(Arc<str>);

impl TopicName {
    /// Validates a name.
    pub fn new(name: &str) -> Result<Self, Refusal> {
        match check_topic(name) {
            Ok(()) => Ok(Self(name.into())),
            Err(why) => Err(Refusal::BadName { name: clip(name), why }),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for TopicName {
    /// Consistent with the order and equality of the text.
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl FromStr for TopicName {
    type Err = Refusal;
    fn from_str(name: &str) -> Result<Self, Refusal> {
        Self::new(name)
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// Shortens a user's text for an error message.
pub(crate) fn clip(text: &str) -> String {
    let mut clipped: String = text.chars().take(64).collect();
    if clipped.len() < text.len() {
        clipped.push('…');
    }
    clipped
}

impl std::borrow::Borrow<str> for QueueName {
    /// Consistent with the order and equality of the text.
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl FromStr for QueueName {
    type Err = Refusal;
    fn from_str(name: &str) -> Result<Self, Refusal> {
        Self::new(name)
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// The id of a FIFO session: a Service Bus session, an SQS message group, a Kafka key. 1 to 128 characters.
#[derive(Clone)]
pub struct SessionId(Id);

/// Ids up to this length need no heap allocation: a queue may have millions of sessions.
const SHORT_ID_BYTES: usize = 22;

#[derive(Clone)]
enum Id {
    Short(u8, [u8; SHORT_ID_BYTES]),
    Long(Arc<str>),
}

impl SessionId {
    /// Validates an id.
    pub fn new(id: &str) -> Result<Self, Refusal> {
        let chars = id.chars().take(limits::SESSION_ID_CHARS_MAX + 1).count();
        if chars == 0 || chars > limits::SESSION_ID_CHARS_MAX {
            return Err(Refusal::BadSessionId { session: clip(id) });
        }
        if id.len() > SHORT_ID_BYTES {
            return Ok(Self(Id::Long(id.into())));
        }
        let mut bytes = [0; SHORT_ID_BYTES];
        bytes[..id.len()].copy_from_slice(id.as_bytes());
        Ok(Self(Id::Short(id.len() as u8, bytes)))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).expect("it was made of text")
    }

    fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Id::Short(len, bytes) => &bytes[..usize::from(*len)],
            Id::Long(text) => text.as_bytes(),
        }
    }
}

impl PartialEq for SessionId {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for SessionId {}

impl PartialOrd for SessionId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Ordered by bytes, like strings.
impl Ord for SessionId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for SessionId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl FromStr for SessionId {
    type Err = Refusal;
    fn from_str(id: &str) -> Result<Self, Refusal> {
        Self::new(id)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// Proof of a lease or of a session hold, 128 bits: boot epoch, slot, grant counter and random part.
///
/// The epoch grows with every start and the counter with every grant of the slot, so no token is issued twice. The
/// random part makes tokens hard to guess. A token is valid if it equals the token in its slot; no history is kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LeaseToken {
    /// The boot epoch of the broker that granted it.
    pub epoch: u32,
    /// The slot that holds the lease.
    pub slot: u32,
    /// How often the slot had been granted.
    pub grant: u32,
    /// The random part.
    pub random: u32,
}

impl LeaseToken {
    /// The token as sixteen bytes, most significant first.
    pub fn to_bytes(self) -> [u8; 16] {
        let words = [self.epoch, self.slot, self.grant, self.random];
        let mut bytes = [0; 16];
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    /// The token from sixteen bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let all = u128::from_be_bytes(bytes);
        let word = |shift: u32| (all >> shift) as u32;
        Self { epoch: word(96), slot: word(64), grant: word(32), random: word(0) }
    }
}

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.to_bytes()))
    }
}

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for LeaseToken {
    type Err = Refusal;
    fn from_str(text: &str) -> Result<Self, Refusal> {
        let wrong = || Refusal::BadToken { token: clip(text) };
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let all = u128::from_str_radix(text, 16).map_err(|_| wrong())?;
        Ok(Self::from_bytes(all.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["orders", "a/b", "orders.fifo", "orders/$deadletterqueue", "ünïcode"] {
            assert_eq!(QueueName::new(good).unwrap().as_str(), good);
        }
        for bad in [
            "",
            "/",
            "a//b",
            "a/",
            "$x",
            "a/$b",
            "a\n",
            "a/../b",
            "$deadletterqueue",
            &"x".repeat(261),
        ] {
            QueueName::new(bad).unwrap_err();
        }
    }

    #[test]
    fn short_and_long_session_ids_are_texts_alike() {
        let ids: Vec<String> = (1..=128).map(|n| "ä".repeat(n)).collect();
        for (a, b) in ids.iter().flat_map(|a| ids.iter().map(move |b| (a, b))) {
            let (x, y) = (SessionId::new(a).unwrap(), SessionId::new(b).unwrap());
            assert_eq!((x.as_str(), x.cmp(&y), x == y), (a.as_str(), a.cmp(b), a == b));
        }
        assert_eq!(size_of::<Option<SessionId>>(), 24);
        SessionId::new(&"x".repeat(129)).unwrap_err();
        SessionId::new("").unwrap_err();
    }

    #[test]
    fn subscriptions_are_queues_of_a_topic() {
        let topic = TopicName::new("eu/sales").unwrap();
        let queue = QueueName::subscription(&topic, "audit").unwrap();
        assert_eq!(queue.as_str(), "eu/sales/Subscriptions/audit");
        assert_eq!(queue.subscription_of(), Some((topic.clone(), "audit")));
        assert_eq!(QueueName::new(queue.as_str()).unwrap(), queue);
        let dead = queue.dead_letters();
        assert_eq!(QueueName::new(dead.as_str()).unwrap(), dead);
        assert_eq!(dead.subscription_of(), None);
        assert_eq!(QueueName::new("sales/audit").unwrap().subscription_of(), None);
        for bad in ["", "a/b", "$x", "..", "Subscriptions", "x?", &"x".repeat(129)] {
            QueueName::subscription(&topic, bad).unwrap_err();
        }
        let longest = TopicName::new(&"t".repeat(260)).unwrap();
        let queue = QueueName::subscription(&longest, &"s".repeat(128)).unwrap().dead_letters();
        assert_eq!(QueueName::new(queue.as_str()).unwrap(), queue);
    }

    #[test]
    fn the_segment_of_subscriptions_is_reserved() {
        for bad in [
            "Subscriptions",
            "sales/Subscriptions",
            "Subscriptions/x",
            "/Subscriptions/x",
            "sales/subscriptions/x",
            "sales/SUBSCRIPTIONS/x",
            "sales/Subscriptions/x/y",
            "sales/Subscriptions/x/Subscriptions/y",
            "sales/Subscriptions/Subscriptions",
            "sales/Subscriptions/",
        ] {
            QueueName::new(bad).unwrap_err();
            TopicName::new(bad).unwrap_err();
        }
        for bad in ["sales/Subscriptions/x", "sales/$deadletterqueue", "$all", "", &"x".repeat(261)]
        {
            TopicName::new(bad).unwrap_err();
        }
        for good in ["sales", "amq.topic", "eu/sales", "my-subscriptions"] {
            assert_eq!(TopicName::new(good).unwrap().as_str(), good);
        }
    }

    #[test]
    fn dead_letters_of_dead_letters_are_themselves() {
        let orders = QueueName::new("orders").unwrap();
        assert_eq!(orders.dead_letters().as_str(), "orders/$deadletterqueue");
        assert_eq!(orders.dead_letters().dead_letters(), orders.dead_letters());
        assert_eq!(orders.dead_letters().owner(), Some("orders"));
    }

    #[test]
    fn tokens_survive_text_and_bytes() {
        let token = LeaseToken { epoch: 1, slot: 0xabcd, grant: 3, random: 0xffff_ffff };
        assert_eq!(token.to_string().parse::<LeaseToken>().unwrap(), token);
        assert_eq!(LeaseToken::from_bytes(token.to_bytes()), token);
        assert!("+0000000000000000000000000000000".parse::<LeaseToken>().is_err());
    }

    #[test]
    fn session_ids_have_1_to_128_characters() {
        SessionId::new(&"é".repeat(128)).unwrap();
        SessionId::new(&"é".repeat(129)).unwrap_err();
        SessionId::new("").unwrap_err();
    }
}
