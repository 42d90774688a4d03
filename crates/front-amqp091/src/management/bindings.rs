//! `/api/bindings`, and the bindings of an exchange or a queue.

use std::borrow::Cow;
use std::collections::VecDeque;

use axum::http::Method as HttpMethod;
use malote_model::{Address, QueueName, TopicKind, TopicName};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use super::answer::{Answer, created_at, no_content};
use super::error::ApiError;
use super::exchanges::wire_name;
use super::json::{object, short, table};
use super::list::{ObjectSource, list, one};
use super::local::run;
use super::request::Call;
use super::scan::{
    FoundBinding, QueueScan, RuleScan, Scope, TopicScan, find_host, find_queue, find_topic,
};
use super::state::ManagementState;
use crate::names::VirtualHost;
use crate::ops::exchange::binding_parts;
use crate::wire::method::{exchange, queue};
use crate::wire::table::FieldTable;

/// A binding, as AMQP shows it.
pub(super) struct ShownBinding {
    host: VirtualHost,
    source: String,
    destination: String,
    is_queue: bool,
    key: String,
    arguments: FieldTable,
}

impl ShownBinding {
    fn new(found: &FoundBinding) -> Self {
        let host = VirtualHost::of(found.source.as_str());
        let (key, arguments) = binding_parts(&found.binding.rule);
        let (destination, is_queue) = match &found.binding.target {
            Address::Queue(queue) => (host.shown(queue.as_str()).into_owned(), true),
            Address::Topic(topic) => (host.shown_exchange(topic.as_str()).into_owned(), false),
        };
        let source = host.shown_exchange(found.source.as_str()).into_owned();
        Self { host, source, destination, is_queue, key, arguments }
    }

    /// Every queue is bound to the default exchange.
    fn implicit(queue: &QueueName) -> Self {
        let host = VirtualHost::of(queue.as_str());
        let name = host.shown(queue.as_str()).into_owned();
        let (key, arguments) = (name.clone(), FieldTable::default());
        Self { host, source: String::new(), destination: name, is_queue: true, key, arguments }
    }

    /// Identifies the binding among those of its source and destination.
    fn properties_key(&self) -> String {
        properties_key(&self.key, &self.arguments)
    }

    fn object(&self) -> Value {
        json!({
            "source": self.source,
            "vhost": self.host.name(),
            "destination": self.destination,
            "destination_type": if self.is_queue { "queue" } else { "exchange" },
            "routing_key": self.key,
            "arguments": object(self.arguments.as_table()),
            "properties_key": self.properties_key(),
        })
    }
}

/// Characters that are encoded in a properties key; a space is a plus.
const QUOTED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_').remove(b' ');

/// RabbitMQ's form. The part behind `~` is a hash of the arguments, which differs from RabbitMQ's.
fn properties_key(key: &str, arguments: &FieldTable) -> String {
    let quoted = utf8_percent_encode(key, QUOTED).to_string().replace(' ', "+");
    match (quoted.is_empty(), arguments.is_empty()) {
        (true, true) => "~".to_owned(),
        (false, true) => quoted,
        (_, false) => format!("{quoted}~{:016x}", xxh3_64(arguments.as_bytes())),
    }
}

/// The list of bindings: implicit ones first, then those of each exchange.
struct Bindings {
    implicit: Option<QueueScan>,
    topics: Option<TopicScan>,
    /// Only those to this queue or exchange.
    target: Option<Address>,
    engine: malote_engine::Engine,
    waiting: VecDeque<TopicName>,
    rules: Option<RuleScan>,
}

impl Bindings {
    fn new(scope: Scope) -> Self {
        Self {
            engine: scope.engine.clone(),
            implicit: Some(QueueScan::new(scope.clone())),
            topics: Some(TopicScan::new(scope)),
            target: None,
            waiting: VecDeque::new(),
            rules: None,
        }
    }

    /// Those to one queue or exchange, without implicit ones.
    fn to(scope: Scope, target: Address) -> Self {
        Self { implicit: None, target: Some(target), ..Self::new(scope) }
    }

    /// Those of one exchange.
    fn from(scope: Scope, source: TopicName, target: Option<Address>) -> Self {
        let engine = scope.engine.clone();
        let rules = Some(RuleScan::new(engine, source, target));
        Self { implicit: None, topics: None, rules, ..Self::new(scope) }
    }
}

impl ObjectSource for Bindings {
    type Item = ShownBinding;

