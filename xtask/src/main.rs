//! The commands of the project. Each is a list of named steps. All steps run, even after a failure, and the last line
//! counts the passed and failed ones.
//!
//! Missing things never count as passed: a step whose command does not exist fails, and a tool that is not installed
//! is reported as skipped.

mod cargo;
mod compare;
mod conformance;
mod dashboard;
mod mutate;
mod postgres;
mod rabbitmq;
mod steps;
mod tidy;

use anyhow::{Result, bail};
use cargo::FEATURES;
use conformance::Depth;
use std::process::ExitCode;
use steps::{Outcome, Step};

const USAGE: &str = "\
usage: cargo xtask <command>

  check           for daily work: tidy, fmt, native libraries, typos, deny, clippy, tests
  test            what CI runs: check, postgres, rabbitmq, dashboard, conformance, then short runs of sim,
                  fuzz, attack, crash and full
  tidy            dependency directions, leftovers, file sizes, dead files, commands in README
  sim [args]      simulation on a faulty disk: --seed S, --from S --seeds N, --random N, --crashes N
  attack [args]   hostile clients against the built binary on loopback: --seconds N [attack]
  crash [args]    kill -9 loop on the built binary: --protocol http|native|sqs|servicebus|amqp --cycles N
  full [args]     the built binary on a small real disk that fills up (needs root): --rounds N --mib N
  fuzz [args]     decoders with mutated input: --seconds N [target]
  conformance [p] real client libraries against the built binary: sqs, servicebus, rabbitmq, cross-protocol
                  (default: all four). `conformance rabbitmq celery` runs the steps with `celery` in their name.
                  Only if named:
                    servicebus-upstream   the live tests of the Go and Python SDKs (-go or -python: one of them)
                    rabbitmq-real         the checks of `rabbitmq`, against a local RabbitMQ
                    cluster               connector contract and workers on a RabbitMQ cluster, and on PostgreSQL
                                          with a standby, while servers fail
                    orders                the example `orders` on every broker that a worker supports
  postgres        exactly-once effects, the outbox and the broker `postgres://`, on a local PostgreSQL
  rabbitmq        the broker `amqp://`, on a local RabbitMQ
  dashboard       the modules of the dashboard in Node, and its screens in headless Chromium
  screenshots     makes the pictures of the dashboard in docs/pictures
  bench NAME      benchmarks of protocols and workers, on a server in its own process: amqp, sqs, servicebus,
                  worker;
                  `cargo xtask bench NAME --help` lists the options
  compare SYSTEM  speed compared with another system:
                    artemis, elasticmq    one client drives both
                    bullmq                BullMQ and a Malote worker, with empty handlers
                    pgboss                pg-boss, graphile-worker and a Malote worker, on one PostgreSQL
                    rabbitmq              both brokers driven by a light client and by RabbitMQ's PerfTest;
                                          takes half an hour, with --short some minutes
                    lapin                 a plain lapin consumer and a Malote worker, on one RabbitMQ
  mutate [args]   builds with one defect each, which the simulation must detect; args are passed to sim
";

/// Arguments of the short runs in `cargo xtask test`, which takes about 15 minutes on two cores.
const SIM_SHORT: &[&str] = &["--crashes", "10000", "--random", "100"];
const FUZZ_SHORT: &[&str] = &["--seconds", "20"];
const ATTACK_SHORT: &[&str] = &["--seconds", "2"];
const CRASH_SHORT: &[(&str, &[&str])] = &[
    ("crash http", &["--protocol", "http", "--cycles", "20"]),
    ("crash native", &["--protocol", "native", "--cycles", "20"]),
    ("crash sqs", &["--protocol", "sqs", "--cycles", "20"]),
    ("crash amqp", &["--protocol", "amqp", "--cycles", "20"]),
];

/// One round on the smallest disk that is useful.
const FULL_SHORT: &[&str] = &["--rounds", "1", "--mib", "576"];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::from(2)
        }
    }
}

