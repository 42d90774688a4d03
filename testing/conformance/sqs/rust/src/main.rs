//! Tests the Rust SDK against the broker at MALOTE_SQS_AT: all actions, the errors that programs compare, and FIFO
//! queues. The last line counts the passed and failed checks.

use std::collections::HashMap;
use std::fmt::Debug;

use anyhow::{Context, Result, bail, ensure};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::retry::RetryConfig;
use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::operation::send_message::SendMessageOutput;
use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::{
    ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry, Message,
    MessageAttributeValue, MessageSystemAttributeName, QueueAttributeName,
    SendMessageBatchRequestEntry,
};

/// Checks that the call fails with this code. The SDK takes its type from the shape, and the code from the header.
fn refused<T: Debug, E: ProvideErrorMetadata + Debug, R: Debug>(
    outcome: std::result::Result<T, SdkError<E, R>>,
    code: &str,
) -> Result<()> {
    match outcome {
        Ok(answer) => bail!("{code} was expected, but the call succeeded: {answer:?}"),
        Err(error) => {
            let got = error.as_service_error().and_then(ProvideErrorMetadata::code);
            ensure!(got == Some(code), "got {error:?}, want {code}");
            Ok(())
        }
    }
}

struct Checks {
    sqs: Client,
    names: std::cell::Cell<u32>,
}

impl Checks {
    fn name(&self, suffix: &str) -> String {
        self.names.set(self.names.get() + 1);
        format!("rust-{}-{}{suffix}", std::process::id(), self.names.get())
    }

    async fn queue(
        &self,
        suffix: &str,
        attributes: &[(QueueAttributeName, &str)],
    ) -> Result<String> {
        let mut create = self.sqs.create_queue().queue_name(self.name(suffix));
        for (name, text) in attributes {
            create = create.attributes(name.clone(), *text);
        }
        create.send().await?.queue_url.context("no URL")
    }

    async fn attribute(&self, url: &str, which: QueueAttributeName) -> Result<String> {
        let ask = self.sqs.get_queue_attributes().queue_url(url).attribute_names(which.clone());
        let mut all = ask.send().await?.attributes.unwrap_or_default();
        all.remove(&which).with_context(|| format!("no {which}"))
    }

    async fn receive(&self, url: &str) -> Result<Vec<Message>> {
        let ask = self.sqs.receive_message().queue_url(url).max_number_of_messages(10);
        let ask = ask.wait_time_seconds(10).visibility_timeout(60).message_attribute_names("All");
        let ask = ask.message_system_attribute_names(MessageSystemAttributeName::All);
        Ok(ask.send().await?.messages.unwrap_or_default())
    }

    async fn visibility(&self, url: &str, message: &Message, seconds: i32) -> Result<()> {
        let change = self.sqs.change_message_visibility().queue_url(url);
        let handle = message.receipt_handle.clone().context("no handle")?;
        change.receipt_handle(handle).visibility_timeout(seconds).send().await?;
        Ok(())
    }

