//! Properties of entities, one element each: read, changed where they differ, kept where they mean nothing here, and
//! written.

use std::collections::BTreeMap;

use malote_model::{Dedup, OnExpiry, QueueSpec, Sessions, Status, limits};

use super::error::{AdminError, Answer};
use crate::entity;
use crate::wire::duration::{format_ms, parse_ms};
use crate::wire::xml::{Element, escaped};

/// Labels of ours begin with this.
const LABEL: &str = "servicebus:";
/// When the description last changed.
const UPDATED_AT: &str = "UpdatedAt";
/// For how long duplicates are known.
pub(super) const WINDOW: &str = "DuplicateDetectionHistoryTimeWindow";
/// Characters of `UserMetadata`.
const METADATA_CHARS_MAX: usize = 1024;

/// What only the broker says: clients send it back as they read it, and it changes nothing.
const TOLD: &[&str] = &[
    "SizeInBytes",
    "MessageCount",
    "IsAnonymousAccessible",
    "CreatedAt",
    "UpdatedAt",
    "AccessedAt",
    "CountDetails",
    "SubscriptionCount",
    "SqlFilterCount",
    "CorrelationFilterCount",
    "EntityAvailabilityStatus",
];

/// Labels as they are kept with an entity.
pub(super) type Labels = BTreeMap<String, String>;

/// A description as a client sent it.
pub(super) struct Given<'a> {
    element: &'a Element,
    /// The entity is being made: what it will always be can still be said.
    pub new: bool,
}

impl<'a> Given<'a> {
    pub fn new(element: &'a Element, new: bool) -> Given<'a> {
        Given { element, new }
    }

    /// The refusal to change what an entity of this kind will always be.
    pub fn fixed(&self, name: &str) -> AdminError {
        let kind = self.element.name.strip_suffix("Description");
        AdminError::fixed(kind.unwrap_or("entity"), name)
    }

    /// What is said; an empty element says nothing.
    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.element.text_of(name).map(str::trim).filter(|text| !text.is_empty())
    }

    pub fn flag(&self, name: &str) -> Answer<Option<bool>> {
        self.parsed(name, "true or false", |text| match text {
            "1" => Some(true),
            "0" => Some(false),
            text => text.to_ascii_lowercase().parse().ok(),
        })
    }

    pub fn number(&self, name: &str) -> Answer<Option<u64>> {
        self.parsed(name, "a number", |text| text.parse().ok())
    }

    /// A span of time; the inner option is none for "never".
    pub fn span(&self, name: &str) -> Answer<Option<Option<u64>>> {
        self.parsed(name, "a span of time such as PT1M", parse_ms)
    }

    fn parsed<T>(
        &self,
        name: &str,
        must: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Answer<Option<T>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        parse(text).map(Some).ok_or_else(|| AdminError::property(name, text, must))
    }

    /// A span that is to become another: within these bounds.
    fn changed_span(
        &self,
        name: &str,
        is: Option<u64>,
        bounds: std::ops::RangeInclusive<u64>,
    ) -> Answer<Option<Option<u64>>> {
        let Some(ms) = self.span(name)?.filter(|ms| *ms != is) else { return Ok(None) };
        match ms.is_none_or(|ms| bounds.contains(&ms)) {
            true => Ok(Some(ms)),
            false => {
                let (least, most) =
                    (format_ms(Some(*bounds.start())), format_ms(Some(*bounds.end())));
                let text = self.text(name).unwrap_or_default();
                Err(AdminError::property(name, text, &format!("from {least} to {most}")))
            }
        }
    }

