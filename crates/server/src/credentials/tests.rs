//! Tests of the store, as the command line and the server use it.

use super::*;
use crate::files;
use crate::reload::Reload;
use malote_model::QueueName;
use malote_model::access::{Access, Action, Principal};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

pub(super) const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

pub(super) fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("data").join(CREDENTIALS_FILE)).unwrap();
    (dir, store)
}

pub(super) fn again(store: &Store) -> Store {
    Store::open(store.path()).unwrap()
}

pub(super) fn grants(texts: &[&str]) -> Vec<Grant> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

pub(super) fn may(store: &Store, who: &Principal, action: Action, queue: &str) -> bool {
    store.check(who, action, (&QueueName::new(queue).unwrap()).into()).is_ok()
}

/// The user, authenticated by its own token.
fn acting_as(store: &Store, user: &str) -> Principal {
    let token = store.add_token(&format!("of-{user}"), Holder::User(user.to_owned())).unwrap();
    store.verify_token(&token.token).unwrap()
}

#[tokio::test]
async fn an_empty_store_is_open_until_credentials_are_required() {
    let (_dir, store) = store();
    let anyone = Principal::anonymous();
    assert!(store.is_open() && may(&store, &anyone, Action::Manage, "orders"));
    assert_eq!(store.verify_password("guest", "guest", HOME).await, Some(anyone.clone()));
    assert_eq!(store.verify_token("anything"), Some(anyone.clone()));
    store.require_credentials();
    assert!(!store.is_open() && !may(&store, &anyone, Action::Send, "orders"));
    assert_eq!(store.verify_password("guest", "guest", HOME).await, None);
    assert_eq!(store.verify_token("anything"), None);
}

#[tokio::test]
async fn a_user_signs_in_and_does_what_was_granted() {
    let (_dir, store) = store();
    store.add_user("ana", Some("correct horse"), grants(&["send orders-*"])).unwrap();
    let store = again(&store);
    let ana = store.verify_password("ana", "correct horse", HOME).await.unwrap();
    assert_eq!(ana.name(), "ana");
    assert!(may(&store, &ana, Action::Send, "orders-eu"));
    assert!(!may(&store, &ana, Action::Receive, "orders-eu"));
    assert!(!may(&store, &ana, Action::Send, "payments"));
    assert!(!may(&store, &Principal::anonymous(), Action::Send, "orders-eu"));
    assert!(!may(&store, &Principal::named("bob"), Action::Send, "orders-eu"));
    assert_eq!(store.verify_password("ana", "wrong", HOME).await, None);
    assert_eq!(store.verify_password("bob", "correct horse", HOME).await, None);
    assert_eq!(store.verify_password("ana", "", HOME).await, None);
    assert_eq!(
        store
            .check(&ana, Action::Receive, (&QueueName::new("orders-eu").unwrap()).into())
            .unwrap_err()
            .to_string(),
        "`ana` may not receive on queue `orders-eu`: \
         `malote user grant ana receive 'orders-eu'` would allow it"
    );
}

#[tokio::test]
async fn a_cached_password_is_invalidated_when_it_changes() {
    let (_dir, store) = store();
    store.add_user("ana", Some("one"), vec![]).unwrap();
    assert!(store.verify_password("ana", "one", HOME).await.is_some());
    assert!(store.remembers("ana"));
    assert!(store.verify_password("ana", "one", HOME).await.is_some());
    assert!(store.verify_password("ana", "two", HOME).await.is_none());
    // Another process sets it; this one learns of it from the file.
    again(&store).set_password("ana", "two").unwrap();
    assert_eq!(store.reload(false), Ok(true));
    assert!(store.verify_password("ana", "one", HOME).await.is_none());
    assert!(store.verify_password("ana", "two", HOME).await.is_some());
}

#[tokio::test]
async fn a_wrong_password_is_not_cached() {
    let (_dir, store) = store();
    store.add_user("ana", Some("one"), vec![]).unwrap();
    assert!(store.verify_password("ana", "wrong", HOME).await.is_none());
    assert!(!store.remembers("ana"));
}

#[test]
fn grants_are_added_merged_and_taken_back() {
    let (_dir, store) = store();
    store.add_user("ana", None, vec![]).unwrap();
    let ana = acting_as(&store, "ana");
    store.grant("ana", &"send orders".parse().unwrap()).unwrap();
    store.grant("ana", &"receive orders".parse().unwrap()).unwrap();
    store.grant("ana", &"manage *".parse().unwrap()).unwrap();
    assert_eq!(store.list().users[0].grants, grants(&["send,receive orders", "manage *"]));
    assert_eq!(store.revoke("ana", &"send orders".parse().unwrap()).ok(), Some(true));
    assert_eq!(store.revoke("ana", &"send orders".parse().unwrap()).ok(), Some(false));
    assert!(!may(&store, &ana, Action::Send, "orders"));
    assert!(may(&store, &ana, Action::Receive, "orders"));
    assert!(may(&store, &ana, Action::Manage, "anything"));
}

