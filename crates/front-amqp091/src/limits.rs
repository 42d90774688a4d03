//! The bounds of this front end.

use std::time::Duration;

/// RabbitMQ's largest duration: ten years of 365 days.
pub const DURATION_MS_MAX: i64 = 315_360_000_000;
/// The smallest `frame_max` that a peer may ask for, and the limit before the limits are negotiated.
pub const FRAME_BYTES_MIN: u32 = 4_096;
/// RabbitMQ accepts payloads of exactly `frame_max` bytes, although the frame around them is larger. Clients rely on it.
pub const FRAME_BYTES_TOLERANCE: u32 = 8;
/// Tables and arrays inside each other. The deepest table of RabbitMQ itself, `x-death`, has three levels.
pub const TABLE_DEPTH_MAX: usize = 32;
/// The bytes of the names of headers that were left out because they do not fit into a frame.
pub const OMITTED_NAMES_BYTES_MAX: usize = 512;
/// The room that a body of several frames gets before its bytes arrive.
pub const BODY_RESERVE_BYTES_MAX: usize = 256 << 10;
/// A kept publication with a smaller body is copied, so that it does not keep the whole buffer of a read.
pub const DETACHED_BYTES_MAX: usize = 16 << 10;
/// The bytes of a frame that an error text shows.
pub const SNIPPET_BYTES_MAX: usize = 16;

/// Open channels of a connection, as RabbitMQ announces them.
pub const CHANNEL_MAX: u16 = 2_047;
/// Bytes of a frame, as RabbitMQ announces them.
pub const FRAME_BYTES_MAX: u32 = 131_072;
/// The heartbeat interval that the server proposes, in seconds.
pub const HEARTBEAT_S: u16 = 60;
/// Time for the handshake, until the client has opened a virtual host.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause before a connection with wrong credentials or limits is closed, if the client understands no close method.
pub const REFUSAL_PAUSE: Duration = Duration::from_millis(1_500);
/// Time for the last frames to be written, and for the client's `close-ok`.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest message: the engine's limit for a queue.
pub const MESSAGE_BYTES_MAX: u64 = malote_model::limits::MESSAGE_BYTES_MAX - (1 << 20);
/// Bytes of messages of one connection that are on their way to the engine. At this bound, nothing more is read.
pub const SENDING_BYTES_MAX: usize = 16 << 20;
/// Bytes of messages in one request to the engine.
pub const SEND_BATCH_BYTES_MAX: usize = 4 << 20;
/// Messages in one request to the engine.
pub const SEND_BATCH_MAX: usize = 1_024;
/// Bytes of requests that wait for an earlier request of their channel. At this bound, nothing more is read.
pub const HELD_BYTES_MAX: usize = 8 << 20;
/// Bytes that wait to be written. Above it, no messages are taken from the engine.
pub const OUTPUT_BYTES_HIGH: usize = 1 << 20;
/// Above it, nothing is read either: the client asks without reading the answers.
pub const OUTPUT_BYTES_MAX: usize = 8 << 20;
/// Room for one read.
pub const READ_BYTES: usize = 64 << 10;
/// Messages that a consumer without a prefetch limit may have on their way to the client.
pub const WINDOW: u32 = 1_024;
/// Unacknowledged messages of one connection, over all its channels. At this bound, its consumers get nothing more.
pub const UNACKED_MAX: usize = 1 << 20;
/// Bytes of publications of one connection that wait for the commit of their transaction, over all its channels.
pub const STAGED_BYTES_MAX: usize = 16 << 20;
/// Bytes of messages of one connection whose body has not arrived completely, over all its channels: two of the largest.
/// It cannot stop reading instead, because the rest of the bodies would never arrive.
pub const UNFINISHED_BYTES_MAX: usize = 64 << 20;
/// The same over all connections. A connection that exceeds it is closed.
pub const UNFINISHED_ALL_BYTES_MAX: usize = 512 << 20;
/// The same over all connections from one address, so that one cannot use all of it.
pub const UNFINISHED_ADDRESS_BYTES_MAX: usize = 256 << 20;
/// A connection takes its part of that in steps.
pub const UNFINISHED_STEP_BYTES: usize = 1 << 20;
/// Bytes of messages that a shared prefetch limit holds back. At this bound, no messages are taken from the engine.
pub const HELD_BACK_BYTES_MAX: usize = 8 << 20;
/// Bytes of one publication, counted once for each queue that the default exchange copies it to (`CC` and `BCC`).
pub const COPIES_BYTES_MAX: usize = SENDING_BYTES_MAX;
/// Consumers of one connection, over all its channels.
pub const CONSUMERS_MAX: usize = 16_384;
/// Bytes of the arguments of one of them.
pub const CONSUMER_ARGUMENTS_BYTES_MAX: usize = 4 << 10;
/// How long a message may be unacknowledged before its channel is closed, as in RabbitMQ.
pub const CONSUMER_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// How often unacknowledged messages are checked for it.
pub const CONSUMER_TIMEOUT_CHECK: Duration = Duration::from_secs(60);
/// The lock of a delivery. The connection ends it; the lock only has to outlast the consumer timeout.
pub const LOCK_MS: u64 = malote_model::limits::LOCK_MS_MAX;
/// Bytes of the arguments that are stored with a queue.
pub const ARGUMENTS_BYTES_MAX: usize = 32 << 10;
/// Replies to a requester (direct reply-to) that it has not read. More are dropped, as if the requester had left.
pub const REPLIES_MAX: usize = 1_024;
/// Bytes of these replies. A single larger one is accepted.
pub const REPLIES_BYTES_MAX: usize = 8 << 20;
/// The delay before a publication is tried again while the disk is full.
pub const BLOCKED_RETRY: Duration = Duration::from_millis(500);
/// The default limit of redeliveries of a quorum queue, as in RabbitMQ 4.
pub const QUORUM_DELIVERY_LIMIT: u32 = 20;
/// The window in which a queue with `x-message-deduplication` remembers keys, unless `x-cache-ttl` says otherwise.
pub const DEDUP_WINDOW_MS: u64 = 5 * 60 * 1000;

