//! The live tests that come with the SDKs of Service Bus themselves, against the built binary.
//!
//! They are brought into the target folder as their makers publish them and run there; nothing of them is kept. The
//! server stands where clients look for a namespace, on the ports 5671 and 443 of localhost: without the emulator's flag
//! they know no others. The credential that tests would get from Azure is a token of the server.
#![allow(clippy::disallowed_methods, reason = "files of a scratch folder are not the engine's")]

pub(in crate::conformance) mod go;
pub(in crate::conformance) mod python;

use super::{Kind, Server, key, shown};
use crate::cargo;
use crate::conformance::target;
use crate::steps::Outcome;
use anyhow::Result;
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::process::Command;

/// Names of tests, by how they ended.
struct Ended {
    passed: BTreeSet<String>,
    failed: BTreeSet<String>,
}

/// Passed: those that should. Failed: those that should have passed, or should not: `different` are the tests that fail,
/// and what is different here.
fn compared(client: &str, ended: &Ended, different: &[(&str, &str)]) -> Result<Outcome> {
    let Ended { passed, failed } = ended;
    let known: BTreeSet<String> = different.iter().map(|(name, _)| (*name).to_owned()).collect();
    for (name, why) in different.iter().filter(|(name, _)| failed.contains(*name)) {
        eprintln!("differs {name}: {why}");
    }
    let wrong: Vec<&String> = failed.difference(&known).chain(known.difference(failed)).collect();
    wrong.iter().for_each(|name| eprintln!("FAILED  {name}: not as expected"));
    let all = passed.len() + failed.len();
    eprintln!("{} of {all} live tests of {client} passed", passed.len());
    let good = passed.difference(&known).count();
    Ok(Outcome { passed: u32::try_from(good)?, failed: u32::try_from(wrong.len())?, skipped: None })
}

/// Whether the server can stand where it must.
fn ports() -> Result<()> {
    for port in [5671, 443] {
        TcpListener::bind(("127.0.0.1", port))?;
    }
    Ok(())
}

/// A server where clients look for a namespace, and what the tests want to know of it.
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
    keys.extend([premium, ("SERVICEBUS_TOKEN", shown(&mut token, "token")?)]);
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
    let server = Server::launch(&binary, data, Kind::Guarded, 5671, Vec::new(), &entities, &more)?;
    Ok((server, variables))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_passes_though_it_should_not_is_wrong_too() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let ended = Ended { passed: names(&["a", "b"]), failed: names(&["c", "d"]) };
        let different = [("b", "why"), ("c", "why")];
        let outcome = compared("x", &ended, &different).unwrap();
        assert_eq!((outcome.passed, outcome.failed), (1, 2));
    }
}
