//! A link on which messages come in, and how they are settled.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use malote_wire_amqp::connection::Incoming;
use malote_wire_amqp::performative::{
    Attach, ReceiverSettleMode, Role, SenderSettleMode, Source, Target,
};
use malote_wire_amqp::types::{Map, Str, Symbol, Value};
use tokio::sync::{mpsc, oneshot};

use super::connection::{Connection, LinkHandle};
use super::driver::{Command, Wanted};
use super::error::Result;
use super::limits;
use super::management::Management;
use super::message::{Place, Received};
use super::settle::Settler;

const SESSION_FILTER: &str = "com.microsoft:session-filter";
const TIMEOUT: &str = "com.microsoft:timeout";

/// What a receiver wants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReceiverOptions {
    /// Messages that are asked for ahead. None: only what [`Receiver::grant`] and [`Receiver::receive`] ask for.
    pub prefetch: u32,
    /// Whether messages are gone when they are sent. Otherwise they are locked until they are settled.
    pub receive_and_delete: bool,
    /// Whether settling is said once and not confirmed: brokers other than Service Bus, which do not know the second
    /// step.
    pub unconfirmed: bool,
}

/// Which session is wanted.
pub(super) enum SessionWish<'a> {
    Named(&'a str),
    Next,
}

/// Receives from a queue or a subscription. Dropped, its link is detached: what came and was not taken goes back, what
/// was taken and not settled stays locked until it is settled or the lock ends.
pub struct Receiver {
    settler: Settler,
    deliveries: mpsc::Receiver<Incoming>,
    options: ReceiverOptions,
    /// Asked for and not yet taken.
    asked: u32,
    /// Taken since credit was last given.
    taken: u32,
}

impl Receiver {
    pub(super) async fn open(
        connection: &Arc<Connection>,
        address: &str,
        options: ReceiverOptions,
        session: Option<SessionWish<'_>>,
        wait: Duration,
    ) -> Result<Receiver> {
        connection.authorize(address).await?;
        let options =
            ReceiverOptions { prefetch: options.prefetch.min(limits::PREFETCH_MAX), ..options };
        let name = Str::from(connection.name("receiver"));
        let mut source = Source::at(address);
        let mut properties = None;
        if let Some(session) = &session {
            let key = Value::Symbol(Symbol::from_static(SESSION_FILTER));
            let which = match session {
                SessionWish::Named(id) => Value::from(*id),
                SessionWish::Next => Value::Null,
            };
            source.filter = Some(Map(vec![(key, which)]));
            let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
            properties = Some(Map::default().with(TIMEOUT, wait_ms));
        }
        let second = !options.receive_and_delete && !options.unconfirmed;
        let attach = Attach {
            name: name.clone(),
            role: Role::Receiver,
            snd_settle_mode: match options.receive_and_delete {
                true => SenderSettleMode::Settled,
                false => SenderSettleMode::Unsettled,
            },
            rcv_settle_mode: match second {
                true => ReceiverSettleMode::Second,
                false => ReceiverSettleMode::First,
            },
            source: Some(source),
            target: Some(Target::at(Value::String(name)).into()),
            properties,
            ..Attach::default()
        };
        let room = options.prefetch.max(1_024) as usize;
        let (to, deliveries) = mpsc::channel(room);
        let link = connection.attach(None, attach, Wanted::Receiver(to), wait).await?;
        let management = Management::of_link(connection.clone(), address, link.name.as_str());
        let settler = Settler::new(Arc::new(link), management, options.unconfirmed);
        let mut receiver = Receiver { settler, deliveries, options, asked: 0, taken: 0 };
        if receiver.options.prefetch > 0 {
            receiver.grant(receiver.options.prefetch).await?;
        }
        Ok(receiver)
    }

    fn link(&self) -> &LinkHandle {
        self.settler.link()
    }

    /// The session's id and the end of its lock, as the server granted them.
    pub(super) fn granted(&self) -> Option<(String, i64)> {
        let attach = &self.link().attach;
        let filter = attach.source.as_ref()?.filter.as_ref()?.get(SESSION_FILTER)?;
        let id = match filter {
            Value::Described(described) => described.value.as_str()?,
            value => value.as_str()?,
        };
        let until = attach.properties.as_ref()?.get("com.microsoft:locked-until-utc");
        Some((id.to_owned(), until.and_then(Value::as_i64).map_or(0, of_ticks)))
    }

    pub(super) fn settler_mut(&mut self) -> &mut Settler {
        &mut self.settler
    }

    /// Whether it has to be opened again.
    pub fn is_over(&self) -> bool {
        self.link().is_over()
    }

    /// Settles what this receiver has received; also after it was dropped, as far as the server allows.
    pub fn settler(&self) -> Settler {
        self.settler.clone()
    }

