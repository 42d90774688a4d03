//! What stands between client and server, and can be cut.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What stands between client and server, and can be cut.
pub struct Wire {
    pub at: SocketAddr,
    cuts: watch::Sender<u64>,
    open: watch::Sender<bool>,
}

impl Wire {
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

    /// Every connection breaks. Nothing comes through until it is open again.
    pub fn cut(&self, open: bool) {
        self.open.send_replace(open);
        self.cuts.send_modify(|count| *count += 1);
    }
}
