//! Tests of the layers, and of the error messages.

use super::*;
use expect_test::{Expect, expect};
use std::time::Duration;

const HOME: &[(&str, &str)] = &[("HOME", "/nowhere")];

fn load(file: &str, env: &[(&str, &str)], flags: RawSettings) -> Result<Settings, SettingsError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("malote.toml");
    crate::files::write_private(&path, file.as_bytes()).unwrap();
    let env = HOME.iter().chain(env).copied().collect();
    Settings::load(Some(&path), flags, &env)
}

/// The output for the user, without the temporary directory.
fn check(file: &str, env: &[(&str, &str)], flags: RawSettings, expect: Expect) {
    let text = match load(file, env, flags) {
        Ok(settings) => settings.to_toml(),
        Err(error) => error.to_string(),
    };
    let text: Vec<String> = text
        .lines()
        .map(|line| {
            line.split(' ')
                .map(|word| match word.rsplit_once("/malote.toml") {
                    Some((_, rest)) => format!("malote.toml{rest}"),
                    None => word.to_owned(),
                })
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect();
    expect.assert_eq(&text.join("\n"));
}

#[test]
fn flag_beats_environment_beats_file_beats_default() {
    check(
        "http = 1001\nsqs = \"1002\"\namqp = \"off\"\n[limits]\nconnections = 10\n[log]\nfilter = 'warn'",
        &[("MALOTE_HTTP", "2001"), ("MALOTE_SQS", ":2002"), ("MALOTE_LOG_FORMAT", "json")],
        RawSettings {
            http: Some("3001".to_owned()),
            tls_self_signed: Some("true".to_owned()),
            admin_password: Some("hunter2".to_owned()),
            ..RawSettings::default()
        },
        expect![[r#"
            http = "127.0.0.1:3001" # --http
            sqs = "0.0.0.0:2002" # MALOTE_SQS
            amqp = "off" # malote.toml
            amqps = "off" # default
            servicebus_admin = "127.0.0.1:5300" # default
            data = "/nowhere/.local/share/malote" # default
            # servicebus_config is not set
            # rabbitmq_vhosts is not set
            rabbitmq_consumer_timeout = "30m" # default
            # public_url is not set
            sqs_account = "000000000000" # default
            sqs_purge_pause = "60s" # default
            allow_open = false # default
            drain_timeout = "25s" # default
            # admin_password is set by admin_password
            scrub = "4MiB" # default

            [log]
            filter = "warn" # malote.toml
            format = "json" # MALOTE_LOG_FORMAT

            [tls]
            # cert is not set
            # key is not set
            self_signed = true # --tls-self-signed
            # names is not set
            required = false # default

            [limits]
            connections = 10 # malote.toml
            handshake_timeout = "10s" # default
            header_timeout = "15s" # default
            idle_timeout = "5m" # default"#]],
    );
}

#[test]
fn printed_settings_are_a_settings_file() {
    let settings = load("http = 'off'\n[limits]\nconnections = 10", &[], RawSettings::default());
    let printed = settings.unwrap().to_toml();
    let again = load(&printed, &[], RawSettings::default()).unwrap();
    assert_eq!(again.listeners.http, Listen::Off);
    assert_eq!(again.limits.connections_max, 10);
    assert!(again.entries().iter().all(|e| e.value.is_none() || e.origin != Origin::Default));
}

#[test]
fn names_of_a_self_signed_certificate_come_from_file_environment_and_flags() {
    let names = |text: &str, env: &[(&str, &str)], flags: RawSettings| match load(text, env, flags)
        .unwrap()
        .tls
        .certificate
    {
        Certificate::SelfSigned { names } => names.join(" "),
        other => panic!("{other:?}"),
    };
    let none = RawSettings::default;
    let file =
        "[tls]\nself_signed = true\nnames = ['Broker', 'mq.example.com', '10.0.0.7', 'broker']";
    assert_eq!(names(file, &[], none()), "broker mq.example.com 10.0.0.7");
    assert_eq!(names(file, &[("MALOTE_TLS_NAMES", "a, *.b.example")], none()), "a *.b.example");
    let flags = RawSettings { tls_names: Some("::1,c".to_owned()), ..none() };
    assert_eq!(names(file, &[], flags), "::1 c");
    let printed = load(file, &[], none()).unwrap().to_toml();
    assert_eq!(names(&printed, &[], none()), "broker mq.example.com 10.0.0.7");
    for wrong in [
        "[tls]\nself_signed = true\nnames = ['a b']",
        "[tls]\nself_signed = true\nnames = ['https://a']",
        "[tls]\nself_signed = true\nnames = 'a,,b'",
        "[tls]\nself_signed = true\nnames = [['a']]",
        "[tls]\nnames = ['a']",
        "http = ['1']",
    ] {
        load(wrong, &[], none()).unwrap_err();
    }
}

#[test]
fn sqs_settings_are_checked() {
    let text = "public_url = 'https://queues.example.com/sqs/'\nsqs_account = '012345678901'\nsqs_purge_pause = 'off'";
    let sqs = load(text, &[], RawSettings::default()).unwrap().sqs;
    assert_eq!(sqs.public_url.as_deref(), Some("https://queues.example.com/sqs"));
    assert_eq!((sqs.account.as_str(), sqs.purge_pause), ("012345678901", Duration::ZERO));
    for wrong in [
        "public_url = 'queues.example.com'",
        "public_url = 'https://'",
        "public_url = 'ftp://queues.example.com'",
        "public_url = 'https://queues.example.com/?a=b'",
        "sqs_account = '1234'",
        "sqs_account = '12345678901x'",
        "sqs_purge_pause = 'never'",
    ] {
        assert!(load(wrong, &[], RawSettings::default()).is_err(), "{wrong}");
    }
}

#[test]
fn entries_follow_the_list_of_settings() {
    let settings = load("", &[], RawSettings::default()).unwrap();
    let names: Vec<_> = settings.entries().iter().map(|entry| entry.key).collect();
    assert_eq!(names, KEYS);
}

#[test]
fn all_mistakes_are_reported_together_with_suggestions() {
    check(
        "htpt = 1\ncolour = 'red'\namqps = [1]\n[limits]\nconections = 3\nidle_timeout = '30'\n[log]\nformat = 'xml'",
        &[
            ("MALOTE_SQSS", "1"),
            ("MALOTE_AMQP", "localhost"),
            ("MALOTE_TLS_CERT", "x.pem"),
            ("MALOTE_NONSENSE", ""),
        ],
        RawSettings { drain_timeout: Some("0s".to_owned()), ..RawSettings::default() },
        expect![[r#"
            unknown environment variable `MALOTE_NONSENSE`
            unknown environment variable `MALOTE_SQSS`; did you mean `MALOTE_SQS`?
            malote.toml: `amqps` must be a single value
            malote.toml: unknown setting `colour`
            malote.toml: unknown setting `htpt`; did you mean `http`?
            malote.toml: unknown setting `limits.conections`; did you mean `limits.connections`?
            `amqp` is `localhost` (from MALOTE_AMQP): expected host:port, :port (all interfaces), port (loopback only) or off
            `drain_timeout` is `0s` (from --drain-timeout): expected a duration above 0
            `log.format` is `xml` (from malote.toml): expected auto, human or json
            a certificate needs its key: set both `tls.cert` and `tls.key`
            `limits.idle_timeout` is `30` (from malote.toml): expected a duration such as 500ms, 30s, 1m30s or PT30S"#]],
    );
}

#[test]
fn a_syntax_error_is_reported_with_its_line() {
    check(
        "http = 1\nsqs = = 2",
        &[],
        RawSettings::default(),
        expect!["malote.toml, line 2: extra `=`, expected nothing"],
    );
}

#[test]
fn a_named_file_must_exist_and_the_usual_places_may_be_empty() {
    let env = HOME.iter().copied().collect();
    let error = Settings::load(Some(Path::new("/nowhere/x.toml")), RawSettings::default(), &env);
    assert!(error.unwrap_err().to_string().starts_with("cannot read /nowhere/x.toml: "));
    let env = [("HOME", "/nowhere"), ("MALOTE_CONFIG", "/nowhere/y.toml")].into_iter().collect();
    assert!(Settings::load(None, RawSettings::default(), &env).is_err());
}

#[test]
fn the_data_directory_follows_systemd_then_xdg_then_home() {
    let data = |env: &[(&str, &str)]| {
        let env = env.iter().copied().collect();
        let none = Path::new("/dev/null");
        Settings::load(Some(none), RawSettings::default(), &env).map(|settings| settings.data)
    };
    let xdg = ("XDG_DATA_HOME", "/x");
    assert_eq!(data(&[("HOME", "/h")]), Ok("/h/.local/share/malote".into()));
    assert_eq!(data(&[("HOME", "/h"), xdg]), Ok("/x/malote".into()));
    assert_eq!(
        data(&[("XDG_DATA_HOME", "relative"), ("HOME", "/h")]),
        Ok("/h/.local/share/malote".into())
    );
    assert_eq!(
        data(&[xdg, ("STATE_DIRECTORY", "/var/lib/malote:/b")]),
        Ok("/var/lib/malote".into())
    );
    assert_eq!(data(&[("MALOTE_DATA", "/d")]), Ok("/d".into()));
    assert_eq!(data(&[]), Err(SettingsProblem::NoDataDirectory.into()));
}

#[test]
fn a_secret_is_read_from_a_file_and_never_printed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("password");
    crate::files::write_private(&path, b"hunter2\n").unwrap();
    let path = path.to_str().unwrap();
    let file = ("MALOTE_ADMIN_PASSWORD_FILE", path);
    let settings = load("", &[file], RawSettings::default()).unwrap();
    assert_eq!(settings.admin_password.as_ref().unwrap().expose(), "hunter2");
    assert!(!format!("{settings:?}{}", settings.to_toml()).contains("hunter2"));
    let raw = RawSettings { admin_password: Some("hunter2".into()), ..RawSettings::default() };
    assert!(!format!("{raw:?}").contains("hunter2"));

    let both = load("", &[file, ("MALOTE_ADMIN_PASSWORD", "x")], RawSettings::default());
    assert_eq!(
        both.unwrap_err().problems,
        [SettingsProblem::SaidTwice { variable: "MALOTE_ADMIN_PASSWORD" }]
    );
}

#[test]
fn variables_of_kubernetes_and_the_client_are_ignored() {
    let env = [
        ("MALOTE_SERVICE_HOST", "10.0.0.1"),
        ("MALOTE_SERVICE_PORT_HTTP", "8080"),
        ("MALOTE_PORT", "tcp://10.0.0.1:8080"),
        ("MALOTE_HTTP_PORT", "tcp://10.0.0.1:8080"),
        ("MALOTE_PORT_8080_TCP_PROTO", "tcp"),
        ("MALOTE_URL", "http://x"),
        ("MALOTE_TOKEN", "t"),
    ];
    load("", &env, RawSettings::default()).unwrap();
}

#[test]
fn listening_beyond_this_machine_without_credentials_is_refused_unless_forced() {
    let open = |flags: RawSettings, guarded| {
        let settings = load("", &[], flags).unwrap();
        settings
            .check_open([("http", &settings.listeners.http)], guarded)
            .map_err(|p| p.to_string())
    };
    let wide = RawSettings { http: Some(":8080".to_owned()), ..RawSettings::default() };
    expect![[r#"
        Err(
            "`http` listens on 0.0.0.0:8080, which other machines can reach, and there are no credentials: add a user with `malote user add`, listen on 127.0.0.1, or force it with --allow-open",
        )
    "#]]
    .assert_debug_eq(&open(wide.clone(), false));
    assert_eq!(open(wide.clone(), true), Ok(()));
    assert_eq!(open(RawSettings::default(), false), Ok(()));
    let forced = RawSettings { allow_open: Some("true".to_owned()), ..wide.clone() };
    assert_eq!(open(forced, false), Ok(()));
    let first_user = RawSettings { admin_password: Some("x".to_owned()), ..wide };
    assert_eq!(open(first_user, false), Ok(()));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
    #[test]
    fn no_file_panics(text in "(\\[(tls|log|é)\\]\n)?[a-z.é]{0,6} ?=? ?['\"\\[]?[0-9a-zé:\n]{0,12}['\"\\]]?") {
        let _ = load(&text, &[], RawSettings::default());
    }
}
