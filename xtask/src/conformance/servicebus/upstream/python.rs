//! Those inside of the source distribution of Python's `azure-servicebus`, unchanged.
//!
//! What they would find at their makers, and Azure's resource manager, has stand-ins of ours in
//! `testing/conformance/servicebus/upstream`: they make what a test asks for with the SDK's administration client.
#![allow(clippy::disallowed_methods, reason = "files of a scratch folder are not the engine's")]

use super::{Ended, compared, ports, serve};
use crate::cargo;
use crate::conformance::servicebus::PYTHON_CLIENT;
use crate::conformance::{missing, python, run, target};
use crate::steps::Outcome;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The client and what its tests need.
const PACKAGES: &[&str] = &[
    PYTHON_CLIENT,
    "aiohttp==3.14.5",
    "azure-common==1.1.28",
    "pytest==9.2.0",
    "pytest-asyncio==1.4.1.post1",
    "pytest-timeout==2.4.0",
    "pytest-xdist==3.8.0",
    "websocket-client==1.9.2",
];

/// Tests that need a service, those left out among them: as many must have ended.
const LIVE: usize = 367;

/// Tests at a time: most of them wait for locks to run out.
const AT_ONCE: &str = "12";

/// Seconds after which a test hangs; the longest take eight minutes.
const PATIENCE: &str = "1200";

/// Tests that cannot say anything about us, and why.
const ELSEWHERE: &[(&str, &str)] = &[
    ("test_mgmt_queues::test_mgmt_queue_create_with_queue_description", STANDARD_AND_SESSIONS),
    (
        "test_mgmt_queues_async::test_async_mgmt_queue_create_with_queue_description",
        STANDARD_AND_SESSIONS,
    ),
    ("test_mgmt_queues::test_mgmt_queue_basic_v2017_04", STANDARD),
    ("test_mgmt_queues_async::test_async_mgmt_queue_basic_v2017_04", STANDARD),
    ("test_mgmt_topics::test_mgmt_topic_create_with_topic_description", STANDARD),
    ("test_mgmt_topics_async::test_async_mgmt_topic_create_with_topic_description", STANDARD),
    ("test_mgmt_topics::test_mgmt_topic_basic_v2017_04", STANDARD),
    ("test_mgmt_topics_async::test_async_mgmt_topic_basic_v2017_04", STANDARD),
    ("test_queues::test_queue_operation_negative", STAND_IN),
    ("test_queues_async::test_async_queue_operation_negative", STAND_IN),
    ("test_queues::test_queue_receive_handler_with_autolockrenew_many_msgs", RENEWALS),
    ("test_sessions::test_next_available_session_timeout_value", DEADLINE),
    ("test_sessions_async::test_async_next_available_session_timeout_value", DEADLINE),
    ("test_sessions::test_session_by_queue_client_conn_str_receive_handler_receiveanddelete", TIE),
    (
        "test_sessions_async::test_async_session_by_queue_client_conn_str_receive_handler_receiveanddelete",
        TIE,
    ),
];
const STANDARD: &str = "the standard tier, where nobody may say how large messages are";
// It would fail without the tier, too: that is a difference of ours.
const STANDARD_AND_SESSIONS: &str =
    "the standard tier; besides, a queue with sessions that forwards is refused here";
const STAND_IN: &str =
    "puts a function in the client's place that this version calls with more arguments";
const RENEWALS: &str =
    "300 renewals within ten seconds: more than the client's threads do on two cores";
const DEADLINE: &str = "waits for the service, but this version of the client gives up first";
const TIE: &str = "waits for as long as the session is locked: whichever ends first";

/// Tests that fail, and what is different here.
const DIFFERENT: &[(&str, &str)] = &[
    ("test_mgmt_queues::test_mgmt_queue_update_success", ITSELF),
    ("test_mgmt_queues::test_mgmt_queue_update_dict_success", ITSELF),
    ("test_mgmt_queues_async::test_async_mgmt_queue_update_success", ITSELF),
    ("test_mgmt_queues_async::test_mgmt_queue_async_update_dict_success", ITSELF),
    ("test_mgmt_rules::test_mgmt_rule_create", ZONE),
    ("test_mgmt_rules_async::test_async_mgmt_rule_create", ZONE),
    ("test_message::test_message_property", DECIMAL),
];
const ITSELF: &str = "a queue that forwards to itself is refused";
const ZONE: &str = "a time of a rule is told with its zone";
const DECIMAL: &str =
    "a decimal comes back as it was sent, and this client reads only what the service makes of it";

