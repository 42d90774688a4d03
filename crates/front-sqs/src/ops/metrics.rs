//! CloudWatch metrics of queues, from the broker's own history: one hour, with a sample every ten seconds.

use std::collections::BTreeMap;

use malote_engine::QueueSample;
use serde::Deserialize;
use serde_json::{Value, json};

use super::VIEW_ACTIONS;
use crate::Sqs;
use crate::listen::Call;
use crate::refusal::{Code, SqsError};
use crate::wire::name;

const NAMESPACE: &str = "AWS/SQS";
/// Queries per request, and metrics per page.
const QUERIES_MAX: usize = 500;

const METRICS: [&str; 11] = [
    "ApproximateAgeOfOldestMessage",
    "ApproximateAgeOfOldestMessageInQuietGroups",
    "ApproximateNumberOfMessagesDelayed",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesNotVisibleInQuietGroups",
    "ApproximateNumberOfMessagesVisible",
    "ApproximateNumberOfMessagesVisibleInQuietGroups",
    "ApproximateNumberOfNoisyGroups",
    "NumberOfMessagesDeleted",
    "NumberOfMessagesReceived",
    "NumberOfMessagesSent",
];

/// Unit and values of a metric; none if the metric is unknown.
fn series(samples: &[QueueSample], metric: &str) -> Option<(&'static str, Vec<(u64, f64)>)> {
    let values = |value: fn(&QueueSample) -> u64| {
        samples.iter().map(|sample| (sample.at.0 / 1000, value(sample) as f64)).collect()
    };
    Some(match metric {
        // An attribute of queues and not a metric of the service, but dashboards ask for it.
        "ApproximateNumberOfMessages" | "ApproximateNumberOfMessagesVisible" => {
            ("Count", values(|s| s.ready))
        }
        "ApproximateNumberOfMessagesNotVisible" => ("Count", values(|s| s.locked)),
        "ApproximateNumberOfMessagesDelayed" => ("Count", values(|s| s.delayed + s.scheduled)),
        "ApproximateAgeOfOldestMessage" => {
            ("Seconds", values(|s| s.oldest_age_ms.unwrap_or(0) / 1000))
        }
        "ApproximateNumberOfNoisyGroups" => ("Count", values(|s| s.noisy.tenants)),
        "ApproximateNumberOfMessagesVisibleInQuietGroups" => {
            ("Count", values(|s| s.ready.saturating_sub(s.noisy.ready)))
        }
        "ApproximateNumberOfMessagesNotVisibleInQuietGroups" => {
            ("Count", values(|s| s.locked.saturating_sub(s.noisy.locked)))
        }
        "ApproximateAgeOfOldestMessageInQuietGroups" => {
            ("Seconds", values(|s| s.quiet_oldest_age_ms.unwrap_or(0) / 1000))
        }
        "NumberOfMessagesSent" => ("Count", values(|s| s.sent)),
        "NumberOfMessagesReceived" => ("Count", values(|s| s.delivered)),
        "NumberOfMessagesDeleted" => ("Count", values(|s| s.completed)),
        _ => return None,
    })
}

/// The values of one period.
#[derive(Clone, Copy, Debug, PartialEq)]
struct MetricPeriod {
    count: u32,
    sum: f64,
    min: f64,
    max: f64,
}

impl MetricPeriod {
    fn statistic(&self, name: &str) -> Option<f64> {
        Some(match name {
            "Average" => self.sum / f64::from(self.count),
            "Sum" => self.sum,
            "Minimum" => self.min,
            "Maximum" => self.max,
            "SampleCount" => f64::from(self.count),
            _ => return None,
        })
    }
}

/// Groups the values from `from_s` until before `to_s` by the start of their period.
fn buckets(
    values: &[(u64, f64)],
    from_s: u64,
    to_s: u64,
    period_s: u64,
) -> BTreeMap<u64, MetricPeriod> {
    let mut all: BTreeMap<u64, MetricPeriod> = BTreeMap::new();
    let first = from_s / period_s * period_s;
    for &(at, value) in values.iter().filter(|(at, _)| (first..to_s).contains(at)) {
        let fresh = MetricPeriod { count: 0, sum: 0.0, min: value, max: value };
        let bucket = all.entry(at / period_s * period_s).or_insert(fresh);
        bucket.count += 1;
        bucket.sum += value;
        (bucket.min, bucket.max) = (bucket.min.min(value), bucket.max.max(value));
    }
    all
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Dimension {
    name: String,
    value: Option<String>,
}

/// `GetMetricStatistics`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct StatisticsIn {
    namespace: Option<String>,
    metric_name: Option<String>,
    dimensions: Vec<Dimension>,
    start_time: Value,
    end_time: Value,
    period: Value,
    statistics: Vec<String>,
}

