//! Malote's Service Bus front end on a real socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use malote_connectors::servicebus::{Client, Config, TlsMode};
use malote_engine::{Engine, Running, Settings};
use malote_front_servicebus::{Front, Key, Keys, Verified, serve_connection};
use malote_model::{Access, Action, Denied, Principal, QueueName, QueueSpec, Resource, Sessions};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The only key: `Root` with `secret`. Counts lookups.
#[derive(Default)]
pub struct SingleKey {
    pub lookups: AtomicUsize,
}

impl Keys for SingleKey {
    fn is_open(&self) -> bool {
        false
    }
    fn key(&self, name: &str) -> Option<Key> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
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

/// Allows everything to authenticated clients.
struct AnyAuthenticated;

impl Access for AnyAuthenticated {
    fn check(&self, who: &Principal, action: Action, on: Resource<'_>) -> Result<(), Denied> {
        let denied = || Denied::new(who, action, on);
        if who.is_anonymous() { Err(denied()) } else { Ok(()) }
    }
}

pub struct TestEnv {
    pub engine: Engine,
    pub keys: Arc<SingleKey>,
    front: Arc<Front>,
    pub port: u16,
    /// Cancelling it closes the current connections; later ones get a new token.
    connections: parking_lot::Mutex<CancellationToken>,
    _running: Running,
    _data: tempfile::TempDir,
}

impl TestEnv {
    pub async fn new() -> Arc<TestEnv> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let env = TestEnv::on(listener.local_addr().unwrap().port());
        let serving = Arc::downgrade(&env);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Some(env) = serving.upgrade() else { return };
                env.serve(stream);
            }
        });
        env
    }

    /// With TLS; also returns the certificate to trust.
    pub async fn with_tls() -> (Arc<TestEnv>, Vec<u8>) {
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
        let env = TestEnv::on(listener.local_addr().unwrap().port());
        let serving = Arc::downgrade(&env);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Some(env) = serving.upgrade() else { return };
                if let Ok(stream) = acceptor.accept(stream).await {
                    env.serve(stream);
                }
            }
        });
        (env, pem)
    }

    fn on(port: u16) -> Arc<TestEnv> {
        let data = tempfile::tempdir().unwrap();
        let (engine, running) = Engine::open(Settings::at(data.path())).unwrap();
        let keys = Arc::new(SingleKey::default());
        let front = Front {
            engine: engine.clone(),
            access: Arc::new(AnyAuthenticated),
            keys: keys.clone(),
        };
        Arc::new(TestEnv {
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

    /// Closes all connections. New ones are accepted.
    pub fn close_connections(&self) {
        std::mem::take(&mut *self.connections.lock()).cancel();
    }

    pub async fn queue(&self, name: &str, sessions: bool) -> QueueName {
        let sessions = if sessions { Sessions::Dynamic } else { Sessions::None };
        self.queue_with(name, QueueSpec { sessions, ..QueueSpec::default() }).await
    }

    pub async fn queue_with(&self, name: &str, spec: QueueSpec) -> QueueName {
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

    /// With TLS, trusting this certificate.
    pub fn config_with_tls(&self, authority: Vec<u8>) -> Config {
        let text = format!(
            "Endpoint=sb://localhost:{};SharedAccessKeyName=Root;SharedAccessKey=secret",
            self.port
        );
        Config { tls: TlsMode::Authority(authority), ..text.parse().unwrap() }
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.config()).await.unwrap()
    }
}

/// Longer than any operation on a slow machine.
pub const TIMEOUT: Duration = Duration::from_secs(60);
