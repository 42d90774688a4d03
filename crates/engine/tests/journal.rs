//! The journal on a real disk, with its threads.
#![allow(clippy::unwrap_used)] // a test

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use malote_engine::disk::{DirError, Disk, OsDisk};
use malote_engine::journal::{
    AppendError, Appender, Callbacks, Commit, GroupPosition, Options, Pipeline, Pos, RecoverError,
    Recovered, Replay, SegmentState, recover, verify,
};
use malote_engine::{Engine, Settings};

/// Remembers every body.
#[derive(Default, Debug, PartialEq)]
struct Log(Vec<Vec<u8>>);

impl Replay for Log {
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        self.0 = snapshot.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
        self.0.pop();
        Ok(())
    }
    fn apply(&mut self, _: Pos, _: u8, body: &[u8]) {
        self.0.push(body.to_vec());
    }
    fn save(&self, out: &mut Vec<u8>) {
        self.0.iter().for_each(|body| out.extend(body.iter().chain(b"\n")));
    }
    fn live(&self, _: &mut dyn FnMut(Pos, u64)) {}
}

fn small() -> Options {
    Options {
        segment_bytes: 256 << 10,
        first_segment_bytes: 64 << 10,
        free_bytes_min: 0,
        ..Options::default()
    }
}

fn open(path: &std::path::Path, options: &Options) -> (Recovered, Log) {
    let mut log = Log::default();
    let disk = Arc::new(OsDisk::open(path).unwrap());
    (recover(disk, options, &mut log).unwrap(), log)
}

fn append(appender: &mut Appender, body: &[u8]) -> GroupPosition {
    appender.begin();
    appender.frame(1, |out| out.extend_from_slice(body));
    appender.end(false).unwrap()
}

/// Each part can be sent to its own thread.
const _: fn() = || {
    fn sent<T: Send>() {}
    sent::<Recovered>();
};

#[test]
fn commits_become_durable_in_order_and_are_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let (
        Recovered {
            mut appender,
            writer,
            syncer,
            spare_maker,
            pool,
            segments,
            marks,
            mut snapshotter,
            ..
        },
        log,
    ) = open(dir.path(), &small());
    assert_eq!(log, Log::default());
    let spare_maker = std::thread::spawn(move || spare_maker.run());

    let (sender, durable) = channel();
    let on_written = sender.clone();
    let (at_write, at_sync) = (marks.clone(), marks.clone());
    let callbacks = Callbacks {
        written: Box::new(move |batch: Vec<(bool, Pos)>| {
            assert!(batch.iter().all(|(_, end)| *end <= at_write.written()));
            batch.into_iter().for_each(|end| on_written.send(end).unwrap());
        }),
        durable: Box::new(move |batch| {
            let early = |&&(sync, end): &&(bool, Pos)| sync && end > at_sync.durable();
            assert_eq!(batch.iter().find(early), None, "released too early");
            batch.into_iter().for_each(|(_, end)| sender.send((true, end)).unwrap());
        }),
        poison: Box::new(|error| panic!("{error}")),
    };
    let pipeline = Pipeline::start(writer, syncer, callbacks).unwrap();
    let mut expected = Vec::new();
    let mut last = None;
    for n in 0..3000 {
        let body = format!("message {n} {}", "x".repeat(n % 700)).into_bytes();
        let place = append(&mut appender, &body);
        expected.push(body);
        if n % 7 == 0 || n == 2999 {
            let chunks = appender.take().unwrap();
            let end = place.end;
            let sync = n % 3 == 0;
            let (on_written, on_durable) = (vec![(false, end)], vec![(sync, end)]);
            pipeline.submit(Commit { chunks, sync, on_written, on_durable }).unwrap();
        }
        last = Some(place);
    }
    pipeline.close();
    let released: Vec<_> = durable.try_iter().collect();
    for durable in [false, true] {
        let ends: Vec<Pos> =
            released.iter().filter(|(is, _)| *is == durable).map(|(_, end)| *end).collect();
        assert_eq!(ends.len(), 430);
        assert!(ends.is_sorted());
    }
    let last = last.unwrap();
    assert_eq!(marks.durable(), last.end);
    assert_eq!(segments.read(last.start).unwrap().1, expected[2999]);
    assert!(segments.count() > 3);

    // Snapshots do not change the restored state.
    assert!(snapshotter.run(&mut Log::default()).unwrap().is_some());
    assert!(snapshotter.run(&mut Log::default()).unwrap().is_none());
    pool.stop();
    spare_maker.join().unwrap();
    drop((appender, segments, snapshotter, pool));
    let (recovered, log) = open(dir.path(), &small());
    assert_eq!(log.0, expected);
    assert_eq!(recovered.report.snapshot, Some(last.end));
    drop(recovered);

    let verified = verify(&OsDisk::read_only(dir.path()).unwrap()).unwrap();
    assert_eq!(verified.refused, None);
    let used =
        verified.segments.iter().filter(|segment| matches!(segment.state, SegmentState::Used(_)));
    assert_eq!(used.filter_map(|segment| segment.frames.get(&1)).sum::<u64>(), 3000);
    assert!(verified.snapshots.iter().all(|(_, covered)| covered.is_some()));
}

