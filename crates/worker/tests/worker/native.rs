//! Workers on a Malote server, over the native connection.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use malote::{
    Address, Attempt, Failure, Malote, Message, QueueName, QueueSpec, Retry, Session, SessionId,
    State, Worker,
};
use malote_engine::{Engine, Settings};
use malote_front_http::{AllAnonymous, Api, Limits, Readiness, router, serve_connection};
use malote_model::access::AllowAll;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::until;

const Q: &str = "orders";

/// A server on a free port. It stops when the guard is dropped.
async fn server(engine: Engine) -> (SocketAddr, DropGuard) {
    let (ready, stop) = (Arc::new(Readiness::ready()), CancellationToken::new());
    let (access, authenticate) = (Arc::new(AllowAll), Arc::new(AllAnonymous));
    let limits = Limits::default();
    let router =
        router(Api::new(engine, access, authenticate, limits.clone(), ready, stop.clone()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stopped = stop.clone();
    tokio::spawn(async move {
        while let Some(Ok((stream, peer))) = stopped.run_until_cancelled(listener.accept()).await {
            let (router, limits, stop) = (router.clone(), limits.clone(), stopped.clone());
            tokio::spawn(
                async move { serve_connection(stream, router, peer, &limits, stop).await },
            );
        }
    });
    (address, stop.drop_guard())
}

type Done = Arc<Mutex<HashMap<String, Vec<String>>>>;

async fn handle(
    text: String,
    Session(session): Session,
    Attempt(attempt): Attempt,
    done: State<Done>,
) -> Result<(), Failure> {
    if attempt == 1 && text == "7" {
        return Err(Failure::retry("not yet"));
    }
    done.lock().unwrap().entry(session.as_str().to_owned()).or_default().push(text);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_share_sessions_and_keep_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, _running) = Engine::open(Settings::at(dir.path())).unwrap();
    let (address, _server) = server(engine).await;
    let url = format!("malote://{address}");
    let malote = Malote::connect(&url).await.unwrap();
    let sessions = malote::model::Sessions::Dynamic;
    malote.declare(Q, QueueSpec { sessions, ..QueueSpec::default() }).await.unwrap();
    let to = Address::Queue(QueueName::new(Q).unwrap());
    let of = |session: usize, n: usize| {
        let body = malote::model::Body { bytes: n.to_string().into(), ..Default::default() };
        let session = Some(SessionId::new(&format!("s{session}")).unwrap());
        (to.clone(), Message { session, body, ..Message::default() })
    };
    for n in 0..20 {
        malote.send_all((0..40).map(|session| of(session, n)).collect()).await.unwrap();
    }
    let done = Done::default();
    let mut workers = Vec::new();
    for _ in 0..2 {
        let malote = Malote::connect(&url).await.unwrap();
        let worker = Worker::new(&malote, Q).handle(handle).sessions(4).state(done.clone());
        workers.push((worker.retry(Retry::at_once(5)).start().await.unwrap(), malote));
    }
    let count = || done.lock().unwrap().values().map(Vec::len).sum::<usize>();
    until("all messages are done", async || count() == 800).await;
    let mut counted = (0, 0, 0);
    for (running, malote) in workers {
        running.stop();
        let counts = running.ended().await.unwrap().counts;
        counted = (counted.0 + counts.done, counted.1 + counts.retried, counted.2 + counts.lost);
        malote.close().await.unwrap();
    }
    assert_eq!(counted, (800, 40, 0));
    let expected: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    let done = done.lock().unwrap();
    assert!(done.len() == 40 && done.values().all(|of| *of == expected), "{done:?}");
}