#[test]
fn a_token_is_shown_once_and_stored_as_a_hash() {
    let (_dir, store) = store();
    store.add_user("ana", None, grants(&["send *"])).unwrap();
    let of_ana = store.add_token("laptop", Holder::User("ana".to_owned())).unwrap();
    let own = store.add_token("ci", Holder::Own(grants(&["receive builds"]))).unwrap();
    let text = files::read_text(store.path()).unwrap();
    assert!(!text.contains(&of_ana.token) && !text.contains(&own.token));

    let store = again(&store);
    assert_eq!(store.verify_token(&of_ana.token).unwrap().name(), "ana");
    let ci = store.verify_token(&own.token).unwrap();
    assert_eq!(ci.name(), "token:ci");
    assert!(may(&store, &ci, Action::Receive, "builds"));
    assert!(!may(&store, &ci, Action::Send, "builds"));
    assert_eq!(store.verify_token("malote_guess"), None);
    store.remove_token("ci").unwrap();
    assert_eq!(store.verify_token(&own.token), None);
    assert!(!may(&store, &ci, Action::Receive, "builds"));
}

#[test]
fn a_key_gives_its_secret_to_the_front_end_that_checks_signatures() {
    let (_dir, store) = store();
    store.add_user("ana", None, grants(&["send *"])).unwrap();
    let made = store.add_key(KeyKind::Aws, None, None, Holder::User("ana".to_owned())).unwrap();
    assert!(made.id.starts_with("AKIA") && made.id.len() == 20 && made.secret.len() == 40);
    let given = store
        .add_key(
            KeyKind::ServiceBus,
            Some("Sender"),
            Some("c2VjcmV0"),
            Holder::Own(grants(&["send q"])),
        )
        .unwrap();
    assert_eq!(given.secret, "c2VjcmV0");

    let store = again(&store);
    let found = store.secret_of(KeyKind::Aws, &made.id).unwrap();
    assert_eq!((&*found.secret, found.principal.name()), (made.secret.as_str(), "ana"));
    let found = store.secret_of(KeyKind::ServiceBus, "Sender").unwrap();
    assert_eq!(found.principal.name(), "key:Sender");
    assert!(may(&store, &found.principal, Action::Send, "q"));
    assert!(store.secret_of(KeyKind::Aws, "Sender").is_none());
    store.grant("key:Sender", &"receive q".parse().unwrap()).unwrap();
    assert!(may(&store, &found.principal, Action::Receive, "q"));
    let refused = store.grant(&format!("key:{}", made.id), &"receive q".parse().unwrap());
    assert!(refused.unwrap_err().to_string().ends_with("change the grants of `ana`"));
}

#[test]
fn removing_a_user_removes_its_keys_and_tokens() {
    let (_dir, store) = store();
    store.add_user("ana", None, grants(&["send *"])).unwrap();
    store.add_user("bob", None, vec![]).unwrap();
    let token = store.add_token("t", Holder::User("ana".to_owned())).unwrap();
    let key = store.add_key(KeyKind::Aws, None, None, Holder::User("ana".to_owned())).unwrap();
    let ana = store.verify_token(&token.token).unwrap();
    assert!(may(&store, &ana, Action::Send, "q") && store.knows(&ana));
    store.remove_user("ana").unwrap();
    assert_eq!(store.verify_token(&token.token), None);
    assert!(!may(&store, &ana, Action::Send, "q") && !store.knows(&ana));
    assert!(store.secret_of(KeyKind::Aws, &key.id).is_none());
    assert_eq!(store.list().users.len(), 1);
}

#[test]
fn mistakes_are_refused_and_change_nothing() {
    let (_dir, store) = store();
    store.add_user("ana", Some("x"), vec![]).unwrap();
    let before = files::read_text(store.path()).unwrap();
    let error_text = |result: Result<(), CredentialsError>| result.unwrap_err().to_string();
    assert_eq!(error_text(store.add_user("ana", None, vec![])), "user `ana` already exists");
    assert!(error_text(store.add_user("a:b", None, vec![])).starts_with("invalid name `a:b`"));
    assert!(
        error_text(store.add_user("bob", Some(""), vec![]))
            .starts_with("a password must have 1 to")
    );
    assert!(error_text(store.remove_user("bob")).starts_with("user `bob` does not exist"));
    assert!(store.add_token("t", Holder::User("bob".to_owned())).is_err());
    assert!(store.add_key(KeyKind::Aws, None, Some(""), Holder::Own(vec![])).is_err());
    assert_eq!(files::read_text(store.path()).unwrap(), before);
}

