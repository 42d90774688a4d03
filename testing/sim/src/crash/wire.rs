//! Minimal blocking HTTP/1.1 and WebSocket clients. Every call can fail, because the server may be killed at any
//! moment.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use super::Protocol;

/// Timeout of a request, including long polls.
const TIMEOUT: Duration = Duration::from_secs(30);

fn invalid_data(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// A connection that is used for many requests.
pub struct Http {
    stream: BufReader<TcpStream>,
}

impl Http {
    pub fn connect(to: SocketAddr) -> io::Result<Http> {
        let stream = TcpStream::connect_timeout(&to, Duration::from_secs(2))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Http { stream: BufReader::new(stream) })
    }

    /// Returns the status and the JSON body, or null if there is no body.
    pub fn request(&mut self, method: &str, path: &str, body: &Value) -> io::Result<(u16, Value)> {
        self.request_with_headers(method, path, "", body)
    }

    /// The same with additional header lines, each ended by CRLF.
    pub fn request_with_headers(
        &mut self,
        method: &str,
        path: &str,
        header: &str,
        body: &Value,
    ) -> io::Result<(u16, Value)> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{header}content-length: {}\r\n\r\n",
            body.len()
        );
        self.stream.get_mut().write_all((head + &body).as_bytes())?;
        let (status, bytes) = self.answer()?;
        Ok((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }

    fn answer(&mut self) -> io::Result<(u16, Vec<u8>)> {
        let status = self.line()?;
        let status = status.split(' ').nth(1).and_then(|code| code.parse::<u16>().ok());
        let status = status.ok_or_else(|| invalid_data("no status line"))?;
        let (mut length, mut chunked) = (0_usize, false);
        loop {
            let line = self.line()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length =
                    value.trim().parse().map_err(|_| invalid_data("invalid content-length"))?;
            }
            chunked |= line.starts_with("transfer-encoding:") && line.contains("chunked");
        }
        let mut body = Vec::new();
        while chunked {
            let size = usize::from_str_radix(&self.line()?, 16)
                .map_err(|_| invalid_data("invalid chunk size"))?;
            let at = body.len();
            body.resize(at + size, 0);
            self.stream.read_exact(&mut body[at..])?;
            self.line()?;
            chunked = size > 0;
        }
        let at = body.len();
        body.resize(at + length, 0);
        self.stream.read_exact(&mut body[at..])?;
        Ok((status, body))
    }
}

/// A native connection with JSON frames.
pub struct Native {
    stream: BufReader<TcpStream>,
    next: u64,
    /// Frames that arrived while waiting for a reply.
    unread: Vec<Value>,
}

impl Native {
    pub fn connect(to: SocketAddr) -> io::Result<Native> {
        let mut http = Http::connect(to)?;
        let handshake = "GET /api/v1/connect HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
            sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
            sec-websocket-protocol: malote.v1.json\r\n\r\n";
        http.stream.get_mut().write_all(handshake.as_bytes())?;
        if !http.line()?.contains(" 101") {
            return Err(invalid_data("the server refused the upgrade"));
        }
        while !http.line()?.is_empty() {}
        let mut native = Native { stream: http.stream, next: 1, unread: Vec::new() };
        let welcome = native.next_frame()?;
        if welcome.get("welcome").is_none() {
            return Err(invalid_data("the first frame is not `welcome`"));
        }
        Ok(native)
    }

