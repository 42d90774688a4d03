//! `malote work --scale`: the number of processes follows the load.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Server, malote, words};
use crate::lab::PATIENCE;

/// The command, and its standard error.
struct Scaled {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
}

impl Scaled {
    fn start(server: &Server, line: &str) -> Self {
        let mut command = malote(server.home.path());
        let broker = server.url.replace("http://", "malote://");
        command.args(words(line)).env("MALOTE_WORK_URL", broker);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let (lines, hear) = (said.clone(), BufReader::new(child.stderr.take().unwrap()));
        std::thread::spawn(move || {
            hear.lines().map_while(Result::ok).for_each(|line| lines.lock().unwrap().push(line));
        });
        Self { child, said }
    }

    fn said(&self) -> Vec<String> {
        self.said.lock().unwrap().clone()
    }

    /// Waits for a line that contains this text.
    fn until(&self, what: &str) -> String {
        until(what, || self.said().into_iter().find(|line| line.contains(what)), || self.said())
    }

    fn signal(&self, signal: Signal) {
        kill_process(pid(self.child.id()), signal).unwrap();
    }

    /// Requests a page of its metrics server.
    fn get(&self, path: &str) -> String {
        let at = self.until("metrics at http://");
        let at = at.split("http://").nth(1).unwrap().trim_end_matches("/metrics").to_owned();
        let mut stream = std::net::TcpStream::connect(at).unwrap();
        std::io::Write::write_all(
            &mut stream,
            format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes(),
        )
        .unwrap();
        std::io::read_to_string(stream).unwrap()
    }

    /// Waits until the metrics contain this text.
    fn until_page(&self, what: &str) -> String {
        let page = || Some(self.get("/metrics")).filter(|page| page.contains(what));
        until(what, page, || (self.get("/metrics"), self.said()))
    }

    /// Its running child processes.
    fn replicas(&self) -> Vec<u32> {
        let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            (parent_of(pid)? == self.child.id()).then_some(pid)
        });
        all.collect()
    }

    fn ended(&mut self) -> bool {
        let ended = || self.child.try_wait().unwrap();
        until("its end", ended, || ()).success()
    }
}

impl Drop for Scaled {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The parent of a process, or none if the process has ended, even if it is a zombie.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let (state, parent) = (fields.next()?, fields.next()?);
    (state != "Z").then(|| parent.parse().ok()).flatten()
}

fn pid(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

#[track_caller]
fn until<T, S: std::fmt::Debug>(
    what: &str,
    mut is_so: impl FnMut() -> Option<T>,
    shown: impl Fn() -> S,
) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(it) = is_so() {
            return it;
        }
        assert!(Instant::now() < end, "it never came to that: {what}\n{:#?}", shown());
        std::thread::sleep(Duration::from_millis(10));
    }
}

const QUICK: &str = "--scale-up-after 300ms --scale-down-after 1s --metrics 127.0.0.1:0";

fn send(server: &Server, count: usize) {
    server.ok(&format!("send jobs x --count {count}"));
}

