//! The store as its users see it: the command line that changes it, the server that reads it.

use super::*;
use crate::files;
use crate::reload::Reload;
use malote_model::access::{Access, Action, Principal};

fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("data").join(CREDENTIALS_FILE)).unwrap();
    (dir, store)
}

fn again(store: &Store) -> Store {
    Store::open(store.path()).unwrap()
}

fn grants(texts: &[&str]) -> Vec<Grant> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn may(store: &Store, who: &Principal, action: Action, queue: &str) -> bool {
    store.check(who, action, queue).is_ok()
}

#[tokio::test]
async fn an_empty_store_is_open_until_credentials_are_required() {
    let (_dir, store) = store();
    let anyone = Principal::anonymous();
    assert!(store.is_open() && may(&store, &anyone, Action::Manage, "orders"));
    assert_eq!(store.verify_password("guest", "guest").await, Some(anyone.clone()));
    assert_eq!(store.verify_token("anything"), Some(anyone.clone()));
    store.require_credentials();
    assert!(!store.is_open() && !may(&store, &anyone, Action::Send, "orders"));
    assert_eq!(store.verify_password("guest", "guest").await, None);
    assert_eq!(store.verify_token("anything"), None);
}

#[tokio::test]
async fn a_user_signs_in_and_does_what_was_granted() {
    let (_dir, store) = store();
    store.add_user("ana", Some("correct horse"), grants(&["send orders-*"])).unwrap();
    let store = again(&store);
    let ana = store.verify_password("ana", "correct horse").await.unwrap();
    assert_eq!(ana, Principal::named("ana"));
    assert!(may(&store, &ana, Action::Send, "orders-eu"));
    assert!(!may(&store, &ana, Action::Receive, "orders-eu"));
    assert!(!may(&store, &ana, Action::Send, "payments"));
    assert!(!may(&store, &Principal::anonymous(), Action::Send, "orders-eu"));
    assert!(!may(&store, &Principal::named("bob"), Action::Send, "orders-eu"));
    assert_eq!(store.verify_password("ana", "wrong").await, None);
    assert_eq!(store.verify_password("bob", "correct horse").await, None);
    assert_eq!(store.verify_password("ana", "").await, None);
    assert_eq!(
        store.check(&ana, Action::Receive, "orders-eu").unwrap_err().to_string(),
        "`ana` may not receive on queue `orders-eu`: \
         `malote user grant ana receive 'orders-eu'` would allow it"
    );
}

#[tokio::test]
async fn a_remembered_password_is_forgotten_when_it_changes() {
    let (_dir, store) = store();
    store.add_user("ana", Some("one"), vec![]).unwrap();
    assert!(store.verify_password("ana", "one").await.is_some());
    assert!(store.remembers("ana"));
    assert!(store.verify_password("ana", "one").await.is_some());
    assert!(store.verify_password("ana", "two").await.is_none());
    // Another process sets it; this one learns of it from the file.
    again(&store).set_password("ana", "two").unwrap();
    assert_eq!(store.reload(false), Ok(true));
    assert!(store.verify_password("ana", "one").await.is_none());
    assert!(store.verify_password("ana", "two").await.is_some());
}

#[tokio::test]
async fn nobody_is_remembered_for_a_wrong_password() {
    let (_dir, store) = store();
    store.add_user("ana", Some("one"), vec![]).unwrap();
    assert!(store.verify_password("ana", "wrong").await.is_none());
    assert!(!store.remembers("ana"));
}

#[test]
fn grants_are_added_merged_and_taken_back() {
    let (_dir, store) = store();
    store.add_user("ana", None, vec![]).unwrap();
    let ana = Principal::named("ana");
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
    assert_eq!(store.verify_token(&of_ana.token), Some(Principal::named("ana")));
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
fn a_removed_user_takes_its_keys_and_tokens_along() {
    let (_dir, store) = store();
    store.add_user("ana", None, grants(&["send *"])).unwrap();
    store.add_user("bob", None, vec![]).unwrap();
    let token = store.add_token("t", Holder::User("ana".to_owned())).unwrap();
    let key = store.add_key(KeyKind::Aws, None, None, Holder::User("ana".to_owned())).unwrap();
    store.remove_user("ana").unwrap();
    assert_eq!(store.verify_token(&token.token), None);
    assert!(store.secret_of(KeyKind::Aws, &key.id).is_none());
    assert!(!may(&store, &Principal::named("ana"), Action::Send, "q"));
    assert_eq!(store.list().users.len(), 1);
}

#[test]
fn mistakes_are_refused_and_change_nothing() {
    let (_dir, store) = store();
    store.add_user("ana", Some("x"), vec![]).unwrap();
    let before = files::read_text(store.path()).unwrap();
    let told = |result: Result<(), CredentialsError>| result.unwrap_err().to_string();
    assert_eq!(told(store.add_user("ana", None, vec![])), "the user `ana` exists already");
    assert!(told(store.add_user("a:b", None, vec![])).starts_with("`a:b` cannot be a name"));
    assert!(told(store.add_user("bob", Some(""), vec![])).starts_with("a password has 1 to"));
    assert!(told(store.remove_user("bob")).starts_with("there is no user `bob`"));
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
fn a_running_server_keeps_what_it_had_when_the_file_breaks_or_goes() {
    let (_dir, store) = store();
    assert_eq!(store.reload(true), Ok(false));
    again(&store).add_user("ana", None, grants(&["send *"])).unwrap();
    assert_eq!(store.reload(false), Ok(true));
    assert_eq!(store.reload(false), Ok(false));
    let ana = Principal::named("ana");

    for broken in ["nonsense", "version = 2", "version = 1\n[[user]]\nname = 'a'\nextra = 1"] {
        files::write_private(store.path(), broken.as_bytes()).unwrap();
        let error = store.reload(false).unwrap_err();
        assert!(error.contains("cannot be used"), "{error}");
        assert!(may(&store, &ana, Action::Send, "q"));
        assert!(Store::open(store.path()).is_err());
    }
    let away = store.path().with_extension("away");
    #[allow(clippy::disallowed_methods, reason = "takes the file away, as an operator would")]
    std::fs::rename(store.path(), away).unwrap();
    assert!(store.reload(false).unwrap_err().ends_with("is gone"));
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
    assert!(may(&store, &Principal::named("admin"), Action::Manage, "anything"));
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
    /// Whatever is in the file, opening it answers; and a file that opens never opens the door
    /// by accident.
    #[test]
    fn no_file_panics(text in "(version = 1\n)?(\\[\\[(user|key|token)\\]\\]\n)?(name|id|grants|ü)? ?=? ?['\"\\[]?[a-zé* \n]{0,20}") {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CREDENTIALS_FILE);
        files::write_private(&path, text.as_bytes()).unwrap();
        let _ = Store::open(path);
    }
}
