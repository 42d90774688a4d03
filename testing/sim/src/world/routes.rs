//! What the engine's shell reads for the core: brought back at a moment of the world's choosing, or never.

use malote_engine::Stored;
use malote_engine::command::{Command, Reply, ToRoute};
use malote_engine::core::To;
use malote_engine::event::QueueId;

use super::{LOOK, World};

/// What was read.
pub(super) enum Read {
    /// Messages of a topic's inbox.
    Route(QueueId, Vec<ToRoute>),
}

impl World {
    /// The core may be told now what it asked for.
    pub(super) fn read(&mut self, to: To) {
        if let To::Route(topic, mut items) = to {
            for item in &mut items {
                match Stored::read_now(&self.journal.segments, item.pos) {
                    Ok(stored) => item.message = Some(Box::new(stored.message)),
                    // Stored anew meanwhile, and its old place used for something else.
                    Err(error) => self.say(|| format!("{} cannot be read: {error}", item.pos)),
                }
            }
            self.reads.push_back(Read::Route(topic, items));
        }
    }

    /// Brings back what was read first.
    pub(super) fn bring_back(&mut self) {
        if self.reads.is_empty() {
            return;
        }
        // As in every turn of the engine, what is due comes first.
        self.turn(Vec::new());
        let Some(Read::Route(topic, items)) = self.reads.pop_front() else { return };
        // What finds no room is tried again after a while: that far it does not come here.
        if self.tight {
            self.make_room();
        }
        let now = self.now;
        self.say(|| format!("{now} routes {items:?} of {topic:?}"));
        let command = Command::Route { topic, items };
        let (groups, out) = self.call(|turn| turn.command(LOOK, command));
        self.model.routed(now, &groups);
        self.model.make_room(now, &groups);
        let answer = out.into_iter().map(|output| output.to);
        let answer: Vec<_> = answer.collect();
        assert!(
            matches!(answer.as_slice(), [To::Request(LOOK, Ok(Reply::Done))]),
            "routing was answered with {answer:?}"
        );
        self.model.check_journal(&groups);
        self.turn(Vec::new());
    }

    /// Whatever waits in an inbox is being read, or was.
    pub(super) fn check_inboxes(&self) {
        if self.tight {
            return;
        }
        for (id, name) in &self.model.topic_names {
            let inbox = malote_model::QueueName::inbox(name);
            let Some(q) = self.model.state.inboxes.get(&inbox) else { continue };
            let mut waiting = q.msgs.values().filter(|msg| msg.ready(self.now));
            // What is over goes in the next moment.
            let waits = waiting.any(|msg| !q.expired(msg, self.now));
            let asked = self.pending.iter().any(|p| matches!(&p.to, To::Route(of, _) if of == id));
            let read = self.reads.iter().any(|Read::Route(of, _)| of == id);
            assert!(!waits || asked || read, "nobody routes what waits in {inbox}: {:?}", q.msgs);
        }
    }
}
