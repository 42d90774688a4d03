//! Tests of RabbitMQ's tags, permissions and password hashes.

use super::tests::{HOME, again, grants, may, store};
use super::*;
use crate::files;
use data_encoding::BASE64;
use malote_front_amqp091::users::{
    HashAlgorithm, NewPassword, StoredPassword, TopicPermission, UserChange, VhostPermission,
};
use malote_model::access::{Access as _, Action, Principal, Resource};
use malote_model::{QueueName, TopicName};
use sha2::{Digest, Sha256, Sha512};

fn permission(vhost: &str, configure: &str, write: &str, read: &str) -> VhostPermission {
    let pattern = |text: &str| text.parse().unwrap();
    VhostPermission {
        vhost: vhost.to_owned(),
        configure: pattern(configure),
        write: pattern(write),
        read: pattern(read),
    }
}

fn put(name: &str, password: NewPassword) -> UserChange {
    UserChange::Put { name: name.to_owned(), password, tags: vec!["management".to_owned()] }
}

fn permit(user: &str, permission: VhostPermission) -> UserChange {
    UserChange::Permit { user: user.to_owned(), permission }
}

/// RabbitMQ's hash of a password.
fn rabbitmq_hash(password: &str, algorithm: HashAlgorithm) -> NewPassword {
    let salted = [b"salt", password.as_bytes()].concat();
    let digest = match algorithm {
        HashAlgorithm::Sha256 => Sha256::digest(&salted).to_vec(),
        HashAlgorithm::Sha512 => Sha512::digest(&salted).to_vec(),
    };
    let hash = BASE64.encode(&[&b"salt"[..], &digest].concat());
    NewPassword::Stored(StoredPassword::Rabbitmq { hash, algorithm })
}

#[tokio::test]
async fn permissions_are_checked_on_the_name_that_rabbitmq_shows() {
    let (_dir, store) = store();
    let rules = permission("/", "^c", "^(w|amq\\.default)", "^r");
    store
        .change_users(vec![
            put("ana", NewPassword::Plain("x".into())),
            permit("ana", rules),
            permit("ana", permission("dev", "", ".*", "")),
        ])
        .unwrap();
    let store = again(&store);
    let ana = store.verify_password("ana", "x", HOME).await.unwrap();
    for (action, name, expected) in [
        (Action::Manage, "c1", true),
        (Action::Manage, "w1", false),
        (Action::Send, "w1", true),
        (Action::Send, "c1", false),
        (Action::Receive, "r1", true),
        (Action::Receive, "w1", false),
        // In the virtual host `dev`.
        (Action::Send, "~dev/orders", true),
        (Action::Receive, "~dev/orders", false),
        (Action::Manage, "~dev/c1", false),
        // Without a permission there.
        (Action::Send, "~test/w1", false),
        // The name that a client gave, not the encoded one.
        (Action::Receive, "r%40x", true),
    ] {
        assert_eq!(may(&store, &ana, action, name), expected, "{action} {name}");
    }
    assert!(store.check(&ana, Action::Manage, Resource::EVERYTHING).is_err());
    assert!(!may(&store, &Principal::named("ana"), Action::Send, "w1"), "not signed in");

    // Through the default exchange, the exchange counts and not the queue.
    let (queue, exchange) = (QueueName::new("c1").unwrap(), TopicName::new("amq.default").unwrap());
    let through = Resource::from(&queue).through(&exchange);
    assert!(store.check(&ana, Action::Send, through).is_ok());
    assert!(store.check(&ana, Action::Send, (&queue).into()).is_err());
}

#[test]
fn a_virtual_host_is_open_to_permissions_and_to_grants() {
    let (_dir, store) = store();
    store.add_user("granted", None, grants(&["send orders"])).unwrap();
    store.add_user("nobody", None, vec![]).unwrap();
    store.add_user("root", None, vec![Grant::everything()]).unwrap();
    store
        .change_users(vec![
            put("ana", NewPassword::None),
            permit("ana", permission("/", "", "", "")),
        ])
        .unwrap();
    let enters = |user: &str, vhost: &str| store.may_enter(&Principal::named(user), vhost);
    assert!(enters("ana", "/") && !enters("ana", "dev"));
    assert!(enters("granted", "/") && enters("granted", "dev"));
    assert!(!enters("nobody", "/"));
    assert!(store.has_permission(&Principal::named("ana"), "/"));
    assert!(!store.has_permission(&Principal::named("granted"), "/"));

    store.change_users(vec![UserChange::Forbid { user: "ana".into(), vhost: "/".into() }]).unwrap();
    assert!(!enters("ana", "/"));
    store.change_users(vec![permit("ana", permission("old", ".*", ".*", ".*"))]).unwrap();
    store.change_users(vec![UserChange::ForgetVhost { vhost: "old".into() }]).unwrap();
    assert!(!enters("ana", "old"));
}

