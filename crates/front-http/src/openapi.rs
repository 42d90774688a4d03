//! The OpenAPI 3.1 document. Its paths come from the table of routes and its schemas from the types of `wire-native`. A
//! test compares every request and answer of the test suite with it.

mod operations;
mod parameters;
mod topics;

use std::collections::BTreeSet;

use malote_wire_native::frame::{ClientFrame, ServerFrame};
use malote_wire_native::problem::ProblemBody;
use schemars::generate::{Contract, SchemaSettings};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use self::parameters::Parameter;
use crate::problem::Code;
use crate::routes::ROUTES;

/// The whole document.
pub fn document() -> Value {
    let mut schemas = Schemas::new();
    let operations: Vec<Value> =
        ROUTES.iter().map(|route| operation(&mut schemas, route.name, route.path)).collect();
    let (schemas, renamed) = schemas.finish();
    let mut paths = Map::new();
    for (route, mut operation) in ROUTES.iter().zip(operations) {
        if let Some(body) = operation.get_mut("requestBody") {
            rename_references(body, &renamed);
        }
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.to_ascii_lowercase()] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Malote",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "The native HTTP API of Malote, a durable message broker. Percent-encode names in paths: \
                a slash in a queue's name is %2F, and orders%2F$deadletterqueue names the dead letters of orders. \
                Times are milliseconds since 1970. Errors are RFC 9457 problems with a stable `code` and a `fix`. \
                GET /api/v1/connect opens the native WebSocket connection, whose frames are the schemas \
                ClientFrame and ServerFrame.",
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"basic": []}, {"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    })
}

/// Collects the schemas of all types that operations use. Requests and answers have different rules: an absent field
/// of a request may have a default, and an answer has every field that is not optional.
struct Schemas {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
}

impl Schemas {
    fn new() -> Self {
        let generator = |contract| {
            let settings = SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = "/components/schemas".into();
                settings.meta_schema = None;
                settings.contract = contract;
            });
            settings.into_generator()
        };
        Self { requests: generator(Contract::Deserialize), answers: generator(Contract::Serialize) }
    }

    /// All schemas by name. A type that differs between requests and answers has two schemas; that of requests is
    /// called `New…`. Returns the names of these types as well.
    fn finish(mut self) -> (Value, BTreeSet<String>) {
        self.answers.subschema_for::<ProblemBody>();
        self.requests.subschema_for::<ClientFrame>();
        self.answers.subschema_for::<ServerFrame<Value>>();
        let mut all = self.answers.take_definitions(true);
        let requests = self.requests.take_definitions(true);
        let mut differing = BTreeSet::new();
        loop {
            let differs = |(name, schema): &(&String, &Value)| {
                all.get(*name).is_some_and(|other| other != *schema || refers_to(other, &differing))
            };
            let found: BTreeSet<String> =
                requests.iter().filter(differs).map(|(name, _)| name.clone()).collect();
            if found == differing {
                break;
            }
            differing = found;
        }
        for (mut name, mut schema) in requests {
            rename_references(&mut schema, &differing);
            if differing.contains(&name) {
                name = format!("New{name}");
            }
            all.insert(name, schema);
        }
        let codes: Value = Code::ALL.iter().map(|code| code.as_str()).collect();
        for name in ["Problem", "ProblemKind"] {
            if let Some(schema) = all.get_mut(name) {
                schema["properties"]["code"]["enum"] = codes.clone();
            }
        }
        all.values_mut().for_each(close_objects);
        (Value::Object(all), differing)
    }
}

const REFERENCE: &str = "#/components/schemas/";

/// Whether a schema refers to one of these.
fn refers_to(schema: &Value, names: &BTreeSet<String>) -> bool {
    match schema {
        Value::Object(map) => map.iter().any(|(key, value)| match value.as_str() {
            Some(to) if key == "$ref" => {
                to.strip_prefix(REFERENCE).is_some_and(|name| names.contains(name))
            }
            _ => refers_to(value, names),
        }),
        Value::Array(all) => all.iter().any(|one| refers_to(one, names)),
        _ => false,
    }
}

/// Makes references to these schemas refer to `New…`.
fn rename_references(schema: &mut Value, names: &BTreeSet<String>) {
    match schema {
        Value::Object(map) => {
            for (key, value) in map {
                let to = value.as_str().filter(|_| key == "$ref");
                match to.and_then(|to| to.strip_prefix(REFERENCE)) {
                    Some(name) if names.contains(name) => {
                        *value = format!("{REFERENCE}New{name}").into();
                    }
                    Some(_) => {}
                    None => rename_references(value, names),
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|one| rename_references(one, names)),
        _ => {}
    }
}

/// Objects have no other fields than those that the schema lists. Numbers need no `format`: they have ranges.
fn close_objects(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.get("type").is_some_and(|kind| kind == "object")
                && map.contains_key("properties")
            {
                map.entry("additionalProperties").or_insert(false.into());
            }
            if map.get("format").is_some_and(Value::is_string) {
                map.remove("format");
            }
            map.values_mut().for_each(close_objects);
        }
        Value::Array(all) => all.iter_mut().for_each(close_objects),
        _ => {}
    }
}