    async fn queues(&self) -> Result<()> {
        let (sqs, called) = (&self.sqs, self.name(""));
        let timeout = QueueAttributeName::VisibilityTimeout;
        let create = sqs.create_queue().queue_name(&called).tags("team", "a");
        let made = create.attributes(timeout.clone(), "60").send().await?;
        let url = made.queue_url.context("no URL")?;
        let again = sqs.create_queue().queue_name(&called).send().await?;
        ensure!(again.queue_url() == Some(url.as_str()));
        let other = sqs.create_queue().queue_name(&called).attributes(timeout, "61").send().await;
        ensure!(
            other
                .as_ref()
                .is_err_and(|e| { e.as_service_error().is_some_and(|e| e.is_queue_name_exists()) })
        );
        refused(other, "QueueAlreadyExists")?;
        let found = sqs.get_queue_url().queue_name(&called).send().await?;
        ensure!(found.queue_url() == Some(url.as_str()));
        for n in 0..3 {
            sqs.create_queue().queue_name(format!("{called}-p{n}")).send().await?;
        }
        let prefix = format!("{called}-p");
        let first = sqs.list_queues().queue_name_prefix(&prefix).max_results(2).send().await?;
        let token = first.next_token().context("no second page")?;
        let second = sqs.list_queues().queue_name_prefix(&prefix).max_results(2).next_token(token);
        ensure!(first.queue_urls().len() == 2 && second.send().await?.queue_urls().len() == 1);

        let size = QueueAttributeName::MaximumMessageSize;
        sqs.set_queue_attributes().queue_url(&url).attributes(size.clone(), "2048").send().await?;
        ensure!(self.attribute(&url, size).await? == "2048");
        let wrong = QueueAttributeName::from("VisibilityTimeoutSeconds");
        let set = sqs.set_queue_attributes().queue_url(&url).attributes(wrong, "1").send().await;
        refused(set, "InvalidAttributeName")?;
        let delay = QueueAttributeName::DelaySeconds;
        let set = sqs.set_queue_attributes().queue_url(&url).attributes(delay, "901").send().await;
        refused(set, "InvalidAttributeValue")?;

        sqs.tag_queue().queue_url(&url).tags("stage", "test").send().await?;
        sqs.untag_queue().queue_url(&url).tag_keys("team").send().await?;
        let tags = sqs.list_queue_tags().queue_url(&url).send().await?.tags.unwrap_or_default();
        ensure!(tags == HashMap::from([("stage".to_owned(), "test".to_owned())]), "{tags:?}");
        let permit = sqs.add_permission().queue_url(&url).label("one").actions("SendMessage");
        permit.aws_account_ids("123456789012").send().await?;
        let policy = self.attribute(&url, QueueAttributeName::Policy).await?;
        ensure!(policy.contains("SQS:SendMessage"), "{policy}");
        sqs.remove_permission().queue_url(&url).label("one").send().await?;
        sqs.purge_queue().queue_url(&url).send().await?;
        refused(
            sqs.purge_queue().queue_url(&url).send().await,
            "AWS.SimpleQueueService.PurgeQueueInProgress",
        )?;
        sqs.delete_queue().queue_url(&url).send().await?;
        refused(
            sqs.get_queue_url().queue_name(&called).send().await,
            "AWS.SimpleQueueService.NonExistentQueue",
        )
    }