    /// Lets so many more messages come; as many as there is room for.
    pub async fn grant(&mut self, more: u32) -> Result<()> {
        let room = u32::try_from(self.deliveries.max_capacity()).unwrap_or(u32::MAX);
        let more = more.min(room.saturating_sub(self.asked));
        if more > 0 {
            self.asked += more;
            let link = self.link().link;
            self.link().connection.command(Command::Credit { link, more }).await?;
        }
        Ok(())
    }

    /// Takes back what was asked for. What has come by then is still to be taken.
    pub async fn drain(&mut self) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        let link = self.link().link;
        self.link().connection.command(Command::Drain { link, reply }).await?;
        answer.await.map_err(|_| self.link().why())?;
        self.asked = self.deliveries.len() as u32;
        Ok(())
    }

    /// The next message, whenever it comes. Nothing is lost when the call is given up.
    pub async fn next(&mut self) -> Result<Received> {
        self.ask_again().await?;
        match self.deliveries.recv().await {
            Some(incoming) => {
                self.took(1);
                Received::of_delivery(self.link().number, incoming)
            }
            None => Err(self.link().why()),
        }
    }

    /// What has come, at most so many, at least one, whenever it comes. Nothing is lost when the call is given up.
    pub async fn next_many(&mut self, max: usize) -> Result<Vec<Received>> {
        self.ask_again().await?;
        let mut came = Vec::new();
        if self.deliveries.recv_many(&mut came, max.max(1)).await == 0 {
            return Err(self.link().why());
        }
        self.took(came.len());
        self.read(came)
    }

    /// At most so many messages, as soon as there are some, or none after `wait`. Without prefetch nothing is asked for
    /// beyond the call.
    pub async fn receive(&mut self, max: u32, wait: Duration) -> Result<Vec<Received>> {
        let most = max.clamp(1, limits::PREFETCH_MAX) as usize;
        let by_call = self.options.prefetch == 0;
        if by_call {
            self.grant((most as u32).saturating_sub(self.asked)).await?;
        } else {
            self.ask_again().await?;
        }
        let mut came = Vec::new();
        let waited = self.deliveries.recv_many(&mut came, most);
        if tokio::time::timeout(wait, waited).await == Ok(0) {
            return Err(self.link().why());
        }
        self.took(came.len());
        if by_call && self.asked > 0 {
            self.drain().await?;
            let before = came.len();
            while came.len() < most
                && let Ok(incoming) = self.deliveries.try_recv()
            {
                came.push(incoming);
            }
            self.took(came.len() - before);
        }
        self.read(came)
    }

    fn read(&self, came: Vec<Incoming>) -> Result<Vec<Received>> {
        let link = self.link().number;
        came.into_iter().map(|incoming| Received::of_delivery(link, incoming)).collect()
    }

    fn took(&mut self, count: usize) {
        let count = count as u32;
        self.asked = self.asked.saturating_sub(count);
        if self.options.prefetch == 0 {
            return;
        }
        self.taken += count;
        if self.taken * 2 >= self.options.prefetch && self.give(self.taken) {
            self.taken = 0;
        }
    }

    /// Gives credit at once, if there is room among the commands.
    fn give(&mut self, more: u32) -> bool {
        let link = self.link().link;
        let told = self.link().connection.try_command(Command::Credit { link, more });
        self.asked += if told { more } else { 0 };
        told
    }

    /// Before a wait: credit that could not be given at once must be given now, or nothing would come.
    async fn ask_again(&mut self) -> Result<()> {
        if self.taken * 2 >= self.options.prefetch && self.taken > 0 {
            let more = self.taken;
            self.taken = 0;
            self.grant(more).await?;
        }
        Ok(())
    }

    /// Takes back what was asked for, gives back what came and was not taken, and detaches.
    pub async fn close(mut self) {
        // Not drained in time, or over already: then what is on its way stays locked until its lock ends.
        let _ = tokio::time::timeout(limits::FAREWELL, self.drain()).await;
        let unseen = self.unseen();
        self.settler.close(unseen).await;
    }

    fn unseen(&mut self) -> Vec<malote_wire_amqp::connection::DeliveryId> {
        self.deliveries.close();
        let mut unseen = Vec::new();
        while let Ok(incoming) = self.deliveries.try_recv() {
            if !incoming.settled {
                unseen.push(incoming.delivery);
            }
        }
        unseen
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let unseen = self.unseen();
        self.settler.release(unseen);
    }
}

/// What it has received is settled through it.
impl Deref for Receiver {
    type Target = Settler;

    fn deref(&self) -> &Settler {
        &self.settler
    }
}

/// .NET counts in ticks of 100 ns since the year 1.
fn of_ticks(ticks: i64) -> i64 {
    const UNIX_EPOCH: i64 = 621_355_968_000_000_000;
    const TICKS_PER_MS: i64 = 10_000;
    ticks.saturating_sub(UNIX_EPOCH) / TICKS_PER_MS
}

impl Received {
    /// Whether it can be settled.
    pub(super) fn is_locked(&self) -> bool {
        self.place != Place::Nowhere
    }
}
