//! The whole process: engine, credentials, ports and front ends, from start to shutdown.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::{ConnectInfo, Request};
use axum::middleware::{Next, from_fn};
use malote_engine::{Engine, Running};
use malote_front_amqp091 as rabbitmq;
use malote_front_amqp091::metadata::MetadataStore;
use malote_front_http::{Api, Authenticate, Limits, Readiness};
use malote_front_servicebus as servicebus;
use malote_front_sqs::Sqs;
use malote_model::{Access, Audit, AuditEntry, AuditProtocol, CallerKind, WebGuard};
use malote_wire_native::overview::Endpoint;

use crate::audit::AuditLog;
use crate::authenticators::{AccessKeys, HttpAuthenticator, ServiceBusKeys};
use crate::banner::banner;
use crate::credentials::{CREDENTIALS_FILE, CredentialsError, Store};
use crate::exposure::{ExposureError, check_exposure};
use crate::net::{
    Admission, BindError, ConnectionLimit, Listener, Port, Router, Tls, TlsError, handler,
    raise_file_limit,
};
use crate::permissions::Permissions;
use crate::rabbitmq_file::{RABBITMQ_FILE, RabbitmqFile};
use crate::rabbitmq_users::RabbitmqUsers;
use crate::reload::{Reload, keep_current};
use crate::settings::Settings;
use crate::shutdown::{Drained, Shutdown, StopSignals};
use crate::systemd;