    async fn next(&mut self) -> Result<Option<Vec<ShownBinding>>, ApiError> {
        if let Some(scan) = &mut self.implicit {
            match scan.next().await? {
                Some(page) => {
                    return Ok(Some(
                        page.iter().map(|f| ShownBinding::implicit(&f.name)).collect(),
                    ));
                }
                None => self.implicit = None,
            }
        }
        loop {
            if let Some(rules) = &mut self.rules {
                match rules.next().await? {
                    Some(page) if page.is_empty() => {}
                    Some(page) => return Ok(Some(page.iter().map(ShownBinding::new).collect())),
                    None => self.rules = None,
                }
            } else if let Some(topic) = self.waiting.pop_front() {
                let scan = RuleScan::new(self.engine.clone(), topic, self.target.clone());
                self.rules = Some(scan);
            } else if let Some(topics) = &mut self.topics {
                match topics.next().await? {
                    Some(page) => {
                        let bound = page.into_iter().filter(|topic| topic.rules > 0);
                        self.waiting.extend(bound.map(|topic| topic.name));
                    }
                    None => self.topics = None,
                }
            } else {
                return Ok(None);
            }
        }
    }

    fn name<'i>(&self, binding: &'i ShownBinding) -> Cow<'i, str> {
        Cow::Borrowed(&binding.source)
    }

    fn object(&self, binding: ShownBinding) -> Value {
        binding.object()
    }
}

pub(super) async fn list_bindings(
    state: &ManagementState,
    call: &Call,
    host: Option<&str>,
) -> Result<Answer, ApiError> {
    let host = match host {
        Some(host) => Some(find_host(state, &call.caller, host).await?),
        None => None,
    };
    list(state, call, Bindings::new(Scope::new(state, &call.caller, host))).await
}

/// `/api/exchanges/{vhost}/{name}/bindings/source`.
pub(super) async fn of_source(
    state: &ManagementState,
    call: &Call,
    host: &str,
    name: &str,
) -> Result<Answer, ApiError> {
    let host = find_host(state, &call.caller, host).await?;
    let topic = find_topic(state, &call.caller, &host, name).await?;
    let scope = Scope::new(state, &call.caller, Some(host));
    let bindings = match topic.spec.kind {
        TopicKind::Queue => Bindings { topics: None, ..Bindings::new(scope) },
        _ => Bindings::from(scope, topic.name, None),
    };
    list(state, call, bindings).await
}

/// `/api/exchanges/{vhost}/{name}/bindings/destination`.
pub(super) async fn of_destination(
    state: &ManagementState,
    call: &Call,
    host: &str,
    name: &str,
) -> Result<Answer, ApiError> {
    let host = find_host(state, &call.caller, host).await?;
    let topic = find_topic(state, &call.caller, &host, name).await?;
    let scope = Scope::new(state, &call.caller, Some(host));
    list(state, call, Bindings::to(scope, Address::Topic(topic.name))).await
}

/// `/api/queues/{vhost}/{name}/bindings`.
pub(super) async fn of_queue(
    state: &ManagementState,
    call: &Call,
    host: &str,
    name: &str,
) -> Result<Answer, ApiError> {
    let host = find_host(state, &call.caller, host).await?;
    let queue = find_queue(state, &call.caller, &host, name).await?.name;
    let scope = Scope::new(state, &call.caller, Some(host));
    let first = ShownBinding::implicit(&queue);
    let rest = Bindings::to(scope, Address::Queue(queue));
    list(state, call, WithFirst { first: Some(first), rest }).await
}

/// A binding, and then others.
struct WithFirst {
    first: Option<ShownBinding>,
    rest: Bindings,
}

impl ObjectSource for WithFirst {
    type Item = ShownBinding;

    async fn next(&mut self) -> Result<Option<Vec<ShownBinding>>, ApiError> {
        match self.first.take() {
            Some(first) => Ok(Some(vec![first])),
            None => self.rest.next().await,
        }
    }

    fn name<'i>(&self, binding: &'i ShownBinding) -> Cow<'i, str> {
        self.rest.name(binding)
    }

    fn object(&self, binding: ShownBinding) -> Value {
        binding.object()
    }
}

/// The source and the destination of a path `/api/bindings/{vhost}/e/{source}/{q|e}/{destination}`.
pub(super) struct Ends<'p> {
    pub host: &'p str,
    pub source: &'p str,
    pub destination: &'p str,
    pub is_queue: bool,
}

impl Ends<'_> {
    fn addresses(&self, host: &VirtualHost) -> Result<(TopicName, Address), ApiError> {
        let missing = |_| ApiError::not_found();
        let source = host.topic(self.source).map_err(missing)?;
        let target = match self.is_queue {
            true => Address::Queue(host.queue(self.destination).map_err(missing)?),
            false => Address::Topic(host.topic(self.destination).map_err(missing)?),
        };
        Ok((source, target))
    }

    fn is_implicit(&self) -> bool {
        wire_name(self.source).is_empty()
    }
}

