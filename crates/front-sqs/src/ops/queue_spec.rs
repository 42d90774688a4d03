//! Queue attributes ↔ the queue specification of the model.
//!
//! Attributes with a field in the specification are stored there, so that other protocols see them. The others are
//! stored as labels `sqs:Name`, and tags as labels `sqs:tag:KEY`.

use malote_engine::QueueFacts;
use malote_model::{DeadLetterTarget, Dedup, QueueName, QueueSpec, Sessions, Timestamp};
use serde_json::{Value, json};

use crate::refusal::{Code, SqsError};
use crate::wire::clip;
use crate::wire::name::{QueueAddressing, of_arn};
use crate::wire::shapes::StringMap;

const LABEL: &str = "sqs:";
const TAG: &str = "sqs:tag:";
/// `maxReceiveCount` of a queue that names itself as its dead-letter queue.
const OWN_REDRIVE: &str = "sqs:own-redrive";
const LAST_MODIFIED: &str = "sqs:LastModifiedTimestamp";
/// The largest message in SQS.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 20;
/// Space for ids, and for attributes in two forms, beyond the largest message.
const HEADERS_BYTES_MAX: u64 = 512 << 10;
/// Duplicate detection window of a FIFO queue.
pub const DEDUP_WINDOW_MS: u64 = 300_000;

/// The attributes that can be requested.
const NAMES: [&str; 22] = [
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesDelayed",
    "ApproximateNumberOfMessagesNotVisible",
    "ContentBasedDeduplication",
    "CreatedTimestamp",
    "DeduplicationScope",
    "DelaySeconds",
    "FifoQueue",
    "FifoThroughputLimit",
    "KmsDataKeyReusePeriodSeconds",
    "KmsMasterKeyId",
    "LastModifiedTimestamp",
    "MaximumMessageSize",
    "MessageRetentionPeriod",
    "Policy",
    "QueueArn",
    "ReceiveMessageWaitTimeSeconds",
    "RedriveAllowPolicy",
    "RedrivePolicy",
    "SqsManagedSseEnabled",
    "VisibilityTimeout",
    "All",
];

/// Refuses an unknown attribute, with a suggestion if the name is similar to a known one.
pub fn check_name(name: &str) -> Result<(), SqsError> {
    if NAMES.contains(&name) {
        return Ok(());
    }
    let near = NAMES
        .iter()
        .find(|known| name.len() > 4 && (name.starts_with(**known) || known.starts_with(name)));
    let shown = clip(name, 64);
    let hint = near.map(|near| format!(" Did you mean {near}?")).unwrap_or_default();
    Err(SqsError::new(Code::InvalidAttributeName, format!("Unknown Attribute {shown}.{hint}")))
}

/// The specification of a queue without attributes.
pub fn default_spec(fifo: bool) -> QueueSpec {
    let dedup = Dedup { window_ms: DEDUP_WINDOW_MS, per_session: false, content: false };
    QueueSpec {
        sessions: if fifo { Sessions::Dynamic } else { Sessions::None },
        failed_max: None,
        ttl_ms: Some(345_600_000),
        message_bytes_max: MESSAGE_BYTES_MAX + HEADERS_BYTES_MAX,
        dedup: fifo.then_some(dedup),
        fair: !fifo,
        ..QueueSpec::default()
    }
}

fn invalid_value(name: &str) -> SqsError {
    SqsError::new(Code::InvalidAttributeValue, format!("Invalid value for the parameter {name}."))
}

fn unknown_attribute(name: &str) -> SqsError {
    SqsError::new(Code::InvalidAttributeName, format!("Unknown Attribute {name}."))
}

fn parse_number(
    name: &str,
    text: &str,
    range: std::ops::RangeInclusive<u64>,
) -> Result<u64, SqsError> {
    text.parse().ok().filter(|n| range.contains(n)).ok_or_else(|| invalid_value(name))
}

fn parse_bool(name: &str, text: &str) -> Result<bool, SqsError> {
    match text {
        _ if text.eq_ignore_ascii_case("true") => Ok(true),
        _ if text.eq_ignore_ascii_case("false") => Ok(false),
        _ => Err(invalid_value(name)),
    }
}

pub struct RedrivePolicy {
    /// The dead-letter queue, by its name in SQS.
    pub target: String,
    pub receives_max: u32,
}