    /// What queues and subscriptions have in common, but for where messages go and how long they live.
    pub fn change_spec(&self, spec: &mut QueueSpec) -> Answer<()> {
        const LOCK: &str = "LockDuration";
        if let Some(ms) = self.changed_span(LOCK, Some(spec.lock_ms), 5_000..=300_000)? {
            spec.lock_ms =
                ms.ok_or_else(|| AdminError::property(LOCK, "never", "from PT5S to PT5M"))?;
        }
        if let Some(sessions) = self.flag("RequiresSession")?
            && sessions != spec.sessions.required()
        {
            if !self.new {
                return Err(self.fixed("RequiresSession"));
            }
            spec.sessions = Sessions::Dynamic;
        }
        if let Some(count) = self.number("MaxDeliveryCount")?
            && count != u64::from(shown_failed_max(spec))
        {
            spec.failed_max = match u32::try_from(count) {
                Ok(count @ 1..=2000) => Some(count),
                _ => {
                    let count = count.to_string();
                    return Err(AdminError::property("MaxDeliveryCount", &count, "from 1 to 2000"));
                }
            };
        }
        if let Some(dead) = self.flag("DeadLetteringOnMessageExpiration")? {
            spec.on_expiry = if dead { OnExpiry::DeadLetter } else { OnExpiry::Drop };
        }
        spec.status = self.status(spec.status)?;
        let idle = 300_000..=limits::DELAY_MS_MAX;
        if let Some(ms) = self.changed_span("AutoDeleteOnIdle", spec.idle_ms_max, idle)? {
            spec.idle_ms_max = ms;
        }
        Ok(())
    }

    /// What may be done with it from now on.
    pub fn status(&self, is: Status) -> Answer<Status> {
        Ok(self.parsed("Status", entity::STATUSES, entity::status_of)?.unwrap_or(is))
    }

    /// How long messages live from now on; longer than the engine counts is for ever.
    pub fn ttl(&self, is: Option<u64>) -> Answer<Option<u64>> {
        let ttl = self.changed_span("DefaultMessageTimeToLive", is, 1_000..=u64::MAX)?;
        Ok(ttl.unwrap_or(is).filter(|ms| *ms <= limits::DELAY_MS_MAX))
    }

    /// Whether and for how long duplicates are known. Where nothing is detected, whoever set a window finds it again.
    pub fn dedup(&self, is: Option<Dedup>, labels: &mut Labels) -> Answer<Option<Dedup>> {
        let window_ms = is.map_or(entity::DEDUP_WINDOW_MS, |dedup| dedup.window_ms);
        let most = limits::DEDUP_WINDOW_MS_MAX;
        let window_ms = match self.changed_span(WINDOW, Some(window_ms), 20_000..=most)? {
            None => window_ms,
            Some(Some(ms)) => ms,
            Some(None) => return Err(AdminError::property(WINDOW, "never", "at most P7D")),
        };
        let wanted = self.flag("RequiresDuplicateDetection")?.unwrap_or(is.is_some());
        if wanted != is.is_some() && !self.new {
            return Err(self.fixed("RequiresDuplicateDetection"));
        }
        match (wanted, self.span(WINDOW)?) {
            (true, _) => drop(labels.remove(&label(WINDOW))),
            (false, Some(ms)) => drop(labels.insert(label(WINDOW), format_ms(ms))),
            (false, None) => {}
        }
        let plain = Dedup { window_ms, per_session: false, content: false };
        Ok(wanted.then(|| Dedup { window_ms, ..is.unwrap_or(plain) }))
    }

    /// Keeps what has no meaning here. `known` are the properties that have one.
    pub fn keep(&self, known: &[&str], labels: &mut Labels) -> Answer<()> {
        let said = |name: &str| self.element.child(name).is_some();
        // Whoever takes it away leaves it out.
        if !said("UserMetadata") {
            labels.remove(&label("UserMetadata"));
        }
        for child in &self.element.children {
            let name = child.name.as_str();
            if known.contains(&name) || TOLD.contains(&name) {
                continue;
            }
            match name {
                "EnablePartitioning" if !self.new => {
                    let is = labels.get(&label(name)).map_or("false", String::as_str);
                    if !child.text.trim().eq_ignore_ascii_case(is) {
                        return Err(self.fixed(name));
                    }
                }
                "UserMetadata" if child.text.chars().count() > METADATA_CHARS_MAX => {
                    let must = format!("at most {METADATA_CHARS_MAX} characters");
                    return Err(AdminError::property(name, &child.text, &must));
                }
                name if name.len() > 64 => {
                    return Err(AdminError::bad(
                        "The description has a property with a long name.",
                    ));
                }
                _ => {}
            }
            labels.insert(label(name), child.inner());
        }
        Ok(())
    }
}

