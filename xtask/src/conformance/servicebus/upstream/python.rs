//! The live tests in the source distribution of Python's `azure-servicebus`, unchanged.
//!
//! `testing/conformance/servicebus/upstream` replaces the SDK developers' test tools and Azure's resource manager.
//! The replacements create the entities of a test with the SDK's administration client.
#![allow(clippy::disallowed_methods, reason = "not files of the engine")]

use super::{TestResults, check_ports, compare_with_expected, serve};
use crate::cargo;
use crate::conformance::servicebus::PYTHON_CLIENT;
use crate::conformance::{python, run, skip_or_fail, target};
use crate::steps::Outcome;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The client, and the packages that its tests need.
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

/// Number of tests that need a service, including the excluded ones. All of them must have a result.
const LIVE: usize = 367;

/// Concurrent tests; most of them wait for locks to expire.
const CONCURRENCY: &str = "12";

/// Timeout of a test in seconds; the longest take eight minutes.
const TIMEOUT_S: &str = "1200";

/// Tests that do not apply to Malote, and why.
const EXCLUDED: &[(&str, &str)] = &[
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
    ("test_queues::test_queue_operation_negative", PATCHED_CLIENT),
    ("test_queues_async::test_async_queue_operation_negative", PATCHED_CLIENT),
    ("test_queues::test_queue_receive_handler_with_autolockrenew_many_msgs", RENEWALS),
    ("test_sessions::test_next_available_session_timeout_value", DEADLINE),
    ("test_sessions_async::test_async_next_available_session_timeout_value", DEADLINE),
    (
        "test_sessions::test_session_by_queue_client_conn_str_receive_handler_receiveanddelete",
        TIMING,
    ),
    (
        "test_sessions_async::test_async_session_by_queue_client_conn_str_receive_handler_receiveanddelete",
        TIMING,
    ),
];
const STANDARD: &str = "the standard tier, in which the message size cannot be set";
// This test would fail in any tier, because of a difference in Malote.
const STANDARD_AND_SESSIONS: &str =
    "the standard tier; also, Malote refuses a queue with sessions and forwarding";
const PATCHED_CLIENT: &str =
    "replaces a function of the client that this version calls with more arguments";
const RENEWALS: &str =
    "300 renewals within ten seconds, too many for the client's threads on two cores";
const DEADLINE: &str = "waits for the service, but this version of the client gives up first";
const TIMING: &str =
    "waits exactly as long as the session is locked, so the result depends on timing";

/// Tests that are expected to fail, with the difference in Malote.
const KNOWN_FAILURES: &[(&str, &str)] = &[
    ("test_mgmt_queues::test_mgmt_queue_update_success", ITSELF),
    ("test_mgmt_queues::test_mgmt_queue_update_dict_success", ITSELF),
    ("test_mgmt_queues_async::test_async_mgmt_queue_update_success", ITSELF),
    ("test_mgmt_queues_async::test_mgmt_queue_async_update_dict_success", ITSELF),
    ("test_mgmt_rules::test_mgmt_rule_create", ZONE),
    ("test_mgmt_rules_async::test_async_mgmt_rule_create", ZONE),
    ("test_message::test_message_property", DECIMAL),
];
const ITSELF: &str = "a queue that forwards to itself is refused";
const ZONE: &str = "times in a rule are returned with their time zone";
const DECIMAL: &str = "a decimal is returned as it was sent, but the client reads only the service's conversion of it";