impl RedrivePolicy {
    /// None if the text removes the policy.
    pub fn parse(text: &str) -> Result<Option<Self>, SqsError> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        let invalid = |reason: &str| SqsError::invalid(text, "RedrivePolicy", reason);
        let policy: Value = serde_json::from_str(text)
            .map_err(|_| invalid("Redrive policy is not a valid JSON map."))?;
        if policy.as_object().is_some_and(serde_json::Map::is_empty) {
            return Ok(None);
        }
        let max = policy.get("maxReceiveCount").ok_or_else(|| {
            invalid("Redrive policy does not contain mandatory attribute: maxReceiveCount.")
        })?;
        let arn = policy.get("deadLetterTargetArn").and_then(Value::as_str).ok_or_else(|| {
            invalid("Redrive policy does not contain mandatory attribute: deadLetterTargetArn.")
        })?;
        let max = max.as_u64().or_else(|| max.as_str()?.parse().ok());
        let max = max.filter(|n| (1..=1000).contains(n)).and_then(|n| u32::try_from(n).ok());
        Ok(Some(Self {
            target: of_arn(arn)
                .ok_or_else(|| invalid("Dead letter target ARN is not valid."))?
                .to_owned(),
            receives_max: max
                .ok_or_else(|| invalid("Invalid value for maxReceiveCount: must be 1 to 1000."))?,
        }))
    }
}

/// A queue may name itself as its dead-letter queue. Its dead letters then stay in the queue, so the policy is only
/// stored. Returns whether the policy was of this kind.
pub fn keep_own_redrive(spec: &mut QueueSpec, own: &str, text: &str) -> Result<bool, SqsError> {
    spec.labels.remove(OWN_REDRIVE);
    let Some(redrive) = RedrivePolicy::parse(text)?.filter(|redrive| redrive.target == own) else {
        return Ok(false);
    };
    (spec.receives_max, spec.dead_letter) = (None, DeadLetterTarget::Own);
    spec.labels.insert(OWN_REDRIVE.into(), redrive.receives_max.to_string());
    Ok(true)
}

/// Applies one attribute. `dead_letter` is the engine's name for the target of a redrive policy.
pub fn apply(
    spec: &mut QueueSpec,
    name: &str,
    text: &str,
    dead_letter: Option<&QueueName>,
) -> Result<(), SqsError> {
    check_name(name)?;
    let fifo = spec.sessions.required();
    let label = |spec: &mut QueueSpec| match text.is_empty() {
        true => drop(spec.labels.remove(&format!("{LABEL}{name}"))),
        false => drop(spec.labels.insert(format!("{LABEL}{name}"), text.to_owned())),
    };
    match name {
        "DelaySeconds" => spec.delay_ms = parse_number(name, text, 0..=900)? * 1000,
        "MaximumMessageSize" => {
            parse_number(name, text, 1024..=MESSAGE_BYTES_MAX)?;
            label(spec);
        }
        "MessageRetentionPeriod" => {
            spec.ttl_ms = Some(parse_number(name, text, 60..=1_209_600)? * 1000)
        }
        // The shortest lease is 1 ms, so a message received for 0 s is visible again immediately.
        "VisibilityTimeout" => spec.lock_ms = (parse_number(name, text, 0..=43_200)? * 1000).max(1),
        "ReceiveMessageWaitTimeSeconds" => {
            parse_number(name, text, 0..=20)?;
            label(spec);
        }
        "KmsDataKeyReusePeriodSeconds" => {
            // The default is not stored.
            match parse_number(name, text, 60..=86_400)? {
                300 => drop(spec.labels.remove(&format!("{LABEL}{name}"))),
                _ => label(spec),
            }
        }
        "SqsManagedSseEnabled" => {
            parse_bool(name, text)?;
            label(spec);
        }
        "KmsMasterKeyId" => label(spec),
        "Policy" | "RedriveAllowPolicy" => {
            if !text.is_empty() && !serde_json::from_str::<Value>(text).is_ok_and(|v| v.is_object())
            {
                return Err(invalid_value(name));
            }
            if name == "RedriveAllowPolicy" && !text.is_empty() {
                check_redrive_allow_policy(text)?;
            }
            label(spec);
        }
        "RedrivePolicy" => match (RedrivePolicy::parse(text)?, dead_letter) {
            (Some(redrive), Some(target)) => {
                spec.receives_max = Some(redrive.receives_max);
                spec.dead_letter = DeadLetterTarget::Queue(target.clone());
                // In a standard queue, dead letters keep their age; in a FIFO queue, their retention starts again.
                spec.dead_letters_keep_age = !fifo;
            }
            (Some(_), None) => {
                let reason = "Dead letter target does not exist.";
                return Err(SqsError::invalid(text, name, reason));
            }
            (None, _) => (spec.receives_max, spec.dead_letter) = (None, DeadLetterTarget::Own),
        },
        "DeduplicationScope" | "FifoThroughputLimit" if !fifo => {
            let text = format!("You can specify the {name} only when FifoQueue is set to true.");
            return Err(SqsError::new(Code::InvalidAttributeName, text));
        }
        "FifoQueue" | "ContentBasedDeduplication" if !fifo => return Err(unknown_attribute(name)),
        // The type of a queue cannot be changed.
        "FifoQueue" if !parse_bool(name, text)? => {
            let text = "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.";
            return Err(SqsError::new(Code::InvalidAttributeValue, text));
        }
        "FifoQueue" => {}
        "ContentBasedDeduplication" => dedup(spec).content = parse_bool(name, text)?,
        "DeduplicationScope" => {
            dedup(spec).per_session = match text {
                "queue" => false,
                "messageGroup" => true,
                _ => return Err(invalid_value(name)),
            };
        }
        "FifoThroughputLimit" => {
            if !matches!(text, "perQueue" | "perMessageGroupId") {
                return Err(invalid_value(name));
            }
            label(spec);
        }
        _ => return Err(unknown_attribute(name)),
    }
    Ok(())
}

