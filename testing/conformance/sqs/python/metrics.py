"""CloudWatch: the metrics of queues, as dashboards and autoscalers request them."""

import datetime
import json
import time
import urllib.request

from harness import name, queue, refused


def span():
    now = datetime.datetime.now(datetime.timezone.utc)
    return dict(StartTime=now - datetime.timedelta(minutes=10), EndTime=now + datetime.timedelta(minutes=1))


def asked(called, metric, **more):
    dimensions = [{"Name": "QueueName", "Value": called}]
    return dict(Namespace="AWS/SQS", MetricName=metric, Dimensions=dimensions, Period=60, **span(), **more)


def metrics_come_from_the_history(broker):
    sqs, watch = broker.client(), broker.client("cloudwatch")
    url = queue(sqs)
    called = url.rsplit("/", 1)[1]
    # They are counted whether sent before or after the first sample.
    for n in range(3):
        sqs.send_message(QueueUrl=url, MessageBody=str(n))
    most = lambda metric: max(
        (p["Maximum"] for p in watch.get_metric_statistics(
            **asked(called, metric, Statistics=["Maximum", "SampleCount"]))["Datapoints"]),
        default=None,
    )
    # The name of an attribute that is not a metric is answered as well.
    wait_for(lambda: most("ApproximateNumberOfMessages") == 3)
    assert most("ApproximateNumberOfMessagesVisible") == 3
    answer = watch.get_metric_statistics(**asked(called, "NumberOfMessagesSent", Statistics=["Sum"]))
    assert answer["Label"] == "NumberOfMessagesSent"
    assert sum(point["Sum"] for point in answer["Datapoints"]) == 3
    point = answer["Datapoints"][0]
    assert point["Unit"] == "Count" and isinstance(point["Timestamp"], datetime.datetime), point
    metric = {key: asked(called, "NumberOfMessagesSent")[key] for key in ("Namespace", "MetricName", "Dimensions")}
    query = {"Id": "q1", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Sum"}}
    [result] = watch.get_metric_data(MetricDataQueries=[query], **span())["MetricDataResults"]
    assert (result["Id"], result["StatusCode"], sum(result["Values"])) == ("q1", "Complete", 3), result
    assert len(result["Timestamps"]) == len(result["Values"])
    metrics = watch.list_metrics(Namespace="AWS/SQS", Dimensions=[{"Name": "QueueName", "Value": called}])["Metrics"]
    assert {"NumberOfMessagesSent", "ApproximateAgeOfOldestMessage"} <= {m["MetricName"] for m in metrics}
    check_json_protocol(broker, called)


def noisy_groups_are_counted_separately(broker):
    sqs, watch = broker.client(), broker.client("cloudwatch")
    url = queue(sqs)
    called = url.rsplit("/", 1)[1]
    for n in range(4):
        entries = [{"Id": str(m), "MessageBody": "a", "MessageGroupId": "noisy"} for m in range(10)]
        sqs.send_message_batch(QueueUrl=url, Entries=entries)
    sqs.send_message(QueueUrl=url, MessageBody="b", MessageGroupId="quiet")
    for _ in range(3):
        sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=600)
    last = lambda metric: max(
        watch.get_metric_statistics(**asked(called, metric, Statistics=["Maximum"]))["Datapoints"],
        key=lambda point: point["Timestamp"],
        default={"Maximum": None},
    )["Maximum"]
    wait_for(lambda: last("ApproximateNumberOfNoisyGroups") == 1)
    assert last("ApproximateNumberOfMessagesVisibleInQuietGroups") == 1
    assert last("ApproximateNumberOfMessagesNotVisibleInQuietGroups") == 0


def wait_for(seen):
    for _ in range(300):
        if seen():
            return
        time.sleep(0.1)
    raise AssertionError("timeout waiting for the metric")


def check_json_protocol(broker, called):
    now = int(time.time())
    body = asked(called, "ApproximateNumberOfMessagesVisible", Statistics=["Maximum"])
    body.update(StartTime=now - 600, EndTime=now + 60)
    request = urllib.request.Request(
        broker.sqs_url,
        data=json.dumps(body).encode(),
        headers={"X-Amz-Target": "GraniteServiceVersion20100801.GetMetricStatistics"},
    )
    answer = json.load(urllib.request.urlopen(request))
    assert max(point["Maximum"] for point in answer["Datapoints"]) == 3, answer


def invalid_metric_requests_are_refused(broker):
    watch = broker.client("cloudwatch")
    nothing = watch.get_metric_statistics(**asked(name(), "NumberOfMessagesSent", Statistics=["Sum"]))
    assert nothing["Datapoints"] == []
    good = asked(name(), "NumberOfMessagesSent", Statistics=["Sum"])
    refused("InvalidParameterValue", watch.get_metric_statistics, **{**good, "Period": 61})
    refused("InvalidParameterValue", watch.get_metric_statistics, **{**good, "EndTime": good["StartTime"]})
    expression = [{"Id": "e", "Expression": "q1 * 2"}]
    refused("InvalidParameterValue", watch.get_metric_data, MetricDataQueries=expression, **span())


CHECKS = [metrics_come_from_the_history, noisy_groups_are_counted_separately, invalid_metric_requests_are_refused]
