//! Lists: pages, filters, columns and sorting, as RabbitMQ's parameters ask for them.
//!
//! A plain list is streamed, page by page of the engine, and is never in memory as a whole. A page is counted through the
//! same way; only its own objects are rendered. A sorted list must be in memory, so its size is bounded.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::future::Future;

use axum::body::Body;
use axum::http::StatusCode;
use bytes::Bytes;
use futures_util::stream;
use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value, json};

use super::answer::{Answer, json, json_body};
use super::error::ApiError;
use super::request::Call;
use super::state::ManagementState;
use crate::limits;

/// Where the objects of a list come from.
pub(crate) trait ObjectSource: Send + 'static {
    type Item: Send;

    /// The next objects; none at the end.
    fn next(&mut self) -> impl Future<Output = Result<Option<Vec<Self::Item>>, ApiError>> + Send;

    /// What the parameter `name` is compared with.
    fn name<'i>(&self, item: &'i Self::Item) -> Cow<'i, str>;

    fn object(&self, item: Self::Item) -> Value;
}

/// Objects that are in memory, with their names.
pub(crate) struct Rendered(Option<Vec<(String, Value)>>);

impl Rendered {
    pub fn new(objects: Vec<(String, Value)>) -> Self {
        Self(Some(objects))
    }
}

impl ObjectSource for Rendered {
    type Item = (String, Value);

    async fn next(&mut self) -> Result<Option<Vec<Self::Item>>, ApiError> {
        Ok(self.0.take())
    }

    fn name<'i>(&self, (name, _): &'i Self::Item) -> Cow<'i, str> {
        Cow::Borrowed(name)
    }

    fn object(&self, (_, object): Self::Item) -> Value {
        object
    }
}

/// Answers a list.
pub(crate) async fn list(
    state: &ManagementState,
    call: &Call,
    source: impl ObjectSource,
) -> Result<Answer, ApiError> {
    let (page, columns) = (Page::of(call)?, Columns::of(call));
    match (page, SortKey::of(call)) {
        (None, None) => Ok(stream_all(source, columns)),
        (page, None) => count_through(source, &columns, page.unwrap_or_default()).await,
        (page, Some(key)) => {
            let _turn = state.sorts.try_acquire().map_err(|_| {
                ApiError::busy("too many sorted lists are made: try again, or leave out `sort`")
            })?;
            sorted(source, &columns, page, &key).await
        }
    }
}

/// Answers one object.
pub(crate) fn one(call: &Call, object: Value) -> Answer {
    json(&Columns::of(call).select(object))
}

fn stream_all(source: impl ObjectSource, columns: Columns) -> Answer {
    enum Next<S> {
        Begin(S),
        More(S, bool),
        End,
    }
    let chunks = stream::unfold((Next::Begin(source), columns), |(next, columns)| async move {
        let (mut source, mut is_first) = match next {
            Next::Begin(source) => {
                let chunk = Bytes::from_static(b"[");
                return Some((Ok(chunk), (Next::More(source, true), columns)));
            }
            Next::More(source, is_first) => (source, is_first),
            Next::End => return None,
        };
        let items = match source.next().await {
            Ok(Some(items)) => items,
            Ok(None) => return Some((Ok(Bytes::from_static(b"]")), (Next::End, columns))),
            // The status is sent already; the client sees that the answer is incomplete.
            Err(error) => {
                let error = std::io::Error::other(error.reason.to_string());
                return Some((Err(error), (Next::End, columns)));
            }
        };
        let mut chunk = String::new();
        for item in items {
            if !std::mem::take(&mut is_first) {
                chunk.push(',');
            }
            chunk.push_str(&columns.select(source.object(item)).to_string());
        }
        Some((Ok(Bytes::from(chunk)), (Next::More(source, is_first), columns)))
    });
    json_body(StatusCode::OK, Body::from_stream(chunks))
}

