//! A TCP proxy whose connections can be cut.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A TCP proxy between client and server.
pub struct CuttableProxy {
    pub at: SocketAddr,
    cuts: watch::Sender<u64>,
    open: watch::Sender<bool>,
}

impl CuttableProxy {
    pub async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let (cuts, cut) = watch::channel(0);
        let (open, is_open) = watch::channel(true);
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                if !*is_open.borrow() {
                    continue;
                }
                let mut cut = cut.clone();
                cut.mark_unchanged();
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(server).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { at, cuts, open }
    }

    /// Closes all connections. New ones are accepted only if `open`.
    pub fn cut(&self, open: bool) {
        self.open.send_replace(open);
        self.cuts.send_modify(|count| *count += 1);
    }
}
