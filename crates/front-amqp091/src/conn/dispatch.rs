//! Methods → operations.

use super::Conn;
use super::channel::{Channel, Mode, Staged};
use super::completion::{Completion, Done};
use super::confirms::Confirms;
use crate::conn::channel::Verdict;
use crate::refusal::precondition;
use crate::wire::error::{Exception, ReplyCode};
use crate::wire::method::{
    EncodeMethod as _, Method, MethodId, access, basic, channel, confirm, tx,
};

impl Conn {
    /// Handles a method on a channel.
    pub(super) fn method(&mut self, number: u16, method: Method) -> Result<(), Exception> {
        let id = method.id();
        match method {
            Method::ChannelClose(_) => self.channel_closed_by_client(number),
            Method::ChannelFlow(channel::Flow { active: true }) => {
                self.put(number, &channel::FlowOk { active: true });
            }
            Method::ChannelFlow(_) => return Err(not_implemented("active=false")),
            Method::ChannelFlowOk(_) => {}
            Method::AccessRequest(_) => self.put(number, &access::RequestOk { ticket: 1 }),
            Method::ExchangeDeclare(declare) => self.declare_exchange(number, declare)?,
            Method::ExchangeDelete(delete) => self.delete_exchange(number, delete)?,
            Method::ExchangeBind(bind) => self.bind_exchange(number, bind)?,
            Method::ExchangeUnbind(unbind) => self.unbind_exchange(number, unbind)?,
            Method::QueueDeclare(declare) => self.declare_queue(number, declare)?,
            Method::QueueBind(bind) => self.bind_queue(number, bind)?,
            Method::QueueUnbind(unbind) => self.unbind_queue(number, unbind)?,
            Method::QueuePurge(purge) => self.purge_queue(number, purge)?,
            Method::QueueDelete(delete) => self.delete_queue(number, delete)?,
            Method::BasicQos(qos) => self.qos(number, &qos)?,
            Method::BasicConsume(consume) => self.consume(number, consume)?,
            Method::BasicCancel(cancel) => self.cancel(number, cancel),
            Method::BasicGet(get) => self.get(number, get)?,
            Method::BasicAck(basic::Ack { delivery_tag, multiple }) => {
                self.settle(number, delivery_tag, multiple, Verdict::Complete)?;
            }
            Method::BasicReject(basic::Reject { delivery_tag, requeue }) => {
                self.settle(number, delivery_tag, false, verdict(requeue))?;
            }
            Method::BasicNack(basic::Nack { delivery_tag, multiple, requeue }) => {
                self.settle(number, delivery_tag, multiple, verdict(requeue))?;
            }
            Method::BasicRecover(basic::Recover { requeue: true }) => {
                self.recover(number);
                self.put(number, &basic::RecoverOk {});
            }
            Method::BasicRecoverAsync(basic::RecoverAsync { requeue: true }) => {
                self.recover(number)
            }
            Method::BasicRecover(_) | Method::BasicRecoverAsync(_) => {
                return Err(not_implemented("requeue=false"));
            }
            Method::ConfirmSelect(select) => self.select_confirms(number, &select)?,
            Method::TxSelect(_) => self.select_transactions(number)?,
            Method::TxCommit(_) => self.commit(number)?,
            Method::TxRollback(_) => self.roll_back(number)?,
            _ if id.class == 10 => {
                let detail = format!("unexpected connection method on channel {number}");
                return Err(Exception::new(ReplyCode::CommandInvalid, detail));
            }
            // Methods that only a server sends.
            _ => {
                return Err(Exception::new(ReplyCode::CommandInvalid, "unimplemented method"));
            }
        }
        Ok(())
    }

    /// The channel of a request that is being handled.
    pub(crate) fn channel(&mut self, number: u16) -> &mut Channel {
        self.channels.get_mut(&number).expect("a request is handled only on an open channel")
    }

    /// Starts an operation whose reply later requests of the channel wait for. Everything before it reaches the engine
    /// first.
    pub(crate) fn start_request(
        &mut self,
        number: u16,
        method: MethodId,
        work: impl Future<Output = Result<Done, Exception>> + Send + 'static,
    ) {
        while self.flush_sends() || self.flush_settles() {}
        let channel = self.channel(number);
        channel.busy = true;
        let serial = channel.serial;
        self.start(async move {
            let result = work.await;
            Completion::Request { channel: number, serial, method, result }
        });
    }

    fn select_confirms(&mut self, number: u16, select: &confirm::Select) -> Result<(), Exception> {
        let channel = self.channel(number);
        match channel.mode {
            Mode::Transaction(_) => {
                return Err(precondition("cannot switch from tx to confirm mode"));
            }
            Mode::Plain => channel.mode = Mode::Confirm(Confirms::default()),
            Mode::Confirm(_) => {}
        }
        if !select.no_wait {
            self.put(number, &confirm::SelectOk {});
        }
        Ok(())
    }

    fn select_transactions(&mut self, number: u16) -> Result<(), Exception> {
        let channel = self.channel(number);
        match channel.mode {
            Mode::Confirm(_) => return Err(precondition("cannot switch from confirm to tx mode")),
            Mode::Plain => channel.mode = Mode::Transaction(Staged::default()),
            Mode::Transaction(_) => {}
        }
        self.put(number, &tx::SelectOk {});
        Ok(())
    }
}

pub(crate) fn not_implemented(detail: impl Into<std::borrow::Cow<'static, str>>) -> Exception {
    Exception::new(ReplyCode::NotImplemented, detail)
}

fn verdict(requeue: bool) -> Verdict {
    if requeue { Verdict::Requeue } else { Verdict::Reject }
}
