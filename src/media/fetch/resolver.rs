//! From a name to all of its addresses, within bounds.
//!
//! The system's resolver is asked (`getaddrinfo`), so hosts files, search domains and split-horizon DNS work as everywhere
//! else on the machine. Nothing is judged here and nothing is cached: each connection resolves anew, and what comes back is
//! judged by the policy before it is dialled.
//!
//! `getaddrinfo` cannot be cancelled, and a name server of an attacker may never answer. So a lookup occupies one of a fixed
//! number of turns until it really ends, even if nobody waits for it any more, and cannot eat up the threads that decode.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use dns_lookup::{AddrInfoHints, LookupErrorKind, SockType, getaddrinfo};
use tokio::sync::Semaphore;

use super::error::FetchError;

/// The addresses of a name.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, FetchError>> + Send + 'a>>;

/// Something that resolves names. The fetcher uses the system's; tests bring their own.
pub trait Resolve: Send + Sync + 'static {
    /// All addresses of the name, at least one, best first.
    ///
    /// Fails with [`FetchError::NoSuchHost`] if there are none, with [`FetchError::Resolver`] if that is not known now.
    fn resolve<'a>(&'a self, name: &'a str) -> Answer<'a>;
}

/// The resolver of the operating system.
#[derive(Debug)]
pub(super) struct SystemResolver {
    turns: Arc<Semaphore>,
}

impl SystemResolver {
    pub(super) fn new(max_concurrent_lookups: usize) -> Self {
        Self { turns: Arc::new(Semaphore::new(max_concurrent_lookups.min(Semaphore::MAX_PERMITS))) }
    }
}

impl Resolve for SystemResolver {
    fn resolve<'a>(&'a self, name: &'a str) -> Answer<'a> {
        Box::pin(async move {
            let turn =
                Arc::clone(&self.turns).acquire_owned().await.map_err(|error| FetchError::Resolver(Arc::new(error)))?;
            let name = name.to_owned();
            let lookup = tokio::task::spawn_blocking(move || {
                // The turn ends with the lookup, not with whoever waits for it.
                let _turn = turn;
                look_up(&name)
            });
            lookup.await.unwrap_or_else(|error| Err(FetchError::Resolver(Arc::new(error))))
        })
    }
}

fn look_up(name: &str) -> Result<Vec<IpAddr>, FetchError> {
    let hints = AddrInfoHints { socktype: SockType::Stream.into(), ..AddrInfoHints::default() };
    let answers = getaddrinfo(Some(name), None, Some(hints)).map_err(|error| match error.kind() {
        LookupErrorKind::NoName | LookupErrorKind::NoData => FetchError::NoSuchHost,
        _ => FetchError::Resolver(Arc::new(io::Error::from(error))),
    })?;
    let mut addresses = Vec::new();
    for answer in answers {
        // An answer that cannot be read could not be judged: the name is refused with all its other answers.
        let ip = answer.map_err(|error| FetchError::Resolver(Arc::new(error)))?.sockaddr.ip();
        if !addresses.contains(&ip) {
            addresses.push(ip);
        }
    }
    if addresses.is_empty() { Err(FetchError::NoSuchHost) } else { Ok(addresses) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_system_knows_itself() {
        let addresses = SystemResolver::new(1).resolve("localhost").await.unwrap();
        assert!(addresses.iter().all(IpAddr::is_loopback), "{addresses:?}");
    }
}