pub(in crate::conformance) fn tests() -> Result<Outcome> {
    let home = target().join("conformance/servicebus-upstream/python");
    let (python, tests) = match brought(&home) {
        Ok(found) => found,
        Err(why) => return missing(PYTHON_CLIENT, &format!("{why:#}")),
    };
    if let Err(why) = ports() {
        return missing("ports 5671 and 443", &format!("{why:#}"));
    }
    let (outcomes, log) = (home.join("outcomes"), home.join("live.log"));
    let _ = std::fs::remove_file(&outcomes);
    let said = File::create(&log)?;
    let (server, variables) = serve()?;
    let left_out: Vec<&str> = ELSEWHERE.iter().map(|(name, _)| *name).collect();
    // Those of the administration want a namespace to themselves.
    let others = ["-n", AT_ONCE, ".", "--ignore", "mgmt_tests"];
    for which in [&["mgmt_tests"][..], &others] {
        let mut run = Command::new(&python);
        run.args(["-B", "-W", "ignore", "-m", "pytest", "-p", "malote_upstream"]);
        run.args(["-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "--timeout", PATIENCE]);
        run.args(which).args(["--ignore", "unittests", "--ignore", "perf_tests"]);
        run.args(["--ignore", "test_tracing.py"]).current_dir(&tests);
        run.env("PYTHONPATH", search_path(&tests)?).env("PYTHONDONTWRITEBYTECODE", "1");
        run.env("MALOTE_OUTCOMES", &outcomes).env("MALOTE_LEFT_OUT", left_out.join(" "));
        run.envs(variables.iter().map(|(name, value)| (*name, value)));
        // The name of a namespace is that of its server; there is a group already.
        run.env("SERVICEBUS_ENDPOINT_SUFFIX", "").env("SERVICEBUS_RESOURCE_GROUP", "local");
        // Whatever this machine trusts otherwise.
        run.env_remove("REQUESTS_CA_BUNDLE").env_remove("CURL_CA_BUNDLE");
        run.stdout(said.try_clone()?).stderr(said.try_clone()?);
        // Whether some failed: outcomes are told test by test.
        let status = run.status().with_context(|| format!("cannot start {run:?}"))?;
        if !matches!(status.code(), Some(0 | 1)) {
            bail!("the tests did not end: {status}; what they said is in {}", log.display());
        }
    }
    drop(server);
    let told = std::fs::read_to_string(&outcomes).context("no test has ended")?;
    let names: BTreeSet<&str> = told.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    if names.len() + ELSEWHERE.len() != LIVE {
        let (ended, left_out) = (names.len(), ELSEWHERE.len());
        bail!("{ended} tests ended and {left_out} are left out, of {LIVE}: see {}", log.display());
    }
    let outcome = compared("azure-servicebus", &ended(&told), DIFFERENT)?;
    if outcome.failed > 0 {
        eprintln!("what they said is in {}", log.display());
    }
    Ok(outcome)
}

/// A Python, and the tests of its client.
fn brought(home: &Path) -> Result<(PathBuf, PathBuf)> {
    let imports =
        "import azure.servicebus, azure.common, aiohttp, pytest_asyncio, pytest_timeout, xdist";
    let python = python(&home.join("environment"), PACKAGES, imports)?;
    let name = PYTHON_CLIENT.replace('-', "_").replace("==", "-");
    let tests = home.join(&name).join("tests");
    if tests.is_dir() {
        return Ok((python, tests));
    }
    let mut download = Command::new(&python);
    download.args(["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]);
    run(download.args([PYTHON_CLIENT, "--dest"]).arg(home))?;
    let archive = home.join(format!("{name}.tar.gz"));
    run(Command::new(&python).args(["-m", "tarfile", "-e"]).arg(&archive).arg(home))?;
    if !tests.is_dir() {
        bail!("there are no tests in {}", archive.display());
    }
    Ok((python, tests))
}

/// Where Python looks first: our stand-ins, and what the tests have beside them.
fn search_path(tests: &Path) -> Result<OsString> {
    let ours = cargo::root().join("testing/conformance/servicebus/upstream");
    let beside = ["mgmt_tests", "async_tests"].map(|folder| tests.join(folder));
    Ok(std::env::join_paths([ours, tests.to_owned()].into_iter().chain(beside))?)
}

/// Reads lines such as `passed test_queues::test_x`. What failed in one of its parts has failed.
fn ended(told: &str) -> Ended {
    let with = |outcome: &str| {
        let lines = told.lines().filter_map(|line| line.split_once(' '));
        lines.filter(|(how, _)| *how == outcome).map(|(_, name)| name.to_owned()).collect()
    };
    let (passed, failed): (BTreeSet<String>, BTreeSet<String>) = (with("passed"), with("failed"));
    Ended { passed: passed.difference(&failed).cloned().collect(), failed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_in_a_part_has_failed() {
        let told = "passed q::a\nskipped q::b\npassed q::c[ws]\nfailed q::c[ws]\n";
        let Ended { passed, failed } = ended(told);
        assert_eq!(passed, BTreeSet::from(["q::a".to_owned()]));
        assert_eq!(failed, BTreeSet::from(["q::c[ws]".to_owned()]));
    }
}