/// The bindings between two ends.
pub(super) async fn between(
    state: &ManagementState,
    call: &Call,
    ends: Ends<'_>,
) -> Result<Answer, ApiError> {
    let host = find_host(state, &call.caller, ends.host).await?;
    match call.method {
        HttpMethod::GET => {
            let (source, target) = ends.addresses(&host)?;
            let scope = Scope::new(state, &call.caller, Some(host));
            if !scope.may_see((&source).into()) {
                return Err(ApiError::not_found());
            }
            match (ends.is_implicit(), target) {
                (true, Address::Queue(queue)) => {
                    state.front.engine.describe(queue.clone()).await?;
                    let object = ShownBinding::implicit(&queue).object();
                    let rendered = super::list::Rendered::new(vec![(String::new(), object)]);
                    list(state, call, rendered).await
                }
                (_, target) => list(state, call, Bindings::from(scope, source, Some(target))).await,
            }
        }
        HttpMethod::POST => bind(state, call, &host, ends).await,
        _ => Err(ApiError::no_method("HEAD, GET, POST, OPTIONS")),
    }
}

async fn bind(
    state: &ManagementState,
    call: &Call,
    host: &VirtualHost,
    ends: Ends<'_>,
) -> Result<Answer, ApiError> {
    let body = call.object()?;
    let key = match body.get("routing_key") {
        None => "",
        Some(Value::String(key)) => key,
        Some(other) => {
            return Err(ApiError::bad_request(format!("routing_key must be a text, not {other}")));
        }
    };
    let arguments = body.get("arguments").map(table).transpose()?.unwrap_or_default();
    let location = properties_key(key, &arguments);
    let (source, destination) =
        (short("source", wire_name(ends.source))?, short("destination", ends.destination)?);
    let routing_key = short("routing_key", key)?;
    if ends.is_queue {
        let (exchange, queue) = (source, destination);
        let bind = queue::Bind { exchange, queue, routing_key, arguments, ..Default::default() };
        run(state, &call.caller, host, &bind).await?;
    } else {
        let bind =
            exchange::Bind { source, destination, routing_key, arguments, ..Default::default() };
        run(state, &call.caller, host, &bind).await?;
    }
    // The destination and the key are segments of a path: both are encoded once more.
    let segment = |text: &str| utf8_percent_encode(text, SEGMENT).to_string();
    Ok(created_at(&format!("{}/{}", segment(ends.destination), segment(&location))))
}

/// Characters that a segment of a path must encode.
const SEGMENT: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_').remove(b'~').remove(b'=');

/// One binding, by its properties key.
pub(super) async fn binding(
    state: &ManagementState,
    call: &Call,
    ends: Ends<'_>,
    properties: &str,
) -> Result<Answer, ApiError> {
    let host = find_host(state, &call.caller, ends.host).await?;
    let (source, target) = ends.addresses(&host)?;
    let scope = Scope::new(state, &call.caller, None);
    if !scope.may_see((&source).into()) {
        return Err(ApiError::not_found());
    }
    let found = match (ends.is_implicit(), &target) {
        (true, Address::Queue(queue)) => {
            state.front.engine.describe(queue.clone()).await?;
            Some(ShownBinding::implicit(queue)).filter(|one| one.properties_key() == properties)
        }
        _ => {
            let mut rules = RuleScan::new(state.front.engine.clone(), source, Some(target));
            let mut found = None;
            while let Some(page) = rules.next().await? {
                let mut shown = page.iter().map(ShownBinding::new);
                found = shown.find(|one| one.properties_key() == properties);
                if found.is_some() {
                    break;
                }
            }
            found
        }
    };
    let found = found.ok_or_else(ApiError::not_found)?;
    match call.method {
        HttpMethod::GET => Ok(one(call, found.object())),
        HttpMethod::DELETE => {
            let (source, destination) =
                (short("source", &found.source)?, short("destination", &found.destination)?);
            let routing_key = short("routing_key", &found.key)?;
            let arguments = found.arguments;
            if found.is_queue {
                let (exchange, queue) = (source, destination);
                let ticket = Default::default();
                let unbind = queue::Unbind { ticket, exchange, queue, routing_key, arguments };
                run(state, &call.caller, &host, &unbind).await?;
            } else {
                let unbind = exchange::Unbind {
                    source,
                    destination,
                    routing_key,
                    arguments,
                    ..Default::default()
                };
                run(state, &call.caller, &host, &unbind).await?;
            }
            Ok(no_content())
        }
        _ => Err(ApiError::no_method("HEAD, GET, DELETE, OPTIONS")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_keys_are_those_of_rabbitmq() {
        let none = FieldTable::default();
        assert_eq!(properties_key("", &none), "~");
        assert_eq!(properties_key("k", &none), "k");
        assert_eq!(properties_key("a b~c", &none), "a+b%7Ec");
        assert_eq!(properties_key("a.*.#", &none), "a.%2A.%23");
        let table = FieldTable::builder().with("a", 1_i64).build();
        let key = properties_key("k", &table);
        assert!(key.starts_with("k~") && key.len() == 18, "{key}");
    }
}
