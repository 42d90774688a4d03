//! `malote-sim`: simulation, fuzzing, the kill -9 loop and the full disk.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use malote_sim::crash::Protocol;
use malote_sim::full::Outcome;
use malote_sim::met::Met;
use malote_sim::sim;

const USAGE: &str = "\
usage: malote-sim <command>

  crash  --protocol http|native|sqs|servicebus --cycles N [--binary PATH] [--seed S] [--program PATH]
  full   [--rounds N] [--mib N] [--binary PATH] [--seed S]
  fuzz   --seconds N [--seed S] [target]
  sim    --seeds N | --seed S [--steps N] [--from S] [--crashes N] [--all] [-v]
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

/// What the test harness of autotools says for the same.
const SKIPPED: u8 = 77;

fn run(args: &[String]) -> Result<Outcome> {
    let passed = match args.split_first() {
        Some((command, rest)) if command == "sim" => simulate(rest)?,
        Some((command, rest)) if command == "crash" => crash(rest)?,
        Some((command, rest)) if command == "full" => return full(rest),
        Some((command, rest)) if command == "fuzz" => fuzz(rest)?,
        _ => bail!("{USAGE}"),
    };
    Ok(if passed { Outcome::Passed } else { Outcome::Failed })
}

#[global_allocator]
static ALLOCATOR: malote_sim::alloc::Counting = malote_sim::alloc::Counting;

fn crash(args: &[String]) -> Result<bool> {
    let cycles = option(args, "--cycles")?.unwrap_or(20);
    let seed = option(args, "--seed")?.unwrap_or(1);
    let protocol = match option::<String>(args, "--protocol")?.as_deref() {
        Some("sqs") => return malote_sim::crash::sqs::run(cycles, &binary(args)?, seed),
        None | Some("http") => Protocol::Http,
        Some("native") => Protocol::Native,
        Some("servicebus") => {
            let program: PathBuf = option(args, "--program")?.context(
                "--program: the clients of servicebus are a program; `cargo xtask crash` builds it",
            )?;
            return malote_sim::crash::run_servicebus(&program, cycles, &binary(args)?, seed);
        }
        Some(other) => bail!("--protocol: `{other}` is none of http, native, sqs and servicebus"),
    };
    malote_sim::crash::run(protocol, cycles, &binary(args)?, seed)
}

fn full(args: &[String]) -> Result<Outcome> {
    let rounds = option(args, "--rounds")?.unwrap_or(3);
    let mib = option(args, "--mib")?.unwrap_or(640);
    malote_sim::full::run(rounds, mib, &binary(args)?, option(args, "--seed")?.unwrap_or(1))
}

fn binary(args: &[String]) -> Result<PathBuf> {
    match option(args, "--binary")? {
        Some(path) => Ok(path),
        // Built beside this one.
        None => Ok(std::env::current_exe().context("where am I?")?.with_file_name("malote")),
    }
}

fn fuzz(args: &[String]) -> Result<bool> {
    let seconds = option(args, "--seconds")?.unwrap_or(20);
    let seed = option(args, "--seed")?.unwrap_or(1);
    let named = |at: usize| at == 0 || !args[at - 1].starts_with("--");
    let target = args.iter().enumerate().find(|(at, arg)| !arg.starts_with("--") && named(*at));
    malote_sim::fuzz::run(seconds, target.map(|(_, name)| name.as_str()), seed)
}

/// The value of `--name`.
fn option<T: std::str::FromStr>(args: &[String], name: &str) -> Result<Option<T>> {
    let Some(at) = args.iter().position(|arg| arg == name) else { return Ok(None) };
    let value = args.get(at + 1).with_context(|| format!("{name} needs a value"))?;
    match value.parse() {
        Ok(value) => Ok(Some(value)),
        Err(_) => bail!("{name}: `{value}` is not what it takes"),
    }
}

#[allow(clippy::disallowed_methods, reason = "the time that a run takes is not the engine's time")]
fn simulate(args: &[String]) -> Result<bool> {
    let steps = option(args, "--steps")?.unwrap_or(sim::STEPS);
    let verbose = args.iter().any(|arg| arg == "-v");
    let one = option::<u64>(args, "--seed")?;
    let from = one.or(option(args, "--from")?).unwrap_or(0);
    let seeds = if one.is_some() { 1 } else { option(args, "--seeds")?.unwrap_or(200) };
    let crashes = option::<u64>(args, "--crashes")?;
    let begun = Instant::now();
    let (mut met, mut done) = (Met::default(), 0);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {})); // the story is told below
    let mut failure = None;
    let all = args.iter().any(|arg| arg == "--all");
    for seed in from.. {
        if crashes.map_or(done >= seeds, |crashes| met.of("crashes") >= crashes) {
            break;
        }
        match sim::run(seed, steps, verbose) {
            Ok(ran) => {
                // A seed is worth something only if it can be replayed.
                if (done % 50 == 0 || one.is_some())
                    && sim::run(seed, steps, false).map(|again| again.hash).ok() != Some(ran.hash)
                {
                    failure = Some(format!("seed {seed} ran differently the second time"));
                    break;
                }
                met.add(&ran.met);
                done += 1;
            }
            Err(story) if all => {
                done += 1;
                let why = story.rsplit_once("\nseed ").map_or(&*story, |(_, why)| why);
                println!("seed {}", why.chars().take(400).collect::<String>());
                failure = Some(String::from("some seeds failed"));
            }
            Err(story) => {
                failure = Some(story);
                break;
            }
        }
    }
    std::panic::set_hook(hook);
    let seconds = begun.elapsed().as_secs_f64();
    println!("{done} seeds\n{met}");
    println!("{:.1} s, {:.0} crash states/s", seconds, met.of("crashes") as f64 / seconds);
    if let Some(story) = failure {
        println!("{story}");
        return Ok(false);
    }
    let missing = met.missing();
    missing.iter().for_each(|what| println!("met too rarely: {what}"));
    Ok(missing.is_empty())
}
