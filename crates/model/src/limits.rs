//! Every bound of the engine, with its name and its reason. Reaching one is a refusal or back-pressure, never growth.

/// Service Bus allows 260 characters; nothing here needs more.
pub const QUEUE_NAME_BYTES_MAX: usize = 260;
/// Service Bus allows 50 characters for a subscription; Kubernetes gives its applications longer names.
pub const SUBSCRIPTION_NAME_BYTES_MAX: usize = 128;
/// Service Bus and SQS agree on 128.
pub const SESSION_ID_CHARS_MAX: usize = 128;
/// Ids of messages: Service Bus and SQS allow 128 characters, a UTF-8 character has up to four bytes.
pub const MESSAGE_ID_BYTES_MAX: usize = 512;
/// What a queue takes unless it was declared otherwise: SQS's own limit.
pub const MESSAGE_BYTES_DEFAULT: u64 = 1 << 20;
/// What any queue may be declared to take. A message and its frame stand in one journal segment.
pub const MESSAGE_BYTES_MAX: u64 = 32 << 20;
/// Properties of one message, names and values together, as encoded: a message of SQS may be nothing but attributes, of
/// up to 1 MiB. They count against the size that a queue takes, as the body does.
pub const PROPERTIES_BYTES_MAX: usize = (1 << 20) + (64 << 10);
/// How deep lists and maps in properties may nest: a decoder's stack is finite.
pub const VALUE_DEPTH_MAX: usize = 16;
/// Messages of one send command, and bytes of all of them: one atomic journal group.
pub const SEND_BATCH_MAX: usize = 4096;
/// Bytes of one send command; a group never spans two journal segments, which are 60 MiB long.
pub const SEND_BYTES_MAX: u64 = 48 << 20;
/// Leases settled or renewed by one command.
pub const SETTLE_BATCH_MAX: usize = 4096;
/// Messages of one receive, peek or redrive step.
pub const RECEIVE_BATCH_MAX: usize = 1024;
/// Bytes of messages handed out at once, beyond the first message: whoever reads them holds them in memory.
pub const DELIVERY_BYTES_MAX: u64 = 8 << 20;
/// Credit of one consumer: what may be out to it at once.
pub const CREDIT_MAX: u32 = 65_536;
/// How long a receive or an accept may wait: SQS's long poll.
pub const RECEIVE_WAIT_MS_MAX: u64 = 20_000;
/// How long an accept may wait over a connection (Service Bus clients ask for a minute and more).
pub const ACCEPT_WAIT_MS_MAX: u64 = 300_000;
/// Locks: SQS allows 12 hours from the first receive.
pub const LOCK_MS_MAX: u64 = 12 * 3600 * 1000;
/// Shorter locks end before a client can use them.
pub const LOCK_MS_MIN: u64 = 1;
/// Delays and schedules reach this far.
pub const DELAY_MS_MAX: u64 = 10 * 366 * 24 * 3600 * 1000;
/// State of one session.
pub const SESSION_STATE_BYTES_MAX: usize = 256 << 10;
/// Ids of a fixed session list.
pub const SESSION_LIST_MAX: usize = 10_000;
/// Queues of one broker; each costs memory even when empty.
pub const QUEUES_MAX: usize = 100_000;
/// Queues or topics that one step of a list may tell of: a turn of the core must not grow with their number.
pub const LIST_MAX: usize = 256;
/// Labels of one queue: SQS has 50 tags, a dozen attributes that only it knows, and a policy.
pub const LABELS_MAX: usize = 128;
/// Names and texts of a queue's labels together: every look at the queue copies them.
pub const LABELS_BYTES_MAX: usize = 64 << 10;
/// Dead-letter reason and text: they are for people.
pub const DEAD_LETTER_TEXT_BYTES_MAX: usize = 4096;
/// Changed properties of one abandon, defer or dead-letter, as encoded.
pub const CHANGES_BYTES_MAX: usize = 64 << 10;
/// How many changes may lie over one message before they refuse to grow: a reader follows the chain.
pub const CHANGES_CHAIN_MAX: u32 = 1024;
/// Failed deliveries a queue may be told to allow.
pub const FAILED_MAX_MAX: u32 = 1_000_000;
/// Leases and holds at once in the whole engine; each costs about a hundred bytes.
pub const LEASES_MAX: usize = 16_000_000;
/// Consumers waiting or attached at once in the whole engine.
pub const CONSUMERS_MAX: usize = 262_144;
/// How long a de-duplication key may be remembered: Service Bus allows 7 days.
pub const DEDUP_WINDOW_MS_MAX: u64 = 7 * 24 * 3600 * 1000;
/// De-duplication keys of the whole engine; each costs about sixty bytes. Beyond it sends are refused, never taken twice.
pub const DEDUP_KEYS_MAX: usize = 16_000_000;
/// What a transaction may stage before it is committed: it is held in memory.
pub const TRANSACTION_BYTES_MAX: u64 = 16 << 20;
/// How long a transaction may take.
pub const TRANSACTION_MS_MAX: u64 = 120_000;
/// Rules of one topic: bindings of an exchange, or rules of all subscriptions together.
pub const RULES_PER_TOPIC_MAX: usize = 1_000_000;
/// Rules of all topics: each costs some hundred bytes, a filter's own words beside it.
pub const RULES_MAX: usize = 4_000_000;
/// Name of a rule: Service Bus allows 50 characters; an AMQP binding is named by its routing key.
pub const RULE_NAME_BYTES_MAX: usize = 512;
/// Key or pattern of a rule: as long as the key of a message may be.
pub const RULE_KEY_BYTES_MAX: usize = MESSAGE_ID_BYTES_MAX;
/// Values of one headers or correlation filter, and parameters of one SQL text.
pub const RULE_VALUES_MAX: usize = 256;
/// Names and values of one filter, roughly as encoded.
pub const RULE_VALUES_BYTES_MAX: usize = 64 << 10;
/// Text of a SQL filter or action: Service Bus allows 1,024 characters, a UTF-8 character has up to four bytes.
pub const SQL_CHARS_MAX: usize = 1024;
/// How deep parentheses of a SQL text may nest: a parser's stack is finite.
pub const SQL_DEPTH_MAX: usize = 32;
/// A text that a SQL expression puts together; a longer one is unknown.
pub const SQL_TEXT_BYTES_MAX: usize = 4096;
/// The pattern of a LIKE that is itself computed; a longer one is unknown.
pub const SQL_LIKE_BYTES_MAX: usize = 4096;
/// Topics of one broker; each costs memory even when nobody uses it.
pub const TOPICS_MAX: usize = 100_000;
/// How often a message is forwarded before that must be a circle: Service Bus allows four.
pub const HOPS_MAX: u8 = 4;
/// Deaths of one message that are remembered when it is stored anew; older ones are forgotten.
pub const DEATHS_MAX: usize = 64;
