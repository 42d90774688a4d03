//! `malote verify`: reads a whole data directory and changes nothing.

use std::path::PathBuf;

use malote_engine::core::Core;
use malote_engine::disk::OsDisk;
use malote_engine::journal::{
    self, Orphan, RecoveryReport, SegmentReport, SegmentState, VerifyReport,
};
use serde_json::{Value, json};

use crate::args::GlobalArgs;
use crate::failure::Failure;
use crate::output::{Facts, Format, Row};
use crate::when;

/// Check a data directory for damage; changes nothing
///
/// Stop the server first: in a directory in use, the newest records may look incomplete.
#[derive(clap::Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    global: GlobalArgs,
    /// Data directory to check
    dir: PathBuf,
}

impl Verify {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut out = self.global.open_output();
        let disk = OsDisk::read_only(&self.dir)?;
        let found = journal::verify_with(&disk, &mut Core::new(0))?;
        match out.format() {
            Format::Json => out.json(&document(&found))?,
            Format::Ndjson => out.line(&document(&found))?,
            Format::Name => {
                let files: Vec<_> = found.segments.iter().map(Segment).collect();
                out.list(&files)?;
            }
            Format::Table => {
                let files: Vec<_> = found.segments.iter().map(Segment).collect();
                out.list(&files)?;
                if !files.is_empty() {
                    out.text("\n")?;
                }
                out.one(&Whole(&found))?;
            }
        }
        match trouble(&found) {
            Some(trouble) => Err(Failure::Unhealthy(trouble).into()),
            None => {
                out.note("nothing is damaged");
                Ok(())
            }
        }
    }
}

/// All problems in one sentence.
fn trouble(found: &VerifyReport) -> Option<String> {
    let RecoveryReport { damaged, unreadable_segments, invalid_snapshots, orphans, .. } =
        &found.recovery;
    if let Some(why) = &found.refused {
        return Some(format!("a server would refuse to start here: {why}"));
    }
    let mut parts = Vec::new();
    for (count, what) in [
        (damaged.len(), "damaged parts of the journal"),
        (unreadable_segments.len(), "segments that cannot be read"),
        (invalid_snapshots.len(), "snapshots that cannot be read"),
        (orphans.len(), "queues or topics whose declaration is lost"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    (!parts.is_empty()).then(|| {
        format!(
            "found {}; make a copy of the directory before you do anything else",
            parts.join(", ")
        )
    })
}

struct Segment<'a>(&'a SegmentReport);

impl Segment<'_> {
    fn state(&self) -> (&'static str, Option<u64>) {
        match self.0.state {
            SegmentState::Used(generation) => ("used", Some(generation)),
            SegmentState::Spare => ("spare", None),
            SegmentState::Unreadable => ("unreadable", None),
        }
    }
}

impl serde::Serialize for Segment<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        segment(self.0).serialize(serializer)
    }
}

impl Row for Segment<'_> {
    const HEAD: &'static [&'static str] = &["FILE", "SIZE", "STATE", "GENERATION", "FRAMES"];

    fn row(&self) -> Vec<String> {
        let (state, generation) = self.state();
        vec![
            self.0.file.clone(),
            when::bytes(self.0.bytes),
            state.to_owned(),
            generation.map_or_else(|| "-".to_owned(), |generation| generation.to_string()),
            self.0.frames.values().sum::<u64>().to_string(),
        ]
    }

    fn name(&self) -> String {
        self.0.file.clone()
    }
}

struct Whole<'a>(&'a VerifyReport);

impl serde::Serialize for Whole<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        document(self.0).serialize(serializer)
    }
}

impl Facts for Whole<'_> {
    fn facts(&self) -> Vec<(&'static str, String)> {
        let VerifyReport { snapshots, recovery, refused, .. } = self.0;
        let mut facts = vec![
            ("snapshots", snapshots.len().to_string()),
            (
                "starts from",
                recovery
                    .snapshot
                    .map_or_else(|| "the beginning".into(), |pos| format!("snapshot at {pos}")),
            ),
            ("replays", format!("{} frames in {} groups", recovery.frames, recovery.groups)),
            ("ends at", format!("{}, durable to {}", recovery.cut, recovery.durable)),
            ("discarded", format!("{} frames that were never durable", recovery.discarded_frames)),
            ("segments", format!("{} used, {} spare", recovery.segments, recovery.spares)),
        ];
        for damage in &recovery.damaged {
            facts.push((
                "damaged",
                format!("{} from {} to {}", damage.file, damage.from, damage.to),
            ));
        }
        for orphan in &recovery.orphans {
            facts.push(("declaration lost", lost(orphan)));
        }
        for name in &recovery.unreadable_segments {
            facts.push(("unreadable", name.clone()));
        }
        for name in &recovery.invalid_snapshots {
            facts.push(("bad snapshot", name.clone()));
        }
        for name in &recovery.unknown_files {
            facts.push(("unknown file", name.clone()));
        }
        if let Some(why) = refused {
            facts.push(("refused", why.clone()));
        }
        facts
    }

    fn name(&self) -> String {
        self.0.recovery.cut.to_string()
    }
}

fn lost(orphan: &Orphan) -> String {
    let Orphan { id, recovered, records, first, last, .. } = orphan;
    let what = match recovered {
        Some(name) => format!("a start puts its messages into `{name}`"),
        None => "it has no messages; declare it again".to_owned(),
    };
    format!("queue or topic number {id}: {what} ({records} records from {first} to {last})")
}

fn segment(report: &SegmentReport) -> Value {
    let (state, generation) = Segment(report).state();
    let frames: serde_json::Map<String, Value> =
        report.frames.iter().map(|(kind, count)| (kind.to_string(), json!(count))).collect();
    json!({
        "file": report.file, "bytes": report.bytes, "state": state, "generation": generation, "frames": frames,
    })
}

fn document(found: &VerifyReport) -> Value {
    let VerifyReport { segments, snapshots, recovery, refused } = found;
    let damaged = recovery.damaged.iter().map(|damage| {
        json!({ "file": damage.file, "from": damage.from.to_string(), "to": damage.to.to_string() })
    });
    let orphans = recovery.orphans.iter().map(|orphan| {
        let Orphan { id, recovered, records, first, last, unplaced } = orphan;
        let (first, last) = (first.to_string(), last.to_string());
        json!({ "id": id, "recovered": recovered, "records": records, "first": first, "last": last, "kept_segments": unplaced })
    });
    let snapshots = snapshots
        .iter()
        .map(|(file, covers)| json!({ "file": file, "covers": covers.map(|pos| pos.to_string()) }));
    json!({
        "ok": trouble(found).is_none(),
        "refused": refused,
        "segments": segments.iter().map(segment).collect::<Vec<_>>(),
        "snapshots": snapshots.collect::<Vec<_>>(),
        "recovery": {
            "snapshot": recovery.snapshot.map(|pos| pos.to_string()),
            "frames": recovery.frames,
            "groups": recovery.groups,
            "durable": recovery.durable.to_string(),
            "cut": recovery.cut.to_string(),
            "discarded_frames": recovery.discarded_frames,
            "damaged": damaged.collect::<Vec<_>>(),
            "orphans": orphans.collect::<Vec<_>>(),
            "unreadable_segments": recovery.unreadable_segments,
            "invalid_snapshots": recovery.invalid_snapshots,
            "unknown_files": recovery.unknown_files,
        },
    })
}
