//! `malote-sim`: simulation, fuzzing, the kill -9 loop, the full disk and hostile clients.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use malote_sim::crash::Protocol;
use malote_sim::full::Outcome;
use malote_sim::situations::Situations;
use malote_sim::{seeds, sim};

const USAGE: &str = "\
usage: malote-sim <command>

  attack [--seconds N] [--binary PATH] [name]
  crash  --protocol http|native|sqs|servicebus|amqp --cycles N [--binary PATH] [--seed S] [--program PATH]
  full   [--rounds N] [--mib N] [--binary PATH] [--seed S]
  fuzz   --seconds N [--seed S] [target]
  sim    [--seed S | --from S --seeds N] [--random N] [--crashes N] [--steps N] [--all] [-v]
         without --seed and --from: the recorded seeds that failed before, N random ones, then --seeds seeds from 0
         (default 200), or as many as needed for --crashes; random seeds are printed so that they can be run again
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(Outcome::Passed) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::FAILURE,
        Ok(Outcome::Skipped) => ExitCode::from(SKIPPED),
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::from(2)
        }
    }
}

/// The exit code for skipped tests in Automake.
const SKIPPED: u8 = 77;

fn run(args: &[String]) -> Result<Outcome> {
    let passed = match args.split_first() {
        Some((command, rest)) if command == "sim" => simulate(rest)?,
        Some((command, rest)) if command == "crash" => crash(rest)?,
        Some((command, rest)) if command == "full" => return full(rest),
        #[cfg(feature = "protocols")]
        Some((command, rest)) if command == "attack" => attack(rest)?,
        #[cfg(feature = "protocols")]
        Some((command, rest)) if command == "fuzz" => fuzz(rest)?,
        _ => bail!("{USAGE}"),
    };
    Ok(if passed { Outcome::Passed } else { Outcome::Failed })
}

#[global_allocator]
static ALLOCATOR: malote_sim::alloc::CountingAllocator = malote_sim::alloc::CountingAllocator;

fn crash(args: &[String]) -> Result<bool> {
    let cycles = option(args, "--cycles")?.unwrap_or(20);
    let seed = option(args, "--seed")?.unwrap_or(1);
    let protocol = match option::<String>(args, "--protocol")?.as_deref() {
        Some("sqs") => return malote_sim::crash::sqs::run(cycles, &binary(args)?, seed),
        #[cfg(feature = "protocols")]
        Some("amqp") => return malote_sim::crash::amqp::run(cycles, &binary(args)?, seed),
        None | Some("http") => Protocol::Http,
        Some("native") => Protocol::Native,
        Some("servicebus") => {
            let program: PathBuf = option(args, "--program")?.context(
                "--program is missing: the Service Bus clients are a separate program, which `cargo xtask crash` builds",
            )?;
            return malote_sim::crash::run_servicebus(&program, cycles, &binary(args)?, seed);
        }
        Some(other) => {
            bail!("--protocol: `{other}` is not one of http, native, sqs, servicebus, amqp")
        }
    };
    malote_sim::crash::run(protocol, cycles, &binary(args)?, seed)
}

#[cfg(feature = "protocols")]
fn attack(args: &[String]) -> Result<bool> {
    let seconds = option(args, "--seconds")?.unwrap_or(malote_sim::attack::SECONDS);
    malote_sim::attack::run(seconds, positional(args), &binary(args)?)
}

fn full(args: &[String]) -> Result<Outcome> {
    let rounds = option(args, "--rounds")?.unwrap_or(3);
    let mib = option(args, "--mib")?.unwrap_or(640);
    malote_sim::full::run(rounds, mib, &binary(args)?, option(args, "--seed")?.unwrap_or(1))
}

fn binary(args: &[String]) -> Result<PathBuf> {
    match option(args, "--binary")? {
        Some(path) => Ok(path),
        // Built in the same directory as this program.
        None => Ok(std::env::current_exe()
            .context("cannot find this program's path")?
            .with_file_name("malote")),
    }
}