type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// The body of a request or answer.
enum Body {
    None,
    Json(SchemaOf),
    Text(&'static str),
    RawMessage,
    /// A JSON document of another specification.
    AnyJson,
}

impl Body {
    /// JSON of this type.
    fn json<T: JsonSchema>() -> Self {
        Self::Json(schema_of::<T>)
    }

    fn content(&self, generator: &mut SchemaGenerator) -> Option<Value> {
        match self {
            Self::None => None,
            Self::Json(schema) => Some(json!({"application/json": {"schema": schema(generator)}})),
            Self::Text(kind) => Some(json!({*kind: {"schema": {"type": "string"}}})),
            Self::RawMessage => Some(json!({"*/*": {"schema": {}}})),
            Self::AnyJson => Some(json!({"application/json": {"schema": {}}})),
        }
    }
}

struct Operation {
    tag: &'static str,
    summary: &'static str,
    query: Vec<Parameter>,
    headers: Vec<Parameter>,
    request: Body,
    /// Whether a request without a body is refused.
    body_required: bool,
    answers: Vec<(u16, &'static str, Body)>,
}

impl Operation {
    fn new(tag: &'static str, summary: &'static str) -> Self {
        let (query, headers, answers) = (Vec::new(), Vec::new(), Vec::new());
        let request = Body::None;
        Self { tag, summary, query, headers, request, body_required: false, answers }
    }

    fn query(mut self, query: Vec<Parameter>) -> Self {
        self.query = query;
        self
    }

    fn headers(mut self, headers: Vec<Parameter>) -> Self {
        self.headers = headers;
        self
    }

    fn body(mut self, request: Body) -> Self {
        self.request = request;
        self
    }

    /// Takes an optional JSON body.
    fn takes<T: JsonSchema>(self) -> Self {
        self.body(Body::json::<T>())
    }

    /// Takes a JSON body that must not be absent.
    fn requires<T: JsonSchema>(mut self) -> Self {
        self.body_required = true;
        self.body(Body::json::<T>())
    }

    fn answers(mut self, status: u16, description: &'static str, body: Body) -> Self {
        self.answers.push((status, description, body));
        self
    }

    /// Answers 200 with JSON.
    fn ok<T: JsonSchema>(self) -> Self {
        self.answers(200, "Done", Body::json::<T>())
    }

    /// Adds the answer 204 without content.
    fn done(self) -> Self {
        self.answers(204, "Done", Body::None)
    }

    /// Answers 201 or 200.
    fn declared<T: JsonSchema>(self) -> Self {
        let exists = "It already exists with these settings";
        self.answers(201, "It is new", Body::json::<T>()).answers(200, exists, Body::json::<T>())
    }

    /// Answers 201 after the messages are on disk.
    fn sent<T: JsonSchema>(self) -> Self {
        self.answers(201, "Durable", Body::json::<T>())
    }
}

fn operation(schemas: &mut Schemas, name: &str, path: &str) -> Value {
    let described = operations::describe(name).or_else(|| topics::describe(name));
    let operation = described.unwrap_or_else(|| unreachable!("route {name} is not described"));
    let Operation { tag, summary, query, headers, request, body_required, answers } = operation;
    let mut parameters: Vec<Value> = path
        .split('/')
        .filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| {
            let kind = if name == "seq" { "integer" } else { "string" };
            json!({"name": name, "in": "path", "required": true, "schema": {"type": kind}})
        })
        .collect();
    for (place, list) in [("query", query), ("header", headers)] {
        parameters.extend(list.into_iter().map(|(name, kind, text)| {
            let required = name == "key" && path.ends_with("/partition");
            json!({"name": name, "in": place, "required": required, "description": text, "schema": {"type": kind}})
        }));
    }
    let mut responses = Map::new();
    for (status, description, body) in answers {
        let mut response = json!({"description": description});
        if let Some(content) = body.content(&mut schemas.answers) {
            response["content"] = content;
        }
        responses.insert(status.to_string(), response);
    }
    let problem = schemas.answers.subschema_for::<ProblemBody>();
    responses.insert(
        "default".into(),
        json!({"description": "A problem", "content": {"application/problem+json": {"schema": problem}}}),
    );
    let mut described = json!({
        "operationId": name, "tags": [tag], "summary": summary, "parameters": parameters, "responses": responses,
    });
    if let Some(content) = request.content(&mut schemas.requests) {
        described["requestBody"] = json!({"required": body_required, "content": content});
    }
    described
}
