//! Every limit of the engine, with its name and reason. At a limit, the engine refuses or applies back-pressure; it
//! never grows beyond it.

/// Service Bus allows 260 characters.
pub const QUEUE_NAME_BYTES_MAX: usize = 260;
/// Service Bus allows 50 characters for a subscription; names of Kubernetes applications are longer.
pub const SUBSCRIPTION_NAME_BYTES_MAX: usize = 128;
/// Service Bus and SQS both allow 128.
pub const SESSION_ID_CHARS_MAX: usize = 128;
/// Message ids: Service Bus and SQS allow 128 characters, and a UTF-8 character has up to four bytes.
pub const MESSAGE_ID_BYTES_MAX: usize = 512;
/// The largest message of a queue by default: SQS's limit.
pub const MESSAGE_BYTES_DEFAULT: u64 = 1 << 20;
/// The largest message that a queue can be declared to accept. A message and its frame must fit into one journal
/// segment.
pub const MESSAGE_BYTES_MAX: u64 = 32 << 20;
/// Encoded properties of one message, names and values together. An SQS message may consist of up to 1 MiB of
/// attributes. Properties count against the size limit of the queue, like the body.
pub const PROPERTIES_BYTES_MAX: usize = (1 << 20) + (64 << 10);
/// Nesting depth of lists and maps in properties. It bounds the decoder's stack.
pub const VALUE_DEPTH_MAX: usize = 16;
/// Messages in one send command. They are one atomic journal group.
pub const SEND_BATCH_MAX: usize = 4096;
/// Bytes in one send command. A group must fit into one journal segment of 60 MiB.
pub const SEND_BYTES_MAX: u64 = 48 << 20;
/// Leases settled or renewed by one command.
pub const SETTLE_BATCH_MAX: usize = 4096;
/// Messages in one receive, peek or redrive step.
pub const RECEIVE_BATCH_MAX: usize = 1024;
/// Bytes of messages delivered at once, beyond the first message. The reader holds them in memory.
pub const DELIVERY_BYTES_MAX: u64 = 8 << 20;
/// Credit of one consumer: how many messages it may have outstanding.
pub const CREDIT_MAX: u32 = 65_536;
/// The longest wait of a receive or an accept: SQS's long poll.
pub const RECEIVE_WAIT_MS_MAX: u64 = 20_000;
/// The longest wait of an accept over a connection. Service Bus clients ask for a minute and more.
pub const ACCEPT_WAIT_MS_MAX: u64 = 300_000;
/// The longest lock: SQS allows 12 hours from the first receive.
pub const LOCK_MS_MAX: u64 = 12 * 3600 * 1000;
/// The shortest lock. Shorter ones would end before a client can use them.
pub const LOCK_MS_MIN: u64 = 1;
/// The longest delay of a message or schedule.
pub const DELAY_MS_MAX: u64 = 10 * 366 * 24 * 3600 * 1000;
/// The state of one session.
pub const SESSION_STATE_BYTES_MAX: usize = 256 << 10;
/// The name of the property that contains session ids.
pub const SESSION_FROM_BYTES_MAX: usize = 255;
/// Ids in a fixed session list.
pub const SESSION_LIST_MAX: usize = 10_000;
/// Queues of one broker. Each costs memory even when empty.
pub const QUEUES_MAX: usize = 100_000;
/// Queues or topics in one page of a list, so that a turn of the core does not grow with their number.
pub const LIST_MAX: usize = 256;
/// Labels of one queue: SQS has 50 tags, a dozen attributes of its own, and a policy.
pub const LABELS_MAX: usize = 128;
/// Bytes of a queue's labels. They are copied each time the queue is described.
pub const LABELS_BYTES_MAX: usize = 64 << 10;
/// The dead-letter reason and text.
pub const DEAD_LETTER_TEXT_BYTES_MAX: usize = 4096;
/// Encoded property changes of one abandon, defer or dead-letter.
pub const CHANGES_BYTES_MAX: usize = 64 << 10;
/// Overlay records of one message. A reader follows the whole chain.
pub const CHANGES_CHAIN_MAX: u32 = 1024;
/// The largest `failed_max` and `receives_max` of a queue.
pub const FAILED_MAX_MAX: u32 = 1_000_000;
/// Leases and session holds in the whole engine. Each costs about a hundred bytes.
pub const LEASES_MAX: usize = 16_000_000;
/// Consumers attached or waiting in the whole engine.
pub const CONSUMERS_MAX: usize = 262_144;
/// The longest de-duplication window: Service Bus allows 7 days.
pub const DEDUP_WINDOW_MS_MAX: u64 = 7 * 24 * 3600 * 1000;
/// De-duplication keys of the whole engine; each costs about sixty bytes. At the limit, sends are refused rather than
/// accepted twice.
pub const DEDUP_KEYS_MAX: usize = 16_000_000;
/// Bytes staged in one transaction. They are held in memory.
pub const TRANSACTION_BYTES_MAX: u64 = 16 << 20;
/// The longest duration of a transaction.
pub const TRANSACTION_MS_MAX: u64 = 120_000;
/// Rules of one topic: bindings of an exchange, or rules of all subscriptions together.
pub const RULES_PER_TOPIC_MAX: usize = 1_000_000;
/// Rules of all topics. Each costs a few hundred bytes, plus its filter.
pub const RULES_MAX: usize = 4_000_000;
/// The name of a rule: Service Bus allows 50 characters; an AMQP binding is named after its routing key.
pub const RULE_NAME_BYTES_MAX: usize = 512;
/// The key or pattern of a rule: as long as a message's key.
pub const RULE_KEY_BYTES_MAX: usize = MESSAGE_ID_BYTES_MAX;
/// The weight of a rule of a hash topic. Each unit costs a few places in the topic's table.
pub const HASH_WEIGHT_MAX: u32 = 1000;
/// Rules of one hash topic.
pub const HASH_RULES_MAX: usize = 1000;
/// Further routing keys of one message.
pub const MORE_KEYS_MAX: usize = 1024;
/// Values of one headers or correlation filter, and parameters of one SQL text.
pub const RULE_VALUES_MAX: usize = 256;
/// Names and values of one filter, roughly as encoded.
pub const RULE_VALUES_BYTES_MAX: usize = 64 << 10;
/// The text of a SQL filter or action: Service Bus allows 1,024 characters.
pub const SQL_CHARS_MAX: usize = 1024;
/// Nesting depth of parentheses in SQL. It bounds the parser's stack.
pub const SQL_DEPTH_MAX: usize = 32;
/// A string that a SQL expression computes. A longer one is unknown.
pub const SQL_TEXT_BYTES_MAX: usize = 4096;
/// A computed pattern of a LIKE. A longer one is unknown.
pub const SQL_LIKE_BYTES_MAX: usize = 4096;
/// Topics of one broker. Each costs memory even when unused.
pub const TOPICS_MAX: usize = 100_000;
/// How often a message may be forwarded; more is treated as a cycle. Service Bus allows four.
pub const HOPS_MAX: u8 = 4;
/// Dead-letterings of one message that are kept when it is copied; older ones are dropped.
pub const DEATHS_MAX: usize = 64;