fn dedup(spec: &mut QueueSpec) -> &mut Dedup {
    let fresh = Dedup { window_ms: DEDUP_WINDOW_MS, per_session: false, content: false };
    spec.dedup.get_or_insert(fresh)
}

/// Checks constraints between attributes.
pub fn check_combination(spec: &QueueSpec) -> Result<(), SqsError> {
    let per_group =
        spec.labels.get("sqs:FifoThroughputLimit").is_some_and(|l| l == "perMessageGroupId");
    if per_group && !spec.dedup.is_some_and(|dedup| dedup.per_session) {
        return Err(SqsError::new(
            Code::InvalidAttributeValue,
            "Invalid value for the parameter FifoThroughputLimit. Reason: The perMessageGroupId value is allowed \
             only when the value for DeduplicationScope is messageGroup.",
        ));
    }
    Ok(())
}

fn check_redrive_allow_policy(text: &str) -> Result<(), SqsError> {
    let policy: Value =
        serde_json::from_str(text).map_err(|_| invalid_value("RedriveAllowPolicy"))?;
    let arns = policy.get("sourceQueueArns").and_then(Value::as_array);
    let good = match policy.get("redrivePermission").and_then(Value::as_str) {
        Some("allowAll" | "denyAll") => arns.is_none_or(Vec::is_empty),
        Some("byQueue") => arns.is_some_and(|arns| {
            let named = |arn: &Value| arn.as_str().is_some_and(|arn| of_arn(arn).is_some());
            !arns.is_empty() && arns.len() <= 10 && arns.iter().all(named)
        }),
        _ => false,
    };
    if good { Ok(()) } else { Err(invalid_value("RedriveAllowPolicy")) }
}

/// Whether a queue accepts dead letters from another.
pub fn allows_dead_letters_from(target: &QueueSpec, source: &str) -> bool {
    let Some(text) = target.labels.get("sqs:RedriveAllowPolicy") else { return true };
    let Ok(policy) = serde_json::from_str::<Value>(text) else { return true };
    match policy.get("redrivePermission").and_then(Value::as_str) {
        Some("denyAll") => false,
        Some("byQueue") => {
            policy.get("sourceQueueArns").and_then(Value::as_array).is_some_and(|arns| {
                arns.iter().filter_map(Value::as_str).any(|arn| of_arn(arn) == Some(source))
            })
        }
        _ => true,
    }
}

/// An attribute that is stored as a label.
fn label_of<'a>(spec: &'a QueueSpec, name: &str) -> Option<&'a str> {
    spec.labels.get(&format!("{LABEL}{name}")).map(String::as_str)
}

/// The largest message, including its attributes.
pub fn message_bytes_max(spec: &QueueSpec) -> u64 {
    let own = label_of(spec, "MaximumMessageSize").and_then(|text| text.parse().ok());
    own.unwrap_or(MESSAGE_BYTES_MAX.min(spec.message_bytes_max))
}

