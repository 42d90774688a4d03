//! The live tests of the Service Bus SDKs themselves, against the built binary.
//!
//! The published tests are downloaded to the target folder and run there; no copy is kept in this repository. The
//! server listens on ports 5671 and 443 of localhost, because without the emulator's flag the clients use no other
//! ports. A token of the server replaces the credential from Azure.
#![allow(clippy::disallowed_methods, reason = "not files of the engine")]

pub(in crate::conformance) mod go;
pub(in crate::conformance) mod python;

use super::{Server, ServerMode, json_field, key};
use crate::cargo;
use crate::conformance::target;
use crate::steps::Outcome;
use anyhow::Result;
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::process::Command;

/// Names of tests by result.
struct TestResults {
    passed: BTreeSet<String>,
    failed: BTreeSet<String>,
}

/// Counts the tests that ended as expected. `different` lists the tests that are expected to fail, with the reason.
fn compare_with_expected(
    client: &str,
    results: &TestResults,
    different: &[(&str, &str)],
) -> Result<Outcome> {
    let TestResults { passed, failed } = results;
    let known: BTreeSet<String> = different.iter().map(|(name, _)| (*name).to_owned()).collect();
    for (name, why) in different.iter().filter(|(name, _)| failed.contains(*name)) {
        eprintln!("expected failure {name}: {why}");
    }
    let wrong: Vec<&String> = failed.difference(&known).chain(known.difference(failed)).collect();
    wrong.iter().for_each(|name| eprintln!("FAILED  {name}: not the expected result"));
    let all = passed.len() + failed.len();
    eprintln!("{} of {all} live tests of {client} passed", passed.len());
    let good = passed.difference(&known).count();
    Ok(Outcome { passed: u32::try_from(good)?, failed: u32::try_from(wrong.len())?, skipped: None })
}

/// Checks that the server's ports are free.
fn check_ports() -> Result<()> {
    for port in [5671, 443] {
        TcpListener::bind(("127.0.0.1", port))?;
    }
    Ok(())
}

/// Starts a server on the ports of a namespace. Also returns the environment variables of the tests.
fn serve() -> Result<(Server, Vec<(&'static str, String)>)> {
    let target = target();
    let (binary, data) = (target.join("release/malote"), target.join("conformance/data"));
    let _ = std::fs::remove_dir_all(&data);
    std::fs::create_dir_all(&data)?;
    let root = ["--id", "Root", "--admin"];
    let mut keys = Vec::new();
    for (variable, args) in [
        ("SERVICEBUS_CONNECTION_STRING", &root[..]),
        ("SERVICEBUS_CONNECTION_STRING_NO_MANAGE", &["--id", "Both", "--grant", "send,receive *"]),
        ("SERVICEBUS_CONNECTION_STRING_SEND_ONLY", &["--id", "Send", "--grant", "send *"]),
        ("SERVICEBUS_CONNECTION_STRING_LISTEN_ONLY", &["--id", "Listen", "--grant", "receive *"]),
    ] {
        let (variable, secret) = key(&binary, &data, variable, args)?;
        let name = args[1];
        let text =
            format!("Endpoint=sb://localhost/;SharedAccessKeyName={name};SharedAccessKey={secret}");
        keys.push((variable, text));
    }
    let premium = ("SERVICEBUS_CONNECTION_STRING_PREMIUM", keys[0].1.clone());
    let mut token = Command::new(&binary);
    token.args(["token", "add", "-o", "json", "--admin", "upstream", "--data"]).arg(&data);
    keys.extend([premium, ("SERVICEBUS_TOKEN", json_field(&mut token, "token")?)]);
    let localhost = || "localhost".to_owned();
    let certificate = data.join("tls-self-signed.pem").display().to_string();
    let mut variables = keys;
    variables.extend([
        ("SERVICEBUS_ENDPOINT", localhost()),
        ("SERVICEBUS_ENDPOINT_PREMIUM", localhost()),
        ("SSL_CERT_FILE", certificate),
    ]);
    let entities = cargo::root().join("testing/conformance/servicebus/upstream.json");
    let more = ["--amqps", "443", "--tls-self-signed"];
    let server =
        Server::launch(&binary, data, ServerMode::Secured, 5671, Vec::new(), &entities, &more)?;
    Ok((server, variables))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_passes_unexpectedly_is_a_failure() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let results = TestResults { passed: names(&["a", "b"]), failed: names(&["c", "d"]) };
        let different = [("b", "why"), ("c", "why")];
        let outcome = compare_with_expected("x", &results, &different).unwrap();
        assert_eq!((outcome.passed, outcome.failed), (1, 2));
    }
}