#[test]
fn lazy_commits_are_synced_after_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let (Recovered { mut appender, writer, syncer, marks, .. }, _) = open(dir.path(), &small());
    let (sender, done) = channel();
    let callbacks = Callbacks {
        written: Box::new(move |batch: Vec<u8>| sender.send(batch).unwrap()),
        durable: Box::new(|_| {}),
        poison: Box::new(|error| panic!("{error}")),
    };
    let pipeline = Pipeline::start(writer, syncer, callbacks).unwrap();
    let end = append(&mut appender, b"lazy").end;
    assert!(marks.durable() < end);
    let chunks = appender.take().unwrap();
    pipeline
        .submit(Commit { chunks, sync: false, on_written: vec![1], on_durable: vec![] })
        .unwrap();
    // Written before it is durable: it is released without waiting for a sync.
    assert_eq!(done.recv().unwrap(), [1]);
    let mut waited = 0;
    while marks.durable() < end {
        std::thread::sleep(Duration::from_millis(50));
        waited += 1;
        assert!(waited < 1200, "lazy data is never synced");
    }
}

#[test]
fn a_data_directory_has_one_owner_and_must_be_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path(), &small());
    let second = Arc::new(OsDisk::open(dir.path()).unwrap());
    let refused = recover(second.clone(), &small(), &mut Log::default()).err().unwrap();
    assert!(matches!(refused, RecoverError::Locked(_)), "{refused}");
    drop(first);
    assert!(recover(second, &small(), &mut Log::default()).is_ok());

    let file = dir.path().join("lock");
    assert!(matches!(OsDisk::open(&file), Err(DirError::NotADirectory(_))));
    assert!(matches!(OsDisk::open(file.join("below")), Err(DirError::NotADirectory(_))));
}

#[test]
fn a_group_is_appended_completely_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(dir.path(), &small());
    let max = journal.appender.group_bytes_max();
    journal.appender.begin();
    journal.appender.frame(1, |out| out.resize(out.len() + max, 0));
    assert!(matches!(journal.appender.end(false), Err(AppendError::TooLarge { .. })));
    // The largest group does not fit into the small first segment.
    let first = append(&mut journal.appender, b"small");
    journal.appender.begin();
    let frame = journal.appender.frame(9, |out| out.resize(out.len() + max - 18, 7));
    let place = journal.appender.end(false).unwrap();
    assert!(place.pos(frame).generation() > first.start.generation());
    for chunk in journal.appender.take().unwrap() {
        journal.writer.write(&chunk).unwrap();
    }
    assert_eq!(journal.syncer.sync().unwrap(), place.end);
    assert_eq!(journal.segments.read(place.start).unwrap().1.len(), max - 18);
    drop(journal);
    let (_, log) = open(dir.path(), &small());
    assert_eq!(log.0.iter().map(Vec::len).collect::<Vec<_>>(), [5, max - 18]);
}

#[test]
fn unknown_files_are_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let disk = OsDisk::open(dir.path()).unwrap();
    for name in ["notes.txt", "segment-1.log", "snapshot-now.snap"] {
        disk.create(name).unwrap().write_at(b"mine", 0).unwrap();
    }
    let (journal, _) = open(dir.path(), &small());
    assert_eq!(journal.report.unknown_files, ["notes.txt", "segment-1.log", "snapshot-now.snap"]);
    assert_eq!(disk.open("notes.txt").unwrap().len().unwrap(), 4);
}

