package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"

	. "malote.test/servicebus/harness"

	bus "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/coder/websocket"
)

// Tests of a server with credentials. The queue `configured` is declared in ../../entities.json.
var access = []Case{
	{Name: "a valid key is accepted", Run: aKnownKeyIsLetIn},
	{Name: "a wrong key is refused", Run: aWrongKeyIsNot},
	{Name: "a key has only its granted permissions", Run: aKeyMayDoWhatItWasGranted},
	{Name: "TLS works on the same port", Run: tlsOnTheSamePort},
	{Name: "AMQP works over a WebSocket", Run: throughAWebSocket},
}

func with(name, key string, emulator bool, options bus.ClientOptions) *bus.Client {
	options.RetryOptions.MaxRetries = -1
	return Must(bus.NewClientFromConnectionString(ConnectionString(name, key, emulator), &options))
}

func root() string { return os.Getenv("MALOTE_ROOT") }

func goesRound(client *bus.Client) {
	send(client, "configured", text("x"))
	receiver := receiverOf(client, "configured")
	complete(receiver, one(receiver))
	Close(receiver)
}

func trusting() *tls.Config {
	authorities := x509.NewCertPool()
	That(authorities.AppendCertsFromPEM(Must(os.ReadFile(os.Getenv("MALOTE_CA")))), "no certificate")
	return &tls.Config{RootCAs: authorities, ServerName: "localhost"}
}

func aKnownKeyIsLetIn() {
	client := with("Root", root(), true, bus.ClientOptions{})
	defer Close(client)
	goesRound(client)
}

func aWrongKeyIsNot() {
	ctx, done := Soon()
	defer done()
	for _, pair := range [][2]string{{"Root", "wrong"}, {"nobody", root()}, {"Reader", root()}} {
		client := with(pair[0], pair[1], true, bus.ClientOptions{})
		sender := Must(client.NewSender("configured", nil))
		Refused(pair[0], sender.SendMessage(ctx, text("x"), nil), bus.CodeUnauthorizedAccess)
		Close(client)
	}
}

func aKeyMayDoWhatItWasGranted() {
	ctx, done := Soon()
	defer done()
	client := with("Reader", os.Getenv("MALOTE_READER"), true, bus.ClientOptions{})
	defer Close(client)
	nothing(receiverOf(client, "configured"))
	sender := Must(client.NewSender("configured", nil))
	Refused("sending", sender.SendMessage(ctx, text("x"), nil), bus.CodeUnauthorizedAccess)
	// The error is the same whether or not the queue exists.
	for _, queue := range []string{"graves", "no-such-queue"} {
		_, err := receiverOf(client, queue).ReceiveMessages(ctx, 1, nil)
		Refused(queue, err, bus.CodeUnauthorizedAccess)
		_, err = receiverOf(client, queue).PeekMessages(ctx, 1, nil)
		Refused(queue, err, bus.CodeUnauthorizedAccess)
	}
}

func tlsOnTheSamePort() {
	client := with("Root", root(), false, bus.ClientOptions{TLSConfig: trusting()})
	defer Close(client)
	goesRound(client)
}

func throughAWebSocket() {
	dial := func(ctx context.Context, args bus.NewWebSocketConnArgs) (net.Conn, error) {
		transport := &http.Transport{TLSClientConfig: trusting()}
		options := &websocket.DialOptions{Subprotocols: []string{"amqp"}, HTTPClient: &http.Client{Transport: transport}}
		socket, _, err := websocket.Dial(ctx, args.Host, options)
		if err != nil {
			return nil, err
		}
		// The socket must outlive the context of the first call.
		return websocket.NetConn(context.Background(), socket, websocket.MessageBinary), nil
	}
	client := with("Root", root(), false, bus.ClientOptions{NewWebSocketConn: dial})
	goesRound(client)
	// The library reports the end of its socket as an error.
	ctx, done := Soon()
	defer done()
	_ = client.Close(ctx)
}