/// Why the server did not start, or did not stop cleanly.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Engine(#[from] malote_engine::OpenError),
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error(transparent)]
    Guard(#[from] ExposureError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The file with the entities to create at start is invalid.
    #[error("{path}: {why}")]
    ServiceBusConfig { path: String, why: String },
    /// A virtual host of RabbitMQ cannot be created.
    #[error("cannot create the virtual host `{name}`: {error}")]
    VirtualHost { name: String, error: malote_engine::EngineError },
    /// The virtual hosts of RabbitMQ cannot be listed.
    #[error("cannot list the virtual hosts: {0}")]
    VirtualHosts(#[from] rabbitmq::AdministrationError),
    /// The file with RabbitMQ's policies and parameters is invalid.
    #[error("{RABBITMQ_FILE}: {0}")]
    RabbitmqMetadata(rabbitmq::metadata::MetadataError),
    /// The definitions to import at start are invalid.
    #[error("{path}: {why}")]
    Definitions { path: String, why: String },
    /// The thread of the audit log cannot be started.
    #[error("cannot start the audit log: {0}")]
    Audit(#[source] std::io::Error),
    #[error("all listeners are off; enable one, for example with `--http 127.0.0.1:8080`")]
    NothingToServe,
    #[error("cannot handle signals: {0}")]
    Signals(#[source] std::io::Error),
    /// The disk or the engine failed while serving.
    #[error("{0}; the server stopped accepting requests: restart it to recover the stored data")]
    Poisoned(malote_engine::EngineFailure),
    /// The drain timed out, or was cut short by a second signal.
    #[error("stopped before all requests were finished; acknowledged messages are not lost")]
    CutOff,
}

/// Interval of the check whether the engine has failed.
const POISON_CHECK: Duration = Duration::from_millis(100);

/// Time for the last replies after the engine failed.
const POISON_DRAIN: Duration = Duration::from_secs(2);

/// Serves until a signal. `started` gets the start-up banner.
pub async fn run(settings: Settings, started: impl FnOnce(&str)) -> Result<(), ServeError> {
    raise_file_limit();
    check_ports(&settings).await?;
    let mut engine_settings = malote_engine::Settings::at(&settings.data);
    engine_settings.journal.scrub_bytes_per_s = settings.scrub_bytes_per_s;
    let opened = tokio::task::spawn_blocking(move || Engine::open(engine_settings));
    let opened = opened.await.expect("opening the engine does not panic")?;
    serve(settings, opened, started).await
}

/// Refuses a port that is taken before anything is written: a failed start leaves no data directory behind.
async fn check_ports(settings: &Settings) -> Result<(), ServeError> {
    let listeners = &settings.listeners;
    for (front, listen) in [
        ("http", &listeners.http),
        ("sqs", &listeners.sqs),
        ("amqp", &listeners.amqp),
        ("amqps", &listeners.amqps),
        ("servicebus-admin", &listeners.servicebus_admin),
        ("rabbitmq-management", &listeners.rabbitmq_management),
    ] {
        drop(Listener::bind(front, listen).await?);
    }
    Ok(())
}

/// Serves an open engine until a signal, or until it fails.
pub async fn serve(
    settings: Settings,
    (engine, running): (Engine, Running),
    started: impl FnOnce(&str),
) -> Result<(), ServeError> {
    let report = running.report();
    tracing::info!(frames = report.frames, segments = report.segments, "journal recovered");
    for damage in &report.damaged {
        tracing::error!(
            ?damage,
            "part of the journal is damaged; the intact part is served, see `malote verify`"
        );
    }

    for orphan in &report.orphans {
        tracing::error!(
            ?orphan,
            "the declaration of a queue or topic is damaged; its messages are in the recovery queue shown, see docs/operations.md"
        );
    }

    let clock = engine.clone();
    let audit = AuditLog::open(&settings.data, move || clock.now()).map_err(ServeError::Audit)?;
    let audit = Arc::new(audit);
    let store = Arc::new(Store::open(settings.data.join(CREDENTIALS_FILE))?);
    let log = audit.clone();
    store.on_change(move |action, object, detail| {
        let entry = AuditEntry::new(AuditProtocol::Server, action);
        log.record(entry.claimed("server", CallerKind::Server).on(object).detail(detail));
    });
    let listeners = &settings.listeners;
    let ports = [
        ("http", &listeners.http),
        ("sqs", &listeners.sqs),
        ("amqp", &listeners.amqp),
        ("amqps", &listeners.amqps),
        ("servicebus_admin", &listeners.servicebus_admin),
        ("rabbitmq_management", &listeners.rabbitmq_management),
    ];
    check_exposure(&settings, &store, &ports)?;
    let tls = Tls::open(&settings.tls.certificate, &settings.data)?;
    let shutdown = Shutdown::new();
    let readiness = Arc::new(Readiness::default());
    readiness.recovered.store(true, Ordering::SeqCst);

    // A server without credentials on loopback accepts only its own names as host, against DNS rebinding.
    let web_of = |listen: &crate::settings::Listen| match store.is_open() && listen.is_loopback() {
        true => WebGuard { hosts: vec!["localhost".to_owned()], origins: Vec::new() },
        false => WebGuard::default(),
    };
    let limits = Limits {
        head_time_max: settings.limits.header_timeout,
        idle_time_max: settings.limits.idle_timeout,
        web: web_of(&listeners.http),
        ..Limits::default()
    };
    if let Some(path) = &settings.servicebus_config {
        declare_entities(&engine, path).await?;
    }
    let access: Arc<dyn Access> =
        Arc::new(Permissions { store: store.clone(), audit: audit.clone() });
    let callers = Arc::new(HttpAuthenticator(store.clone()));
    let api = Api::new(
        engine.clone(),
        access.clone(),
        callers,
        limits,
        readiness.clone(),
        shutdown.token().draining_token(),
    );
    // Before any port is open, so that no message is missed. A failed engine is noticed below.
    let _ = api.history.begin(&engine).await;
    let bus = Arc::new(servicebus::Front {
        engine: engine.clone(),
        access: access.clone(),
        keys: Arc::new(ServiceBusKeys { store: store.clone(), tls: tls.clone() }),
    });
    // SQS is served on both ports, so a host name that is valid for one of them is accepted on both.
    let mut webs = [&listeners.http, &listeners.sqs].map(web_of).into_iter();
    let sqs_web = webs.find(|web| web.hosts.is_empty()).unwrap_or_else(|| web_of(&listeners.http));
    let sqs = Sqs::new(
        engine.clone(),
        access.clone(),
        Arc::new(AccessKeys(store.clone())),
        api.history.clone(),
        malote_front_sqs::Settings {
            account: settings.sqs.account.clone(),
            public_url: settings.sqs.public_url.clone(),
            purge_pause: settings.sqs.purge_pause,
            web: sqs_web,
            ..Default::default()
        },
        shutdown.token().draining_token(),
    );
    let admission = Admission {
        tls: tls.clone(),
        tls_required: settings.tls.required,
        limit: ConnectionLimit::new(settings.limits.connections_max),
        handshake_timeout: settings.limits.handshake_timeout,
    };
    let rabbit = open_rabbitmq(&settings, &engine, &access, &store).await?;
    let listen = &listeners.rabbitmq_management;
    let management =
        rabbitmq::ManagementApi::new(rabbit.clone(), api.history.clone(), web_of(listen));
    let on_http = http(&api, &sqs, &management, &store);
    let http = Port::open("http", &listeners.http, on_http, admission.clone()).await?;
    let queues =
        Port::open("sqs", &listeners.sqs, sqs_alone(&api, &sqs), admission.clone()).await?;
    let sockets = tokio_util::task::TaskTracker::new();
    let administration = servicebus::Admin::new(bus.clone());
    let admin = admin_alone(&api, &administration, web_of(&listeners.servicebus_admin));
    let bus = |listen| {
        let draining = shutdown.token().draining_token();
        let router = amqp(&api, &bus, &administration, web_of(listen), draining, &sockets);
        Router { amqp091: Some(amqp091(&api, &rabbit)), ..router }
    };
    let (on_amqp, on_amqps) = (bus(&listeners.amqp), bus(&listeners.amqps));
    let amqp = Port::open("amqp", &listeners.amqp, on_amqp, admission.clone()).await?;
    let amqps = Port::open("amqps", &listeners.amqps, on_amqps, admission.clone()).await?;
    let listen = &listeners.servicebus_admin;
    let admin = Port::open("servicebus-admin", listen, admin, admission.clone()).await?;
    let listen = &listeners.rabbitmq_management;
    let on_management = management_alone(&api, &management);
    let manage = Port::open("rabbitmq-management", listen, on_management, admission).await?;
    management.set_listeners(rabbitmq_listeners(&settings, [&amqp, &amqps, &manage]));
    api.set_endpoints(endpoints(&settings, [&http, &queues, &amqp, &amqps, &admin, &manage]));
    let ports = [http, queues, amqp, amqps, admin, manage];
    if ports.iter().all(Option::is_none) {
        return Err(ServeError::NothingToServe);
    }
    started(&banner(&settings, ports.each_ref().map(Option::as_ref), tls.as_deref(), &store));

    for port in ports.into_iter().flatten() {
        shutdown.spawn(port.serve(shutdown.clone()));
    }
    shutdown.spawn({
        let token = shutdown.token();
        async move {
            token.draining().await;
            sockets.close();
            sockets.wait().await;
        }
    });
    shutdown.spawn({
        let api = api.clone();
        async move { tokio::join!(api.run(), sqs.run()).0 }
    });
    shutdown.spawn({
        let stop = shutdown.token().draining_token();
        let (policies, vhosts) = (rabbit.clone(), rabbit);
        async move {
            let deleted = vhosts.keep_vhosts_deleted(stop.clone());
            tokio::join!(policies.keep_policies_applied(stop), deleted).0
        }
    });
    shutdown.spawn({
        let mut parts: Vec<Arc<dyn Reload>> = vec![store];
        parts.extend(tls.map(|tls| tls as Arc<dyn Reload>));
        let token = shutdown.token();
        async move {
            if let Err(error) = keep_current(parts, token).await {
                tracing::warn!(%error, "cannot handle SIGHUP: changes of credentials and certificates need a restart");
            }
        }
    });
    readiness.listening.store(true, Ordering::SeqCst);
    shutdown.set_ready();
    systemd::ready("serving");

    let mut signals = StopSignals::of_process().map_err(ServeError::Signals)?;
    let mut tick = tokio::time::interval(POISON_CHECK);
    let failure = loop {
        tokio::select! {
            () = signals.next() => break None,
            _ = tick.tick() => if let Some(failure) = running.failure() { break Some(failure.clone()) },
        }
    };
    systemd::stopping();
    readiness.draining.store(true, Ordering::SeqCst);
    if let Some(failure) = failure {
        // Pending requests are answered with an unknown outcome; there is nothing else to wait for.
        shutdown.drain(&mut signals, POISON_DRAIN.min(settings.drain_timeout)).await;
        close(audit).await;
        return Err(ServeError::Poisoned(failure));
    }
    let drained = shutdown.drain(&mut signals, settings.drain_timeout).await;
    close(audit).await;
    running.stop().await;
    match drained {
        Drained::All => Ok(()),
        _ => Err(ServeError::CutOff),
    }
}

/// Writes the last audit records.
async fn close(audit: Arc<AuditLog>) {
    let _ = tokio::task::spawn_blocking(move || audit.close()).await;
}

/// The RabbitMQ front end, with its virtual hosts, policies and imported definitions.
async fn open_rabbitmq(
    settings: &Settings,
    engine: &Engine,
    access: &Arc<dyn Access>,
    store: &Arc<Store>,
) -> Result<Arc<rabbitmq::Front>, ServeError> {
    let users = Arc::new(RabbitmqUsers { store: store.clone(), access: access.clone() });
    let mut rabbit = rabbitmq::Front::new(engine.clone(), access.clone(), users.clone());
    rabbit.users = users;
    rabbit.consumer_timeout = settings.rabbitmq.consumer_timeout;
    let path = settings.data.join(RABBITMQ_FILE);
    let opened = tokio::task::spawn_blocking(move || MetadataStore::open(RabbitmqFile(path)));
    let opened = opened.await.expect("reading a file does not panic");
    rabbit.metadata = Arc::new(opened.map_err(ServeError::RabbitmqMetadata)?);
    rabbit.load_vhosts().await?;
    let wanted = &settings.rabbitmq;
    if !wanted.vhosts.is_empty() || wanted.definitions.is_some() {
        // What is to be created now must not be deleted later.
        rabbit.finish_deletions().await?;
    }
    for vhost in &settings.rabbitmq.vhosts {
        if let Err(error) = rabbit.create_vhost(vhost).await {
            return Err(ServeError::VirtualHost { name: vhost.clone(), error });
        }
    }
    if let Some(path) = &settings.rabbitmq.definitions {
        let wrong = |why: String| ServeError::Definitions { path: path.display().to_string(), why };
        let text = crate::files::read_text(path).map_err(|error| wrong(error.to_string()))?;
        let definitions = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        let by = rabbitmq::by_server();
        let imported = rabbit.import_definitions(definitions, None, &by).await;
        imported.map_err(|error| wrong(error.to_string()))?;
    }
    Ok(Arc::new(rabbit))
}

async fn declare_entities(engine: &Engine, path: &std::path::Path) -> Result<(), ServeError> {
    let wrong =
        |why: String| ServeError::ServiceBusConfig { path: path.display().to_string(), why };
    let text = crate::files::read_text(path).map_err(|error| wrong(error.to_string()))?;
    let config = servicebus::Config::parse(&text).map_err(|error| wrong(error.to_string()))?;
    config.apply(engine).await.map_err(|error| wrong(error.to_string()))
}

/// The native API, SQS for requests that belong to it, and the definitions of RabbitMQ.
fn http(api: &Api, sqs: &Sqs, management: &rabbitmq::ManagementApi, store: &Arc<Store>) -> Router {
    let with_sqs = |tls: bool| {
        let (sqs, management, store) = (sqs.clone(), management.clone(), store.clone());
        let serve = move |request: Request, next: Next| {
            let (sqs, management, store) = (sqs.clone(), management.clone(), store.clone());
            async move {
                if is_definitions(request.uri().path()) {
                    return definitions(&management, store, request).await;
                }
                match malote_front_sqs::claims(request.method(), request.uri(), request.headers()) {
                    true => malote_front_sqs::serve(&sqs, request, tls).await,
                    false => next.run(request).await,
                }
            }
        };
        malote_front_http::router(api.clone()).layer(from_fn(serve))
    };
    let serve = serve_http(api, [with_sqs(false), with_sqs(true)], "http");
    Router { http: Some(serve), health: true, ..Router::default() }
}

fn is_definitions(path: &str) -> bool {
    path.strip_prefix("/api/definitions")
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The definitions of RabbitMQ, for `malote import`: with any credential of the HTTP API.
async fn definitions(
    management: &rabbitmq::ManagementApi,
    store: Arc<Store>,
    mut request: Request,
) -> axum::response::Response {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip());
    let peer = peer.unwrap_or(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));
    let callers = HttpAuthenticator(store);
    if let Ok(caller) = callers.authenticate(request.headers(), peer).await {
        request.extensions_mut().insert(caller);
    }
    management.serve(request).await
}

/// The routes of a port that serves SQS and nothing else.
fn sqs_alone(api: &Api, sqs: &Sqs) -> Router {
    let router = |tls| malote_front_sqs::router(sqs.clone(), tls);
    let serve = serve_http(api, [router(false), router(true)], "sqs");
    Router { http: Some(serve), ..Router::default() }
}

/// Serves HTTP/1 with the first router, or with the second one inside TLS.
fn serve_http(
    api: &Api,
    routers: [axum::Router; 2],
    front: &'static str,
) -> crate::net::ConnectionHandler {
    serve_http_as(api, routers, front, malote_front_http::busy_answer)
}

/// Like [`serve_http`], with the answer of a busy server in the protocol of the port.
fn serve_http_as(
    api: &Api,
    routers: [axum::Router; 2],
    front: &'static str,
    busy: malote_http::BusyAnswer,
) -> crate::net::ConnectionHandler {
    let (limits, metrics) = (api.limits.connection(), api.metrics.clone());
    handler(move |stream, peer: crate::net::PeerInfo, token: crate::shutdown::ShutdownToken| {
        let router = routers[usize::from(peer.tls.is_some())].clone();
        let (limits, open) = (limits.clone(), metrics.connection(front));
        async move {
            // Counts the connection while it is served.
            let _open = open;
            let served = malote_http::serve_connection(
                stream,
                router,
                malote_http::Peer {
                    address: peer.remote,
                    known: peer.permit.known.clone(),
                    health_only: peer.permit.health_only,
                    evicted: peer.permit.evicted.clone(),
                    place: peer.permit.clone(),
                },
                &limits,
                busy,
                token.draining_token(),
            );
            if let Err(error) = served.await {
                tracing::debug!(conn = peer.conn, front = peer.front, %error, "connection ended");
            }
        }
    })
}

/// The administration API of Service Bus only.
fn admin_alone(api: &Api, admin: &servicebus::Admin, web: WebGuard) -> Router {
    let routers = [false, true].map(|tls| admin.router(web.clone(), tls));
    Router { http: Some(serve_http(api, routers, "servicebus-admin")), ..Router::default() }
}

/// The management API of RabbitMQ only.
fn management_alone(api: &Api, management: &rabbitmq::ManagementApi) -> Router {
    let routers = [management.router(), management.router()];
    let busy = rabbitmq::management_busy;
    let serve = serve_http_as(api, routers, "rabbitmq-management", busy);
    Router { http: Some(serve), ..Router::default() }
}

/// The ports that RabbitMQ's tools ask for, with RabbitMQ's words for their protocols.
fn rabbitmq_listeners(
    settings: &Settings,
    [amqp, amqps, management]: [&Option<Port>; 3],
) -> Vec<rabbitmq::ListenerFacts> {
    let words = match settings.tls.required {
        true => ["amqp/ssl", "amqp/ssl", "https"],
        false => ["amqp", "amqp/ssl", "http"],
    };
    let ports = [amqp, amqps, management].into_iter().zip(words);
    let listener = |(port, protocol): (&Option<Port>, &'static str)| {
        let address = port.as_ref()?.local_addr();
        Some(rabbitmq::ListenerFacts { protocol, address })
    };
    ports.filter_map(listener).collect()
}

/// The open ports, for the dashboard.
fn endpoints(settings: &Settings, ports: [&Option<Port>; 6]) -> Vec<Endpoint> {
    let endpoint = |port: &Port| Endpoint {
        protocol: port.front().to_owned(),
        address: port.local_addr().to_string(),
        tls: settings.tls.required || port.front() == "amqps",
    };
    ports.into_iter().flatten().map(endpoint).collect()
}

/// The AMQP port: AMQP 1.0, AMQP over WebSocket, and the administration API over HTTP.
fn amqp(
    api: &Api,
    bus: &Arc<servicebus::Front>,
    admin: &servicebus::Admin,
    guard: WebGuard,
    draining: tokio_util::sync::CancellationToken,
    sockets: &tokio_util::task::TaskTracker,
) -> Router {
    let web = servicebus::websocket(bus.clone(), draining, sockets.clone(), guard.clone());
    let web = [false, true].map(|tls| web.clone().merge(admin.router(guard.clone(), tls)));
    let web = serve_http(api, web, "amqp");
    let (bus, metrics) = (bus.clone(), api.metrics.clone());
    let serve = handler(
        move |stream, peer: crate::net::PeerInfo, token: crate::shutdown::ShutdownToken| {
            let (bus, open) = (bus.clone(), metrics.connection("amqp"));
            async move {
                let _open = open;
                let client = servicebus::Peer {
                    address: peer.remote.ip(),
                    known: peer.permit.known.clone(),
                };
                let served = servicebus::serve_peer(stream, bus, token.draining_token(), client);
                if let Err(error) = served.await {
                    tracing::debug!(conn = peer.conn, front = peer.front, %error, "connection ended");
                }
            }
        },
    );
    Router { amqp10: Some(serve), http: Some(web), ..Router::default() }
}

/// AMQP 0-9-1, on the AMQP port.
fn amqp091(api: &Api, front: &Arc<rabbitmq::Front>) -> crate::net::ConnectionHandler {
    let (front, metrics) = (front.clone(), api.metrics.clone());
    handler(move |stream, peer: crate::net::PeerInfo, token: crate::shutdown::ShutdownToken| {
        let (front, open) = (front.clone(), metrics.connection("rabbitmq"));
        async move {
            let _open = open;
            let client = rabbitmq::Peer {
                address: peer.remote.ip(),
                port: peer.remote.port(),
                local: peer.local,
                tls: peer.tls.is_some(),
                known: peer.permit.known.clone(),
            };
            let served = rabbitmq::serve_peer(stream, front, token.draining_token(), client);
            if let Err(error) = served.await {
                tracing::debug!(conn = peer.conn, front = peer.front, %error, "connection ended");
            }
        }
    })
}