#[test]
fn unaligned_zero_filling_uses_the_page_cache() {
    let dir = tempfile::tempdir().unwrap();
    let disk = OsDisk::open(dir.path()).unwrap();
    let file = disk.create("spare").unwrap();
    file.write_at(&[1; 20_000], 0).unwrap();
    let zeros = vec![0; 3 * 4096];
    let block_at = zeros.as_ptr().align_offset(4096);
    // First as spares are filled; then unaligned memory, offset and length, which need the page cache.
    file.fill_at(&zeros[block_at..block_at + 4096], 4096).unwrap();
    file.fill_at(&zeros[block_at + 1..block_at + 101], 10_001).unwrap();
    file.fill_at(&zeros[block_at..block_at + 4096], 20_480).unwrap();
    let mut read = vec![9; 30_000];
    assert_eq!(file.read_at(&mut read, 0).unwrap(), 20_480 + 4096);
    let zero = |at: usize| matches!(at, 4096..8192 | 10_001..10_101 | 20_000..24_576);
    for (at, byte) in read[..24_576].iter().enumerate() {
        assert_eq!(*byte, u8::from(!zero(at)), "at {at}");
    }
}

/// All files and their contents, without the lock.
#[allow(clippy::disallowed_methods, reason = "reads the files themselves")]
fn contents(dir: &std::path::Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let named = files.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), path));
    let named = named.filter(|(name, _)| name != "lock");
    named.map(|(name, path)| (name, std::fs::read(path).unwrap())).collect()
}

/// Opening the directory must fail without changing it, and the message must contain these texts.
fn refused(dir: &std::path::Path, says: &[&str]) {
    let before = contents(dir);
    let why = Engine::open(Settings::at(dir)).err().expect("it must not be opened").to_string();
    for part in says {
        assert!(why.contains(part), "`{part}` is missing: {why}");
    }
    assert!(contents(dir) == before, "a refused start changed something: {why}");
}

#[test]
fn an_unknown_record_is_refused_and_kept() {
    let bodies: [(u8, &[u8], &str); 3] = [
        (7, &[9, 1, 2, 3], "kind 7 and version 9"),
        (200, &[1], "kind 200 and version 1"),
        (7, &[1, 255], "malformed"),
    ];
    for (kind, body, says) in bodies {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(dir.path(), &small());
        journal.appender.begin();
        journal.appender.frame(kind, |out| out.extend_from_slice(body));
        let place = journal.appender.end(false).unwrap();
        for chunk in journal.appender.take().unwrap() {
            journal.writer.write(&chunk).unwrap();
        }
        journal.syncer.sync().unwrap();
        drop(journal);
        let at = place.start.to_string();
        refused(dir.path(), &[says, "segment-000001.log", &at, "newer version", "backup"]);
    }
}

/// Overwrites the format number.
#[allow(clippy::disallowed_methods, reason = "it stands for a version that does not exist yet")]
fn reformat(path: &std::path::Path, records: &[(usize, usize)]) {
    let mut bytes = std::fs::read(path).unwrap();
    for &(at, len) in records {
        let len = if len == 0 { bytes.len() - 4 } else { len };
        bytes[at + 8..at + 12].copy_from_slice(&99_u32.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[at..at + len]);
        bytes[at + len..at + len + 4].copy_from_slice(&crc.to_le_bytes());
    }
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_later_format_of_a_segment_or_a_snapshot_is_refused() {
    for what in ["segment", "snapshot"] {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(dir.path(), &small());
        append(&mut journal.appender, b"body");
        for chunk in journal.appender.take().unwrap() {
            journal.writer.write(&chunk).unwrap();
        }
        journal.syncer.sync().unwrap();
        journal.snapshotter.run(&mut Log::default()).unwrap();
        drop(journal);
        let name = contents(dir.path()).into_keys().find(|name| name.starts_with(what)).unwrap();
        // A header has two copies; a snapshot ends with its checksum.
        let records: &[_] = if what == "segment" { &[(0, 40), (2048, 40)] } else { &[(0, 0)] };
        reformat(&dir.path().join(&name), records);
        refused(dir.path(), &[&name, "format 99", "newer version", "backup"]);
    }
}