    async fn messages(&self) -> Result<()> {
        let sqs = &self.sqs;
        let url = self.queue("", &[]).await?;
        let (body, raw) = ("olá <&>\r\n", Blob::new([0, 255, 10]));
        let text = |kind: &str, value: &str| {
            MessageAttributeValue::builder().data_type(kind).string_value(value).build()
        };
        let binary = MessageAttributeValue::builder().data_type("Binary").binary_value(raw.clone());
        let send = sqs.send_message().queue_url(&url).message_body(body);
        let send = send.message_attributes("kind", text("String", "email")?);
        let send = send.message_attributes("price", text("Number.eur", "007.10")?);
        let sent = send.message_attributes("raw", binary.build()?).send().await?;
        let mut batch = sqs.send_message_batch().queue_url(&url);
        for n in 0..10 {
            let entry = SendMessageBatchRequestEntry::builder().id(format!("e{n}"));
            let delay = if n == 9 { 901 } else { 0 };
            batch = batch.entries(entry.message_body(n.to_string()).delay_seconds(delay).build()?);
        }
        let batch = batch.send().await?;
        ensure!(batch.successful().len() == 9 && batch.failed().len() == 1, "{batch:?}");
        ensure!(batch.failed()[0].code() == "InvalidParameterValue", "{batch:?}");

        let got = self.receive(&url).await?;
        ensure!(got.len() == 10, "{got:?}");
        let first = &got[0];
        ensure!(first.body() == Some(body) && first.message_id() == sent.message_id());
        ensure!(first.md5_of_message_attributes() == sent.md5_of_message_attributes());
        let attributes = first.message_attributes().context("no attributes")?;
        ensure!(attributes["price"].string_value() == Some("007.10"));
        ensure!(attributes["raw"].binary_value() == Some(&raw));
        let receives = |message: &Message| {
            let count = MessageSystemAttributeName::ApproximateReceiveCount;
            message.attributes().and_then(|all| all.get(&count)).cloned()
        };
        ensure!(receives(first).as_deref() == Some("1"));
        self.visibility(&url, first, 120).await?;
        let entry = |id: &str, handle: Option<&str>| {
            let entry = ChangeMessageVisibilityBatchRequestEntry::builder().id(id);
            entry.set_receipt_handle(handle.map(str::to_owned)).visibility_timeout(0).build()
        };
        let change = sqs.change_message_visibility_batch().queue_url(&url);
        let change = change.entries(entry("a", got[1].receipt_handle())?);
        let changed = change.entries(entry("b", Some("nonsense"))?).send().await?;
        ensure!(changed.successful().len() == 1, "{changed:?}");
        ensure!(changed.failed()[0].code() == "ReceiptHandleIsInvalid", "{changed:?}");
        let back = self.receive(&url).await?;
        ensure!(back.len() == 1 && receives(&back[0]).as_deref() == Some("2"), "{back:?}");

        let delete = sqs.delete_message().queue_url(&url);
        delete.set_receipt_handle(first.receipt_handle.clone()).send().await?;
        let mut delete = sqs.delete_message_batch().queue_url(&url);
        for (n, message) in got[2..].iter().chain(&back).enumerate() {
            let entry = DeleteMessageBatchRequestEntry::builder().id(n.to_string());
            delete =
                delete.entries(entry.set_receipt_handle(message.receipt_handle.clone()).build()?);
        }
        ensure!(delete.send().await?.successful().len() == 9);
        let hidden = QueueAttributeName::ApproximateNumberOfMessagesNotVisible;
        ensure!(self.attribute(&url, hidden).await? == "0");
        Ok(())
    }

    async fn refusals(&self) -> Result<()> {
        let sqs = &self.sqs;
        let url = &self.queue("", &[]).await?;
        let send = |body: String| sqs.send_message().queue_url(url).message_body(body).send();
        refused(send("\u{1}".into()).await, "InvalidMessageContents")?;
        refused(send("x".repeat((1 << 20) + 1)).await, "InvalidParameterValue")?;
        for (ids, code) in [
            (&[][..], "EmptyBatchRequest"),
            (&["a", "a"], "BatchEntryIdsNotDistinct"),
            (&["a b"], "InvalidBatchEntryId"),
            (
                &["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"],
                "TooManyEntriesInBatchRequest",
            ),
        ] {
            let mut batch = sqs.send_message_batch().queue_url(url).set_entries(Some(Vec::new()));
            for id in ids {
                let entry = SendMessageBatchRequestEntry::builder().id(*id).message_body("x");
                batch = batch.entries(entry.build()?);
            }
            refused(batch.send().await, &format!("AWS.SimpleQueueService.{code}"))?;
        }
        let delete = sqs.delete_message().queue_url(url).receipt_handle("nonsense");
        refused(delete.send().await, "ReceiptHandleIsInvalid")?;
        let receive = sqs.receive_message().queue_url(url).max_number_of_messages(11);
        refused(receive.send().await, "InvalidParameterValue")
    }