pub(in crate::conformance) fn tests() -> Result<Outcome> {
    let home = target().join("conformance/servicebus-upstream/python");
    let (python, tests) = match download_tests(&home) {
        Ok(found) => found,
        Err(why) => return skip_or_fail(PYTHON_CLIENT, &format!("{why:#}")),
    };
    if let Err(why) = check_ports() {
        return skip_or_fail("ports 5671 and 443", &format!("{why:#}"));
    }
    let (outcomes, log) = (home.join("outcomes"), home.join("live.log"));
    let _ = std::fs::remove_file(&outcomes);
    let log_file = File::create(&log)?;
    let (server, variables) = serve()?;
    let excluded: Vec<&str> = EXCLUDED.iter().map(|(name, _)| *name).collect();
    // The administration tests need the namespace for themselves.
    let others = ["-n", CONCURRENCY, ".", "--ignore", "mgmt_tests"];
    for which in [&["mgmt_tests"][..], &others] {
        let mut run = Command::new(&python);
        run.args(["-B", "-W", "ignore", "-m", "pytest", "-p", "malote_upstream"]);
        run.args(["-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "--timeout", TIMEOUT_S]);
        run.args(which).args(["--ignore", "unittests", "--ignore", "perf_tests"]);
        run.args(["--ignore", "test_tracing.py"]).current_dir(&tests);
        run.env("PYTHONPATH", search_path(&tests)?).env("PYTHONDONTWRITEBYTECODE", "1");
        run.env("MALOTE_OUTCOMES", &outcomes).env("MALOTE_LEFT_OUT", excluded.join(" "));
        run.envs(variables.iter().map(|(name, value)| (*name, value)));
        // The name of a namespace is the name of its server; the resource group exists.
        run.env("SERVICEBUS_ENDPOINT_SUFFIX", "").env("SERVICEBUS_RESOURCE_GROUP", "local");
        // Use the certificate of the server, not those that this machine trusts.
        run.env_remove("REQUESTS_CA_BUNDLE").env_remove("CURL_CA_BUNDLE");
        run.stdout(log_file.try_clone()?).stderr(log_file.try_clone()?);
        // Exit code 1 means that tests failed; the result of each test is in the outcomes file.
        let status = run.status().with_context(|| format!("cannot start {run:?}"))?;
        if !matches!(status.code(), Some(0 | 1)) {
            bail!("the tests did not complete: {status}; the log is {}", log.display());
        }
    }
    drop(server);
    let text = std::fs::read_to_string(&outcomes).context("there are no test results")?;
    let names: BTreeSet<&str> = text.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    if names.len() + EXCLUDED.len() != LIVE {
        let (ended, excluded) = (names.len(), EXCLUDED.len());
        bail!(
            "{ended} tests have results and {excluded} are excluded, of {LIVE}: see {}",
            log.display()
        );
    }
    let outcome = compare_with_expected("azure-servicebus", &parse_results(&text), KNOWN_FAILURES)?;
    if outcome.failed > 0 {
        eprintln!("the log is {}", log.display());
    }
    Ok(outcome)
}

/// Downloads the client and its tests. Returns the Python interpreter and the folder of the tests.
fn download_tests(home: &Path) -> Result<(PathBuf, PathBuf)> {
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
        bail!("no tests in {}", archive.display());
    }
    Ok((python, tests))
}

/// Python's search path: our replacements first, then the tests and their helpers.
fn search_path(tests: &Path) -> Result<OsString> {
    let ours = cargo::root().join("testing/conformance/servicebus/upstream");
    let beside = ["mgmt_tests", "async_tests"].map(|folder| tests.join(folder));
    Ok(std::env::join_paths([ours, tests.to_owned()].into_iter().chain(beside))?)
}

/// Reads lines such as `passed test_queues::test_x`. A test with a failed phase has failed.
fn parse_results(text: &str) -> TestResults {
    let with = |outcome: &str| {
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        lines.filter(|(how, _)| *how == outcome).map(|(_, name)| name.to_owned()).collect()
    };
    let (passed, failed): (BTreeSet<String>, BTreeSet<String>) = (with("passed"), with("failed"));
    TestResults { passed: passed.difference(&failed).cloned().collect(), failed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_with_a_failed_phase_has_failed() {
        let text = "passed q::a\nskipped q::b\npassed q::c[ws]\nfailed q::c[ws]\n";
        let TestResults { passed, failed } = parse_results(text);
        assert_eq!(passed, BTreeSet::from(["q::a".to_owned()]));
        assert_eq!(failed, BTreeSet::from(["q::c[ws]".to_owned()]));
    }
}