#[test]
fn two_processes_do_not_lose_each_others_changes() {
    let (_dir, first) = store();
    let second = again(&first);
    std::thread::scope(|scope| {
        for (store, letter) in [(&first, 'a'), (&second, 'b')] {
            scope.spawn(move || {
                for number in 0..20 {
                    store.add_user(&format!("{letter}{number}"), None, vec![]).unwrap();
                }
            });
        }
    });
    assert_eq!(again(&first).list().users.len(), 40);
}

#[test]
fn a_running_server_keeps_its_credentials_if_the_file_becomes_invalid_or_missing() {
    let (_dir, store) = store();
    assert_eq!(store.reload(true), Ok(false));
    again(&store).add_user("ana", None, grants(&["send *"])).unwrap();
    assert_eq!(store.reload(false), Ok(true));
    assert_eq!(store.reload(false), Ok(false));
    let ana = acting_as(&store, "ana");

    for broken in ["nonsense", "version = 4", "version = 1\n[[user]]\nname = 'a'\nextra = 1"] {
        files::write_private(store.path(), broken.as_bytes()).unwrap();
        let error = store.reload(false).unwrap_err();
        assert!(error.contains("cannot be used"), "{error}");
        assert!(may(&store, &ana, Action::Send, "q"));
        assert!(Store::open(store.path()).is_err());
    }
    let away = store.path().with_extension("away");
    #[allow(clippy::disallowed_methods, reason = "takes the file away, as an operator would")]
    std::fs::rename(store.path(), away).unwrap();
    assert!(store.reload(false).unwrap_err().ends_with("does not exist any more"));
    assert!(!store.is_open() && may(&store, &ana, Action::Send, "q"));
}

#[test]
fn the_file_is_private_and_its_errors_quote_no_secret() {
    let (_dir, store) = store();
    store.add_key(KeyKind::Aws, Some("AKIA1"), Some("hunter2"), Holder::Own(vec![])).unwrap();
    assert!(!files::readable_by_others(store.path()));
    let text = files::read_text(store.path()).unwrap().replace("\"hunter2\"", "\"hunter2");
    files::write_private(store.path(), text.as_bytes()).unwrap();
    let error = Store::open(store.path()).unwrap_err().to_string();
    assert!(error.contains("line ") && !error.contains("hunter2"), "{error}");
    assert!(!format!("{store:?}").contains("hunter2"));
}

#[test]
fn the_first_admin_is_made_once() {
    let (_dir, store) = store();
    let env = [("HOME", "/h"), ("MALOTE_ADMIN_PASSWORD", "x")].into_iter().collect();
    let none = std::path::Path::new("/dev/null");
    let settings = crate::settings::Settings::load(Some(none), Default::default(), &env).unwrap();
    let password = settings.admin_password.unwrap();
    assert_eq!(store.add_first_admin(&password).ok(), Some(true));
    assert_eq!(store.add_first_admin(&password).ok(), Some(false));
    let admin = acting_as(&store, "admin");
    assert!(may(&store, &admin, Action::Manage, "anything/at/all"));
}

#[test]
fn kinds_of_keys_are_called_the_same_everywhere() {
    let (_dir, store) = store();
    for kind in [KeyKind::Aws, KeyKind::ServiceBus] {
        assert_eq!(kind.to_string().parse(), Ok(kind));
        store.add_key(kind, None, None, Holder::Own(vec![])).unwrap();
        let text = files::read_text(store.path()).unwrap();
        assert!(text.contains(&format!("kind = \"{kind}\"")), "{text}");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
    /// Any content of the file gives an answer, and no content opens the server by accident.
    #[test]
    fn no_file_panics(text in "(version = [12]\n)?(\\[\\[(user|key|token)\\]\\]\n)?(name|id|grants|ü)? ?=? ?['\"\\[]?[a-zé* \n]{0,20}") {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CREDENTIALS_FILE);
        files::write_private(&path, text.as_bytes()).unwrap();
        let _ = Store::open(path);
    }
}

