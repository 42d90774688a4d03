//! The part of JSON Schema that the OpenAPI document uses, and the check of an exchange.

use serde_json::Value;

use super::Answer;

/// The start of a value, because a body can have megabytes.
fn brief(value: &Value) -> String {
    match value {
        Value::Object(map) => format!("an object of {:?}", map.keys().collect::<Vec<_>>()),
        Value::Array(all) => format!("a list of {}", all.len()),
        Value::String(text) => text.chars().take(60).collect(),
        other => other.to_string(),
    }
}

/// Returns the error of `value`, if it is invalid.
pub fn validate(document: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let fail = |why: String| Err(format!("{at}: {why}: {}", brief(value)));
    if let Some(reference) = schema["$ref"].as_str() {
        let target = document.pointer(reference.trim_start_matches('#'));
        let target = target.ok_or_else(|| format!("{reference} is not in the document"))?;
        return validate(document, target, value, at);
    }
    for key in schema.as_object().into_iter().flat_map(|schema| schema.keys()) {
        let known = [
            "type",
            "properties",
            "required",
            "additionalProperties",
            "items",
            "enum",
            "const",
            "default",
            "oneOf",
            "anyOf",
            "minimum",
            "maximum",
            "description",
        ];
        assert!(known.contains(&key.as_str()), "the checker does not know `{key}`");
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
        _ => vec![],
    };
    let is = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("unknown type {other}"),
    };
    if !types.is_empty() && !types.iter().any(|kind| is(kind)) {
        return fail(format!("is not {types:?}"));
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        return fail(format!("is none of {words:?}"));
    }
    if let Some(only) = schema.get("const")
        && only != value
    {
        return fail(format!("is not {only}"));
    }
    if let Some(number) = value.as_f64() {
        if schema["minimum"].as_f64().is_some_and(|min| number < min) {
            return fail("is too small".into());
        }
        if schema["maximum"].as_f64().is_some_and(|max| number > max) {
            return fail("is too large".into());
        }
    }
    for (key, exactly_one) in [("oneOf", true), ("anyOf", false)] {
        let Some(choices) = schema[key].as_array() else { continue };
        let results: Vec<_> =
            choices.iter().map(|choice| validate(document, choice, value, at)).collect();
        let fitting = results.iter().filter(|result| result.is_ok()).count();
        if fitting == 0 || (exactly_one && fitting != 1) {
            return fail(format!("fits {fitting} of {key}: {results:?}"));
        }
    }
    if let (Some(all), true) = (value.as_array(), schema["items"].is_object()) {
        for (n, item) in all.iter().enumerate() {
            validate(document, &schema["items"], item, &format!("{at}[{n}]"))?;
        }
    }
    if let Some(map) = value.as_object() {
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !map.contains_key(name) {
                return fail(format!("has no `{name}`"));
            }
        }
        for (name, inner) in map {
            match schema["properties"].get(name) {
                Some(property) => validate(document, property, inner, &format!("{at}.{name}"))?,
                None if schema["additionalProperties"] == Value::Bool(false) => {
                    return fail(format!("has an unknown `{name}`"));
                }
                None => {}
            }
        }
    }
    Ok(())
}

/// The operation of a path. Literal segments win over place-holders.
pub fn operation<'a>(document: &'a Value, method: &str, path: &str) -> Option<&'a Value> {
    let fits = |route: &str| {
        let (route, path): (Vec<_>, Vec<_>) =
            (route.split('/').collect(), path.split('/').collect());
        route.len() == path.len()
            && route.iter().zip(&path).all(|(want, have)| want == have || want.starts_with('{'))
    };
    let paths = document["paths"].as_object()?;
    let best = paths
        .iter()
        .filter(|(route, _)| fits(route))
        .min_by_key(|(route, _)| route.matches('{').count());
    best?.1.get(method.to_ascii_lowercase())
}

/// Checks a request and its answer against the document.
#[track_caller]
pub fn exchange(document: &Value, method: &str, path: &str, sent: &[u8], answer: &Answer) {
    let what = format!("{method} {path} → {}", answer.status);
    let json = |bytes: &[u8]| {
        serde_json::from_slice::<Value>(bytes).unwrap_or_else(|e| panic!("{what}: {e}"))
    };
    let kind = answer
        .headers
        .get("content-type")
        .map(|kind| kind.to_str().unwrap().split(';').next().unwrap());
    let Some(operation) = operation(document, method, path) else {
        assert!(matches!(answer.status.as_u16(), 404 | 405), "{what}: not in the document");
        return;
    };
    let request = &operation["requestBody"]["content"]["application/json"]["schema"];
    if request.is_object() && !sent.is_empty() {
        let fits = serde_json::from_slice(sent)
            .map_err(|e| e.to_string())
            .and_then(|sent: Value| validate(document, request, &sent, "request"));
        if answer.status.is_success() {
            fits.unwrap_or_else(|why| panic!("{what}: was taken although {why}"));
        } else if fits.is_err() {
            assert!(answer.status.is_client_error(), "{what}");
        }
    }
    let status = answer.status.as_u16().to_string();
    let responses = &operation["responses"];
    let response =
        if responses[&status].is_object() { &responses[&status] } else { &responses["default"] };
    match response["content"].as_object().and_then(|content| content.iter().next()) {
        None => assert!(answer.bytes.is_empty(), "{what}: a body that the document does not know"),
        Some((want, content)) if kind == Some(want) || want == "text/plain" => {
            if want.ends_with("json") {
                validate(document, &content["schema"], &json(&answer.bytes), "answer")
                    .unwrap_or_else(|why| panic!("{what}: {why}"));
            }
        }
        // A declared status can also be a problem, such as 503 of health.
        Some(_) if kind == Some("application/problem+json") => {
            let problem = serde_json::json!({"$ref": "#/components/schemas/Problem"});
            validate(document, &problem, &json(&answer.bytes), "answer")
                .unwrap_or_else(|why| panic!("{what}: {why}"));
        }
        Some((want, _)) => panic!("{what}: content-type {kind:?}, not {want}"),
    }
}
