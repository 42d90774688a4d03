//! The live tests of the Go module `azservicebus`, copied from the module cache. Only the credential is replaced.
#![allow(clippy::disallowed_methods, reason = "not files of the engine")]

use super::{TestResults, check_ports, compare_with_expected, serve};
use crate::conformance::servicebus::go::sources;
use crate::conformance::{run, skip_or_fail, target};
use crate::steps::Outcome;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const MODULE: &str = "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus";

/// Tests that do not apply to Malote, and why.
const EXCLUDED: &[(&str, &str)] = &[
    ("TestClientUnauthorizedCreds/invalid", "asks Entra ID"),
    ("TestReceiverUnauthorizedCreds/invalid", "asks Entra ID"),
    ("TestClientUsingCustomEndpoint", "needs port 5671 to be closed"),
    ("TestAdminClient_CreateQueue_Standard", "limits of the standard tier: 16 partitions, 256 KiB"),
    ("TestAdminClient_QueueWithMaxValues", "limits of the standard tier"),
    ("TestAdminClient_TopicAndSubscription_Standard", "limits of the standard tier"),
    ("TestAdminClient_CreateQueue_Premium", "messages of 100 MiB, as in the premium tier"),
    ("TestAdminClient_TopicAndSubscription_Premium", "the premium tier"),
    ("Test_Sender_Send_MessageTooBig", "1,000,000 bytes are too large only in the standard tier"),
];

pub(in crate::conformance) fn tests() -> Result<Outcome> {
    let home = match copy_module() {
        Ok(home) => home,
        Err(why) => return skip_or_fail("Go with azservicebus", &format!("{why:#}")),
    };
    if let Err(why) = check_ports() {
        return skip_or_fail("ports 5671 and 443", &format!("{why:#}"));
    }
    // Tests that are skipped in playback mode need a service.
    let mut playback = go_test(&home, &["-v", "./..."]);
    let live = outcomes(&stdout_of(playback.env("AZURE_RECORD_MODE", "playback"))?, "SKIP");
    if live.is_empty() {
        bail!("no live tests in {}", home.display());
    }
    let (server, variables) = serve()?;
    let names = |these: &[(&str, &str)]| {
        these.iter().map(|(name, _)| *name).collect::<Vec<&str>>().join("|")
    };
    let wanted = live.iter().map(String::as_str).collect::<Vec<&str>>().join("|");
    let args = ["-p", "1", "-timeout", "30m", "-v", "-run", &format!("^({wanted})$"), "-skip"];
    let mut tests = go_test(&home, &args);
    tests.arg(names(EXCLUDED)).arg("./...").env("AZURE_RECORD_MODE", "live").envs(variables);
    let output = stdout_of(&mut tests)?;
    drop(server);
    let results =
        TestResults { passed: outcomes(&output, "PASS"), failed: outcomes(&output, "FAIL") };
    let outcome = compare_with_expected("azservicebus", &results, &[])?;
    if outcome.failed > 0 {
        let log = home.join("live.log");
        std::fs::write(&log, output)?;
        eprintln!("the log is {}", log.display());
    }
    Ok(outcome)
}

/// Copies the module and replaces its credential.
fn copy_module() -> Result<PathBuf> {
    let mut list = Command::new("go");
    list.args(["mod", "download"]).current_dir(sources());
    run(&mut list)?;
    let mut list = Command::new("go");
    list.args(["list", "-m", "-f", "{{.Dir}}", MODULE]).current_dir(sources());
    let output = list.output().context("cannot start go")?;
    let from = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let home = target().join("conformance/servicebus-upstream/go");
    let _ = std::fs::remove_dir_all(&home);
    copy(&from, &home).with_context(|| format!("cannot copy {}", from.display()))?;
    let path = home.join("internal/test/test_helpers.go");
    let text = std::fs::read_to_string(&path)?;
    let ours = text
        .replace("credential.New(nil)", "ownCredential()")
        .replace("\t\"github.com/Azure/azure-sdk-for-go/sdk/internal/test/credential\"\n", "");
    if ours.matches("ownCredential()").count() != 1 || ours.contains("credential.") {
        bail!("cannot replace the credential of the tests in {}", path.display());
    }
    std::fs::remove_file(&path)?;
    std::fs::write(&path, ours)?;
    std::fs::write(home.join("internal/test/own_credential.go"), CREDENTIAL)?;
    // The tests need more modules than the programs.
    run(Command::new("go").args(["mod", "download"]).current_dir(&home))?;
    Ok(home)
}

/// A credential that returns the token of this server instead of one from Azure.
const CREDENTIAL: &str = r#"package test

import (
	"context"
	"os"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
)

type ownToken struct{}

func ownCredential() (azcore.TokenCredential, error) { return ownToken{}, nil }

func (ownToken) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: os.Getenv("SERVICEBUS_TOKEN"), ExpiresOn: time.Now().Add(time.Hour)}, nil
}
"#;

/// Copies a folder. Files of the module cache are read-only, but the new folders are not, so the copy can be deleted.
fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let path = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &path)?,
            false => drop(std::fs::copy(entry.path(), path)?),
        }
    }
    Ok(())
}

fn go_test(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("go");
    command.arg("test").args(args).current_dir(home);
    command
}

/// Runs tests and returns their output, whether or not they passed.
fn stdout_of(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output().context("cannot start go")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Names of tests with this outcome, without subtests.
fn outcomes(output: &str, outcome: &str) -> BTreeSet<String> {
    let start = format!("--- {outcome}: ");
    let names = output.lines().filter_map(|line| line.strip_prefix(&start)?.split(' ').next());
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_exclude_subtests() {
        let output =
            "=== RUN A\n--- PASS: A (0.1s)\n    --- PASS: A/b (0.0s)\n--- FAIL: C (1.0s)\n";
        assert_eq!(outcomes(output, "PASS"), BTreeSet::from(["A".to_owned()]));
        assert_eq!(outcomes(output, "FAIL"), BTreeSet::from(["C".to_owned()]));
    }
}