/// Counts all objects and renders those of one page.
async fn count_through(
    mut source: impl ObjectSource,
    columns: &Columns,
    page: Page,
) -> Result<Answer, ApiError> {
    let (mut total, mut filtered) = (0, 0);
    let (first, last) = page.range();
    let mut objects = Vec::new();
    while let Some(items) = source.next().await? {
        for item in items {
            total += 1;
            if page.matches(&source.name(&item)) {
                if (first..last).contains(&filtered) {
                    objects.push(columns.select(source.object(item)));
                }
                filtered += 1;
            }
        }
    }
    page.answer(objects, total, filtered)
}

async fn sorted(
    mut source: impl ObjectSource,
    columns: &Columns,
    page: Option<Page>,
    key: &SortKey,
) -> Result<Answer, ApiError> {
    let (mut total, mut bytes) = (0, 0);
    let mut rows: Vec<(Value, String)> = Vec::new();
    while let Some(items) = source.next().await? {
        for item in items {
            total += 1;
            if page.as_ref().is_some_and(|page| !page.matches(&source.name(&item))) {
                continue;
            }
            let object = source.object(item);
            let value = key.value(&object).clone();
            let text = columns.select(object).to_string();
            bytes += text.len() + size_of::<(Value, String)>();
            if bytes > limits::MANAGEMENT_SORTED_BYTES_MAX {
                return Err(ApiError::bad_request(
                    "the list is too large to be sorted: use `columns`, filter it with `page` and `name`, or leave \
                     out `sort`",
                ));
            }
            rows.push((value, text));
        }
    }
    rows.sort_by(|(a, _), (b, _)| {
        let order = compare(a, b);
        if key.reverse { order.reverse() } else { order }
    });
    let Some(page) = page else {
        let texts: Vec<_> = rows.into_iter().map(|(_, text)| text).collect();
        return Ok(json_body(StatusCode::OK, Body::from(format!("[{}]", texts.join(",")))));
    };
    let filtered = rows.len();
    let (first, last) = page.range();
    let rows = rows.into_iter().skip(first).take(last - first);
    let objects = rows.map(|(_, text)| serde_json::from_str(&text).unwrap_or_default());
    page.answer(objects.collect(), total, filtered)
}

/// A page of a list: `page`, `page_size`, `name`, `use_regex`.
#[derive(Debug)]
struct Page {
    number: usize,
    size: usize,
    name: Option<NamePattern>,
}

impl Default for Page {
    fn default() -> Self {
        Self { number: 1, size: limits::MANAGEMENT_PAGE_DEFAULT, name: None }
    }
}

#[derive(Debug)]
enum NamePattern {
    /// Contained in the name, in lower case.
    Part(String),
    Regex(Regex),
}

impl Page {
    /// None without `page`: the other parameters mean nothing then.
    fn of(call: &Call) -> Result<Option<Self>, ApiError> {
        let Some(number) = call.parameter("page") else { return Ok(None) };
        let size = call.parameter("page_size");
        let parsed = (
            number.parse().ok().filter(|&number: &usize| number > 0),
            size.map_or(Some(limits::MANAGEMENT_PAGE_DEFAULT), |size| size.parse().ok()),
        );
        let (Some(page), Some(page_size @ 1..=limits::MANAGEMENT_PAGE_MAX)) = parsed else {
            let reason = format!(
                "Invalid pagination parameters: page number {number}, page size {}",
                size.unwrap_or("undefined")
            );
            let error = "invalid_pagination_parameters";
            return Err(ApiError::new(StatusCode::BAD_REQUEST, error, reason));
        };
        let name = match call.parameter("name").unwrap_or("") {
            "" => None,
            text if call.flag("use_regex") => {
                let regex = RegexBuilder::new(text)
                    .case_insensitive(true)
                    .size_limit(limits::MANAGEMENT_REGEX_BYTES_MAX)
                    .build();
                let invalid = "Pagination parameters are invalid";
                Some(NamePattern::Regex(regex.map_err(|_| ApiError::bad_request(invalid))?))
            }
            text => Some(NamePattern::Part(text.to_lowercase())),
        };
        Ok(Some(Self { number: page, size: page_size, name }))
    }

    fn matches(&self, name: &str) -> bool {
        match &self.name {
            None => true,
            Some(NamePattern::Part(part)) => name.to_lowercase().contains(part),
            Some(NamePattern::Regex(regex)) => regex.is_match(name),
        }
    }

