//! Tests of the whole log: on disk, across restarts, with a second process, under load.

use super::*;
use malote_model::CallerKind;
use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

/// Timeout of the tests.
const PATIENCE: Duration = Duration::from_secs(60);

struct Lab {
    dir: tempfile::TempDir,
    now: Arc<AtomicU64>,
}

impl Lab {
    fn new() -> Lab {
        Lab { dir: tempfile::tempdir().unwrap(), now: Arc::new(AtomicU64::new(1000)) }
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join(AUDIT_FILE)
    }

    fn open(&self) -> AuditLog {
        self.open_with(AuditFile::at(&self.path()))
    }

    fn open_with(&self, file: AuditFile) -> AuditLog {
        let now = self.now.clone();
        AuditLog::with(file, Arc::new(move || Timestamp(now.load(Ordering::Relaxed)))).unwrap()
    }

    fn text(&self, name: &str) -> String {
        String::from_utf8(crate::files::read(&self.dir.path().join(name)).unwrap()).unwrap()
    }
}

fn delete(object: &str) -> AuditEntry {
    AuditEntry::new(AuditProtocol::Http, AuditAction::Delete)
        .by(&Principal::named("ana"))
        .on(object)
}

fn refused(name: &str) -> AuditEntry {
    AuditEntry::new(AuditProtocol::Http, AuditAction::Login)
        .claimed(name, CallerKind::User)
        .refused("unauthenticated")
}

fn objects(log: &AuditLog) -> Vec<String> {
    let page = log.read(&AuditQuery { max: usize::MAX, ..AuditQuery::default() });
    page.records.into_iter().map(|record| record.entry.object).collect()
}

#[allow(clippy::disallowed_methods, reason = "the patience of a test")]
fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn records_survive_a_restart_with_their_numbers() {
    let lab = Lab::new();
    let log = lab.open();
    log.record(delete("a"));
    log.record(refused("eve"));
    log.record(delete("b"));
    log.close();
    let before = log.read(&AuditQuery { max: 9, ..AuditQuery::default() });
    assert_eq!(before.records.len(), 3);
    let log = lab.open();
    assert_eq!(log.read(&AuditQuery { max: 9, ..AuditQuery::default() }), before);
    log.record(delete("c"));
    until("the next record", || log.read(&AuditQuery::default()).last == before.last + 1);
    drop(log);
    let text = lab.text(AUDIT_FILE);
    assert_eq!(text.lines().count(), 4, "{text}");
}

