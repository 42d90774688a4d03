//! Those inside of Go's module `azservicebus`: copied out of the module cache. One thing is ours: the credential.
#![allow(clippy::disallowed_methods, reason = "files of a scratch folder are not the engine's")]

use super::{Ended, compared, ports, serve};
use crate::conformance::servicebus::go::sources;
use crate::conformance::{missing, run, target};
use crate::steps::Outcome;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const MODULE: &str = "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus";

/// Tests that cannot say anything about us, and why.
const ELSEWHERE: &[(&str, &str)] = &[
    ("TestClientUnauthorizedCreds/invalid", "asks Entra ID"),
    ("TestReceiverUnauthorizedCreds/invalid", "asks Entra ID"),
    ("TestClientUsingCustomEndpoint", "wants nobody to listen on port 5671 of this machine"),
    ("TestAdminClient_CreateQueue_Standard", "sizes of the standard tier: 16 partitions, 256 KiB"),
    ("TestAdminClient_QueueWithMaxValues", "sizes of the standard tier"),
    ("TestAdminClient_TopicAndSubscription_Standard", "sizes of the standard tier"),
    ("TestAdminClient_CreateQueue_Premium", "messages of 100 MiB, as the premium tier has them"),
    ("TestAdminClient_TopicAndSubscription_Premium", "the premium tier"),
    ("Test_Sender_Send_MessageTooBig", "1,000,000 bytes are too many for the standard tier only"),
];

pub(in crate::conformance) fn tests() -> Result<Outcome> {
    let home = match copied() {
        Ok(home) => home,
        Err(why) => return missing("go with azservicebus", &format!("{why:#}")),
    };
    if let Err(why) = ports() {
        return missing("ports 5671 and 443", &format!("{why:#}"));
    }
    // What is skipped where there is no service needs one.
    let mut playback = tested(&home, &["-v", "./..."]);
    let live = outcomes(&told(playback.env("AZURE_RECORD_MODE", "playback"))?, "SKIP");
    if live.is_empty() {
        bail!("there are no live tests in {}", home.display());
    }
    let (server, variables) = serve()?;
    let names = |these: &[(&str, &str)]| {
        these.iter().map(|(name, _)| *name).collect::<Vec<&str>>().join("|")
    };
    let wanted = live.iter().map(String::as_str).collect::<Vec<&str>>().join("|");
    let args = ["-p", "1", "-timeout", "30m", "-v", "-run", &format!("^({wanted})$"), "-skip"];
    let mut tests = tested(&home, &args);
    tests.arg(names(ELSEWHERE)).arg("./...").env("AZURE_RECORD_MODE", "live").envs(variables);
    let said = told(&mut tests)?;
    drop(server);
    let ended = Ended { passed: outcomes(&said, "PASS"), failed: outcomes(&said, "FAIL") };
    let outcome = compared("azservicebus", &ended, &[])?;
    if outcome.failed > 0 {
        let log = home.join("live.log");
        std::fs::write(&log, said)?;
        eprintln!("what they said is in {}", log.display());
    }
    Ok(outcome)
}

/// A copy of the module, with our credential.
fn copied() -> Result<PathBuf> {
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
    let place = home.join("internal/test/test_helpers.go");
    let text = std::fs::read_to_string(&place)?;
    let ours = text
        .replace("credential.New(nil)", "ownCredential()")
        .replace("\t\"github.com/Azure/azure-sdk-for-go/sdk/internal/test/credential\"\n", "");
    if ours.matches("ownCredential()").count() != 1 || ours.contains("credential.") {
        bail!("the tests get their credential in another way: {}", place.display());
    }
    std::fs::remove_file(&place)?;
    std::fs::write(&place, ours)?;
    std::fs::write(home.join("internal/test/own_credential.go"), CREDENTIAL)?;
    // Modules of tests are not among those of the programs.
    run(Command::new("go").args(["mod", "download"]).current_dir(&home))?;
    Ok(home)
}

/// Gives the token of this server, instead of one from Azure.
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

/// Files of the module cache are read-only; folders are made anew, so that the copy can go again.
fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &place)?,
            false => drop(std::fs::copy(entry.path(), place)?),
        }
    }
    Ok(())
}

fn tested(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("go");
    command.arg("test").args(args).current_dir(home);
    command
}

/// What a test run says, whether or not all of it passed.
fn told(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output().context("cannot start go")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Names of tests with this outcome; parts of tests are not counted.
fn outcomes(said: &str, outcome: &str) -> BTreeSet<String> {
    let start = format!("--- {outcome}: ");
    let names = said.lines().filter_map(|line| line.strip_prefix(&start)?.split(' ').next());
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_those_of_whole_tests() {
        let said = "=== RUN A\n--- PASS: A (0.1s)\n    --- PASS: A/b (0.0s)\n--- FAIL: C (1.0s)\n";
        assert_eq!(outcomes(said, "PASS"), BTreeSet::from(["A".to_owned()]));
        assert_eq!(outcomes(said, "FAIL"), BTreeSet::from(["C".to_owned()]));
    }
}
