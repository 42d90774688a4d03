//! Operations on topics, subscriptions and rules, transactions and requests.

use malote_wire_native::message::{MessageBatch, SentBatch, SentMessage};
use malote_wire_native::receive::{CancelRequest, CancelledCount};
use malote_wire_native::received::ReceivedMessage;
use malote_wire_native::rule::{NamedRule, RuleBody, RuleTest, RuleTestResult};
use malote_wire_native::topic::{
    RuleList, SubscribeRequest, SubscriptionInfo, SubscriptionList, TopicInfo, TopicList,
    TopicSettings,
};
use malote_wire_native::transaction::TransactionRequest;

use super::parameters::{metadata, metadata_headers, names_page, rules_page};
use super::{Body, Operation};
use crate::ops::metadata::TIMEOUT;

/// Describes the operation of a route.
pub(super) fn describe(name: &str) -> Option<Operation> {
    let op = |summary| Operation::new("topics", summary);
    let messages = |summary| Operation::new("messages", summary);
    Some(match name {
        "list_topics" => {
            op("List the topics that the caller may see").query(names_page()).ok::<TopicList>()
        }
        "declare_topic" => {
            op("Declare a topic; if it exists with other settings, 409 names the field")
                .takes::<TopicSettings>()
                .declared::<TopicInfo>()
        }
        "update_topic" => op("Change the given settings; the kind is fixed")
            .takes::<TopicSettings>()
            .ok::<TopicInfo>(),
        "get_topic" => op("Settings and counters of a topic").ok::<TopicInfo>(),
        "delete_topic" => {
            op("Delete a topic and its subscriptions; queues that are only bound to it stay").done()
        }
        "send_to_topic" => {
            op("Send one message to a topic; `copies` is the number of copies that its rules made")
                .query(metadata(None))
                .headers(metadata_headers())
                .body(Body::RawMessage)
                .sent::<SentMessage>()
        }
        "send_batch_to_topic" => op("Send messages to one topic, all or none")
            .requires::<MessageBatch>()
            .sent::<SentBatch>(),
        "cancel_scheduled_of_topic" => op("Cancel messages that are scheduled at a topic")
            .takes::<CancelRequest>()
            .ok::<CancelledCount>(),
        "list_subscriptions" => op("List the subscriptions of a topic that the caller may see")
            .query(names_page())
            .ok::<SubscriptionList>(),
        "declare_subscription" => op("Declare a subscription and its rules, atomically")
            .takes::<SubscribeRequest>()
            .declared::<SubscriptionInfo>(),
        "get_subscription" => {
            op("Settings, contents and rules of a subscription").ok::<SubscriptionInfo>()
        }
        "delete_subscription" => op("Delete a subscription and its messages").done(),
        "list_rules" => {
            op("List the rules of a topic for all its queues").query(rules_page()).ok::<RuleList>()
        }
        "list_rules_of_subscription" => {
            op("List the rules of a subscription").query(rules_page().split_off(1)).ok::<RuleList>()
        }
        "put_rule" => {
            op("Bind a queue to a topic by a rule; a different rule with the same name is refused with 409")
                .takes::<RuleBody>()
                .declared::<NamedRule>()
        }
        "put_rule_to_topic" => {
            op("Pass messages on to another topic by a rule; a different rule with the same name is refused with 409")
                .takes::<RuleBody>()
                .declared::<NamedRule>()
        }
        "put_rule_of_subscription" => {
            op("Add a rule to a subscription; a different rule with the same name is refused with 409")
                .takes::<RuleBody>()
                .declared::<NamedRule>()
        }
        "delete_rule" | "delete_rule_to_topic" | "delete_rule_of_subscription" => op("Delete a rule").done(),
        "test_rule" => op("Test a filter and an action on a message; nothing is stored")
            .takes::<RuleTest>()
            .ok::<RuleTestResult>(),
        "transact" => messages("Send, settle and set session states: all or nothing")
            .requires::<TransactionRequest>()
            .ok::<SentBatch>(),
        "request" => messages(
            "Send a message and wait for the reply: 504 no_reply if none arrives in time. The responder sends the \
             reply to the queue in `reply_to` with the request's `correlation_id`",
        )
        .query(metadata(Some(TIMEOUT)))
        .headers(metadata_headers())
        .body(Body::RawMessage)
        .answers(200, "The reply", Body::json::<ReceivedMessage>()),
        _ => return None,
    })
}
