//! Properties of entities, one XML element each. Properties without a meaning in Malote are stored as labels and
//! returned unchanged.

use std::collections::BTreeMap;

use malote_model::{Dedup, OnExpiry, QueueSpec, Sessions, Status, limits};

use super::error::{AdminError, AdminResult};
use crate::entity;
use crate::wire::duration::{format_ms, parse_ms};
use crate::wire::xml::{Element, escaped};

/// Prefix of the labels that this front end stores.
const LABEL: &str = "servicebus:";
/// When the description last changed.
const UPDATED_AT: &str = "UpdatedAt";
pub(super) const WINDOW: &str = "DuplicateDetectionHistoryTimeWindow";
const METADATA_CHARS_MAX: usize = 1024;

/// Read-only properties. Clients send them back as they read them; they are ignored.
const READ_ONLY: &[&str] = &[
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

/// Labels of an entity.
pub(super) type Labels = BTreeMap<String, String>;

/// A description sent by a client.
pub(super) struct DescriptionReader<'a> {
    element: &'a Element,
    /// The entity is being created, so properties that cannot be changed later may be set.
    pub new: bool,
}

impl<'a> DescriptionReader<'a> {
    pub fn new(element: &'a Element, new: bool) -> DescriptionReader<'a> {
        DescriptionReader { element, new }
    }

    /// The error for a change of a property that is fixed at creation.
    pub fn fixed(&self, name: &str) -> AdminError {
        let kind = self.element.name.strip_suffix("Description");
        AdminError::fixed(kind.unwrap_or("entity"), name)
    }

    /// The text of a property; none if it is empty.
    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.element.text_of(name).map(str::trim).filter(|text| !text.is_empty())
    }

    pub fn flag(&self, name: &str) -> AdminResult<Option<bool>> {
        self.parsed(name, "true or false", |text| match text {
            "1" => Some(true),
            "0" => Some(false),
            text => text.to_ascii_lowercase().parse().ok(),
        })
    }

    pub fn number(&self, name: &str) -> AdminResult<Option<u64>> {
        self.parsed(name, "a number", |text| text.parse().ok())
    }

    /// A duration; the inner option is none for "never".
    pub fn span(&self, name: &str) -> AdminResult<Option<Option<u64>>> {
        self.parsed(name, "a duration such as PT1M", parse_ms)
    }

    fn parsed<T>(
        &self,
        name: &str,
        must: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> AdminResult<Option<T>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        parse(text).map(Some).ok_or_else(|| AdminError::property(name, text, must))
    }

    /// A duration that differs from the current one, within bounds.
    fn changed_span(
        &self,
        name: &str,
        is: Option<u64>,
        bounds: std::ops::RangeInclusive<u64>,
    ) -> AdminResult<Option<Option<u64>>> {
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

    /// Applies the properties that queues and subscriptions share, except forwarding and time-to-live.
    pub fn change_spec(&self, spec: &mut QueueSpec) -> AdminResult<()> {
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

    pub fn status(&self, is: Status) -> AdminResult<Status> {
        Ok(self.parsed("Status", entity::STATUSES, entity::status_of)?.unwrap_or(is))
    }

    /// The time-to-live. Values above the engine's limit mean "never".
    pub fn ttl(&self, is: Option<u64>) -> AdminResult<Option<u64>> {
        let ttl = self.changed_span("DefaultMessageTimeToLive", is, 1_000..=u64::MAX)?;
        Ok(ttl.unwrap_or(is).filter(|ms| *ms <= limits::DELAY_MS_MAX))
    }

    /// Duplicate detection. If it is off, the window is stored as a label, so that the client reads it back.
    pub fn dedup(&self, is: Option<Dedup>, labels: &mut Labels) -> AdminResult<Option<Dedup>> {
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

    /// Stores the properties without a meaning in Malote as labels. `known`: properties that have one.
    pub fn keep(&self, known: &[&str], labels: &mut Labels) -> AdminResult<()> {
        let said = |name: &str| self.element.child(name).is_some();
        // Clients delete it by omitting it.
        if !said("UserMetadata") {
            labels.remove(&label("UserMetadata"));
        }
        for child in &self.element.children {
            let name = child.name.as_str();
            if known.contains(&name) || READ_ONLY.contains(&name) {
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
                        "The description has a property whose name is too long.",
                    ));
                }
                _ => {}
            }
            labels.insert(label(name), child.inner());
        }
        Ok(())
    }
}

/// The label that stores a property.
pub(super) fn label(name: &str) -> String {
    format!("{LABEL}{name}")
}

/// Sets the time of the last change.
pub(super) fn touch(labels: &mut Labels, now: malote_model::Timestamp) {
    labels.insert(label(UPDATED_AT), now.0.to_string());
}

/// Time of the last change, if there was one.
pub(super) fn updated_at(labels: &Labels) -> Option<malote_model::Timestamp> {
    labels.get(&label(UPDATED_AT))?.parse().ok().map(malote_model::Timestamp)
}

/// Clients read a signed 32-bit number; its maximum stands for no limit.
pub(super) fn shown_failed_max(spec: &QueueSpec) -> u32 {
    spec.failed_max.unwrap_or(i32::MAX as u32)
}

/// Writes a description.
pub(super) struct DescriptionWriter<'a> {
    out: String,
    labels: &'a Labels,
    written: Vec<&'static str>,
}

impl<'a> DescriptionWriter<'a> {
    pub fn new(labels: &'a Labels) -> DescriptionWriter<'a> {
        DescriptionWriter { out: String::new(), labels, written: Vec::new() }
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

    /// The window of duplicate detection, also if it is off.
    pub fn window(&mut self, dedup: Option<Dedup>) {
        match dedup {
            Some(dedup) => self.span(WINDOW, Some(dedup.window_ms)),
            None => self.kept(WINDOW, &format_ms(Some(entity::DEDUP_WINDOW_MS))),
        }
    }

    pub fn xml(&mut self, name: &'static str, xml: &str) {
        self.written.push(name);
        self.out.push_str(&format!("<{name}>{xml}</{name}>"));
    }

    /// A property that is stored as a label, or its default in the service.
    pub fn kept(&mut self, name: &'static str, default: &str) {
        let kept = self.labels.get(&label(name)).map(String::as_str);
        self.xml(name, kept.unwrap_or(default));
    }

    /// Message counts, in the XML namespace that clients expect.
    pub fn counts(&mut self, active: u64, dead: u64, scheduled: u64) {
        self.written.push("CountDetails");
        let counts = [
            ("ActiveMessageCount", active),
            ("DeadLetterMessageCount", dead),
            ("ScheduledMessageCount", scheduled),
            // Forwarding is part of the send, so no message waits for a transfer.
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

    /// Completes the description with the remaining labels.
    pub fn done(mut self) -> String {
        let ours =
            self.labels.iter().filter_map(|(key, xml)| Some((key.strip_prefix(LABEL)?, xml)));
        for (name, xml) in ours.filter(|(name, _)| !self.written.contains(name)) {
            self.out.push_str(&format!("<{name}>{xml}</{name}>"));
        }
        self.out
    }
}