/// `GetMetricData`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DataIn {
    metric_data_queries: Vec<MetricQuery>,
    start_time: Value,
    end_time: Value,
    scan_by: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct MetricQuery {
    id: String,
    label: Option<String>,
    expression: Option<String>,
    metric_stat: Option<MetricStat>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct MetricStat {
    metric: MetricId,
    period: Value,
    stat: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct MetricId {
    namespace: String,
    metric_name: String,
    dimensions: Vec<Dimension>,
}

/// `ListMetrics`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ListIn {
    namespace: Option<String>,
    metric_name: Option<String>,
    dimensions: Vec<Dimension>,
    next_token: Option<String>,
}

/// A time: in seconds or in ISO 8601, depending on the protocol.
fn seconds(value: &Value, parameter: &str) -> Result<u64, SqsError> {
    let read = match value {
        Value::Null => return Err(SqsError::missing(parameter)),
        Value::Number(number) => number.as_f64().filter(|s| *s >= 0.0).map(|s| s as u64),
        Value::String(text) => {
            let at = text.parse::<jiff::Timestamp>().ok();
            at.and_then(|at| u64::try_from(at.as_second()).ok())
        }
        _ => None,
    };
    read.ok_or_else(|| SqsError::invalid(value, parameter, "Must be a time."))
}

fn period(value: &Value) -> Result<u64, SqsError> {
    let read = match value {
        Value::Null => return Err(SqsError::missing("Period")),
        Value::String(text) => text.parse().ok(),
        other => other.as_u64(),
    };
    let valid = |s: &u64| matches!(s, 1 | 5 | 10 | 20 | 30) || (*s >= 60 && s.is_multiple_of(60));
    let rule = "Must be 1, 5, 10, 20, 30 or a multiple of 60.";
    read.filter(valid).ok_or_else(|| SqsError::invalid(value, "Period", rule))
}

/// The samples of the queue in the dimensions; empty if it does not exist.
async fn samples(
    sqs: &Sqs,
    call: &Call,
    namespace: &str,
    dimensions: &[Dimension],
) -> Result<Vec<QueueSample>, SqsError> {
    let named = dimensions.iter().find(|dimension| dimension.name == "QueueName");
    let Some(queue) = named.and_then(|named| named.value.as_deref()) else { return Ok(Vec::new()) };
    if namespace != NAMESPACE {
        return Ok(Vec::new());
    }
    match call.queue_by_name(sqs, queue, VIEW_ACTIONS).await {
        Ok(found) => Ok(sqs.0.history.of(found.name())),
        Err(error) if error.code == Code::QueueDoesNotExist => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

pub async fn statistics(sqs: &Sqs, call: &Call, request: StatisticsIn) -> Result<Value, SqsError> {
    let namespace = request.namespace.ok_or_else(|| SqsError::missing("Namespace"))?;
    let metric = request.metric_name.ok_or_else(|| SqsError::missing("MetricName"))?;
    let (from, to) =
        (seconds(&request.start_time, "StartTime")?, seconds(&request.end_time, "EndTime")?);
    let period = period(&request.period)?;
    if from >= to {
        let reason = "The parameter StartTime must be less than the parameter EndTime.";
        return Err(SqsError::invalid(from, "StartTime", reason));
    }
    let fresh = MetricPeriod { count: 1, sum: 0.0, min: 0.0, max: 0.0 };
    if let Some(unknown) = request.statistics.iter().find(|name| fresh.statistic(name).is_none()) {
        let rule = "Must be SampleCount, Average, Sum, Minimum or Maximum.";
        return Err(SqsError::invalid(unknown, "Statistics", rule));
    }
    if request.statistics.is_empty() {
        return Err(SqsError::missing("Statistics"));
    }
    let samples = samples(sqs, call, &namespace, &request.dimensions).await?;
    let (unit, values) = series(&samples, &metric).unwrap_or(("None", Vec::new()));
    let points = buckets(&values, from, to, period).into_iter().map(|(at, bucket)| {
        let mut point = json!({ "Timestamp": at, "Unit": unit });
        for name in &request.statistics {
            point[name.as_str()] = json!(bucket.statistic(name));
        }
        point
    });
    Ok(json!({ "Label": metric, "Datapoints": points.collect::<Vec<_>>() }))
}

/// Metrics only; expressions are not supported.
pub async fn data(sqs: &Sqs, call: &Call, request: DataIn) -> Result<Value, SqsError> {
    let (from, to) =
        (seconds(&request.start_time, "StartTime")?, seconds(&request.end_time, "EndTime")?);
    if request.metric_data_queries.is_empty() || request.metric_data_queries.len() > QUERIES_MAX {
        let reason = "There must be 1 to 500 queries.";
        return Err(SqsError::invalid(
            request.metric_data_queries.len(),
            "MetricDataQueries",
            reason,
        ));
    }
    let oldest_first = request.scan_by.as_deref() == Some("TimestampAscending");
    let mut results = Vec::with_capacity(request.metric_data_queries.len());
    for MetricQuery { id, label, expression, metric_stat } in request.metric_data_queries {
        let Some(MetricStat { metric, period: of, stat }) =
            metric_stat.filter(|_| expression.is_none())
        else {
            let reason = "Expressions are not supported; request each metric.";
            return Err(SqsError::invalid(id, "MetricDataQueries", reason));
        };
        let period = period(&of)?;
        let samples = samples(sqs, call, &metric.namespace, &metric.dimensions).await?;
        let (_, values) = series(&samples, &metric.metric_name).unwrap_or(("None", Vec::new()));
        let mut points = Vec::new();
        for (at, bucket) in buckets(&values, from, to, period) {
            let rule = "Must be SampleCount, Average, Sum, Minimum or Maximum.";
            let value = bucket.statistic(&stat);
            points.push((at, value.ok_or_else(|| SqsError::invalid(&stat, "Stat", rule))?));
        }
        if !oldest_first {
            points.reverse();
        }
        let (times, values): (Vec<u64>, Vec<f64>) = points.into_iter().unzip();
        let label = label.unwrap_or(metric.metric_name);
        results.push(json!({
            "Id": id, "Label": label, "Timestamps": times, "Values": values, "StatusCode": "Complete",
        }));
    }
    Ok(json!({ "MetricDataResults": results }))
}

/// Every metric of every queue that the caller may see.
pub async fn list(sqs: &Sqs, call: &Call, request: ListIn) -> Result<Value, SqsError> {
    let from: usize = match &request.next_token {
        None => 0,
        Some(token) => {
            token.parse().map_err(|_| SqsError::invalid(token, "NextToken", "Unknown token."))?
        }
    };
    sqs.0.access.check_lists(&call.caller)?;
    if request.namespace.as_deref().is_some_and(|namespace| namespace != NAMESPACE) {
        return Ok(json!({ "Metrics": [] }));
    }
    let fits = |queue: &str| {
        request.dimensions.iter().all(|dimension| {
            dimension.name == "QueueName"
                && dimension.value.as_deref().is_none_or(|value| value == queue)
        })
    };
    let mut facts = sqs.0.engine.list().await?;
    facts.retain(|facts| {
        let queue = facts.name.as_str();
        fits(queue)
            && name::is_name(queue)
            && call.check_permission(sqs, &facts.name, VIEW_ACTIONS).is_ok()
    });
    let mut queues: Vec<String> =
        facts.into_iter().map(|facts| facts.name.as_str().to_owned()).collect();
    queues.sort();
    let metrics: Vec<&str> = METRICS
        .into_iter()
        .filter(|metric| request.metric_name.as_deref().is_none_or(|wanted| wanted == *metric))
        .collect();
    let all = queues.iter().flat_map(|queue| metrics.iter().map(move |metric| (queue, *metric)));
    let mut page: Vec<Value> = all
        .skip(from)
        .take(QUERIES_MAX + 1)
        .map(|(queue, metric)| {
            let dimensions = json!([{ "Name": "QueueName", "Value": queue }]);
            json!({ "Namespace": NAMESPACE, "MetricName": metric, "Dimensions": dimensions })
        })
        .collect();
    let more = page.len() > QUERIES_MAX;
    page.truncate(QUERIES_MAX);
    let mut out = json!({ "Metrics": page });
    if more {
        out["NextToken"] = json!((from + QUERIES_MAX).to_string());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use malote_model::Timestamp;

    use super::*;

    #[test]
    fn samples_become_values_by_period() {
        let sample = |n: u64| QueueSample {
            at: Timestamp((600 + 10 * n) * 1000),
            ready: n,
            sent: 2 * n + 1,
            ..QueueSample::default()
        };
        let samples: Vec<QueueSample> = (0..12).map(sample).collect();
        let (unit, visible) = series(&samples, "ApproximateNumberOfMessages").unwrap();
        let by_minute = buckets(&visible, 600, 720, 60);
        assert_eq!((unit, by_minute.len()), ("Count", 2));
        assert_eq!(by_minute[&660], MetricPeriod { count: 6, sum: 51.0, min: 6.0, max: 11.0 });
        assert_eq!(by_minute[&660].statistic("Average"), Some(8.5));
        let (_, sent) = series(&samples, "NumberOfMessagesSent").unwrap();
        let total: f64 = buckets(&sent, 600, 720, 300).values().map(|bucket| bucket.sum).sum();
        assert_eq!(total, 144.0, "the first sample counts");
        assert!(series(&samples, "Nothing").is_none());
        assert!(buckets(&visible, 720, 800, 60).is_empty());
    }

    #[test]
    fn times_and_periods_are_read_in_every_protocol() {
        assert_eq!(seconds(&json!(1.5), "t"), Ok(1));
        assert_eq!(seconds(&json!("1970-01-01T00:01:00Z"), "t"), Ok(60));
        for bad in [json!("soon"), json!(-1), json!([])] {
            seconds(&bad, "t").unwrap_err();
        }
        assert_eq!((period(&json!("300")), period(&json!(60))), (Ok(300), Ok(60)));
        for bad in [json!(0), json!(61), json!("x"), json!(-60)] {
            period(&bad).unwrap_err();
        }
    }
}
