//! The policies by which a worker can be chosen.

use clap::ValueEnum;

/// How workers are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum RoutePolicy {
    /// The worker that an image belongs to, by rendezvous hashing, while it is not busier than the others
    #[default]
    MediaAffinity,
    /// The worker with the fewest requests on it
    LeastLoaded,
    /// One worker after the other
    RoundRobin,
}

impl RoutePolicy {
    /// As it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            RoutePolicy::MediaAffinity => "media-affinity",
            RoutePolicy::LeastLoaded => "least-loaded",
            RoutePolicy::RoundRobin => "round-robin",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        for policy in RoutePolicy::value_variants() {
            let value = policy.to_possible_value().unwrap();
            assert_eq!(value.get_name(), policy.name());
        }
    }
}