#[tokio::test]
async fn hashes_of_rabbitmq_are_verified_and_shown_as_they_came() {
    let (_dir, store) = store();
    let hash = rabbitmq_hash("secret", HashAlgorithm::Sha256);
    store
        .change_users(vec![
            put("ana", hash.clone()),
            put("bob", rabbitmq_hash("secret", HashAlgorithm::Sha512)),
            put("carl", rabbitmq_hash("", HashAlgorithm::Sha256)),
        ])
        .unwrap();
    let store = again(&store);
    for (user, password, good) in [
        ("ana", "secret", true),
        ("ana", "Secret", false),
        ("bob", "secret", true),
        ("bob", "", false),
        ("carl", "", false),
    ] {
        let found = store.verify_password(user, password, HOME).await;
        assert_eq!(found.is_some(), good, "{user} {password}");
    }
    assert!(NewPassword::Stored(store.user_entries()[0].password.clone()) == hash);
    // Known answer of RabbitMQ 3.10 for the password `secret`.
    let real = StoredPassword::Rabbitmq {
        hash: "Q4OiJwN3ATOvckWvg7jKmShdXoJxIi0vcThb7bbcGfWik3FQ".into(),
        algorithm: HashAlgorithm::Sha256,
    };
    store.change_users(vec![put("real", NewPassword::Stored(real))]).unwrap();
    assert!(store.verify_password("real", "secret", HOME).await.is_some());
    // A new password replaces the hash.
    store.set_password("real", "other").unwrap();
    assert!(store.verify_password("real", "secret", HOME).await.is_none());
    let entries = store.user_entries();
    let native = &entries.iter().find(|user| user.name == "real").unwrap().password;
    assert!(matches!(native, StoredPassword::Native(hash) if hash.starts_with("$argon2id$")));
    // Malote's own form is accepted again.
    store.change_users(vec![put("copy", NewPassword::Stored(native.clone()))]).unwrap();
    assert!(store.verify_password("copy", "other", HOME).await.is_some());
}

#[test]
fn a_change_is_made_as_a_whole_or_not_at_all() {
    let (_dir, store) = store();
    store.change_users(vec![put("ana", NewPassword::None)]).unwrap();
    let before = files::read_text(store.path()).unwrap();
    let bad_hash = |hash: &str| {
        let (hash, algorithm) = (hash.to_owned(), HashAlgorithm::Sha256);
        NewPassword::Stored(StoredPassword::Rabbitmq { hash, algorithm })
    };
    let mut wrong = vec![
        vec![put("bob", NewPassword::None), permit("ghost", permission("/", "", "", ""))],
        vec![put("bob", NewPassword::None), put("a b", NewPassword::None)],
        vec![put("bob", bad_hash("not base64"))],
        vec![put("bob", bad_hash("c2hvcnQ="))],
        vec![put("bob", NewPassword::Stored(StoredPassword::Native("$argon2id$x".into())))],
        vec![UserChange::Delete { name: "bob".into() }],
    ];
    for tag in ["", "a,b", &"x".repeat(200)] {
        let (name, password) = ("bob".to_owned(), NewPassword::None);
        wrong.push(vec![UserChange::Put { name, password, tags: vec![tag.to_owned()] }]);
    }
    for changes in wrong {
        store.change_users(changes).unwrap_err();
        assert_eq!(files::read_text(store.path()).unwrap(), before);
    }
}

#[test]
fn a_file_of_the_second_version_is_read_and_rewritten() {
    let (_dir, store) = store();
    store.add_user("ana", None, grants(&["send a*"])).unwrap();
    let text = files::read_text(store.path()).unwrap().replace("version = 3", "version = 2");
    files::write_private(store.path(), text.as_bytes()).unwrap();
    let store = again(&store);
    assert_eq!(store.list().users[0].grants, grants(&["send a*"]));
    store.set_tags("ana", vec!["monitoring".into()]).unwrap();
    assert!(files::read_text(store.path()).unwrap().contains("version = 3"));
    assert_eq!(again(&store).list().users[0].tags, ["monitoring"]);
    // An expression that cannot be used makes the file unusable, rather than a permission that means something else.
    let broken = files::read_text(store.path()).unwrap()
        + "\n[[user.permission]]\nvhost = '/'\nconfigure = '('\nwrite = ''\nread = ''\n";
    files::write_private(store.path(), broken.as_bytes()).unwrap();
    assert!(Store::open(store.path()).unwrap_err().to_string().contains("unclosed group"));
}

#[test]
fn tags_and_topic_permissions_belong_to_their_user() {
    let (_dir, store) = store();
    store.add_user("root", None, vec![Grant::everything()]).unwrap();
    let topic = TopicPermission {
        vhost: "/".into(),
        exchange: "events".into(),
        write: "^eu\\.".parse().unwrap(),
        read: "".parse().unwrap(),
    };
    let permit = UserChange::PermitTopic { user: "ana".into(), permission: topic };
    store.change_users(vec![put("ana", NewPassword::None), permit]).unwrap();
    let ana = Principal::named("ana");
    let key =
        |action, exchange: &str, key: &str| store.may_use_key(&ana, action, "/", exchange, key);
    assert!(key(Action::Send, "events", "eu.x") && !key(Action::Send, "events", "us.x"));
    assert!(!key(Action::Receive, "events", "eu.x") && key(Action::Receive, "other", "eu.x"));
    assert_eq!(store.tags(&ana), ["management"]);
    assert!(store.tags(&Principal::named("bob")).is_empty());
    // Who may manage everything is an administrator.
    let token = store.add_token("t", Holder::User("root".into())).unwrap();
    assert_eq!(store.tags(&store.verify_token(&token.token).unwrap()), ["administrator"]);
}

#[test]
fn a_change_that_would_make_the_file_unreadable_is_refused() {
    let (_dir, store) = store();
    store.add_user("ana", None, Vec::new()).unwrap();
    let tags: Vec<String> = (0..32).map(|number| format!("{number:0>128}")).collect();
    let users = (0..4_200).map(|number| UserChange::Put {
        name: format!("user-{number}"),
        password: NewPassword::None,
        tags: tags.clone(),
    });
    let error = store.change_users(users.collect()).unwrap_err();
    assert!(matches!(error, CredentialsError::Unwritable { .. }), "{error}");
    assert_eq!(store.user_entries().len(), 1);
    assert_eq!(again(&store).user_entries().len(), 1);
}
