//! The books of all grants: which of them a worker's notification is about.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use super::landing::Landing;

/// The books of all grants, by the agent that owns the memory: which of them a notification is about.
#[derive(Debug, Default)]
pub struct Landings {
    by_peer: Mutex<HashMap<Arc<str>, Weak<Landing>>>,
}

impl Landings {
    pub fn add(&self, landing: &Arc<Landing>) {
        let mut by_peer = self.by_peer.lock().unwrap_or_else(PoisonError::into_inner);
        by_peer.retain(|_, landing| landing.strong_count() > 0);
        by_peer.insert(landing.grant().peer.clone(), Arc::downgrade(landing));
    }

    /// Says that a push into one of them will follow in a moment.
    pub fn expect_push(&self) {
        let any = {
            let by_peer = self.by_peer.lock().unwrap_or_else(PoisonError::into_inner);
            by_peer.values().find_map(Weak::upgrade)
        };
        // All have the same agent.
        if let Some(landing) = any {
            landing.agent().expect_push();
        }
    }

    /// Takes a notification of a worker's lander; what is not understood is dropped.
    pub fn notified(&self, peer: &str, message: &str) {
        let landing = {
            let by_peer = self.by_peer.lock().unwrap_or_else(PoisonError::into_inner);
            by_peer.get(peer).and_then(Weak::upgrade)
        };
        let mut words = message.split(' ');
        let (kind, grant, generation) = (words.next(), words.next(), words.next());
        let (Some(landing), Some("F"), Some(grant), Some(generation)) = (landing, kind, grant, generation) else {
            return;
        };
        if grant.parse() == Ok(landing.grant().id)
            && let Ok(generation) = generation.parse()
        {
            landing.used(generation);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::transfer::{Grant, NixlAgent, mac::Key};

    #[tokio::test]
    async fn only_the_right_word_of_the_right_worker_frees_a_slot() {
        let grant = Grant {
            worker: "0123456789abcdef".into(),
            peer: "peer".into(),
            id: 7,
            address: 1 << 40,
            bytes: 1 << 20,
            key: Key::of_secret(b""),
        };
        let (landing, _orphans) = Landing::open(grant, NixlAgent::unconnected(), u64::MAX);
        let landings = Landings::default();
        landings.add(&landing);
        let (slot, _pin) = landing.claim(1, 1, Instant::now()).await.unwrap();
        let right = format!("F 7 {}", slot.generation());
        landings.notified("another", &right);
        for wrong in ["", "F", "F 7", "F 7 x", "F 7 -1", "F 7 99", "F 8 1", "L 7 1", "f 7 1", " F 7 1"] {
            landings.notified("peer", wrong);
        }
        assert_eq!(landing.open_generations(), 1);
        landings.notified("peer", &right);
        assert_eq!(landing.open_generations(), 0);
        landings.notified("peer", &right);
    }
}
