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

// A server that asks for credentials. The queue `configured` is that of ../../entities.json.
var access = []Case{
	{Name: "a key that is known is let in", Run: aKnownKeyIsLetIn},
	{Name: "a wrong key is not", Run: aWrongKeyIsNot},
	{Name: "a key may do what it was granted", Run: aKeyMayDoWhatItWasGranted},
	{Name: "TLS is spoken on the same port", Run: tlsOnTheSamePort},
	{Name: "AMQP goes through a WebSocket", Run: throughAWebSocket},
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
	// It looks the same whether there is such a queue or not.
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
		// It lives longer than the call that needed it first.
		return websocket.NetConn(context.Background(), socket, websocket.MessageBinary), nil
	}
	client := with("Root", root(), false, bus.ClientOptions{NewWebSocketConn: dial})
	goesRound(client)
	// The library tells of the end of its socket as an error.
	ctx, done := Soon()
	defer done()
	_ = client.Close(ctx)
}
