//! Every bound of the engine, with its name and its reason. Reaching one is a refusal or back-pressure, never growth.

/// Service Bus allows 260 characters; nothing here needs more.
pub const QUEUE_NAME_BYTES_MAX: usize = 260;
/// Service Bus and SQS agree on 128.
pub const SESSION_ID_CHARS_MAX: usize = 128;
/// Ids of messages: Service Bus and SQS allow 128 characters, a UTF-8 character has up to four bytes.
pub const MESSAGE_ID_BYTES_MAX: usize = 512;
/// What a queue takes unless it was declared otherwise: SQS's own limit.
pub const MESSAGE_BYTES_DEFAULT: u64 = 1 << 20;
/// What any queue may be declared to take. A message and its frame stand in one journal segment.
pub const MESSAGE_BYTES_MAX: u64 = 32 << 20;
/// Properties of one message, names and values together, as encoded.
pub const PROPERTIES_BYTES_MAX: usize = 64 << 10;
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