#[test]
fn the_number_of_processes_follows_the_load() {
    let server = Server::start();
    server.ok("queue create jobs");
    // Each message takes a tenth of a second, so that one process would need twenty seconds.
    let line = format!("work jobs --exec 'sleep 0.1' --slots 1 --scale 1..3 {QUICK}");
    let mut scaled = Scaled::start(&server, &line);
    scaled.until_page("malote_worker_replicas{queue=\"jobs\"} 1\n");
    send(&server, 200);
    let up = scaled.until("scale: 1 -> 3");
    // If processes start slowly, the time per message causes the scaling instead of the backlog.
    assert!(up.contains("waiting") || up.contains("load"), "{up}");
    scaled.until_page("malote_worker_replicas{queue=\"jobs\"} 3\n");
    until("three processes", || (scaled.replicas().len() == 3).then_some(()), || scaled.replicas());
    // A killed process is replaced.
    kill_process(pid(scaled.replicas()[0]), Signal::KILL).unwrap();
    scaled.until("exited by itself");
    scaled.until_page("malote_worker_replaced_total{queue=\"jobs\"} 1\n");
    scaled.until("-> 1: ");
    scaled.until_page("malote_worker_replicas{queue=\"jobs\"} 1\n");
    until("one process", || (scaled.replicas().len() == 1).then_some(()), || scaled.replicas());
    let page = scaled.get("/metrics");
    assert!(page.contains("malote_worker_replicas_wanted{queue=\"jobs\",reason="), "{page}");
    assert!(page.contains("malote_worker_scaled_total{queue=\"jobs\",direction=\"up\"}"), "{page}");
    assert!(scaled.get("/readyz").starts_with("HTTP/1.1 200"));
    assert!(scaled.get("/healthz").starts_with("HTTP/1.1 200"));
    assert!(scaled.get("/nowhere").starts_with("HTTP/1.1 404"));
    scaled.signal(Signal::TERM);
    assert!(scaled.ended(), "{:?}", scaled.said());
    // The killed process may not have reported its last messages.
    let done = scaled.until(" completed, ");
    let done: usize = done.split_once(" completed").unwrap().0.parse().unwrap();
    assert!((190..=200).contains(&done), "{:?}", scaled.said());
    let shown = server.ok("queue get jobs -o json");
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["counts"]["ready"], 0, "{shown}");
    assert_eq!(shown["counts"]["dead_lettered"], 0, "{shown}");
}

#[test]
fn an_open_breaker_stops_scaling_up_and_replicas_end_with_their_parent() {
    let server = Server::start();
    server.ok("queue create jobs");
    let line = format!("work jobs --exec 'exit 69' --slots 4 --scale 1..3 {QUICK}");
    let mut scaled = Scaled::start(&server, &line);
    // Too few messages to need another process, but enough to open the breaker.
    send(&server, 12);
    let state = "malote_circuit_state{queue=\"jobs\",dependency=\"command\",state=\"open\"} 1\n";
    scaled.until_page(state);
    let ready = || Some(scaled.get("/readyz")).filter(|said| said.starts_with("HTTP/1.1 503"));
    until("it is not ready", ready, || scaled.said());
    send(&server, 500);
    scaled.until("breaker_open");
    // Without the open breaker, it would have scaled up three times by now.
    std::thread::sleep(Duration::from_secs(1));
    let page = scaled.get("/metrics");
    let wanted = "malote_worker_replicas_wanted{queue=\"jobs\",reason=\"breaker_open\"} 1\n";
    assert!(page.contains(wanted), "{page}");
    assert!(!scaled.said().iter().any(|line| line.contains("1 -> ")), "{:?}", scaled.said());
    let replicas = scaled.replicas();
    assert_eq!(replicas.len(), 1);
    scaled.signal(Signal::KILL);
    assert!(!scaled.ended());
    let gone = || parent_of(replicas[0]).is_none().then_some(());
    until("the replica is gone", gone, || ());
}

#[test]
fn unusable_scale_options_are_refused() {
    let server = Server::start();
    let line = "work jobs --scale 1..2 --exec true";
    let mut scaled = Scaled::start(&server, line);
    assert!(!scaled.ended());
    scaled.until("jobs");
    let mut scaled = Scaled::start(&server, "work jobs --print --replica");
    assert!(!scaled.ended());
    scaled.until("--replica is for processes");
    let mut scaled = Scaled::start(&server, "work jobs --print --scale 1..2 --broker embedded:x");
    assert!(!scaled.ended());
    scaled.until("one process at a time");
}

#[test]
fn all_processes_exit_when_the_queue_was_idle_for_long_enough() {
    let server = Server::start();
    server.ok("queue create jobs");
    send(&server, 20);
    let line = "work jobs --exec true --slots 2 --scale 2 --exit-when-idle 10s";
    let mut scaled = Scaled::start(&server, line);
    assert!(scaled.ended(), "{:?}", scaled.said());
    scaled.until("20 completed");
}
