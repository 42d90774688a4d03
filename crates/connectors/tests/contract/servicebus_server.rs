//! Malote's Service Bus front end on its own port.

use std::net::SocketAddr;
use std::sync::Arc;

use malote_engine::{Engine, Running, Settings};
use malote_front_servicebus::{Front, Key, Keys, Verified, serve_connection};
use malote_model::Principal;
use malote_model::access::AllowAll;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The only key: `Root` with `secret`.
struct OneKey;

impl Keys for OneKey {
    fn is_open(&self) -> bool {
        false
    }
    fn key(&self, name: &str) -> Option<Key> {
        let principal = Principal::named("root");
        (name == "Root").then(|| Key { secret: "secret".into(), principal })
    }
    fn verify_password<'a>(&'a self, _: &'a str, _: &'a str, _: std::net::IpAddr) -> Verified<'a> {
        Box::pin(async { None })
    }
    fn verify_token(&self, _: &str) -> Option<Principal> {
        None
    }
}

pub struct ServiceBusServer {
    at: SocketAddr,
    pub engine: Engine,
    _stop: DropGuard,
    _running: Running,
    _dir: tempfile::TempDir,
}

impl ServiceBusServer {
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
        let (access, keys) = (Arc::new(AllowAll), Arc::new(OneKey));
        let front = Arc::new(Front { engine: engine.clone(), access, keys });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (at, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let until = stop.clone();
        tokio::spawn(async move {
            while let Some(Ok((stream, _))) = until.run_until_cancelled(listener.accept()).await {
                let (front, over) = (front.clone(), until.clone());
                tokio::spawn(async move { serve_connection(stream, front, over).await });
            }
        });
        Self { at, engine, _stop: stop.drop_guard(), _running: running, _dir: dir }
    }

    pub fn url(&self) -> String {
        let at = self.at;
        format!(
            "servicebus://Endpoint=sb://{at};SharedAccessKeyName=Root;SharedAccessKey=secret;UseDevelopmentEmulator=true"
        )
    }
}
