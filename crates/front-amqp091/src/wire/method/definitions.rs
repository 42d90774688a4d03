//! The list of methods, with RabbitMQ's extensions. [`Bytes`] is a long string, `bool` a bit.

use bytes::Bytes;

use super::super::arguments::{Argument, ArgumentError, ArgumentReader, ArgumentWriter, Reserved};
use super::super::table::FieldTable;
use super::super::text::ShortString;
use super::{DecodeMethod, EncodeMethod, MethodId, methods};

methods! {
    /// Handshake, tuning and closing.
    connection = 10 {
        Start as ConnectionStart = 10 {
            version_major: u8,
            version_minor: u8,
            server_properties: FieldTable,
            mechanisms: Bytes,
            locales: Bytes,
        }
        StartOk as ConnectionStartOk = 11 {
            client_properties: FieldTable,
            mechanism: ShortString,
            response: Bytes,
            locale: ShortString,
        }
        Secure as ConnectionSecure = 20 { challenge: Bytes, }
        SecureOk as ConnectionSecureOk = 21 { response: Bytes, }
        Tune as ConnectionTune = 30 { channel_max: u16, frame_max: u32, heartbeat: u16, }
        TuneOk as ConnectionTuneOk = 31 { channel_max: u16, frame_max: u32, heartbeat: u16, }
        Open as ConnectionOpen = 40 {
            virtual_host: ShortString,
            capabilities: Reserved<ShortString>,
            insist: Reserved<bool>,
        }
        OpenOk as ConnectionOpenOk = 41 { known_hosts: Reserved<ShortString>, }
        Close as ConnectionClose = 50 {
            reply_code: u16,
            reply_text: ShortString,
            class_id: u16,
            method_id: u16,
        }
        CloseOk as ConnectionCloseOk = 51 {}
        Blocked as ConnectionBlocked = 60 { reason: ShortString, }
        Unblocked as ConnectionUnblocked = 61 {}
        UpdateSecret as ConnectionUpdateSecret = 70 { new_secret: Bytes, reason: ShortString, }
        UpdateSecretOk as ConnectionUpdateSecretOk = 71 {}
    }

    /// Opening and closing channels.
    channel = 20 {
        Open as ChannelOpen = 10 { out_of_band: Reserved<ShortString>, }
        OpenOk as ChannelOpenOk = 11 { channel_id: Reserved<Bytes>, }
        Flow as ChannelFlow = 20 { active: bool, }
        FlowOk as ChannelFlowOk = 21 { active: bool, }
        Close as ChannelClose = 40 {
            reply_code: u16,
            reply_text: ShortString,
            class_id: u16,
            method_id: u16,
        }
        CloseOk as ChannelCloseOk = 41 {}
    }

    /// Access tickets, which old clients still ask for. They have no meaning.
    access = 30 {
        Request as AccessRequest = 10 {
            realm: ShortString,
            exclusive: bool,
            passive: bool,
            active: bool,
            write: bool,
            read: bool,
        }
        RequestOk as AccessRequestOk = 11 { ticket: u16, }
    }

    /// Exchanges, and bindings between them.
    exchange = 40 {
        Declare as ExchangeDeclare = 10 {
            ticket: Reserved<u16>,
            exchange: ShortString,
            kind: ShortString,
            passive: bool,
            durable: bool,
            auto_delete: bool,
            internal: bool,
            no_wait: bool,
            arguments: FieldTable,
        }
        DeclareOk as ExchangeDeclareOk = 11 {}
        Delete as ExchangeDelete = 20 {
            ticket: Reserved<u16>,
            exchange: ShortString,
            if_unused: bool,
            no_wait: bool,
        }
        DeleteOk as ExchangeDeleteOk = 21 {}
        Bind as ExchangeBind = 30 {
            ticket: Reserved<u16>,
            destination: ShortString,
            source: ShortString,
            routing_key: ShortString,
            no_wait: bool,
            arguments: FieldTable,
        }
        BindOk as ExchangeBindOk = 31 {}
        Unbind as ExchangeUnbind = 40 {
            ticket: Reserved<u16>,
            destination: ShortString,
            source: ShortString,
            routing_key: ShortString,
            no_wait: bool,
            arguments: FieldTable,
        }
        /// The number does not follow the pattern of the others.
        UnbindOk as ExchangeUnbindOk = 51 {}
    }

    /// Queues and their bindings.
    queue = 50 {
        Declare as QueueDeclare = 10 {
            ticket: Reserved<u16>,
            queue: ShortString,
            passive: bool,
            durable: bool,
            exclusive: bool,
            auto_delete: bool,
            no_wait: bool,
            arguments: FieldTable,
        }
        DeclareOk as QueueDeclareOk = 11 {
            queue: ShortString,
            message_count: u32,
            consumer_count: u32,
        }
        Bind as QueueBind = 20 {
            ticket: Reserved<u16>,
            queue: ShortString,
            exchange: ShortString,
            routing_key: ShortString,
            no_wait: bool,
            arguments: FieldTable,
        }
        BindOk as QueueBindOk = 21 {}
        Purge as QueuePurge = 30 {
            ticket: Reserved<u16>,
            queue: ShortString,
            no_wait: bool,
        }
        PurgeOk as QueuePurgeOk = 31 { message_count: u32, }
        Delete as QueueDelete = 40 {
            ticket: Reserved<u16>,
            queue: ShortString,
            if_unused: bool,
            if_empty: bool,
            no_wait: bool,
        }
        DeleteOk as QueueDeleteOk = 41 { message_count: u32, }
        /// Has no `no_wait`.
        Unbind as QueueUnbind = 50 {
            ticket: Reserved<u16>,
            queue: ShortString,
            exchange: ShortString,
            routing_key: ShortString,
            arguments: FieldTable,
        }
        UnbindOk as QueueUnbindOk = 51 {}
    }

    /// Publishing, delivering and acknowledging.
    basic = 60 {
        Qos as BasicQos = 10 { prefetch_size: u32, prefetch_count: u16, global: bool, }
        QosOk as BasicQosOk = 11 {}
        Consume as BasicConsume = 20 {
            ticket: Reserved<u16>,
            queue: ShortString,
            consumer_tag: ShortString,
            no_local: bool,
            no_ack: bool,
            exclusive: bool,
            no_wait: bool,
            arguments: FieldTable,
        }
        ConsumeOk as BasicConsumeOk = 21 { consumer_tag: ShortString, }
        Cancel as BasicCancel = 30 { consumer_tag: ShortString, no_wait: bool, }
        CancelOk as BasicCancelOk = 31 { consumer_tag: ShortString, }
        Publish as BasicPublish = 40 {
            ticket: Reserved<u16>,
            exchange: ShortString,
            routing_key: ShortString,
            mandatory: bool,
            immediate: bool,
        }
        Return as BasicReturn = 50 {
            reply_code: u16,
            reply_text: ShortString,
            exchange: ShortString,
            routing_key: ShortString,
        }
        Deliver as BasicDeliver = 60 {
            consumer_tag: ShortString,
            delivery_tag: u64,
            redelivered: bool,
            exchange: ShortString,
            routing_key: ShortString,
        }
        Get as BasicGet = 70 { ticket: Reserved<u16>, queue: ShortString, no_ack: bool, }
        GetOk as BasicGetOk = 71 {
            delivery_tag: u64,
            redelivered: bool,
            exchange: ShortString,
            routing_key: ShortString,
            message_count: u32,
        }
        GetEmpty as BasicGetEmpty = 72 { cluster_id: Reserved<ShortString>, }
        Ack as BasicAck = 80 { delivery_tag: u64, multiple: bool, }
        Reject as BasicReject = 90 { delivery_tag: u64, requeue: bool, }
        RecoverAsync as BasicRecoverAsync = 100 { requeue: bool, }
        Recover as BasicRecover = 110 { requeue: bool, }
        RecoverOk as BasicRecoverOk = 111 {}
        Nack as BasicNack = 120 { delivery_tag: u64, multiple: bool, requeue: bool, }
    }

    confirm = 85 {
        Select as ConfirmSelect = 10 { no_wait: bool, }
        SelectOk as ConfirmSelectOk = 11 {}
    }

    tx = 90 {
        Select as TxSelect = 10 {}
        SelectOk as TxSelectOk = 11 {}
        Commit as TxCommit = 20 {}
        CommitOk as TxCommitOk = 21 {}
        Rollback as TxRollback = 30 {}
        RollbackOk as TxRollbackOk = 31 {}
    }
}