    /// The first object of the page, and the one behind it, among those that match.
    fn range(&self) -> (usize, usize) {
        let first = (self.number - 1).saturating_mul(self.size);
        (first, first.saturating_add(self.size))
    }

    fn answer(
        &self,
        objects: Vec<Value>,
        total: usize,
        filtered: usize,
    ) -> Result<Answer, ApiError> {
        let Self { number, size, .. } = *self;
        let pages = filtered.div_ceil(size).max(1);
        if number > pages {
            let reason =
                format!("Page out of range, page: {number} page size: {size}, len: {filtered}");
            return Err(ApiError::new(StatusCode::BAD_REQUEST, "page_out_of_range", reason));
        }
        Ok(json(&json!({
            "filtered_count": filtered,
            "item_count": objects.len(),
            "items": objects,
            "page": number,
            "page_count": pages,
            "page_size": size,
            "total_count": total,
        })))
    }
}

/// `columns`: the fields to show, such as `name,message_stats.publish`. None for all.
struct Columns(Option<Vec<Vec<String>>>);

impl Columns {
    fn of(call: &Call) -> Self {
        let split = |text: &str| {
            let columns = text.split(',').filter(|column| !column.is_empty());
            columns.map(|column| column.split('.').map(str::to_owned).collect()).collect()
        };
        Self(call.parameter("columns").filter(|text| !text.is_empty()).map(split))
    }

    fn select(&self, object: Value) -> Value {
        let Some(columns) = &self.0 else { return object };
        let mut selected = Map::new();
        for column in columns {
            if let Some(value) = field(&object, column) {
                insert(&mut selected, column, value.clone());
            }
        }
        Value::Object(selected)
    }
}

fn insert(object: &mut Map<String, Value>, path: &[String], value: Value) {
    let Some((name, inner)) = path.split_first() else { return };
    if inner.is_empty() {
        object.insert(name.clone(), value);
        return;
    }
    let entry = object.entry(name.clone()).or_insert_with(|| Value::Object(Map::new()));
    if let Value::Object(object) = entry {
        insert(object, inner, value);
    }
}

fn field<'o>(object: &'o Value, path: &[String]) -> Option<&'o Value> {
    path.iter().try_fold(object, |object, name| object.get(name))
}

/// `sort` and `sort_reverse`.
struct SortKey {
    path: Vec<String>,
    reverse: bool,
}

impl SortKey {
    fn of(call: &Call) -> Option<Self> {
        let sort = call.parameter("sort").filter(|sort| !sort.is_empty())?;
        let path = sort.split('.').map(str::to_owned).collect();
        Some(Self { path, reverse: call.flag("sort_reverse") })
    }

    fn value<'o>(&self, object: &'o Value) -> &'o Value {
        field(object, &self.path).unwrap_or(&Value::Null)
    }
}

/// Null, numbers, then texts. Objects are equal: they cannot be sorted by.
fn compare(a: &Value, b: &Value) -> Ordering {
    let rank = |value: &Value| match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(_) => 2,
        Value::String(_) => 3,
        Value::Array(_) | Value::Object(_) => 4,
    };
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Number(a), Value::Number(b)) => {
            let number = |number: &serde_json::Number| number.as_f64().unwrap_or(0.0);
            number(a).total_cmp(&number(b))
        }
        _ => rank(a).cmp(&rank(b)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_name_fields_inside_objects() {
        let columns = Columns(Some(vec![
            vec!["name".into()],
            vec!["stats".into(), "ack".into()],
            vec!["stats".into(), "none".into()],
        ]));
        let object = json!({ "name": "q", "node": "n", "stats": { "ack": 1, "get": 2 } });
        assert_eq!(columns.select(object), json!({ "name": "q", "stats": { "ack": 1 } }));
    }

    #[test]
    fn values_of_every_type_can_be_compared() {
        let mut values =
            vec![json!("b"), json!(2.5), json!("a"), json!(null), json!(1), json!(true)];
        values.sort_by(compare);
        assert_eq!(json!(values), json!([null, true, 1, 2.5, "a", "b"]));
    }
}
