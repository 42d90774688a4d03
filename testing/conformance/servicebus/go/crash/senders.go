package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	. "malote.test/servicebus/harness"

	bus "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

const sessionsEach, batchMax, paddingMax = 4, 8, 300

// send sends batches, most of them to its own sessions, and records acknowledgements.
func (w *world) send(me int) {
	chance := rand.New(rand.NewPCG(uint64(me), 0x5e4d))
	it := client()
	to := map[string]*bus.Sender{plain: Must(it.NewSender(plain, nil)), ordered: Must(it.NewSender(ordered, nil))}
	var numbers [sessionsEach]int64
	total := 0
	for w.done.Err() == nil {
		if w.paused.Load() {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		queue := plain
		if chance.IntN(10) < 7 {
			queue = ordered
		}
		var notes []note
		var ids []string
		for range 1 + chance.IntN(batchMax) {
			total++
			one := note{ID: fmt.Sprintf("%d-%d", me, total)}
			if queue == ordered {
				session := chance.IntN(sessionsEach)
				numbers[session]++
				one.Session, one.Number = fmt.Sprintf("s%d-%d", me, session), numbers[session]
			}
			notes, ids = append(notes, one), append(ids, one.ID)
		}
		w.tell(event{What: "sending", Messages: notes})
		if w.batch(to[queue], notes, chance.IntN(paddingMax)) == nil {
			w.tell(event{What: "acknowledged", IDs: ids})
		} else {
			time.Sleep(5 * time.Millisecond) // the result is unknown
		}
		time.Sleep(time.Duration(chance.IntN(8)) * time.Millisecond)
	}
}

func (w *world) batch(sender *bus.Sender, notes []note, padding int) error {
	ctx, done := w.within(20 * time.Second)
	defer done()
	batch, err := sender.NewMessageBatch(ctx, nil)
	if err != nil {
		return err
	}
	for _, one := range notes {
		body := fmt.Sprintf("%d %s", one.Number, strings.Repeat("x", padding))
		message := &bus.Message{MessageID: To(one.ID), Body: []byte(body)}
		if one.Session != "" {
			message.SessionID = To(one.Session)
		}
		Check(batch.AddMessage(message, nil))
	}
	return sender.SendMessageBatch(ctx, batch, nil)
}
