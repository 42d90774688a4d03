//! After damage the world continues with the same directory. Reported damage must explain everything that is missing.
//! From then on everything must be correct, while the damaged segments remain.

use malote_engine::Stored;
use malote_engine::command::{Command, Reply};
use malote_engine::core::{Effect, Output};
use malote_engine::journal::{Damage, Pos};
use malote_model::{DeadLetterTarget, QueueName, Refusal};

use super::check::Expected;
use super::{LOOK, World};
use crate::clients::topics;
use crate::decide::{Ask, Model};

impl World {
    /// The broker has started on a damaged directory. Messages that only the model has must be in a damaged part.
    /// Then all queues and topics are deleted, and the world starts again in this directory.
    pub(super) fn go_on_after_damage(&mut self, cut: Pos, at: u64) {
        let report = self.journal.report.clone();
        self.model.crash(cut, at);
        self.let_limits_settle();
        // The positions of a segment without a header are unknown.
        if report.unreadable_segments.is_empty() {
            self.explain_losses(&report.damaged, cut);
        }
        self.begin_anew_here();
    }

    /// Deletes everything, because the content is unknown, and starts the world again in the same directory.
    pub(super) fn begin_anew_here(&mut self) {
        self.met.count("continued after damage", 1);
        self.damaged = true;
        self.make_room();
        self.remove_everything();
        let mut model = Model::default();
        model.verbose = self.verbose;
        model.issued = std::mem::take(&mut self.model.issued);
        model.met = std::mem::take(&mut self.model.met);
        self.model = model;
        self.model.crash(Pos::ZERO, self.now);
        self.clients.restarted();
        self.flush();
        self.declare_all();
    }

    /// Declares the initial queues and topics of a world.
    pub(super) fn declare_all(&mut self) {
        for (name, spec) in self.clients.queues.clone() {
            self.turn(vec![(0, Ask::Declare { name, spec, connection: None })]);
        }
        for ask in topics::begin(&mut self.rng) {
            self.turn(vec![(0, Ask::Topic(ask))]);
        }
        self.flush();
    }

    /// The record that removed a message from a full queue may be damaged. The queue is then over its limit until the
    /// first turns remove the message again.
    fn let_limits_settle(&mut self) {
        for _ in 0..1000 {
            let list = Command::ListTopics { after: None, max: 1 };
            let (groups, _) = self.call(|turn| turn.command(LOOK, list));
            self.end_turn();
            if groups.is_empty() {
                return;
            }
            self.met.count("over a limit after damage", 1);
        }
        panic!("limits are still being enforced after 1000 turns");
    }

    /// Queues and messages must exist unless their own records are in a damaged part.
    fn explain_losses(&mut self, damaged: &[Damage], cut: Pos) {
        let lost = |end: Pos| end > cut || damaged.iter().any(|d| d.from < end && end <= d.to);
        let there = self.engine_queues();
        let names: Vec<_> = self.model.state.queues.keys().cloned().collect();
        for name in names {
            let q = self.model.state.queue(&name);
            // A subscription is deleted with its topic, and a topic with its last rule, whose record may be missing.
            if lost(q.born) || self.goes_with_another(&name) {
                continue;
            }
            let of = q.owner.clone().unwrap_or_else(|| name.clone());
            assert!(there.contains(&of), "{name} is lost, although its declaration is intact");
            let peeked = self.peek(&name);
            let q = self.model.state.queue(&name);
            // Which messages a full queue removed depends on records that may be lost.
            let limited = q.spec.length_max.is_some() || q.spec.bytes_max.is_some();
            for (seq, msg) in q.msgs.iter().filter(|(_, msg)| !limited && !lost(msg.entered)) {
                let Some(found) = peeked.iter().find(|p| p.seq.0 == *seq) else {
                    panic!(
                        "{seq} of {name} is lost, although its record at {} is intact",
                        msg.entered
                    );
                };
                // An overlay may be lost, and the record under an overlay may be unreadable.
                if !lost(msg.rests)
                    && let Ok(stored) = Stored::read_now(&self.journal.segments, found.pos)
                    && stored.enqueued_at.0 == msg.at
                {
                    let expected = Expected::of(msg);
                    assert_eq!(stored.message.body, expected.sent.message.body, "{seq} of {name}");
                }
            }
        }
    }

    fn goes_with_another(&self, name: &QueueName) -> bool {
        let owner = self.model.state.queue(name).owner.clone();
        let of = owner.unwrap_or_else(|| name.clone());
        of.subscription_of().is_some()
            || self.model.state.queues.get(&of).is_none_or(|q| q.spec.exclusive)
    }

    /// Deletes topics first, then queues. A queue that is the target of others is deleted after them.
    fn remove_everything(&mut self) {
        let Ok(Reply::Topics(topics)) =
            self.look(Command::ListTopics { after: None, max: usize::MAX })
        else {
            panic!("topics cannot be listed")
        };
        for topic in topics {
            let done = self.order(Command::DeleteTopic { name: topic.name });
            assert!(matches!(done, Ok(_) | Err(Refusal::TopicNotFound { .. })), "{done:?}");
        }
        loop {
            let names = self.engine_queues();
            let before = names.len();
            for name in names {
                let done = self.order(Command::Delete { name });
                assert!(matches!(done, Ok(_) | Err(Refusal::QueueInUse { .. })), "{done:?}");
            }
            let after = self.engine_queues().len();
            if after == 0 {
                return;
            }
            // Queues that are each other's targets.
            for mut facts in self.facts().into_iter().filter(|_| after == before) {
                facts.spec.dead_letter = DeadLetterTarget::Own;
                let spec = Box::new(facts.spec);
                let done = self.order(Command::Update { name: facts.name, spec });
                assert!(done.is_ok(), "{done:?}");
            }
        }
    }

    /// Runs a command without the model.
    fn order(&mut self, command: Command) -> Result<Reply, Refusal> {
        let (_, out) = self.call(|turn| turn.command(LOOK, command));
        let mut answers = out.into_iter().filter_map(|output: Output| match output.effect {
            Effect::Request(LOOK, answer) => Some(answer),
            _ => None,
        });
        let answer = answers.next().expect("a command is answered");
        self.end_turn();
        answer
    }
}
