//! The project's own commands. Each is a list of named steps; every step runs, even after one has
//! failed, and the last line says how many passed and failed.
//!
//! Nothing here is green by absence: a step whose command does not exist fails, and a tool that
//! is not installed is reported as skipped and counted as neither.

mod cargo;
mod compare;
mod conformance;
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

  check           the inner loop: tidy, fmt, foreign libraries, typos, deny, clippy, tests
  test            what CI runs: check, postgres, rabbitmq, conformance, then short runs of sim, fuzz, crash and full
  tidy            dependency directions, leftovers, file sizes, dead files, commands in README
  sim [args]      simulation on a faulty disk: --seed S, --from S --seeds N, --random N, --crashes N
  attack [args]   hostile clients against the built binary on loopback: --seconds N [attack]
  crash [args]    kill -9 loop on the built binary: --protocol http|native|sqs|servicebus --cycles N
  full [args]     the built binary on a small real disk that fills up (needs root): --rounds N --mib N
  fuzz [args]     decoders against random input: --seconds N [target]
  conformance [p] the clients that users have, against the built binary: sqs, servicebus, world or all;
                  servicebus-upstream are the live tests that come with its Go and Python clients, and
                  servicebus-upstream-go or -python those of one of them; cluster runs the contract of brokers
                  and workers on three nodes of RabbitMQ, and on PostgreSQL with a standby, while servers die;
                  orders runs that example on every broker that a worker can reach
  postgres        effects exactly once, the outbox and the broker `postgres://`, on a PostgreSQL of this machine
  rabbitmq        the worker's broker `amqp://`, on a RabbitMQ of this machine
  compare SYSTEM  beside a system that we speak like, one client for both: artemis, elasticmq;
                  bullmq has a client of its own, and both sides a worker with empty handlers; so has pgboss, which is
                  pg-boss and graphile-worker beside a worker of ours on one PostgreSQL;
                  lapin is a plain consumer beside our worker, both on one RabbitMQ
  mutate [args]   builds with a safety taken out must fail the simulation; args go to sim
";

/// Short runs inside `test`; `cargo xtask test` stays within about 15 minutes on two cores.
const SIM_SHORT: &[&str] = &["--crashes", "10000", "--random", "100"];
const FUZZ_SHORT: &[&str] = &["--seconds", "20"];
const CRASH_SHORT: &[(&str, &[&str])] = &[
    ("crash http", &["--protocol", "http", "--cycles", "20"]),
    ("crash native", &["--protocol", "native", "--cycles", "20"]),
    ("crash sqs", &["--protocol", "sqs", "--cycles", "20"]),
];

/// One round on the smallest disk on which it makes sense.
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

/// Whether everything passed.
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
        ("sim" | "attack" | "crash" | "full" | "fuzz", _) => return passed_through(command, rest),
        ("compare", [system]) => return compare::run(system),
        ("mutate", _) => mutate::steps(rest),
        ("conformance", [] | [_]) => {
            let clients = conformance::steps(rest.first().map(String::as_str), Depth::All);
            if clients.is_empty() {
                bail!("there are no clients of `{}`\n\n{USAGE}", rest.concat());
            }
            // Only programs of others talk to the built binary.
            let built =
                rest.first().is_none_or(|one| !["cluster", "orders"].contains(&one.as_str()));
            built.then(release_build).into_iter().chain(clients).collect()
        }
        ("check" | "test" | "tidy" | "postgres" | "rabbitmq", _) => {
            bail!("`{command}` takes no arguments\n\n{USAGE}")
        }
        (unknown, _) => bail!("there is no command `{unknown}`\n\n{USAGE}"),
    };
    Ok(steps::run(steps))
}

/// Fast ones first: what fails, fails early.
fn check() -> Vec<Step> {
    vec![
        tidy_step(),
        Step::command("fmt", &["fmt", "--all", "--check"]),
        Step::new("foreign libraries", cargo::no_foreign_libraries),
        Step::tool("typos", "typos", &[]),
        Step::tool("deny", "cargo-deny", &["check"]),
        Step::new("clippy", || {
            // Targets that tests leave out unless they are named are left out here, too.
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
    steps.extend(conformance::steps(None, Depth::Usual));
    steps.push(Step::sim("sim", "sim", SIM_SHORT));
    steps.push(Step::sim("fuzz", "fuzz", FUZZ_SHORT));
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

/// `sim`, `attack`, `crash`, `full` and `fuzz` speak for themselves: their output and their exit code are the
/// answer.
fn passed_through(command: &str, args: &[String]) -> Result<bool> {
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
    fn a_wrong_command_shows_the_usage_and_passes_nothing() {
        for args in [vec![], vec!["chekc".to_owned()], vec!["check".to_owned(), "x".to_owned()]] {
            assert!(run(&args).unwrap_err().to_string().contains("usage: cargo xtask"));
        }
        assert!(run(&["--help".to_owned()]).unwrap());
    }
}