    async fn fifo(&self) -> Result<()> {
        let sqs = &self.sqs;
        let url = &self.queue(".fifo", &[(QueueAttributeName::FifoQueue, "true")]).await?;
        let send = async |body: &str, group: &str, dedup: &str| -> Result<SendMessageOutput> {
            let send = sqs.send_message().queue_url(url).message_body(body);
            Ok(send.message_group_id(group).message_deduplication_id(dedup).send().await?)
        };
        let first = send("a1", "a", "1").await?;
        let again = send("again", "a", "1").await?;
        ensure!(again.message_id() == first.message_id());
        let second = send("a2", "a", "2").await?;
        ensure!(second.sequence_number() > first.sequence_number());
        send("b1", "b", "3").await?;
        let missing = sqs.send_message().queue_url(url).message_body("x").send().await;
        refused(missing, "MissingParameter")?;

        let take = async |max: i32| -> Result<Vec<Message>> {
            let ask = sqs.receive_message().queue_url(url).max_number_of_messages(max);
            Ok(ask.send().await?.messages.unwrap_or_default())
        };
        let bodies = |got: &[Message]| -> Vec<String> {
            got.iter().map(|message| message.body().unwrap_or("").to_owned()).collect()
        };
        let a = take(1).await?;
        ensure!(bodies(&a) == ["a1"]);
        // The group is locked, so the next message is of another group.
        ensure!(bodies(&take(10).await?) == ["b1"]);
        ensure!(take(10).await?.is_empty());
        self.visibility(url, &a[0], 0).await?;
        ensure!(bodies(&take(10).await?) == ["a1", "a2"]);
        Ok(())
    }

    async fn dead_letters(&self) -> Result<()> {
        let sqs = &self.sqs;
        let dead = self.queue("", &[]).await?;
        let arn = self.attribute(&dead, QueueAttributeName::QueueArn).await?;
        let policy = format!(r#"{{"deadLetterTargetArn":"{arn}","maxReceiveCount":"1"}}"#);
        let url = self.queue("", &[(QueueAttributeName::RedrivePolicy, &policy)]).await?;
        let sources = sqs.list_dead_letter_source_queues().queue_url(&dead).send().await?;
        ensure!(sources.queue_urls() == [url.clone()]);
        sqs.send_message().queue_url(&url).message_body("poison").send().await?;
        let got = self.receive(&url).await?;
        self.visibility(&url, got.first().context("nothing came")?, 0).await?;
        let got = self.receive(&dead).await?;
        let poison = got.first().context("no dead letter")?;
        let from = MessageSystemAttributeName::DeadLetterQueueSourceArn;
        let from = poison.attributes().and_then(|all| all.get(&from)).cloned();
        ensure!(from == Some(self.attribute(&url, QueueAttributeName::QueueArn).await?));
        self.visibility(&dead, poison, 0).await?;

        sqs.start_message_move_task().source_arn(&arn).send().await?;
        let back = self.receive(&url).await?;
        ensure!(back.first().and_then(Message::body) == Some("poison"));
        let tasks = sqs.list_message_move_tasks().source_arn(&arn).send().await?;
        ensure!(tasks.results().len() == 1);
        let cancel = sqs.cancel_message_move_task().task_handle("nonsense").send().await;
        refused(cancel, "InvalidParameterValue")?;
        let other = sqs.start_message_move_task().source_arn(format!("{arn}-other")).send().await;
        refused(other, "ResourceNotFoundException")
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let at = std::env::var("MALOTE_SQS_AT").context("MALOTE_SQS_AT is not set")?;
    let config = aws_sdk_sqs::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(at)
        .region(Region::new("eu-west-1"))
        .credentials_provider(Credentials::new("made", "up", None, None, "checks"))
        .retry_config(RetryConfig::disabled())
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .build();
    let checks = Checks { sqs: Client::from_conf(config), names: std::cell::Cell::new(0) };
    let all = [
        ("queues", checks.queues().await),
        ("messages", checks.messages().await),
        ("refusals", checks.refusals().await),
        ("fifo", checks.fifo().await),
        ("dead letters", checks.dead_letters().await),
    ];
    let (mut passed, mut failed) = (0, 0);
    for (called, outcome) in all {
        match outcome {
            Ok(()) => passed += 1,
            Err(why) => {
                failed += 1;
                eprintln!("FAILED rust {called}: {why:#}");
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    std::process::exit(i32::from(failed > 0));
}
