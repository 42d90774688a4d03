//! The text of replies in the output of a script.

use std::fmt::Write as _;

use super::*;

impl World {
    pub(super) fn tell(&mut self, reply: Reply) {
        let text = match reply {
            Reply::Done => return,
            Reply::Declared { created } => return assert!(created, "declared twice"),
            Reply::Sent(sent) if sent.iter().all(|sent| !sent.duplicate && sent.copies == 1) => {
                return;
            }
            Reply::Sent(sent) => {
                let each = sent.iter().map(|receipt| match (receipt.duplicate, receipt.copies) {
                    (true, _) => match receipt.first_id {
                        Some(id) => format!("{} again, as {id:x}", receipt.seq),
                        None => format!("{} again", receipt.seq),
                    },
                    (false, 1) => receipt.seq.to_string(),
                    (false, copies) => format!("{copies} copies"),
                });
                each.collect::<Vec<_>>().join(", ")
            }
            Reply::SentEach(each) => {
                for one in each {
                    match one {
                        Ok(receipts) => self.tell(Reply::Sent(receipts.into_vec())),
                        Err(refusal) => writeln!(self.said, "refused: {refusal}").unwrap(),
                    }
                }
                return;
            }
            Reply::Count(n) => format!("{n}"),
            Reply::Settled(each) => {
                let lost = each.iter().filter(|outcome| outcome.is_err()).count();
                if lost == 0 {
                    return;
                }
                format!("{lost} lost")
            }
            Reply::Renewed(each) => {
                each[0].as_ref().map_or("lost".into(), |until| format!("until {until}"))
            }
            Reply::Accepted(None) => "no session".into(),
            Reply::Accepted(Some(held)) => {
                format!("holds {} as {} until {}", held.session, self.name(held.hold), held.until)
            }
            Reply::Delivered(grants) if grants.is_empty() => "nothing".into(),
            Reply::Delivered(grants) => {
                let each = grants.into_iter().map(|grant| {
                    let Stored { message, dead, .. } = Stored::read(
                        &mut self.journal.segments.reading(false),
                        grant.pos,
                        ReadMode::Blocking,
                        &mut None,
                    )
                    .unwrap();
                    let body = String::from_utf8(message.body.bytes.to_vec()).unwrap();
                    let mut text = body.clone();
                    if let Some(lease) = grant.lease {
                        write!(text, " as {}", self.name(lease)).unwrap();
                    }
                    if grant.receives > 1 || grant.failed > 0 {
                        write!(text, " (receives {}, failed {})", grant.receives, grant.failed)
                            .unwrap();
                    }
                    if let (Some(at), true) = (grant.first_at, self.tell_firsts) {
                        write!(text, " first at {at}").unwrap();
                    }
                    if let Some(id) = message.message_id.filter(|id| !id.is_empty() && *id != body)
                    {
                        write!(text, " called {id}").unwrap();
                    }
                    if let Some(Value::String(value)) = message.properties.get("set") {
                        write!(text, " set={value}").unwrap();
                    }
                    if let Some(dead) = dead {
                        write!(
                            text,
                            " [{}: {}, from {} {}]",
                            dead.reason, dead.text, dead.from, dead.from_seq
                        )
                        .unwrap();
                    }
                    text
                });
                each.collect::<Vec<_>>().join(", ")
            }
            Reply::State(pos) => format!("state at {pos:?}"),
            Reply::Peeked { items, .. } => {
                let each = items
                    .iter()
                    .map(|item| format!("{} {:?}", item.seq, item.state).to_lowercase());
                each.collect::<Vec<_>>().join(", ")
            }
            Reply::Queues(facts) => {
                let f = &facts[0];
                format!(
                    "ready {} locked {} delayed {} scheduled {} deferred {} dead {} sessions {}/{} held {}",
                    f.ready,
                    f.locked,
                    f.delayed,
                    f.scheduled,
                    f.deferred,
                    f.dead_lettered,
                    f.sessions_ready,
                    f.sessions,
                    f.sessions_held
                )
            }
            Reply::Topics(facts) => {
                let each = facts.iter().map(|f| {
                    let labels = f.labels.iter().map(|(name, text)| format!(", {name}: {text}"));
                    format!(
                        "{}: {} queues, {} rules, {} scheduled, {} waiting, {} copies{}",
                        f.name,
                        f.queues,
                        f.rules,
                        f.scheduled,
                        f.waiting,
                        f.totals.copies,
                        labels.collect::<String>()
                    )
                });
                each.collect::<Vec<_>>().join("; ")
            }
            Reply::Rules(rules) => {
                let each =
                    rules.iter().map(|b| format!("{} {}", name_of_target(&b.target), b.rule.name));
                each.collect::<Vec<_>>().join("; ")
            }
            Reply::Sessions { sessions, next } => {
                let each = sessions.iter().map(|s| match s.state_at {
                    Timestamp(0) => format!("{} {}", s.session, s.messages),
                    at => format!("{} {} state at {at}", s.session, s.messages),
                });
                let mut all: Vec<_> = each.collect();
                all.extend(next.map(|next| format!("more from {next}")));
                all.join(", ")
            }
            Reply::Saved { body, .. } => format!("{} bytes of state", body.len()),
            Reply::Located(places) => format!("{} places", places.len()),
            Reply::Resolved(Resolution::Missing) => "no such name".to_owned(),
            Reply::Resolved(Resolution::Ambiguous) => "several are spelled so".to_owned(),
            Reply::Resolved(Resolution::Found(Address::Queue(name))) => format!("queue {name}"),
            Reply::Resolved(Resolution::Found(Address::Topic(name))) => format!("topic {name}"),
        };
        writeln!(self.said, "{text}").unwrap();
    }
}

/// A queue by its name, a topic with its kind.
fn name_of_target(target: &Address) -> String {
    match target {
        Address::Queue(queue) => queue.to_string(),
        Address::Topic(topic) => format!("topic:{topic}"),
    }
}