    /// Sets the timeout for the next frame.
    pub fn set_timeout(&mut self, set_timeout: Duration) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(Some(set_timeout))
    }

    fn put(&mut self, opcode: u8, payload: &[u8]) -> io::Result<()> {
        let mut frame = vec![0x80 | opcode];
        match payload.len() {
            n if n < 126 => frame.push(0x80 | n as u8),
            n if n < 65_536 => {
                frame.push(0x80 | 126);
                frame.extend_from_slice(&(n as u16).to_be_bytes());
            }
            n => {
                frame.push(0x80 | 127);
                frame.extend_from_slice(&(n as u64).to_be_bytes());
            }
        }
        // An all-zero mask is allowed and needs no computation.
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(payload);
        self.stream.get_mut().write_all(&frame)
    }

    fn message(&mut self) -> io::Result<Vec<u8>> {
        let mut whole = Vec::new();
        loop {
            let mut head = [0; 2];
            self.stream.read_exact(&mut head)?;
            let len = match head[1] & 0x7f {
                126 => {
                    let mut len = [0; 2];
                    self.stream.read_exact(&mut len)?;
                    u64::from(u16::from_be_bytes(len))
                }
                127 => {
                    let mut len = [0; 8];
                    self.stream.read_exact(&mut len)?;
                    u64::from_be_bytes(len)
                }
                len => u64::from(len),
            };
            let mut payload = vec![0; len as usize];
            self.stream.read_exact(&mut payload)?;
            match head[0] & 0x0f {
                8 => return Err(io::ErrorKind::ConnectionAborted.into()),
                9 => self.put(10, &payload)?,
                10 => {}
                _ => {
                    whole.extend_from_slice(&payload);
                    if head[0] & 0x80 != 0 {
                        return Ok(whole);
                    }
                }
            }
        }
    }

    /// The next frame from the server.
    pub fn next_frame(&mut self) -> io::Result<Value> {
        if !self.unread.is_empty() {
            return Ok(self.unread.remove(0));
        }
        let bytes = self.message()?;
        match serde_json::from_slice(&bytes).map_err(|_| invalid_data("invalid JSON"))? {
            Value::Array(all) => {
                self.unread.extend(all);
                self.next_frame()
            }
            one => Ok(one),
        }
    }

    /// Sends one frame and waits for its reply. Other frames are kept for [`Native::next_frame`].
    pub fn request(&mut self, name: &str, mut frame: Value) -> io::Result<Result<Value, Value>> {
        let id = self.next;
        self.next += 1;
        frame["id"] = id.into();
        let frame = serde_json::json!({ name: frame });
        self.put(1, frame.to_string().as_bytes())?;
        let mut others = Vec::new();
        loop {
            let received = self.next_frame()?;
            match received.get("reply") {
                Some(reply) if reply["id"] == id => {
                    others.append(&mut self.unread);
                    self.unread = others;
                    let ok = reply.get("ok").cloned();
                    return Ok(ok.ok_or_else(|| reply["problem"].clone()));
                }
                _ => others.push(received),
            }
        }
    }
}

/// A queue's name, escaped for a URL path.
pub(crate) fn in_path(queue: &str) -> String {
    queue.replace('/', "%2F").replace('$', "%24")
}

/// The answer, or the problem that the server reported.
type Answer = Result<Value, Value>;

fn to_answer((status, answer): (u16, Value)) -> Answer {
    if status < 300 { Ok(answer) } else { Err(answer) }
}

/// A connection that can settle.
pub(crate) trait SettleApi {
    fn settle(&mut self, queue: &str, items: &Value) -> io::Result<Answer>;

    /// Settles and sends in one transaction.
    fn transact(&mut self, queue: &str, items: &Value, messages: &[Value]) -> io::Result<Answer>;
}

impl SettleApi for Http {
    fn settle(&mut self, queue: &str, items: &Value) -> io::Result<Answer> {
        let path = format!("/api/v1/queues/{}/settle", in_path(queue));
        self.request("POST", &path, &items[0]).map(to_answer)
    }

    fn transact(&mut self, queue: &str, items: &Value, messages: &[Value]) -> io::Result<Answer> {
        let settle = json!([{ "queue": queue, "items": items }]);
        let work = json!({ "send": messages, "settle": settle });
        self.request("POST", "/api/v1/transactions", &work).map(to_answer)
    }
}

impl SettleApi for Native {
    fn settle(&mut self, queue: &str, items: &Value) -> io::Result<Answer> {
        self.request("settle", json!({ "queue": queue, "items": items }))
    }

    fn transact(&mut self, queue: &str, items: &Value, messages: &[Value]) -> io::Result<Answer> {
        let transaction = self.next;
        let steps = [
            ("begin", json!({ "transaction": transaction })),
            ("send", json!({ "transaction": transaction, "messages": messages })),
            ("settle", json!({ "transaction": transaction, "queue": queue, "items": items })),
        ];
        for (name, frame) in steps {
            if let Err(problem) = self.request(name, frame)? {
                return Ok(Err(problem));
            }
        }
        self.request("commit", json!({ "transaction": transaction }))
    }
}

/// A connection of a sender.
pub(crate) enum SenderConnection {
    Http(Http),
    Native(Native),
}

impl SenderConnection {
    pub(crate) fn connect(to: SocketAddr, protocol: Protocol) -> io::Result<SenderConnection> {
        match protocol {
            Protocol::Http => Http::connect(to).map(SenderConnection::Http),
            Protocol::Native => Native::connect(to).map(SenderConnection::Native),
        }
    }

    /// Sends all messages or none; each names its queue or topic.
    pub(crate) fn send(&mut self, messages: &[Value]) -> io::Result<Answer> {
        let messages = json!({ "messages": messages });
        match self {
            SenderConnection::Http(http) => {
                http.request("POST", "/api/v1/send", &messages).map(to_answer)
            }
            SenderConnection::Native(native) => native.request("send", messages),
        }
    }
}
