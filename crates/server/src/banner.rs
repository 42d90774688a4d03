//! What the server prints when it is ready.

use std::net::IpAddr;

use crate::credentials::Store;
use crate::net::{Port, Tls};
use crate::settings::Settings;

/// Addresses and connection strings of each protocol, the data directory, and a first message.
pub(crate) fn banner(
    settings: &Settings,
    [http, sqs, amqp, _, admin, management]: [Option<&Port>; 6],
    tls: Option<&Tls>,
    store: &Store,
) -> String {
    let scheme = if settings.tls.required { "https" } else { "http" };
    let url = |port: &Port| format!("{scheme}://{}", port.local_addr());
    let mut lines = vec![format!("Malote {} is ready.", env!("CARGO_PKG_VERSION"))];
    if let Some(url) = http.map(url) {
        let also = format!("health {url}/readyz, metrics {url}/metrics");
        lines.push(format!("  dashboard  {url}/"));
        lines.push(format!("  HTTP API   {url}/api/v1   ({also})"));
    }
    let open = store.is_open();
    if let Some(port) = http {
        let scheme = if settings.tls.required { "malote+tls" } else { "malote" };
        let user = if open { "" } else { "USER:PASSWORD@" };
        lines
            .push(format!("  Rust       {scheme}://{user}{}   (Malote::connect)", reachable(port)));
    }
    if let Some(port) = sqs.or(http) {
        let keys = if open { "any access key" } else { "`malote key add aws` creates a key" };
        let at = format!("{scheme}://{}", reachable(port));
        lines.push(format!("  SQS        {at}   (AWS_ENDPOINT_URL_SQS={at}, {keys})"));
    }
    if let Some(port) = amqp {
        let key = match open {
            true => "SharedAccessKeyName=any;SharedAccessKey=any",
            false => "SharedAccessKeyName=ID;SharedAccessKey=SECRET",
        };
        // The flag makes Azure's clients connect without TLS.
        let plain = if settings.tls.required { "" } else { ";UseDevelopmentEmulator=true" };
        let keys = if open { "" } else { "; `malote key add servicebus` creates a key" };
        lines.push(format!(
            "  AMQP       {}   (Azure Service Bus clients{keys})",
            port.local_addr()
        ));
        lines.push(format!("             Endpoint=sb://{};{key}{plain}", reachable(port)));
        let (scheme, user) = match (settings.tls.required, open) {
            (true, true) => ("amqps", "guest:guest"),
            (true, false) => ("amqps", "USER:PASSWORD"),
            (false, true) => ("amqp", "guest:guest"),
            (false, false) => ("amqp", "USER:PASSWORD"),
        };
        let at = reachable(port);
        lines.push(format!("             {scheme}://{user}@{at}/   (RabbitMQ clients)"));
    }
    if let Some(url) = admin.map(url) {
        lines.push(format!("  admin      {url}   (administration clients of Azure Service Bus)"));
    }
    if let Some(url) = management.map(url) {
        lines.push(format!("  management {url}/api   (management API of RabbitMQ)"));
    }
    lines.push(format!("  data       {}", settings.data.display()));
    if let Some(tls) = tls {
        lines.push(format!(
            "  TLS        on the same ports; certificate {}",
            tls.certificate_path().display()
        ));
    }
    let user = if open { "" } else { " -u NAME" };
    let trust = if settings.tls.required { " -k" } else { "" };
    if let Some(url) = http.map(url) {
        lines.push("Send a first message, and receive it:".into());
        lines.push(format!(
            "  curl{user}{trust} -d 'Hello' '{url}/api/v1/queues/hello/messages?create=true'"
        ));
        lines.push(format!(
            "  curl{user}{trust} --json '{{\"max\": 1}}' '{url}/api/v1/queues/hello/receive'"
        ));
    }
    lines.join("\n")
}

/// An address that a client on this machine can use: a server on all addresses is reached on loopback.
fn reachable(port: &Port) -> std::net::SocketAddr {
    let mut address = port.local_addr();
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}