/// Returns whether everything passed.
fn run(args: &[String]) -> Result<bool> {
    let Some((command, rest)) = args.split_first() else { bail!("{USAGE}") };
    let steps = match (command.as_str(), rest) {
        ("help" | "--help" | "-h", _) => {
            print!("{USAGE}");
            return Ok(true);
        }
        ("check", []) => check(),
        ("test", []) => test(),
        ("tidy", []) => vec![tidy_step()],
        ("postgres", []) => vec![postgres::step()],
        ("rabbitmq", []) => vec![rabbitmq::step()],
        ("dashboard", []) => std::iter::once(release_build()).chain(dashboard::steps()).collect(),
        ("screenshots", []) => vec![release_build(), dashboard::screenshots()],
        ("sim" | "attack" | "crash" | "full" | "fuzz", _) => return run_sim_command(command, rest),
        ("bench", _) => return compare::bench_and_print(rest),
        ("compare", [system]) => return compare::run(system, false),
        ("compare", [system, short]) if system == "rabbitmq" && short == "--short" => {
            return compare::run(system, true);
        }
        ("mutate", _) => mutate::steps(rest),
        ("conformance", [] | [_] | [_, _]) => {
            let mut clients = conformance::steps(rest.first().map(String::as_str), Depth::All);
            if let Some(part) = rest.get(1) {
                clients.retain(|step| step.is_named(part));
            }
            if clients.is_empty() {
                bail!("unknown protocol or step `{}`\n\n{USAGE}", rest.join(" "));
            }
            // These do not use the built binary.
            let built = rest
                .first()
                .is_none_or(|one| !["cluster", "orders", "rabbitmq-real"].contains(&one.as_str()));
            built.then(release_build).into_iter().chain(clients).collect()
        }
        ("check" | "test" | "tidy" | "postgres" | "rabbitmq" | "dashboard" | "screenshots", _) => {
            bail!("`{command}` takes no arguments\n\n{USAGE}")
        }
        (unknown, _) => bail!("unknown command `{unknown}`\n\n{USAGE}"),
    };
    Ok(steps::run(steps))
}

/// Fast steps first, so that failures show early.
fn check() -> Vec<Step> {
    vec![
        tidy_step(),
        Step::command("fmt", &["fmt", "--all", "--check"]),
        Step::new("native libraries", cargo::no_native_libraries),
        Step::tool("typos", "typos", &[]),
        Step::tool("deny", "cargo-deny", &["check"]),
        Step::new("clippy", || {
            // Test targets that are not run by default are not in `--all-targets` either.
            let named = [
                "--test",
                "postgres",
                "--test",
                "cluster_postgres",
                "--test",
                "rabbitmq",
                "--test",
                "cluster",
            ];
            for targets in [["--all-targets"].as_slice(), &named] {
                let common = ["clippy", "--workspace", "--features", FEATURES];
                cargo::run(&[&common, targets, &["--", "-D", "warnings"]].concat())?;
            }
            Ok(Outcome::one())
        }),
        Step::new("tests", || {
            cargo::tests(&["test", "--workspace", "--no-fail-fast", "--features", FEATURES])
        }),
    ]
}

fn test() -> Vec<Step> {
    let mut steps = check();
    steps.push(postgres::step());
    steps.push(rabbitmq::step());
    steps.push(release_build());
    steps.extend(dashboard::steps());
    steps.extend(conformance::steps(None, Depth::Quick));
    steps.push(Step::sim("sim", "sim", SIM_SHORT));
    steps.push(Step::sim("fuzz", "fuzz", FUZZ_SHORT));
    steps.push(Step::sim("attack", "attack", ATTACK_SHORT));
    steps.extend(CRASH_SHORT.iter().map(|(name, args)| Step::sim(name, "crash", args)));
    steps.push(Step::sim("full disk", "full", FULL_SHORT));
    steps
}

fn release_build() -> Step {
    Step::command("build", &cargo::RELEASE)
}

fn tidy_step() -> Step {
    Step::new("tidy", tidy::run)
}

/// Runs a command of the simulation package; its output and exit code are the result.
fn run_sim_command(command: &str, args: &[String]) -> Result<bool> {
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    let program;
    if command == "crash" && args.contains(&"servicebus") {
        program = conformance::servicebus::go::crash_program()?.display().to_string();
        args.extend(["--program", &program]);
    }
    Ok(cargo::sim(command, &args)?.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_command_prints_the_usage() {
        for args in [vec![], vec!["chekc".to_owned()], vec!["check".to_owned(), "x".to_owned()]] {
            assert!(run(&args).unwrap_err().to_string().contains("usage: cargo xtask"));
        }
        assert!(run(&["--help".to_owned()]).unwrap());
    }
}