/// Bytes of a regular expression in a permission or policy.
pub const PATTERN_BYTES_MAX: usize = 1_024;
/// Bytes of its compiled form, and of the cache of each thread that matches it.
pub const PATTERN_PROGRAM_BYTES_MAX: usize = 128 << 10;
/// Tags of a user or virtual host.
pub const TAGS_MAX: usize = 32;
/// Bytes of one tag.
pub const TAG_BYTES_MAX: usize = 128;
/// Permissions of one user: virtual hosts, and exchanges with a topic permission.
pub const PERMISSIONS_MAX: usize = 4_096;
/// The most virtual hosts of a broker.
pub const VHOSTS_MAX: usize = 1_024;
/// Policies and operator policies together. Each declaration compares its name with those of its virtual host.
pub const POLICIES_MAX: usize = 1_024;
/// Runtime parameters, global ones included.
pub const PARAMETERS_MAX: usize = 4_096;
/// Bytes of the name of a policy, parameter or component.
pub const METADATA_NAME_BYTES_MAX: usize = 255;
/// Bytes of one definition of a policy or value of a parameter, as JSON.
pub const METADATA_VALUE_BYTES_MAX: usize = 32 << 10;
/// Bytes of all policies, parameters and virtual hosts, as JSON.
pub const METADATA_BYTES_MAX: usize = 8 << 20;

/// Bytes of the body of a request to the management API, as in RabbitMQ.
pub const MANAGEMENT_BODY_BYTES_MAX: usize = 20_000_000;
/// Bytes of all bodies that are read or handled.
pub const MANAGEMENT_BODIES_BYTES_MAX: usize = 64 << 20;
/// A body that brings no byte for this time is given up.
pub const MANAGEMENT_BODY_PAUSE_MAX: Duration = Duration::from_secs(20);
/// Parameters in a query; the rest is ignored.
pub const MANAGEMENT_PARAMETERS_MAX: usize = 64;
/// Time for a connection to describe itself.
pub const MANAGEMENT_INQUIRY_MAX: Duration = Duration::from_secs(2);
/// Inquiries that wait for a connection.
pub const INQUIRIES_MAX: usize = 4;
/// Messages that one request gets from a queue, and bytes of their bodies.
pub const MANAGEMENT_GET_MAX: usize = 10_000;
pub const MANAGEMENT_GET_BYTES_MAX: usize = 32 << 20;
/// Objects on a page, as in RabbitMQ.
pub const MANAGEMENT_PAGE_MAX: usize = 500;
pub const MANAGEMENT_PAGE_DEFAULT: usize = 100;
/// Bytes of a list that is sorted.
pub const MANAGEMENT_SORTED_BYTES_MAX: usize = 32 << 20;
/// Lists that are sorted at the same time.
pub const MANAGEMENT_SORTS_MAX: usize = 2;
/// Bytes of a compiled regular expression.
pub const MANAGEMENT_REGEX_BYTES_MAX: usize = 1 << 20;