#[test]
fn the_file_is_private_and_a_wider_one_is_tightened() {
    let lab = Lab::new();
    let mode = || lab.path().metadata().unwrap().permissions().mode() & 0o777;
    let log = lab.open();
    log.record(delete("a"));
    drop(log);
    assert_eq!(mode(), 0o600);
    std::fs::set_permissions(lab.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
    drop(lab.open());
    assert_eq!(mode(), 0o600);
    let lock = lab.dir.path().join("audit.log.lock");
    assert_eq!(lock.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_flood_of_logins_becomes_a_few_records_and_displaces_nothing_else() {
    let lab = Lab::new();
    let log = lab.open();
    log.record(delete("kept"));
    for n in 0..200_000_u64 {
        lab.now.fetch_add(1, Ordering::Relaxed);
        // Half of the names are the same, half are different.
        log.record(refused(&if n % 2 == 0 { "eve".to_owned() } else { format!("u{n}") }));
    }
    // A valid user who only logs in.
    for _ in 0..20_000 {
        lab.now.fetch_add(1, Ordering::Relaxed);
        let login = AuditEntry::new(AuditProtocol::Native, AuditAction::Login);
        log.record(login.by(&Principal::named("ana")));
    }
    log.close();
    let all = log.read(&AuditQuery { max: usize::MAX, ..AuditQuery::default() }).records;
    assert_eq!(all.iter().filter(|record| record.entry.object == "kept").count(), 1);
    assert!(all.len() < 2000, "{}", all.len());
    let counted: u64 = all.iter().map(|record| record.count).sum();
    assert_eq!(counted, 220_001, "nothing is lost, only counted");
    assert_eq!(log.counts().dropped, 0);
    assert!(lab.text(AUDIT_FILE).len() < 1 << 20);
}

#[test]
fn a_command_and_the_server_write_to_one_file_in_order() {
    let lab = Lab::new();
    let mut local = LocalAudit::at(lab.dir.path());
    local.record(AuditAction::UserAdd, "ana", "all *").unwrap();
    let log = lab.open();
    log.record(delete("a"));
    until("own record", || objects(&log).len() == 2);
    local.record(AuditAction::Grant, "ana", "send orders").unwrap();
    until("the command's record", || objects(&log).len() == 3);
    log.record(delete("b"));
    until("own record", || objects(&log).len() == 4);
    let page = log.read(&AuditQuery { max: 9, ..AuditQuery::default() });
    let numbers: Vec<u64> = page.records.iter().map(|record| record.seq).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    let grant = &page.records[2].entry;
    assert_eq!((grant.protocol, grant.caller.kind), (AuditProtocol::Cli, CallerKind::OsUser));
    assert_eq!((grant.object.as_str(), grant.detail.as_str()), ("ana", "send orders"));
    drop(log);
    let log = lab.open();
    assert_eq!(log.read(&AuditQuery { max: 9, ..AuditQuery::default() }), page);
}

#[test]
fn files_are_renamed_by_size_and_the_oldest_goes() {
    let lab = Lab::new();
    let log = lab.open_with(AuditFile::of_bytes_max(&lab.path(), 2000));
    for n in 0..200 {
        log.record(delete(&format!("q{n}")));
        until("written", || objects(&log).len() == n + 1);
    }
    drop(log);
    let mut names: Vec<String> = crate::files::names(lab.dir.path());
    names.sort();
    names.retain(|name| name != "audit.log.lock" && name != AUDIT_FILE);
    assert_eq!(names, ["audit.log.1", "audit.log.2", "audit.log.3"]);
    for name in names {
        assert!(lab.text(&name).len() < 2500, "{name}");
    }
    // A start reads both files; no record is missing or out of order.
    let log = lab.open_with(AuditFile::of_bytes_max(&lab.path(), 2000));
    let found = objects(&log);
    let expected: Vec<String> = (200 - found.len()..200).map(|n| format!("q{n}")).collect();
    assert!(found.len() > 8 && found == expected, "{found:?}");
}

#[test]
fn records_of_other_processes_are_read_across_a_rotation() {
    let lab = Lab::new();
    let log = lab.open_with(AuditFile::of_bytes_max(&lab.path(), 1000));
    let mut other = AuditFile::of_bytes_max(&lab.path(), 1000);
    let mut expected = Vec::new();
    for n in 0..40_u64 {
        let object = format!("q{n}");
        if n % 3 == 0 {
            log.record(delete(&object));
            until("own record", || objects(&log).last() == Some(&object));
        } else {
            // Another process, which also rotates the file.
            let (_lock, _) = other.lock().unwrap();
            let seq = other.last().unwrap() + 1;
            let entry = delete(&object);
            let record =
                malote_model::audit::AuditRecord { seq, at: Timestamp(n), count: 1, entry };
            other.write(&[record]).unwrap();
        }
        expected.push(object);
        if n % 3 == 0 {
            assert_eq!(objects(&log), expected);
        }
    }
    until("all", || objects(&log) == expected);
}

#[test]
fn an_incomplete_line_does_not_damage_others() {
    let lab = Lab::new();
    let log = lab.open();
    log.record(delete("a"));
    drop(log);
    let mut file = crate::files::open_append(&lab.path()).unwrap();
    std::io::Write::write_all(&mut file, br#"{"seq":2,"at":5,"cal"#).unwrap();
    let log = lab.open();
    assert_eq!(objects(&log), ["a"]);
    log.record(delete("b"));
    drop(log);
    assert_eq!(objects(&lab.open()), ["a", "b"]);
}

#[test]
fn an_unwritable_file_is_tolerated_and_used_again_later() {
    let lab = Lab::new();
    // A directory instead of the file.
    std::fs::create_dir(lab.path()).unwrap();
    let log = lab.open();
    log.record(delete("a"));
    until("counted", || log.counts().unwritten == 1);
    assert_eq!(objects(&log), ["a"]);
    std::fs::remove_dir(lab.path()).unwrap();
    log.record(delete("b"));
    drop(log);
    assert!(lab.text(AUDIT_FILE).contains(r#""object":"b""#));
}

#[test]
fn too_many_at_once_are_dropped_and_that_is_recorded() {
    let lab = Lab::new();
    let log = lab.open();
    // The writer waits for the lock.
    let lock = crate::files::FileLock::exclusive(&lab.path()).unwrap();
    let mut sent = 0;
    until("full", || {
        log.counts().dropped > 0 || {
            (0..1000).for_each(|_| log.record(delete("q")));
            false
        }
    });
    log.record(delete("one more"));
    sent += log.counts().recorded;
    drop(lock);
    until("dropped", || {
        let dropped =
            AuditQuery { action: Some(AuditAction::Dropped), max: 9, ..AuditQuery::default() };
        let page = log.read(&dropped);
        page.records.iter().map(|record| record.count).sum::<u64>() == log.counts().dropped
    });
    assert!(log.counts().dropped > 0 && log.counts().dropped < sent);
}
