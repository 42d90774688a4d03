//! A broker of our own behind a real socket, for clients to reach.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use malote_connectors::servicebus::{Client, Config, Tls};
use malote_engine::{Engine, Running, Settings};
use malote_front_servicebus::{Front, Key, Keys, Verified, serve_connection};
use malote_model::{Access, Action, Denied, Principal, QueueName, QueueSpec, Resource, Sessions};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// One key, `Root` with `secret`. Counts how often it was asked for.
#[derive(Default)]
pub struct OneKey {
    pub asked: AtomicUsize,
}

impl Keys for OneKey {
    fn is_open(&self) -> bool {
        false
    }
    fn key(&self, name: &str) -> Option<Key> {
        self.asked.fetch_add(1, Ordering::Relaxed);
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

/// Lets everyone do everything who has shown a key.
struct Known;

impl Access for Known {
    fn check(&self, who: &Principal, action: Action, on: Resource<'_>) -> Result<(), Denied> {
        let denied = || Denied::new(who, action, on);
        if who.is_anonymous() { Err(denied()) } else { Ok(()) }
    }
}

pub struct World {
    pub engine: Engine,
    pub keys: Arc<OneKey>,
    front: Arc<Front>,
    pub port: u16,
    /// Cancelled, the connections of now are closed; later ones are served.
    connections: parking_lot::Mutex<CancellationToken>,
    _running: Running,
    _data: tempfile::TempDir,
}

impl World {
    pub async fn new() -> Arc<World> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let world = World::on(listener.local_addr().unwrap().port());
        let serving = Arc::downgrade(&world);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Some(world) = serving.upgrade() else { return };
                world.serve(stream);
            }
        });
        world
    }

    /// The same behind TLS; tells whom to trust.
    pub async fn with_tls() -> (Arc<World>, Vec<u8>) {
        let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let pem = pair.cert.pem().into_bytes();
        let key = rustls::pki_types::PrivateKeyDer::try_from(pair.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![pair.cert.der().clone()], key.unwrap())
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("localhost:0").await.unwrap();
        let world = World::on(listener.local_addr().unwrap().port());
        let serving = Arc::downgrade(&world);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Some(world) = serving.upgrade() else { return };
                if let Ok(stream) = acceptor.accept(stream).await {
                    world.serve(stream);
                }
            }
        });
        (world, pem)
    }

    fn on(port: u16) -> Arc<World> {
        let data = tempfile::tempdir().unwrap();
        let (engine, running) = Engine::open(Settings::at(data.path())).unwrap();
        let keys = Arc::new(OneKey::default());
        let front = Front { engine: engine.clone(), access: Arc::new(Known), keys: keys.clone() };
        Arc::new(World {
            engine,
            keys,
            front: Arc::new(front),
            port,
            connections: Default::default(),
            _running: running,
            _data: data,
        })
    }

    fn serve<S>(&self, stream: S)
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let (front, over) = (self.front.clone(), self.connections.lock().clone());
        tokio::spawn(async move { serve_connection(stream, front, over).await });
    }

    /// The server closes all connections, and takes new ones.
    pub fn hang_up(&self) {
        std::mem::take(&mut *self.connections.lock()).cancel();
    }

    pub async fn queue(&self, name: &str, sessions: bool) -> QueueName {
        let sessions = if sessions { Sessions::Dynamic } else { Sessions::None };
        self.queue_of(name, QueueSpec { sessions, ..QueueSpec::default() }).await
    }

    pub async fn queue_of(&self, name: &str, spec: QueueSpec) -> QueueName {
        let name = QueueName::new(name).unwrap();
        self.engine.declare(name.clone(), spec).await.unwrap();
        name
    }

    pub fn config(&self) -> Config {
        let text = format!(
            "Endpoint=sb://127.0.0.1:{};SharedAccessKeyName=Root;SharedAccessKey=secret;UseDevelopmentEmulator=true",
            self.port
        );
        text.parse().unwrap()
    }

    /// Through TLS, trusting these.
    pub fn config_with_tls(&self, authority: Vec<u8>) -> Config {
        let text = format!(
            "Endpoint=sb://localhost:{};SharedAccessKeyName=Root;SharedAccessKey=secret",
            self.port
        );
        Config { tls: Tls::Authority(authority), ..text.parse().unwrap() }
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.config()).await.unwrap()
    }
}

/// Longer than anything takes on a slow machine.
pub const LONG: Duration = Duration::from_secs(60);
