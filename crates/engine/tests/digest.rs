//! What happens when a replay does not reproduce the served state.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a test, on real files

use std::path::Path;
use std::sync::Arc;

use malote_engine::disk::OsDisk;
use malote_engine::journal::{Divergence, Options, Pos, Recovered, Replay, SnapshotError, recover};

/// Keeps nothing; a body of `!` reports a divergence.
#[derive(Default)]
struct Sceptic(Option<Divergence>);

impl Replay for Sceptic {
    fn restore(&mut self, _: &[u8]) -> Result<(), String> {
        self.0 = None;
        Ok(())
    }
    fn apply(&mut self, at: Pos, _: u8, body: &[u8]) {
        if body == b"!" && self.0.is_none() {
            self.0 = Some(Divergence { at, what: "everything".into() });
        }
    }
    fn save(&self, _: &mut Vec<u8>) {}
    fn live(&self, _: &mut dyn FnMut(Pos, u64)) {}
    fn divergence(&self) -> Option<Divergence> {
        self.0.clone()
    }
}

fn open(dir: &Path) -> Recovered {
    let options = Options {
        segment_bytes: 64 << 10,
        first_segment_bytes: 64 << 10,
        free_bytes_min: 0,
        snapshot_after_bytes: 32 << 10,
        snapshot_after_ratio: 1,
        compact_floor_bytes: 0,
        ..Options::default()
    };
    recover(Arc::new(OsDisk::open(dir).unwrap()), &options, &mut Sceptic::default()).unwrap()
}

/// Makes several durable segments.
fn fill(journal: &mut Recovered, last: &[u8]) {
    append(journal, 300, last);
}

fn append(journal: &mut Recovered, count: usize, last: &[u8]) {
    for n in 0..count {
        while journal.pool.spares() < 3 {
            journal.spare_maker.step().unwrap();
        }
        journal.appender.begin();
        let body = if n + 1 == count { last.to_vec() } else { vec![b'x'; 1000] };
        journal.appender.frame(1, |out| out.extend_from_slice(&body));
        journal.appender.end(false).unwrap();
        for chunk in journal.appender.take().unwrap_or_default() {
            journal.writer.write(&chunk).unwrap();
        }
    }
    journal.syncer.sync().unwrap();
}

#[test]
fn a_difference_found_while_serving_stops_snapshots_recycling_and_compaction() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    fill(&mut journal, b"fine");
    journal.snapshotter.run(&mut Sceptic::default()).unwrap().unwrap();
    fill(&mut journal, b"!");
    let segments = journal.segments.count();
    assert!(journal.snapshotter.due() && segments > 4);
    let error = journal.snapshotter.run(&mut Sceptic::default()).unwrap_err();
    assert!(
        matches!(&error, SnapshotError::Diverged(found) if found.what == "everything"),
        "{error}"
    );
    // Permanently: no snapshot is due, and an explicit one does nothing.
    assert!(!journal.snapshotter.due() && !journal.snapshotter.behind());
    assert!(!journal.snapshotter.wasteful(0) && journal.snapshotter.victims().is_empty());
    assert_eq!(journal.snapshotter.run(&mut Sceptic::default()).unwrap(), None);
    assert_eq!(journal.segments.count(), segments, "every segment is kept");
}

#[test]
fn a_difference_found_at_the_start_keeps_everything_until_the_start_after_the_next_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    fill(&mut journal, b"!");
    drop(journal);
    let mut journal = open(dir.path());
    assert!(journal.report.diverged.is_some());
    // The served state is the replayed one: snapshots are possible, but nothing is recycled.
    for _ in 0..3 {
        let made = journal.snapshotter.run(&mut Sceptic::default()).unwrap();
        assert!(made.is_none_or(|made| made.recycled == 0));
        fill(&mut journal, b"fine");
    }
    assert!(journal.snapshotter.victims().is_empty());
    let segments = journal.segments.count();
    drop(journal);
    let mut journal = open(dir.path());
    assert_eq!(journal.report.diverged, None);
    fill(&mut journal, b"fine");
    journal.snapshotter.run(&mut Sceptic::default()).unwrap().unwrap();
    assert!(journal.segments.count() < segments, "what is superfluous is recycled again");
}

#[test]
fn a_snapshot_that_could_not_be_read_at_a_start_is_not_used_later() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    append(&mut journal, 3, b"x");
    journal.snapshotter.run(&mut Sceptic::default()).unwrap().unwrap();
    drop(journal);
    let names = || std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name());
    let name = names().find(|name| name.to_str().unwrap().ends_with(".snap")).unwrap();
    let path = dir.path().join(&name);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let journal = open(dir.path());
    assert_eq!(journal.report.invalid_snapshots, [name.to_str().unwrap()]);
    drop(journal);
    // The file is whole again, but what was served in the meantime did not begin with it.
    assert!(!path.exists());
    std::fs::write(path.with_extension("snap.unreadable"), &whole).unwrap();
    let journal = open(dir.path());
    assert_eq!((journal.report.snapshot, journal.report.invalid_snapshots.len()), (None, 0));
}