#[cfg(feature = "protocols")]
fn fuzz(args: &[String]) -> Result<bool> {
    let seconds = option(args, "--seconds")?.unwrap_or(20);
    let seed = option(args, "--seed")?.unwrap_or(1);
    malote_sim::fuzz::run(seconds, positional(args), seed)
}

/// The first argument that is neither an option nor the value of one.
#[cfg(feature = "protocols")]
fn positional(args: &[String]) -> Option<&str> {
    let is_name = |at: usize| at == 0 || !args[at - 1].starts_with("--");
    let found = args.iter().enumerate().find(|(at, arg)| !arg.starts_with("--") && is_name(*at));
    found.map(|(_, name)| name.as_str())
}

/// The value of `--name`.
fn option<T: std::str::FromStr>(args: &[String], name: &str) -> Result<Option<T>> {
    let Some(at) = args.iter().position(|arg| arg == name) else { return Ok(None) };
    let value = args.get(at + 1).with_context(|| format!("{name} needs a value"))?;
    match value.parse() {
        Ok(value) => Ok(Some(value)),
        Err(_) => bail!("{name}: invalid value `{value}`"),
    }
}

#[allow(clippy::disallowed_methods, reason = "measures real time")]
fn simulate(args: &[String]) -> Result<bool> {
    let steps = option(args, "--steps")?.unwrap_or(sim::STEPS);
    let verbose = args.iter().any(|arg| arg == "-v");
    let one = option::<u64>(args, "--seed")?;
    let from = one.or(option(args, "--from")?);
    let seeds = if one.is_some() { 1 } else { option(args, "--seeds")?.unwrap_or(200) };
    let crashes = option::<u64>(args, "--crashes")?;
    let random = option::<u64>(args, "--random")?.unwrap_or(0);
    let found: &[u64] = if from.is_none() { seeds::FOUND } else { &[] };
    let base = seeds::new_base();
    if random > 0 {
        println!("new seeds: `cargo xtask sim --from {base} --seeds {random}` runs them again");
    }
    let new = base..base + random;
    let mut in_order = from.unwrap_or(0)..;
    let begun = Instant::now();
    let (mut situations, mut done) = (Situations::default(), 0);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {})); // failures are printed below
    let mut failure = malote_sim::supervision::check().err();
    let all = args.iter().any(|arg| arg == "--all");
    let mut listed = found.iter().copied().chain(new);
    let mut ordered = 0;
    while failure.is_none() || all {
        // The recorded and random seeds come first.
        let enough =
            crashes.map_or(ordered >= seeds, |crashes| situations.of("crashes") >= crashes);
        let Some(seed) = listed.next().or_else(|| {
            ordered += u64::from(!enough);
            in_order.next().filter(|_| !enough)
        }) else {
            break;
        };
        match sim::run(seed, steps, verbose) {
            Ok(result) => {
                // A seed is useful only if it can be replayed.
                if (done % 50 == 0 || one.is_some())
                    && sim::run(seed, steps, false).map(|again| again.hash).ok()
                        != Some(result.hash)
                {
                    failure = Some(format!("seed {seed} ran differently the second time"));
                    break;
                }
                situations.add(&result.met);
                done += 1;
            }
            Err(report) if all => {
                done += 1;
                let why = report.rsplit_once("\nseed ").map_or(&*report, |(_, why)| why);
                println!("seed {}", why.chars().take(400).collect::<String>());
                failure = Some(String::from("some seeds failed"));
            }
            Err(report) => {
                failure = Some(report);
                break;
            }
        }
    }
    std::panic::set_hook(hook);
    let seconds = begun.elapsed().as_secs_f64();
    println!("{done} seeds\n{situations}");
    println!("{:.1} s, {:.0} crash states/s", seconds, situations.of("crashes") as f64 / seconds);
    if let Some(report) = failure {
        println!("{report}");
        return Ok(false);
    }
    let missing = situations.missing();
    missing.iter().for_each(|what| println!("reached too rarely: {what}"));
    Ok(missing.is_empty())
}