/// The name under which a property is kept.
pub(super) fn label(name: &str) -> String {
    format!("{LABEL}{name}")
}

/// Notes when an entity was changed.
pub(super) fn touch(labels: &mut Labels, now: malote_model::Timestamp) {
    labels.insert(label(UPDATED_AT), now.0.to_string());
}

/// When an entity was last changed, if ever.
pub(super) fn updated_at(labels: &Labels) -> Option<malote_model::Timestamp> {
    labels.get(&label(UPDATED_AT))?.parse().ok().map(malote_model::Timestamp)
}

/// Clients read a signed number of 32 bits; no limit is as good as the largest.
pub(super) fn shown_failed_max(spec: &QueueSpec) -> u32 {
    spec.failed_max.unwrap_or(i32::MAX as u32)
}

/// A description that is being written.
pub(super) struct Telling<'a> {
    out: String,
    labels: &'a Labels,
    told: Vec<&'static str>,
}

impl<'a> Telling<'a> {
    pub fn new(labels: &'a Labels) -> Telling<'a> {
        Telling { out: String::new(), labels, told: Vec::new() }
    }

    pub fn text(&mut self, name: &'static str, text: &str) {
        self.xml(name, &escaped(text));
    }

    pub fn value(&mut self, name: &'static str, value: impl std::fmt::Display) {
        self.xml(name, &value.to_string());
    }

    pub fn span(&mut self, name: &'static str, ms: Option<u64>) {
        self.xml(name, &format_ms(ms));
    }

    /// How long duplicates are known, or would be.
    pub fn window(&mut self, dedup: Option<Dedup>) {
        match dedup {
            Some(dedup) => self.span(WINDOW, Some(dedup.window_ms)),
            None => self.kept(WINDOW, &format_ms(Some(entity::DEDUP_WINDOW_MS))),
        }
    }

    pub fn xml(&mut self, name: &'static str, xml: &str) {
        self.told.push(name);
        self.out.push_str(&format!("<{name}>{xml}</{name}>"));
    }

    /// What is kept, or what the service would say.
    pub fn kept(&mut self, name: &'static str, default: &str) {
        let kept = self.labels.get(&label(name)).map(String::as_str);
        self.xml(name, kept.unwrap_or(default));
    }

    /// Counts by state, in the name space that clients look for them in.
    pub fn counts(&mut self, active: u64, dead: u64, scheduled: u64) {
        self.told.push("CountDetails");
        let counts = [
            ("ActiveMessageCount", active),
            ("DeadLetterMessageCount", dead),
            ("ScheduledMessageCount", scheduled),
            // Forwarding is a part of the send: nothing waits to be transferred.
            ("TransferDeadLetterMessageCount", 0),
            ("TransferMessageCount", 0),
        ];
        let space = "http://schemas.microsoft.com/netservices/2011/06/servicebus";
        self.out.push_str(&format!("<CountDetails xmlns:d2p1=\"{space}\">"));
        for (name, count) in counts {
            self.out.push_str(&format!("<d2p1:{name}>{count}</d2p1:{name}>"));
        }
        self.out.push_str("</CountDetails>");
    }

    /// The description, with whatever else was kept.
    pub fn done(mut self) -> String {
        let ours =
            self.labels.iter().filter_map(|(key, xml)| Some((key.strip_prefix(LABEL)?, xml)));
        for (name, xml) in ours.filter(|(name, _)| !self.told.contains(name)) {
            self.out.push_str(&format!("<{name}>{xml}</{name}>"));
        }
        self.out
    }
}