/// Default wait time of a receive.
pub fn wait_s(spec: &QueueSpec) -> u64 {
    label_of(spec, "ReceiveMessageWaitTimeSeconds").and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// All attributes of a queue.
pub fn attributes_of(
    facts: &QueueFacts,
    sqs_name: &str,
    addressing: &QueueAddressing,
) -> StringMap {
    let QueueFacts { spec, .. } = facts;
    let created_s = facts.created_at.0 / 1000;
    let label = |name: &str| label_of(spec, name).map(str::to_owned);
    let mut all = vec![
        ("ApproximateNumberOfMessages", facts.ready.to_string()),
        ("ApproximateNumberOfMessagesDelayed", (facts.delayed + facts.scheduled).to_string()),
        ("ApproximateNumberOfMessagesNotVisible", facts.locked.to_string()),
        ("CreatedTimestamp", created_s.to_string()),
        ("DelaySeconds", (spec.delay_ms / 1000).to_string()),
        (
            "LastModifiedTimestamp",
            label("LastModifiedTimestamp").unwrap_or_else(|| created_s.to_string()),
        ),
        ("MaximumMessageSize", message_bytes_max(spec).to_string()),
        ("QueueArn", addressing.arn(sqs_name)),
        ("ReceiveMessageWaitTimeSeconds", wait_s(spec).to_string()),
        ("VisibilityTimeout", (spec.lock_ms / 1000).to_string()),
    ];
    // A queue of another protocol may keep messages forever, which SQS cannot express.
    all.extend(spec.ttl_ms.map(|ms| ("MessageRetentionPeriod", (ms / 1000).to_string())));
    let managed = label("SqsManagedSseEnabled")
        .or_else(|| label("KmsMasterKeyId").map(|_| "false".into()))
        .unwrap_or_else(|| "true".into());
    all.push(("SqsManagedSseEnabled", managed));
    for name in ["Policy", "RedriveAllowPolicy", "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds"] {
        all.extend(label(name).map(|text| (name, text)));
    }
    if let (DeadLetterTarget::Queue(target), Some(max)) = (&spec.dead_letter, spec.receives_max) {
        let policy = json!({ "deadLetterTargetArn": addressing.arn(target.as_str()), "maxReceiveCount": max });
        all.push(("RedrivePolicy", policy.to_string()));
    }
    if let Some(max) = spec.labels.get(OWN_REDRIVE).and_then(|max| max.parse::<u32>().ok()) {
        let policy =
            json!({ "deadLetterTargetArn": addressing.arn(sqs_name), "maxReceiveCount": max });
        all.push(("RedrivePolicy", policy.to_string()));
    }
    if spec.sessions.required() {
        let dedup = spec.dedup;
        let per_group = dedup.is_some_and(|dedup| dedup.per_session);
        all.push(("FifoQueue", "true".into()));
        all.push(("ContentBasedDeduplication", dedup.is_some_and(|d| d.content).to_string()));
        all.push(("DeduplicationScope", if per_group { "messageGroup" } else { "queue" }.into()));
        all.push((
            "FifoThroughputLimit",
            label("FifoThroughputLimit").unwrap_or_else(|| "perQueue".into()),
        ));
    }
    all.into_iter().map(|(name, text)| (name.to_owned(), text)).collect()
}

pub fn set_last_modified(spec: &mut QueueSpec, now: Timestamp) {
    spec.labels.insert(LAST_MODIFIED.into(), (now.0 / 1000).to_string());
}

pub fn tags(spec: &QueueSpec) -> StringMap {
    let tags = spec.labels.iter().filter_map(|(name, text)| Some((name.strip_prefix(TAG)?, text)));
    tags.map(|(key, value)| (key.to_owned(), value.clone())).collect()
}

pub fn add_tags(spec: &mut QueueSpec, queue: &str, tags: &StringMap) -> Result<(), SqsError> {
    let invalid = |text: &str| Err(SqsError::new(Code::InvalidParameterValue, text));
    for (key, value) in tags {
        if key.is_empty()
            || key.chars().count() > 128
            || key.to_ascii_lowercase().starts_with("aws:")
        {
            return invalid("Tag keys must have 1 to 128 characters and not begin with aws:.");
        }
        if value.chars().count() > 256 {
            return invalid("Tag values must have at most 256 characters.");
        }
        spec.labels.insert(format!("{TAG}{key}"), value.clone());
    }
    if self::tags(spec).len() > 50 {
        return invalid(&format!("Too many tags added for queue {queue}."));
    }
    Ok(())
}

/// Removes tags. Missing ones are ignored.
pub fn remove_tags(spec: &mut QueueSpec, keys: &[String]) {
    for key in keys {
        spec.labels.remove(&format!("{TAG}{key}"));
    }
}
