//! Just enough HTTP/1.1 and WebSocket, blocking, to be a client that may lose its server at any moment.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use super::Protocol;

/// An answer must come within this, long polls included.
const PATIENCE: Duration = Duration::from_secs(30);

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// One connection, used again and again.
pub struct Http {
    stream: BufReader<TcpStream>,
}

impl Http {
    pub fn connect(to: SocketAddr) -> io::Result<Http> {
        let stream = TcpStream::connect_timeout(&to, Duration::from_secs(2))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Http { stream: BufReader::new(stream) })
    }

    /// Status and JSON body (null if there is none).
    pub fn ask(&mut self, method: &str, path: &str, body: &Value) -> io::Result<(u16, Value)> {
        self.ask_headed(method, path, "", body)
    }

    /// The same with lines of header, each with its end.
    pub fn ask_headed(
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
        let status = status.ok_or_else(|| wrong("no status"))?;
        let (mut length, mut chunked) = (0_usize, false);
        loop {
            let line = self.line()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().map_err(|_| wrong("a bad length"))?;
            }
            chunked |= line.starts_with("transfer-encoding:") && line.contains("chunked");
        }
        let mut body = Vec::new();
        while chunked {
            let size =
                usize::from_str_radix(&self.line()?, 16).map_err(|_| wrong("a bad chunk"))?;
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

/// The native connection, JSON frames.
pub struct Native {
    stream: BufReader<TcpStream>,
    next: u64,
    /// What came while an answer was awaited.
    heard: Vec<Value>,
}

impl Native {
    pub fn connect(to: SocketAddr) -> io::Result<Native> {
        let mut http = Http::connect(to)?;
        let hello = "GET /api/v1/connect HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
            sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
            sec-websocket-protocol: malote.v1.json\r\n\r\n";
        http.stream.get_mut().write_all(hello.as_bytes())?;
        if !http.line()?.contains(" 101") {
            return Err(wrong("no upgrade"));
        }
        while !http.line()?.is_empty() {}
        let mut native = Native { stream: http.stream, next: 1, heard: Vec::new() };
        let welcome = native.hear()?;
        if welcome.get("welcome").is_none() {
            return Err(wrong("no welcome"));
        }
        Ok(native)
    }

    /// How long to wait for the next frame.
    pub fn patience(&mut self, patience: Duration) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(Some(patience))
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
        // A mask of zeros: allowed, and nothing to compute.
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

    /// The next thing the server says.
    pub fn hear(&mut self) -> io::Result<Value> {
        if !self.heard.is_empty() {
            return Ok(self.heard.remove(0));
        }
        let bytes = self.message()?;
        match serde_json::from_slice(&bytes).map_err(|_| wrong("not JSON"))? {
            Value::Array(all) => {
                self.heard.extend(all);
                self.hear()
            }
            one => Ok(one),
        }
    }

    /// Says one frame and waits for its answer; what comes in between is kept.
    pub fn ask(&mut self, name: &str, mut frame: Value) -> io::Result<Result<Value, Value>> {
        let id = self.next;
        self.next += 1;
        frame["id"] = id.into();
        let frame = serde_json::json!({ name: frame });
        self.put(1, frame.to_string().as_bytes())?;
        let mut others = Vec::new();
        loop {
            let said = self.hear()?;
            match said.get("reply") {
                Some(reply) if reply["id"] == id => {
                    others.append(&mut self.heard);
                    self.heard = others;
                    let ok = reply.get("ok").cloned();
                    return Ok(ok.ok_or_else(|| reply["problem"].clone()));
                }
                _ => others.push(said),
            }
        }
    }
}

/// A queue's name as one part of a path.
pub(crate) fn in_path(queue: &str) -> String {
    queue.replace('/', "%2F").replace('$', "%24")
}

/// An answer, or the problem that was said instead.
type Said = Result<Value, Value>;

fn said((status, answer): (u16, Value)) -> Said {
    if status < 300 { Ok(answer) } else { Err(answer) }
}

/// Whoever can settle.
pub(crate) trait Settles {
    fn settle(&mut self, queue: &str, items: &Value) -> io::Result<Said>;

    /// The same, and sends, all of it or nothing.
    fn transact(&mut self, queue: &str, items: &Value, messages: &[Value]) -> io::Result<Said>;
}

impl Settles for Http {
    fn settle(&mut self, queue: &str, items: &Value) -> io::Result<Said> {
        let path = format!("/api/v1/queues/{}/settle", in_path(queue));
        self.ask("POST", &path, &items[0]).map(said)
    }

    fn transact(&mut self, queue: &str, items: &Value, messages: &[Value]) -> io::Result<Said> {
        let settle = json!([{ "queue": queue, "items": items }]);
        let work = json!({ "send": messages, "settle": settle });
        self.ask("POST", "/api/v1/transactions", &work).map(said)
    }
}

impl Settles for Native {
    fn settle(&mut self, queue: &str, items: &Value) -> io::Result<Said> {
        self.ask("settle", json!({ "queue": queue, "items": items }))
    }

    fn transact(&mut self, queue: &str, items: &Value, messages: &[Value]) -> io::Result<Said> {
        let transaction = self.next;
        let steps = [
            ("begin", json!({ "transaction": transaction })),
            ("send", json!({ "transaction": transaction, "messages": messages })),
            ("settle", json!({ "transaction": transaction, "queue": queue, "items": items })),
        ];
        for (name, frame) in steps {
            if let Err(problem) = self.ask(name, frame)? {
                return Ok(Err(problem));
            }
        }
        self.ask("commit", json!({ "transaction": transaction }))
    }
}

/// A sender's connection.
pub(crate) enum Speaker {
    Http(Http),
    Native(Native),
}

impl Speaker {
    pub(crate) fn connect(to: SocketAddr, protocol: Protocol) -> io::Result<Speaker> {
        match protocol {
            Protocol::Http => Http::connect(to).map(Speaker::Http),
            Protocol::Native => Native::connect(to).map(Speaker::Native),
        }
    }

    /// Sends all or none; each message names its queue or topic.
    pub(crate) fn send(&mut self, messages: &[Value]) -> io::Result<Said> {
        let messages = json!({ "messages": messages });
        match self {
            Speaker::Http(http) => http.ask("POST", "/api/v1/send", &messages).map(said),
            Speaker::Native(native) => native.ask("send", messages),
        }
    }
}