/// Every change of permissions is a new version and invalidates the caller's old credential.
#[tokio::test]
async fn a_change_wakes_waiting_tasks_and_invalidates_old_credentials() {
    let (_dir, store) = store();
    store.add_user("ana", Some("one"), grants(&["send q"])).unwrap();
    let key = store.add_key(KeyKind::ServiceBus, Some("k"), None, Holder::User("ana".to_owned()));
    let key = key.map(|key| store.secret_of(KeyKind::ServiceBus, &key.id).unwrap().principal);
    let (by_password, by_key) =
        (store.verify_password("ana", "one", HOME).await.unwrap(), key.unwrap());
    for who in [&by_password, &by_key] {
        assert!(may(&store, who, Action::Send, "q"));
    }
    let seen = store.version();
    let waiting = store.changed(seen);
    // Another process removes the key; this one learns of it from the file.
    again(&store).remove_key("k").unwrap();
    assert_eq!(store.reload(false), Ok(true));
    assert_ne!(waiting.await, seen);
    assert!(!may(&store, &by_key, Action::Send, "q") && !store.knows(&by_key));
    assert!(may(&store, &by_password, Action::Send, "q"));
    store.set_password("ana", "two").unwrap();
    assert!(!may(&store, &by_password, Action::Send, "q") && !store.knows(&by_password));
    let (seen, by_password) =
        (store.version(), store.verify_password("ana", "two", HOME).await.unwrap());
    store.revoke("ana", &"send q".parse().unwrap()).unwrap();
    assert_ne!(store.changed(seen).await, seen);
    assert!(!may(&store, &by_password, Action::Send, "q") && store.knows(&by_password));
}

#[test]
fn a_version_1_file_keeps_its_meaning_and_an_older_server_refuses_the_new_version() {
    let (_dir, store) = store();
    store.add_user("ana", None, vec![]).unwrap();
    let first =
        "version = 1\n[[user]]\nname = 'ana'\ngrants = ['send team-*', 'receive *', 'manage a']\n";
    files::write_private(store.path(), first.as_bytes()).unwrap();
    let store = again(&store);
    let ana = acting_as(&store, "ana");
    assert!(
        may(&store, &ana, Action::Send, "team-a/b") && may(&store, &ana, Action::Receive, "x/y")
    );
    assert_eq!(store.list().users[0].grants, grants(&["send team-**", "receive *", "manage a"]));
    let text = files::read_text(store.path()).unwrap();
    assert!(text.contains("version = 3") && text.contains("send team-**"), "{text}");
}

/// A flood of wrong passwords from one address does not delay logins from other addresses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_logins_does_not_delay_other_peers() {
    const FLOOD: usize = 40;
    let (_dir, store) = store();
    store.add_user("ana", Some("good"), vec![]).unwrap();
    let store = std::sync::Arc::new(store);
    let elsewhere = IpAddr::from([10, 0, 0, 66]);
    let done = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let flood: Vec<_> = (0..FLOOD)
        .map(|at| {
            let (store, done) = (store.clone(), done.clone());
            tokio::spawn(async move {
                let name = format!("nobody-{at}");
                assert_eq!(store.verify_password(&name, "guess", elsewhere).await, None);
                done.fetch_add(1, std::sync::atomic::Ordering::SeqCst)
            })
        })
        .collect();
    while done.load(std::sync::atomic::Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    assert!(store.verify_password("ana", "good", HOME).await.is_some());
    // In order of arrival, it would have been the last.
    let before = done.load(std::sync::atomic::Ordering::SeqCst);
    assert!(before < FLOOD / 2, "{before} of {FLOOD} came before");
    for one in flood {
        one.await.unwrap();
    }
}

#[test]
fn every_change_is_reported_without_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join(CREDENTIALS_FILE)).unwrap();
    let changes = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let seen = changes.clone();
    store.on_change(move |action, object, detail| {
        seen.lock().push(format!("{action} {object} {detail}"));
    });
    let grant: Grant = "send orders-*".parse().unwrap();
    store.add_user("ana", Some("hunter2"), vec![grant.clone()]).unwrap();
    store.add_user("ana", None, Vec::new()).unwrap_err();
    store.set_password("ana", "hunter3").unwrap();
    store.grant("ana", &grant).unwrap();
    assert!(store.revoke("ana", &grant).unwrap());
    assert!(!store.revoke("ana", &grant).unwrap());
    let key = store.add_key(KeyKind::Aws, Some("AK"), None, Holder::User("ana".into())).unwrap();
    let token = store.add_token("ci", Holder::Own(vec![grant])).unwrap();
    store.remove_key("AK").unwrap();
    store.remove_token("ci").unwrap();
    store.remove_user("ana").unwrap();
    store.reopen().unwrap();
    let changes = changes.lock().join("\n");
    expect_test::expect![[r#"
        user_add ana send orders-*
        password_set ana 
        grant ana send orders-*
        revoke ana send orders-*
        key_add AK aws: for ana
        token_add ci send orders-*
        key_remove AK 
        token_remove ci 
        user_remove ana 
        open  "#]]
    .assert_eq(&changes);
    for secret in ["hunter", &key.secret, &token.token] {
        assert!(!changes.contains(secret));
    }
}
