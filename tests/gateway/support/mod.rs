//! What the tests share.

pub mod bodies;
pub mod files;
pub mod gateway;
pub mod pictures;
#[cfg(feature = "mm-routing")]
pub mod publisher;
pub mod raw;
pub mod standin;
pub mod wire;
pub mod worker;

use std::{
    collections::HashSet,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::Mutex,
    time::Duration,
};

/// No event that a test waits for takes nearly as long, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Waits for an event, and fails the test where it does not come.
pub async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, event).await {
        Ok(value) => value,
        Err(_) => panic!("waited in vain for: {what}"),
    }
}

/// An address for who comes back to it, or leaves it to nobody: the kernel gives its port to none of the many that ask for any
/// port, at either end of a connection.
pub fn kept_address() -> SocketAddr {
    static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    loop {
        // Below the range that Linux takes ports from (ip_local_port_range).
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, rand::random_range(20_000..32_000)));
        if TcpListener::bind(address).is_ok() && GIVEN.lock().unwrap().get_or_insert_default().insert(address.port()) {
            return address;
        }
    }
}

/// Sends a signal to a process that a test has started.
pub fn signal(pid: i32, signal: i32) {
    // SAFETY: a signal to a child, or a child's child, that was not waited for yet.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// Asks again and again, for what nothing announces, until the answer is yes.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    soon(what, async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}
