//! A record of the audit log as JSON: a line of `audit.log`, and an item of `GET /api/v1/audit`.

use std::net::IpAddr;

use malote_model::Timestamp;
use malote_model::audit::{
    AuditCaller, AuditEntry, AuditOutcome, AuditPage, AuditRecord, UnknownWord,
};
#[cfg(feature = "schema")]
use malote_model::{AuditAction, AuditProtocol, CallerKind};
use serde::{Deserialize, Serialize};

/// A record of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "AuditRecord"))]
pub struct AuditLine {
    /// The number of the record
    pub seq: u64,
    /// Time in milliseconds since 1970
    pub at: u64,
    /// Number of equal events that this record stands for; 1 if absent
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub count: u64,
    /// The caller, or the name that the caller claimed
    pub caller: String,
    /// The kind of the caller: `user`, `key`, `token` …
    #[cfg_attr(feature = "schema", schemars(extend("enum" = words(CallerKind::ALL.iter().map(|one| one.as_str())))))]
    pub kind: String,
    /// The id of the key or token
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
    /// The address of the caller
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub address: Option<IpAddr>,
    /// The protocol: `http`, `native`, `sqs` …
    #[cfg_attr(feature = "schema", schemars(extend("enum" = words(AuditProtocol::ALL.iter().map(|one| one.as_str())))))]
    pub protocol: String,
    /// The action: `login`, `declare`, `delete` …
    #[cfg_attr(feature = "schema", schemars(extend("enum" = words(AuditAction::ALL.iter().map(|one| one.as_str())))))]
    pub action: String,
    /// The object of the action, such as a queue
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub object: String,
    /// The protocol's own name of the operation, the name of a rule, or a grant
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// `done`, `refused` or `unknown`
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["done", "refused", "unknown"])))]
    pub outcome: String,
    /// Why the action was refused, or why its outcome is unknown
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[cfg(feature = "schema")]
fn words(words: impl Iterator<Item = &'static str>) -> serde_json::Value {
    words.collect()
}

fn once() -> u64 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_once(count: &u64) -> bool {
    *count == 1
}

/// A page of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "AuditRecords"))]
pub struct AuditLines {
    /// The records, by number
    pub records: Vec<AuditLine>,
    /// The number of the last record that was searched
    pub last: u64,
    /// `after` of the next page
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

impl From<AuditPage> for AuditLines {
    fn from(page: AuditPage) -> AuditLines {
        let AuditPage { records, last, more } = page;
        let records = records.iter().map(AuditLine::from).collect();
        AuditLines { records, last, next: more.then_some(last) }
    }
}

impl From<&AuditRecord> for AuditLine {
    fn from(record: &AuditRecord) -> AuditLine {
        let AuditRecord { seq, at, count, entry } = record;
        AuditLine {
            seq: *seq,
            at: at.0,
            count: *count,
            caller: entry.caller.name.clone(),
            kind: entry.caller.kind.as_str().to_owned(),
            credential: entry.caller.credential.clone(),
            address: entry.peer,
            protocol: entry.protocol.as_str().to_owned(),
            action: entry.action.as_str().to_owned(),
            object: entry.object.clone(),
            detail: entry.detail.clone(),
            outcome: entry.outcome.as_str().to_owned(),
            reason: entry.outcome.reason().map(str::to_owned),
        }
    }
}

impl TryFrom<AuditLine> for AuditRecord {
    type Error = UnknownWord;

    fn try_from(line: AuditLine) -> Result<AuditRecord, UnknownWord> {
        let reason = line.reason.unwrap_or_default().into();
        let outcome = match line.outcome.as_str() {
            "done" => AuditOutcome::Done,
            "refused" => AuditOutcome::Refused(reason),
            "unknown" => AuditOutcome::Unknown(reason),
            _ => {
                let known = "done, refused, unknown".to_owned();
                return Err(UnknownWord { text: line.outcome, known });
            }
        };
        let caller = AuditCaller {
            name: line.caller,
            kind: line.kind.parse()?,
            credential: line.credential,
        };
        let entry = AuditEntry {
            caller,
            peer: line.address,
            protocol: line.protocol.parse()?,
            action: line.action.parse()?,
            object: line.object,
            detail: line.detail,
            outcome,
        };
        Ok(AuditRecord { seq: line.seq, at: Timestamp(line.at), count: line.count, entry })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use malote_model::{AuditAction, AuditProtocol, Principal};

    #[test]
    fn a_record_reads_back_as_written() {
        let who = Principal::named("ana").through(malote_model::CallerKind::Key, "AK");
        let entry = AuditEntry::new(AuditProtocol::Sqs, AuditAction::Delete)
            .by(&who)
            .from("192.0.2.1".parse().unwrap())
            .on("orders\n")
            .refused("AccessDenied");
        let record = AuditRecord { seq: 7, at: Timestamp(1_700_000_000_000), count: 3, entry };
        let text = serde_json::to_string(&AuditLine::from(&record)).unwrap();
        assert_eq!(
            text,
            r#"{"seq":7,"at":1700000000000,"count":3,"caller":"ana","kind":"key","credential":"AK","address":"192.0.2.1","protocol":"sqs","action":"delete","object":"orders\\u{a}","outcome":"refused","reason":"AccessDenied"}"#
        );
        let line: AuditLine = serde_json::from_str(&text).unwrap();
        assert_eq!(AuditRecord::try_from(line), Ok(record));
        let minimal = r#"{"seq":1,"at":2,"caller":"x","kind":"user","protocol":"cli","action":"grant","outcome":"done","later":1}"#;
        let line: AuditLine = serde_json::from_str(minimal).unwrap();
        assert_eq!(AuditRecord::try_from(line.clone()).unwrap().count, 1);
        let newer = AuditLine { action: "fly".to_owned(), ..line };
        assert!(AuditRecord::try_from(newer).is_err());
    }
}
